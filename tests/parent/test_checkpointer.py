"""When θ_P is written to the disk, and that a run goes on from there."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.parent import Parent
from genkidama.parent import checkpointer as checkpointer_module
from genkidama.parent import parent as parent_module
from genkidama.parent.checkpointer import Checkpointer
from genkidama.protocol.messages import (
    PROTOCOL,
    Hello,
    Join,
    Push,
    Weights,
)
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runs.checkpoint import CheckpointFolder, load
from genkidama.runs.run import Run
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.rules.blend import Rule, RuleState, Update
from genkidama.server.trial import SingleTrialRun
from tests.helpers import ROOT, eventually, history, running
from tests.parent.fake_child import FakeChild, vector
from tests.parent.parents import Notes, events, experiment


async def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(2.0, returns=[5.0])
    async with (
        running(experiment(), tmp_path) as parent,
        FakeChild(parent.address, session="2") as child,
    ):
        weights = await child.enter()
        assert weights.version == 1
        np.testing.assert_array_equal(weights.vector, vector(2.0))
        assert isinstance(await child.push(4.0), Weights)
        trial = parent.server.trial
        assert (trial.version, trial.episodes, trial.steps, trial.mean_return) == (2, 1, 20, 5.0)
        assert parent.server.children["pi"].exchanges == 2
    resume = events(tmp_path, "resume")
    assert [(event["version"], event["file"]) for event in resume] == [
        (1, "version-0000000001.safetensors")
    ]
    times = [event["time"] for event in history(tmp_path)]
    assert times == sorted(times)


async def test_a_push_that_is_sent_again_after_a_restart_is_counted_once(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(2.0, returns=[5.0])
        await child.pushed(4.0)
    async with running(experiment(), tmp_path) as parent:
        async with FakeChild(parent.address) as child:
            await child.enter()
            child.sequence = 1
            await child.pushed(4.0)  # number 2, whose reply got lost
            trial = parent.server.trial
            assert (trial.version, trial.steps, parent.server.exchanges) == (2, 20, 2)
            await child.pushed(4.0)
            assert trial.version == 3
        async with FakeChild(parent.address, session="2") as another:
            await another.enter()
            await another.pushed(4.0)  # number 1 of a new process
            assert trial.version == 4


async def test_weights_before_the_first_push_are_saved_at_the_end(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent:
        # As of a learner beside the parent.
        parent.server.trial.signature = Signature.of([("layer.bias", (3,))])
        parent.server.trial.vector = np.arange(3, dtype=DTYPE)
    assert Run(tmp_path).load().vector.tolist() == [0.0, 1.0, 2.0]
    assert Run(tmp_path).snapshot.version == 0
    async with running(experiment(), tmp_path) as parent:
        assert parent.server.trial.vector.tolist() == [0.0, 1.0, 2.0]  # type: ignore[union-attr]


async def test_a_broken_checkpoint_is_passed_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        running(experiment(parent={"checkpoint_updates": 1}), tmp_path) as parent,
        FakeChild(parent.address) as child,
    ):
        await child.enter()
        for number in range(2):
            await child.pushed(2.0 * number)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.version_path(2).write_bytes(b"broken")
    async with running(experiment(), tmp_path) as parent:
        assert parent.server.trial.version == 1
    assert "version-0000000002.safetensors: not a readable checkpoint" in capfd.readouterr().err
    run = Run(tmp_path)
    assert run.final == run.load(best=True).path == folder.version_path(1)


async def test_a_run_of_another_network_is_not_taken_up(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(2.0)
    with pytest.raises(ConfigurationError, match="its checkpoints were made with network"):
        await Parent(
            experiment(network={"hidden": [7]}), out=tmp_path, listen="127.0.0.1:0"
        ).startup()


# Checkpoints on the way.


async def test_of_many_due_checkpoints_the_kept_ones_are_written(tmp_path: Path) -> None:
    settings = experiment(parent={"checkpoint_updates": 1, "checkpoint_keep": 2})
    parent = Parent(settings, out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()  # and nobody serves, as if the disk were slow
    async with FakeChild(parent.address) as child:
        await child.enter()
        for _ in range(9):
            await child.pushed(1.0)
    await parent.shutdown()
    assert CheckpointFolder(tmp_path / "checkpoints").versions() == [8, 9]


async def test_time_brings_checkpoints_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_module, "HOUSEKEEPING_SECONDS", 0.01)
    async with (
        running(experiment(parent={"checkpoint_seconds": 0.05}), tmp_path) as parent,
        FakeChild(parent.address) as child,
    ):
        await child.enter()
        folder = CheckpointFolder(tmp_path / "checkpoints")
        while len(folder.versions()) < 2:
            await child.pushed(1.0)
            await asyncio.sleep(0.01)


async def test_the_best_is_of_a_full_window_and_survives_a_restart(tmp_path: Path) -> None:
    settings = experiment(stop={"window": 2})
    best = CheckpointFolder(tmp_path / "checkpoints").best_path
    async with running(settings, tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0, returns=[100.0])
    assert not best.exists()
    for returns, mean in (([20.0], 60.0), ([0.0], 60.0), ([500.0, 500.0], 500.0)):
        again = str(mean) + str(returns)  # another process each time
        async with (
            running(settings, tmp_path) as parent,
            FakeChild(parent.address, session=again) as child,
        ):
            await child.enter()
            await child.pushed(1.0, returns=returns)
        assert load(best).snapshot.mean_return == mean


async def test_a_full_disk_stops_nobody_and_loses_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = experiment(parent={"checkpoint_updates": 1, "checkpoint_keep": 3})
    parent = Parent(settings, out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    failed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def full(*arguments: object) -> None:
        loop.call_soon_threadsafe(failed.set)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0)
        folder = CheckpointFolder(tmp_path / "checkpoints")
        await eventually(lambda: folder.versions() == [1])
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            await child.pushed(2.0)
            await failed.wait()
            for _ in range(5):
                await child.pushed(3.0)
            assert folder.versions() == [1]
            parent.stop()
            await serving
            with pytest.raises(EnvironmentFailure, match="No space left on device"):
                await parent.shutdown()
    assert folder.versions() == [1]
    assert len(history(tmp_path)) > 7  # the history was written all the same
    assert capfd.readouterr().err.count("No space left") == 2  # of the history, and of a checkpoint


async def test_a_run_of_another_signature_than_expected_is_not_taken_up(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(2.0)
    settings = experiment(parent={"signature": "0" * 64})
    with pytest.raises(ConfigurationError, match="its network has the signature"):
        await Parent(settings, out=tmp_path, listen="127.0.0.1:0").startup()


# By value: the test is the clock and the children.


def entered(
    settings: Experiment, out: Path, *names: str, rule: Rule | None = None
) -> tuple[ParameterServer, Checkpointer]:
    """A server that has taken up what is in `out`, with children that have joined."""
    server = ParameterServer(settings, trials=SingleTrialRun(settings, rule))
    checkpointer = Checkpointer(server, out, Notes())
    checkpointer.restore(0.0)
    for name in names:
        server.handle(name, Hello(protocol=PROTOCOL, name=name, session=str(out)), 0.0)
        server.handle(name, Join(signature=[("w", [1])]), 0.0)
    return server, checkpointer


def notes_of(checkpointer: Checkpointer) -> Notes:
    notes = checkpointer._journal
    assert isinstance(notes, Notes)
    return notes


async def test_a_checkpoint_is_due_after_checkpoint_seconds_and_a_failed_one_after_ten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(parent={"checkpoint_seconds": 30.0})
    server, checkpointer = entered(settings, tmp_path, "pi")
    folder = checkpointer._folder
    save, tried = folder.save_latest, []

    def noting(*copy: Any) -> Path:
        tried.append(now)
        if len(tried) == 2:
            raise EnvironmentFailure("the disk is full")
        return save(*copy)

    monkeypatch.setattr(folder, "save_latest", noting)
    looked: list[float] = []
    free = os.statvfs
    monkeypatch.setattr(
        checkpointer_module.os, "statvfs", lambda path: (looked.append(now), free(path))[1]
    )
    for now in (100.0, 101.9, 102.0, 129.9, 130.0, 159.9, 160.0, 169.9, 170.0, 199.9, 200.0):
        exchange(server, checkpointer, "pi", now)
        await checkpointer.keep(now)
    assert tried == [130.0, 160.0, 170.0, 170.0, 200.0]  # the failed one, too
    assert looked == [100.0, 102.0, 129.9, 159.9, 170.0, 199.9]


def exchange(server: ParameterServer, checkpointer: Checkpointer, child: str, now: float) -> None:
    sequence = server.children[child].sequence + 1
    weights = np.full(1, server.trial.version + 1, DTYPE)
    reply = server.handle(child, Push(version=0, sequence=sequence, vector=weights), now)
    assert isinstance(reply, Weights)
    checkpointer.after_push()


async def test_who_is_excluded_is_saved_though_nobody_pushes(tmp_path: Path) -> None:
    server, checkpointer = entered(experiment(), tmp_path, "a", "b")
    exchange(server, checkpointer, "a", 1.0)
    await checkpointer.finish(1.0)
    saved = checkpointer._folder.version_path(1)
    assert load(saved).snapshot.excluded == []
    server.command("exclude", "anna", 2.0, "b")
    await checkpointer.keep(2.0)
    assert load(saved).snapshot.excluded == ["b"]
    server.command("admit", "anna", 3.0, "b")
    await checkpointer.finish(3.0)
    assert load(saved).snapshot.excluded == []


async def test_who_is_excluded_while_a_checkpoint_is_written_is_saved_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, checkpointer = entered(experiment(), tmp_path, "a", "b")
    exchange(server, checkpointer, "a", 1.0)
    await checkpointer.finish(1.0)
    server.command("exclude", "anna", 2.0, "a")
    save = CheckpointFolder.save_latest

    def meanwhile(folder: CheckpointFolder, *copy: Any) -> Path:
        if "b" not in server.excluded:
            server.command("exclude", "anna", 2.0, "b")
        return save(folder, *copy)

    monkeypatch.setattr(CheckpointFolder, "save_latest", meanwhile)
    for _ in range(2):
        await checkpointer.keep(2.0)
    assert load(checkpointer._folder.version_path(1)).snapshot.excluded == ["a", "b"]
    assert not server.asked


async def test_after_a_restart_no_speed_is_that_of_a_child_that_is_gone(tmp_path: Path) -> None:
    settings = experiment(parent={"rule": "weighted", "rule_options": {"by": "speed"}})
    server, checkpointer = entered(settings, tmp_path, "a", "b")
    for now in (1.0, 2.0):
        for child in ("a", "b"):
            exchange(server, checkpointer, child, now)
    assert any("speed" in name for name in server.trials.rule.state())
    await checkpointer.finish(2.0)
    again, _ = entered(settings, tmp_path)
    assert not any("speed" in name for name in again.trials.rule.state())


async def test_the_newest_is_written_first_where_the_disk_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(parent={"checkpoint_updates": 1, "checkpoint_keep": 3})
    server, checkpointer = entered(settings, tmp_path, "a")
    problems = notes_of(checkpointer).problems
    save = CheckpointFolder.save_latest
    written: list[int] = []

    def once(folder: CheckpointFolder, *copy: Any) -> Path:
        """There is room for one."""
        if written:
            raise EnvironmentFailure("no space")
        written.append(copy[2].version)
        return save(folder, *copy)

    def never(folder: CheckpointFolder, *copy: Any) -> Path:
        raise EnvironmentFailure("no space")

    monkeypatch.setattr(CheckpointFolder, "save_latest", never)
    for now in (1.0, 2.0, 3.0, 4.0):
        exchange(server, checkpointer, "a", now)
        await checkpointer.keep(now)
    assert problems == ["no space"]
    monkeypatch.setattr(CheckpointFolder, "save_latest", once)
    with pytest.raises(EnvironmentFailure, match="no space"):
        await checkpointer.finish(5.0)
    assert written == [4]
    monkeypatch.setattr(CheckpointFolder, "save_latest", save)
    await checkpointer.finish(6.0)
    assert CheckpointFolder(tmp_path / "checkpoints").versions() == [2, 3, 4]


async def test_a_disk_without_room_is_told_before_a_checkpoint_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(parent={"checkpoint_seconds": 1000})
    server, checkpointer = entered(settings, tmp_path, "a")
    problems = notes_of(checkpointer).problems
    exchange(server, checkpointer, "a", 1.0)
    found = os.statvfs(tmp_path)
    for now, flags, blocks in ((1.0, 0, 9), (5.0, os.ST_RDONLY, 9), (6.0, 0, 9), (9.0, 0, 0)):
        fields = list(found[:10])
        fields[4] = blocks
        fields[8] = flags
        monkeypatch.setattr(os, "statvfs", lambda _, fields=fields: os.statvfs_result(fields))
        await checkpointer.keep(now)
        await checkpointer.keep(now + 0.5)
    reasons = [reason.partition(": ")[2] for reason in problems]
    assert reasons == [
        "cannot be written: make its disk writable again (mount -o remount,rw)",
        "has no room for two more checkpoints; free space on its disk",
    ]


async def test_exactly_those_updates_of_three_children_and_after_a_restart(tmp_path: Path) -> None:
    settings = experiment(parent={"checkpoint_updates": 2, "checkpoint_keep": 50})
    for now in (0.0, 100.0):
        server, checkpointer = entered(settings, tmp_path, "a", "b", "c")
        for turn in range(10):
            exchange(server, checkpointer, "abc"[turn % 3], now + turn)
            if checkpointer.due:
                await checkpointer.keep(now + turn)
        await checkpointer.finish(now + 10)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.versions() == [6, 10, 12, 18, 20]
    kept = [load(folder.version_path(version)).snapshot for version in (6, 12, 18)]
    assert [snapshot.updates for snapshot in kept] == [2.0, 4.0, 6.0]


async def test_the_thesis_keeps_its_whole_path_however_slow_the_machine(tmp_path: Path) -> None:
    settings = Experiment.load(ROOT / "examples/lunarlander/thesis.toml")
    server, checkpointer = entered(settings, tmp_path, "a", "b")
    for turn in range(4000):  # each exchange takes a quarter of a minute
        exchange(server, checkpointer, "ab"[turn % 2], turn * 15.0)
        if turn % 20 == 0 or checkpointer.due:
            await checkpointer.keep(turn * 15.0)
    await checkpointer.finish(60_000.0)
    assert server.stop == "2,000 exchanges a child done"
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.versions() == [200 * number for number in range(1, 21)]


async def test_pushes_that_come_faster_than_the_disk_writes_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = experiment(parent={"checkpoint_updates": 1, "checkpoint_keep": 3})
    server, checkpointer = entered(settings, tmp_path, "a")
    save = CheckpointFolder.save_latest
    written: list[int] = []

    def slow(folder: CheckpointFolder, *copy: Any) -> Path:
        written.append(copy[2].version)
        assert len(written) < 10
        exchange(server, checkpointer, "a", 1.0)
        return save(folder, *copy)

    monkeypatch.setattr(CheckpointFolder, "save_latest", slow)
    exchange(server, checkpointer, "a", 1.0)
    await checkpointer.keep(1.0)
    assert written == [1]
    assert checkpointer.due


class Sum(Rule):
    """Adds up what is pushed, and remembers it."""

    def __init__(self) -> None:
        self.sum = np.zeros(1)

    def apply(self, parent: Vector, push: Update) -> None:
        self.sum += push.vector
        parent[:] = self.sum

    def state(self) -> RuleState:
        return {"sum": self.sum}

    def restore(self, state: RuleState) -> None:
        self.sum = state.get("sum", self.sum)


async def test_what_a_rule_remembers_is_of_the_same_push_as_the_weights(tmp_path: Path) -> None:
    settings = experiment(parent={"checkpoint_updates": 2, "checkpoint_keep": 9})
    server, checkpointer = entered(settings, tmp_path, "a", rule=Sum())
    for turn in range(5):
        exchange(server, checkpointer, "a", turn)
    await checkpointer.finish(9.0)  # only now anything is written
    folder = CheckpointFolder(tmp_path / "checkpoints")
    found = {version: load(folder.version_path(version)) for version in folder.versions()}
    assert {version: float(each.vector[0]) for version, each in found.items()} == {
        2: 2.0,  # the first push is θ_P, and the rule has seen the second
        4: 9.0,
        5: 14.0,
    }
    assert {version: each.state["sum"].tolist() for version, each in found.items()} == {
        2: [2.0],
        4: [9.0],
        5: [14.0],
    }
    server, checkpointer = entered(settings, tmp_path, "b", rule=Sum())
    exchange(server, checkpointer, "b", 10.0)
    assert server.trial.vector is not None
    assert server.trial.vector.tolist() == [20.0]


async def test_a_blend_leaves_nothing_beside_the_network(tmp_path: Path) -> None:
    server, checkpointer = entered(experiment(), tmp_path, "a")
    exchange(server, checkpointer, "a", 1.0)
    await checkpointer.finish(2.0)
    path = CheckpointFolder(tmp_path / "checkpoints").version_path(1)
    assert list(safetensors.numpy.load_file(path)) == ["w"]
    assert load(path).state == {}


async def test_a_checkpoint_from_before_there_were_rules_goes_on(tmp_path: Path) -> None:
    server, checkpointer = entered(experiment(), tmp_path, "a")
    exchange(server, checkpointer, "a", 1.0)
    for key in ("rule", "rule_options"):
        del server.trial.experiment["parent"][key]
    await checkpointer.finish(2.0)
    server, _ = entered(experiment(), tmp_path)
    assert (server.trial.version, server.updates) == (1, 1.0)


async def test_a_rule_begins_anew_after_one_that_remembers_nothing(tmp_path: Path) -> None:
    """As after a search, whose trials have no rule to speak of."""

    class Replace(Rule):
        convex = True

        def apply(self, parent: Vector, push: Update) -> None:
            parent[:] = push.vector

    class Strict(Sum):
        def restore(self, state: RuleState) -> None:
            self.sum = state["sum"]

    settings = experiment(parent={"rule": "mine:Strict"})
    server, checkpointer = entered(settings, tmp_path, "a", rule=Replace())
    exchange(server, checkpointer, "a", 1.0)
    await checkpointer.finish(2.0)
    server, _ = entered(settings, tmp_path, rule=Strict())
    assert server.trial.version == 1


async def test_another_rule_is_refused_by_both_names(tmp_path: Path) -> None:
    server, checkpointer = entered(experiment(), tmp_path, "a")
    exchange(server, checkpointer, "a", 1.0)
    await checkpointer.finish(2.0)
    settings = experiment(parent={"rule": "mine:Rule"})
    with pytest.raises(ConfigurationError) as caught:
        entered(settings, tmp_path, rule=Sum())
    assert str(caught.value) == (
        f"{tmp_path}: its checkpoints were made with parent.rule = 'blend', "
        "now it is 'mine:Rule'; choose another directory with --out"
    )


async def test_a_running_mean_is_what_is_saved_and_the_run_goes_on_from_the_weights(
    tmp_path: Path,
) -> None:
    settings = experiment(parent={"alpha": 1.0, "average": 0.5, "checkpoint_updates": 1})
    async with running(settings, tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        for number in (8.0, 0.0, 4.0):
            np.testing.assert_array_equal(await child.pushed(number), vector(number))
    # The mean of 8 and 0 is 4, and half of it and of 4 is 4.
    saved = load(CheckpointFolder(tmp_path / "checkpoints").version_path(3))
    np.testing.assert_array_equal(saved.vector, vector(4.0))
    saved = load(CheckpointFolder(tmp_path / "checkpoints").version_path(2))
    np.testing.assert_array_equal(saved.vector, vector(4.0))
    async with running(settings, tmp_path) as parent, FakeChild(parent.address, "b") as child:
        weights = await child.enter()
        np.testing.assert_array_equal(weights.vector, vector(4.0))
        await child.pushed(0.0)
        assert parent.server.trial.average is not None
        np.testing.assert_array_equal(parent.server.trial.average, vector(2.0))
    plain = experiment(parent={"alpha": 1.0})
    async with running(plain, tmp_path) as parent, FakeChild(parent.address, "c") as child:
        weights = await child.enter()
        np.testing.assert_array_equal(weights.vector, vector(0.0))
        await child.pushed(6.0)
    np.testing.assert_array_equal(Run(tmp_path).load().vector, vector(6.0))


async def test_a_running_mean_that_begins_late_is_of_the_versions_from_then_on(
    tmp_path: Path,
) -> None:
    plain = experiment(parent={"alpha": 1.0})
    async with running(plain, tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        for number in (100.0, 50.0):
            await child.pushed(number)
    late = experiment(parent={"alpha": 1.0, "average": 1.0})
    for name, number, mean in (("a", 8.0, 8.0), ("b", 4.0, 6.0), ("c", 0.0, 4.0)):
        async with running(late, tmp_path) as parent, FakeChild(parent.address, name) as child:
            await child.enter()
            await child.pushed(number)
        np.testing.assert_allclose(Run(tmp_path).load().vector, vector(mean), rtol=1e-6)


@pytest.mark.parametrize("trained", [np.ones(2, DTYPE), np.ones(1), np.ones((1, 1), DTYPE)])
async def test_weights_beside_a_running_mean_that_do_not_fit_are_refused(
    tmp_path: Path, trained: np.ndarray
) -> None:
    settings = experiment(parent={"average": 0.5, "checkpoint_updates": 1})
    server, checkpointer = entered(settings, tmp_path, "a")
    exchange(server, checkpointer, "a", 1.0)
    folder, snapshot = CheckpointFolder(tmp_path / "checkpoints"), server.snapshot(1.0)
    folder.save_latest(server.trial.held, np.ones(1, DTYPE), snapshot, {"__trained__": trained})
    with pytest.raises(ConfigurationError, match="expected float32"):
        entered(settings, tmp_path)


async def test_a_parent_that_finds_itself_spoilt_goes_back_and_says_so(tmp_path: Path) -> None:
    async with (
        running(experiment(parent={"checkpoint_seconds": 0.2}), tmp_path) as parent,
        FakeChild(parent.address) as child,
    ):
        await child.enter()
        await child.pushed(2.0)
        await eventually(lambda: bool(events(tmp_path, "checkpoint")))
        spoilt = parent.server.trial.vector
        assert spoilt is not None
        spoilt[0] = np.inf  # as a bit that flips in memory
        parent.server.trial.version += 1
        await eventually(lambda: bool(events(tmp_path, "warning")))
        np.testing.assert_array_equal(await child.pushed(2.0), vector(2.0))
    (said,) = events(tmp_path, "warning")
    assert said["reason"] == (
        "θ_P holds NaN or infinity; θ_P goes back to what it was at version 1"
    )
