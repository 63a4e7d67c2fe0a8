"""One nursery for several children, which here have neither torch nor cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import psutil
import pytest

from genkidama.cli import forkserver as module
from genkidama.cli.forkserver import SharedForkServer
from genkidama.runtime.forkserver import ForkServer
from tests.child.crewmates import LIGHT, light
from tests.helpers import PATIENCE, small, until


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedForkServer]:
    monkeypatch.setattr(module, "CORES", LIGHT)
    nursery = SharedForkServer(small(), tmp_path / "nursery.log")
    yield nursery
    nursery.close()


@pytest.fixture
def child(shared: SharedForkServer) -> ForkServer:
    """What a child has in place of a nursery."""
    nursery = light()
    assert not nursery.born
    nursery.join(shared.address)
    assert nursery.born and nursery.pid is None
    return nursery


def born(child: ForkServer) -> tuple[int, bool]:
    """The nursery of a new process, and whether it was warm."""
    ours, theirs = Pipe()
    with ours, theirs:
        process = child.start("tests.child.crewmates:look", (theirs,), small())
        assert ours.poll(PATIENCE)
        found: tuple[int, bool] = ours.recv()[:2]
        process.join()
        assert process.exitcode == 0
        process.close()
    return found


def test_several_children_have_their_processes_forked_from_it(
    shared: SharedForkServer, child: ForkServer
) -> None:
    other = light()
    other.join(shared.address)
    assert {born(child), born(other), born(child)} == {(shared.pid, True)}


def test_what_a_process_prints_goes_where_its_childs_output_goes(
    shared: SharedForkServer, child: ForkServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for words, args in (("posix:write", (1, b"said\n")), ("posix:write", (2, b"sighed\n"))):
        process = child.start(words, args, small())
        process.join()
        process.close()
    assert capfd.readouterr() == ("said\n", "sighed\n")
    assert shared.log.read_text() == ""


def test_a_process_has_a_session_of_its_own(child: ForkServer) -> None:
    """Else all children's cores together would get as much of a busy CPU as one session."""
    process = child.start("time:sleep", (PATIENCE,), small())
    pid = process.pid or 0
    until(lambda: os.getsid(pid) == pid)
    process.kill()
    process.join()
    process.close()


def test_where_it_was_killed_each_child_gets_one_of_its_own(
    shared: SharedForkServer, child: ForkServer
) -> None:
    assert born(child) == (shared.pid, True)
    os.kill(shared.pid, 9)
    until(lambda: psutil.Process(shared.pid).status() == psutil.STATUS_ZOMBIE)
    parent, warm = born(child)
    assert parent == child.pid != shared.pid and warm
    assert child.born


def test_where_it_was_killed_a_program_that_only_joins_is_told(shared: SharedForkServer) -> None:
    guest = ForkServer()
    guest.join(shared.address)
    assert born(guest) == (shared.pid, True)
    os.kill(shared.pid, 9)
    until(lambda: psutil.Process(shared.pid).status() == psutil.STATUS_ZOMBIE)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            guest.start("time:sleep", (PATIENCE,), small())
    assert guest.pid is None


def test_it_ends_with_its_starter(shared: SharedForkServer, child: ForkServer) -> None:
    """A process that lives on does not keep it."""
    ours, theirs = Pipe()
    with ours, theirs:
        process = child.start("time:sleep", (PATIENCE,), small())
        process_of_nursery = psutil.Process(shared.pid)
        shared._process._close_input()
        until(lambda: process_of_nursery.status() == psutil.STATUS_ZOMBIE)
        os.kill(process.pid or 0, 9)


def test_closed_it_leaves_nothing_behind(shared: SharedForkServer) -> None:
    folder = Path(shared.address).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    shared.close()
    assert not folder.exists() and not psutil.pid_exists(shared.pid)
