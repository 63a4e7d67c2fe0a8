"""A run's directory: its history, and whose it may be."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.parent import Parent
from genkidama.parent import parent as parent_module
from genkidama.parent.checkpointer import Checkpointer
from genkidama.parent.extensions import Observer
from genkidama.parent.run_writer import RunWriter
from genkidama.protocol.shard import WHOLE
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.history import HistoryTail
from genkidama.runs.run import Run
from genkidama.runs.status import RunStatus
from genkidama.server.events import CheckpointWritten, Stopped, from_line
from genkidama.server.parameter_server import ParameterServer
from tests.helpers import eventually, history, running
from tests.parent.fake_child import FakeChild
from tests.parent.parents import events, experiment


async def test_a_history_that_cannot_be_written_is_reported_once_and_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parent_module, "HOUSEKEEPING_SECONDS", 0.01)
    tries = asyncio.Semaphore(0)
    write = os.write

    def full(*arguments: object) -> int:
        tries.release()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with running(experiment(), tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        monkeypatch.setattr(os, "write", full)
        await child.pushed(1.0)
        for _ in range(5):
            await tries.acquire()
        monkeypatch.setattr(os, "write", write)
        await child.pushed(2.0)
    assert [event["version"] for event in events(tmp_path, "exchange")] == [1, 2]
    assert capfd.readouterr().err.count("No space left") == 1


async def test_a_new_directory_for_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(2):
        parent = Parent(experiment(), listen="127.0.0.1:0")
        await parent.startup()
        await parent.shutdown()
        assert parent.out is not None
        names.append(parent.out)
    assert len(set(names)) == 2
    assert all(str(name).startswith("runs/test-20") for name in names)


# By value: the test is the clock.


class Owner:
    """A parent without sockets. The test is the clock."""

    def __init__(self, settings: Experiment, out: Path) -> None:
        trials = Checkpointer.make_trials(settings, WHOLE)
        self.server = ParameterServer(settings, out.name, trials)
        self.status = RunStatus(settings)
        self.observers: list[Observer] = []
        self.command = "again --out"
        self.fallback: Callable[[bytes], None] = lambda _: None
        self.now: Callable[[], float] = lambda: 5.0
        self.out = out

    def writer(self) -> RunWriter:
        return RunWriter(self, Checkpointer, self.out, structlog.get_logger())


def records(settings: Experiment, out: Path) -> RunWriter:
    return Owner(settings, out).writer()


async def test_a_new_run_begins_its_history_and_writes_its_settings(tmp_path: Path) -> None:
    settings = experiment()
    opened = records(settings, tmp_path)
    await opened.finish()
    (start,) = history(tmp_path)
    assert (start["time"], start["event"], start["run"]) == (5.0, "start", tmp_path.name)
    assert Experiment.load(tmp_path / "experiment.toml") == settings


async def test_a_run_of_the_other_kind_is_refused_and_nothing_stays_open(tmp_path: Path) -> None:
    await records(experiment(), tmp_path).finish()
    file = tmp_path / "experiment.toml"
    text = file.read_text()
    file.write_text(f"{text}[search]\n")
    with pytest.raises(ConfigurationError, match="holds a search, and this is a plain run"):
        records(experiment(), tmp_path)
    file.write_text(text)
    await records(experiment(), tmp_path).finish()  # the history is free again


async def test_the_history_tells_a_problem_once_and_again_when_it_returns(tmp_path: Path) -> None:
    opened = records(experiment(), tmp_path)
    for problem in ("no space", "no space", "", "no space"):
        if problem:
            opened.complain(problem)
        else:
            opened.note(CheckpointWritten(time=5.0, version=1, update=1.0, file="…"))
    await opened.finish()
    assert [event["reason"] for event in events(tmp_path, "warning")] == ["no space"] * 2


async def test_a_run_tells_later_that_its_history_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fallback: list[bytes] = []
    owner = Owner(experiment(), tmp_path)
    owner.fallback = fallback.append
    opened = owner.writer()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(2):
            await opened.keep()
    (told,) = fallback  # at once, past the disk
    await opened.finish()
    (warning,) = events(tmp_path, "warning")
    assert "history.jsonl: cannot be written: No space left on device" in warning["reason"]
    assert warning["reason"].endswith("the run goes on, free space on its disk")
    assert from_line(told) == from_line(warning)


async def test_limits_are_written_where_a_starter_begins_again(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    begun = tmp_path / "logs" / "experiment.toml"
    begun.write_text((settings := experiment(stop={"steps": 100})).to_toml())
    opened = records(settings, tmp_path)
    opened._server.command("extend", "anna", 5.0, share=1.0)
    await opened.keep()
    assert Experiment.load(begun) == settings.with_settings({"stop.steps": 200})
    await opened.finish()


async def test_limits_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    opened = records(experiment(stop={"steps": 100}), tmp_path)
    settings = tmp_path / "experiment.toml"
    opened._server.command("extend", "anna", 5.0, share=1.0)
    settings.unlink()
    settings.mkdir()
    for _ in range(2):
        await opened.keep()
    settings.rmdir()
    await opened.finish()
    assert Experiment.load(settings).stop.steps == 200
    (warning,) = events(tmp_path, "warning")
    assert "experiment.toml: cannot be written: Is a directory" in warning["reason"]


async def test_a_directory_that_was_deleted_is_made_again_with_all_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_module, "HOUSEKEEPING_SECONDS", 0.02)
    out, settings = tmp_path / "run", experiment(parent={"checkpoint_seconds": 0.05})
    async with running(settings, out) as parent, FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0)
        await eventually(lambda: bool(Run(out).checkpoints))
        follower = HistoryTail(out / "history.jsonl")
        assert follower.read() == []
        shutil.rmtree(out / "checkpoints")
        await eventually(lambda: bool(Run(out).checkpoints))
        shutil.rmtree(out)
        await eventually(lambda: bool(Run(out).checkpoints))
        await child.pushed(2.0)
    assert Run(out).experiment == settings and Run(out).snapshot.version == 2
    warnings = [warning["reason"] for warning in events(out, "warning")]
    assert "run: was deleted or moved while the run goes on" in warnings[-1]
    # Whoever follows the history goes on.
    assert any(b"was deleted" in line for line in follower.read())
    assert events(out, "exchange")[-1]["version"] == 2


async def test_the_history_is_on_the_disk_before_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it has all that the checkpoint has."""
    path = tmp_path / "history.jsonl"
    really, saved = os.fsync, CheckpointFolder.save_latest
    flushed = [0]
    versions = []

    def fsync(descriptor: int) -> None:
        really(descriptor)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            flushed.append(path.read_bytes().count(b'"exchange"'))

    def save(folder: CheckpointFolder, *copy: Any) -> Path:
        versions.append((copy[2].version, flushed[-1]))
        return saved(folder, *copy)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(CheckpointFolder, "save_latest", save)
    settings = experiment(parent={"checkpoint_updates": 2, "checkpoint_seconds": 0.0})
    async with running(settings, tmp_path) as parent:
        async with FakeChild(parent.address) as child:
            await child.enter()
            for _ in range(5):
                await child.pushed(1.0)
        await eventually(lambda: len(versions) >= 2, "checkpoints")
    assert versions and all(version <= told for version, told in versions), versions
    assert flushed[-1] == 5


async def test_an_event_of_its_own_stands_behind_what_happened_before(tmp_path: Path) -> None:
    opened = records(experiment(), tmp_path)
    opened._server.refuse("pi", ProtocolError("malformed", "noise"), 6.0)
    opened.note(Stopped(time=7.0, reason="SIGTERM", version=0))
    await opened.finish()
    assert [event["event"] for event in history(tmp_path)] == ["start", "refused", "stop"]


async def test_times_never_go_back_in_a_history(tmp_path: Path) -> None:
    clock = itertools.count()
    owner = Owner(experiment(), tmp_path)
    owner.now = lambda: float(next(clock))
    opened = owner.writer()
    noise = ProtocolError("malformed", "noise")
    written = CheckpointWritten(time=opened.now(), version=1, update=1.0, file="…")
    opened._server.refuse("pi", noise, opened.now())
    opened.note(written)
    opened._server.refuse("pi", noise, opened.now())
    opened.complain("no space")
    await opened.finish()
    told = history(tmp_path)
    kinds = ["start", "refused", "checkpoint", "refused", "warning"]
    assert [event["event"] for event in told] == kinds
    times = [event["time"] for event in told]
    assert times == sorted(times)
