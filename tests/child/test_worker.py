"""Worker processes, with the test in the place of their orchestrator."""

from __future__ import annotations

import multiprocessing
import re
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np
import pytest

from genkidama.child import worker
from genkidama.child.capacity import GROWTH_BYTES, RESERVE_BYTES, SETTLING_BYTES
from genkidama.child.worker import (
    EPISODE,
    FAILED,
    RECORD,
    RECYCLED,
    MemoryGuard,
    StopWorker,
    WorkerPipe,
    run_worker,
)
from genkidama.errors import ConfigurationError
from tests.helpers import PATIENCE


class Yard:
    """A line, its other end, and the memory that it looks at."""

    def __init__(self) -> None:
        self.ours, self.theirs = multiprocessing.Pipe()
        self.stop = np.zeros(1, np.bool_)
        self.element = np.zeros(1, np.bool_)

    def line(self, waits: bool = True) -> WorkerPipe:
        return WorkerPipe(self.theirs, self.stop, self.element if waits else None)


@pytest.fixture
def yard() -> Iterator[Yard]:
    found = Yard()
    yield found
    found.ours.close()
    found.theirs.close()


# The line.


def test_a_record_is_sent_as_it_was_reported(yard: Yard) -> None:
    line = yard.line()
    line.check()
    line.report(EPISODE, -1.5, 7)
    assert RECORD.unpack(yard.ours.recv_bytes()) == (EPISODE, -1.5, 7)


def test_nothing_is_reported_once_the_process_should_end(yard: Yard) -> None:
    yard.stop[0] = True
    for step in (yard.line().check, lambda: yard.line().report(EPISODE)):
        with pytest.raises(StopWorker):
            step()
    assert not yard.ours.poll()


def test_the_lines_end_is_the_processs_end(yard: Yard) -> None:
    yard.ours.close()
    with pytest.raises(StopWorker):
        yard.line().check()
    with pytest.raises(StopWorker):
        yard.line().report(EPISODE)
    with pytest.raises(StopWorker):
        yard.line().pause()


@pytest.mark.parametrize("stop", [False, True])
def test_who_pauses_lights_its_element_says_so_and_sleeps_until_all_are_released(
    yard: Yard, stop: bool
) -> None:
    ended: list[bool] = []

    def pause() -> None:
        try:
            yard.line().pause()
        except StopWorker:
            ended.append(True)
        else:
            ended.append(False)

    thread = threading.Thread(target=pause, daemon=True)
    thread.start()
    assert yard.ours.recv_bytes() == b""
    assert yard.element[0]
    assert thread.is_alive()
    yard.stop[0] = stop
    yard.ours.send_bytes(b"")
    thread.join(PATIENCE)
    assert ended == [stop]


def test_who_never_waits_goes_on_at_once(yard: Yard) -> None:
    yard.line(waits=False).pause()
    assert not yard.ours.poll()
    assert not yard.element[0]


# The guard.


FIRST = 100 << 20


def leaks(
    monkeypatch: pytest.MonkeyPatch, *looks: tuple[float, int], episodes: int = 1
) -> list[bool]:
    """What a guard says at these seconds, with so many bytes more than at first, if so many
    episodes end between two looks."""
    guard = MemoryGuard()
    found = []
    for number, (now, more) in enumerate(looks, 1):
        monkeypatch.setattr(worker.time, "monotonic", lambda now=now: 1000.0 + now)
        monkeypatch.setattr(worker, "own_bytes", lambda more=more: FIRST + more)
        found.append(guard.leaks(number * episodes))
    return found


def test_a_process_leaks_once_it_has_grown_too_much_since_it_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled = 5 * GROWTH_BYTES  # libraries and caches
    looks = [(0.0, 0), (2.0, settled), (6.0, settled), (7.5, settled + GROWTH_BYTES)]
    assert leaks(monkeypatch, *looks, (9.0, settled + GROWTH_BYTES + 1)) == [False] * 4 + [True]


def test_what_an_episode_keeps_until_it_ends_is_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [(0.0, 0), (6.0, 0), (8.0, GROWTH_BYTES + 1), (10.0, GROWTH_BYTES + SETTLING_BYTES)]
    over = (12.0, GROWTH_BYTES + SETTLING_BYTES + 1)
    monkeypatch.setattr(worker, "available_bytes", lambda: RESERVE_BYTES + 1)
    assert leaks(monkeypatch, *looks, over, episodes=0) == [False] * 4 + [True]
    monkeypatch.setattr(worker, "available_bytes", lambda: RESERVE_BYTES)
    assert leaks(monkeypatch, *looks[:3], episodes=0) == [False, False, True]
    assert leaks(monkeypatch, *looks[:3]) == [False, False, True]


def test_a_process_that_eats_memory_at_once_is_found_out_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [(0.0, 0), (0.9, 99 << 30), (1.1, SETTLING_BYTES), (2.2, SETTLING_BYTES + 1)]
    assert leaks(monkeypatch, *looks) == [False, False, False, True]
    assert leaks(monkeypatch, (0.0, 0), (1.1, SETTLING_BYTES + 1)) == [False, True]


# A life.


@pytest.fixture
def _own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ended(pipe: Connection, life: Callable[[], int]) -> object:
    """The exit code of a process that lives like this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "limit_growth", lambda by: None)  # the tests go on after it
        with pytest.raises(SystemExit) as exit:
            run_worker(pipe, life)
    return exit.value.code


@pytest.mark.usefixtures("_own_signals")
def test_a_life_ends_with_its_exit_code_and_ctrl_c_does_not_end_it(yard: Yard) -> None:
    def life() -> int:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        return RECYCLED

    assert ended(yard.theirs, life) == RECYCLED
    assert not yard.ours.poll()


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize(
    ("error", "reason", "traced"),
    [
        (ZeroDivisionError("by nothing"), b"ZeroDivisionError: by nothing", True),
        (ConfigurationError("no such game"), b"ConfigurationError: no such game", False),
        (ValueError("x" * 5000), b"ValueError: " + b"x" * 488 + " …".encode(), True),
    ],
    ids=["a bug", "a mistake", "a long one"],
)
def test_what_a_life_raises_is_told_and_only_what_is_no_users_mistake_has_a_traceback(
    yard: Yard,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    reason: bytes,
    traced: bool,
) -> None:
    def life() -> int:
        raise error

    assert ended(yard.theirs, life) == 1
    message = yard.ours.recv_bytes()
    assert RECORD.unpack(message[: RECORD.size]) == (FAILED, 0.0, 0)
    place = re.escape(f" (tests/child/test_worker.py:{life.__code__.co_firstlineno + 1}, in life)")
    expected = re.escape(reason.decode()) + (place if traced else "")
    assert re.fullmatch(expected, message[RECORD.size :].decode())
    assert ("Traceback" in capsys.readouterr().err) == traced


@pytest.mark.parametrize("after", ["episode", "update"])
def test_it_waits_at_the_start_and_after_what_it_was_told_only(yard: Yard, after: str) -> None:
    line = WorkerPipe(yard.theirs, yard.stop, yard.element, after)
    for what in ("episode", "update", "start"):
        yard.element[0] = False
        if what in (after, "start"):
            yard.ours.send_bytes(b"")  # it is released before it waits
        line.pause(what)
        assert yard.element[0] == (what in (after, "start"))
        assert yard.ours.poll() == (what in (after, "start"))
        while yard.ours.poll():
            assert yard.ours.recv_bytes() == b""
