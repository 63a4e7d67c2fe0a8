"""What a search keeps: the trials' directories and the study, a real one. The test is the clock."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hypertrick.records import PhaseRecord, TrialRecord
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.search import Search, SearchTrial
from genkidama.plugins.hypertrick.study import Study, open_study, storage_url
from genkidama.plugins.hypertrick.trial_store import TrialStore, _events
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push, Weights, Welcome
from genkidama.protocol.vector import DTYPE
from genkidama.runs.checkpoint import Checkpoint, CheckpointFolder
from genkidama.runs.status import RunStatus
from genkidama.server.parameter_server import ParameterServer
from tests.helpers import small
from tests.parent.parents import Notes
from tests.stories import PLAN, as_json

pytestmark = pytest.mark.usefixtures("ready_tables")


class World:
    """One search, its keeper, and a node `a` that trains ten steps a push."""

    def __init__(
        self,
        out: Path,
        resumes: bool = False,
        space: dict[str, Any] | None = None,
        method: str = "hypertrick",
    ) -> None:
        plan = {
            "trials": 3,
            "phases": 2,
            "phase_steps": 10,
            "method": method,
            "space": space or {"algorithm.gamma": [0.9, 0.99]},
        }
        if method == "hypertrick":
            plan["eviction_rate"] = 0.5
        experiment = Experiment.from_dict({"stop": {"window": 1}, "search": plan})
        self.out = out
        self.notes = Notes()
        self.problems = self.notes.problems
        self.search = Search(experiment)
        self.server = ParameterServer(experiment, "run", self.search)
        self.arguments = (experiment, out)
        if resumes:
            (out / "experiment.toml").touch()
        self.keeper = TrialStore(self.server, out, self.notes)
        self.study = self.keeper._study
        self.resumed = self.keeper.restore(self.now)
        self.sequence = 0

    @property
    def now(self) -> float:
        return self.notes.time

    @now.setter
    def now(self, seconds: float) -> None:
        self.notes.time = seconds

    async def enter(self) -> int:
        """The node is given a trial, as soon as the study has one."""
        while True:
            await self.keep(self.now)
            hello = Hello(protocol=PROTOCOL, name="a", session="s")
            reply = self.server.handle("", hello, self.now)
            assert isinstance(reply, Welcome)
            if reply.trial is not None:
                self.server.handle("a", Join(signature=[("w", [1])]), self.now)
                return reply.trial
            await asyncio.sleep(0.001)

    async def keep(self, now: float) -> None:
        """All that is due is written, the study too."""
        await self.keeper.keep(now)
        if self.keeper._reporting is not None:
            await asyncio.wait((self.keeper._reporting,))

    def push(self, trial: int, value: float) -> Weights:
        self.sequence += 1
        push = Push(
            version=0,
            sequence=self.sequence,
            steps=10,
            returns=[value],
            trial=trial,
            vector=np.full(1, value, DTYPE),
        )
        reply = self.server.handle("a", push, self.now)
        assert isinstance(reply, Weights), reply
        self.keeper.after_push()
        return reply

    def latest(self, trial: int) -> Checkpoint:
        found = CheckpointFolder(self.out / f"trials/{trial:04d}/checkpoints").latest()
        assert found is not None
        return found

    def reports(self, trial: int) -> int:
        return len(self.study.trials()[trial].phases)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_phases_weights_are_those_of_its_end(world: World) -> None:
    trial = await world.enter()
    world.push(trial, 5.0)
    vector = world.search.trials[trial].vector
    assert vector is not None
    vector[:] = 9.0  # what comes later does not reach what was copied
    assert world.keeper.due
    await world.keep(1.0)
    assert world.latest(trial).vector.tolist() == [5.0]
    assert world.reports(trial) == 1
    assert Experiment.load(world.out / f"trials/{trial:04d}/experiment.toml").search is None
    await world.keeper.finish(2.0)


async def test_a_report_in_the_study_has_its_weights_on_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = await world.enter()
    world.push(trial, 5.0)

    def full(*arguments: Any) -> None:
        raise EnvironmentFailure("no space")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFolder, "save_latest", full)
        await world.keep(1.0)
    assert world.problems == ["no space"]
    assert world.reports(trial) == 0
    await world.keep(2.0)  # the disk is left alone for a while
    assert world.reports(trial) == 0
    await world.keep(100.0)
    assert world.reports(trial) == 1
    assert world.latest(trial).vector.tolist() == [5.0]
    await world.keeper.finish(101.0)


async def test_weights_that_come_while_a_report_is_written_and_the_parent_ends_are_kept(
    world: World,
) -> None:
    trial = await world.enter()
    world.push(trial, 5.0)
    await world.keeper.keep(1.0)  # the study is being told of the first phase
    assert world.keeper._reporting is not None
    before = world.keeper.after_push
    world.keeper.after_push = lambda: False  # type: ignore[method-assign]  # it shuts down
    assert world.push(trial, 7.0).next
    await asyncio.wait((world.keeper._reporting,))
    world.keeper.after_push = before  # type: ignore[method-assign]
    await world.keeper.finish(2.0)
    assert world.latest(trial).vector.tolist() == [7.0]


async def test_the_best_is_that_of_the_best_phase_and_an_ended_trial_frees_its_vector(
    world: World,
) -> None:
    trial = await world.enter()
    for value in (7.0, 3.0):
        reply = world.push(trial, value)
        await world.keep(1.0)
    assert reply.next
    assert world.search.trials[trial].vector is None
    folder = CheckpointFolder(world.out / f"trials/{trial:04d}/checkpoints")
    assert world.latest(trial).vector.tolist() == [3.0]
    assert folder.versions() == [2]  # one beside the best
    folder.version_path(2).unlink()
    assert world.latest(trial).vector.tolist() == [7.0]
    await world.keeper.finish(2.0)


async def test_what_can_be_known_is_put_back_after_the_directory_was_deleted(world: World) -> None:
    trial = await world.enter()
    world.push(trial, 7.0)
    await world.keep(1.0)
    shutil.rmtree(world.out)
    world.out.mkdir()
    world.keeper.forget_files()
    world.push(trial, 3.0)
    await world.keep(2.0)
    folder = CheckpointFolder(world.out / f"trials/{trial:04d}/checkpoints")
    folder.version_path(2).unlink()
    assert world.latest(trial).vector.tolist() == [3.0]  # the best of those that are left
    await world.keeper.finish(3.0)
    assert [len(known.phases) for known in Study(*world.arguments, True).trials()][trial] == 2


@pytest.mark.parametrize(
    "space",
    [
        {"algorithm.gamma": [0.9, 0.99]},
        {"ga3c.training_batch": [0]},  # the default: a checkpoint lacks the table
        {"environment.wrappers": [[{"name": "FlattenObservation"}]]},  # and adds the options
    ],
    ids=str,
)
async def test_a_search_goes_on_with_the_weights_of_a_trial_under_way(
    tmp_path: Path, space: dict[str, Any]
) -> None:
    before = World(tmp_path, space=space)
    trial = await before.enter()
    before.push(trial, 5.0)
    await before.keeper.finish(1.0)
    after = World(tmp_path, resumes=True, space=space)
    assert after.resumed is not None
    assert (after.resumed.trials, after.resumed.reports) == (len(before.search.trials), 1)
    again = after.search.trials[trial]
    assert again.vector is not None
    assert (again.vector.tolist(), again.version, again.owner) == ([5.0], 1, "a")
    assert await after.enter() == trial
    await after.keeper.finish(2.0)


def rows(status: RunStatus) -> dict[str, Any]:
    """What the status says of a search, without what only pushes tell."""
    found: dict[str, Any] = as_json(status.snapshot(100.0))["search"]
    for row in found["trials"]:
        del row["mean_return"]
    return found


async def test_a_resumed_search_shows_the_trials_of_before(tmp_path: Path) -> None:
    before = World(tmp_path)
    for value in (5.0, 7.0, 6.0):  # the third is the second trial's first
        trial = await before.enter()
        before.now += 10.0
        before.push(trial, value)
    await before.keeper.finish(before.now)
    told, resumed = (RunStatus(before.server.experiment) for _ in range(2))
    told.take(before.server.take_events())
    after = World(tmp_path, resumes=True)
    assert after.resumed is not None
    resumed.take([*after.notes.recalled, after.resumed])
    assert rows(resumed) == rows(told)
    assert (rows(told)["count"], rows(told)["states"]) == (2, {"finished": 1, "running": 1})
    after.sequence = before.sequence
    assert await after.enter() == 1
    after.now += 10.0
    after.push(1, 8.0)
    resumed.take(after.server.take_events())
    *_, phase = rows(resumed)["trials"][1]["phases"]
    assert phase == {"node": "a", "from": 30.0, "to": 40.0, "score": 8.0}  # its clock goes on
    await after.keeper.finish(after.now)


def test_between_two_nodes_a_trial_has_none() -> None:
    trial = SearchTrial(window=1, number=0)
    for phase, (node, start, end) in enumerate([("a", 5.0, 10.0), ("b", 12.0, 20.0)]):
        trial.phases.append(
            PhaseRecord(
                phase=phase,
                node=node,
                start=start,
                end=end,
                metric=end,
                mode=Mode.SELECTION,
                verdict=Verdict.CONTINUE,
            )
        )
    status = RunStatus(small(search=PLAN | {"phases": 3}))
    status.take(_events([trial], 50.0))
    assert rows(status)["trials"][0]["phases"] == [
        {"node": "a", "from": 0.0, "to": 5.0, "score": 10.0},
        {"node": "b", "from": 7.0, "to": 15.0, "score": 20.0},
        {"node": "b", "from": 15.0, "to": None, "score": None},
    ]


async def test_a_search_goes_on_in_a_directory_that_was_renamed(tmp_path: Path) -> None:
    odd, renamed = tmp_path / "what?{x}%20", tmp_path / "renamed"
    odd.mkdir()
    await lost(odd)
    odd.rename(renamed)
    world = World(renamed, resumes=True)
    assert world.reports(0) == 1
    await world.keeper.finish(2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["renamed"]
    url = storage_url("", renamed)
    assert open_study(url, "renamed", only=True).study_name == odd.name


async def test_what_the_study_could_not_take_is_written_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = await world.enter()
    world.push(trial, 5.0)

    async def away(*arguments: Any) -> None:
        raise EnvironmentFailure("the database is away")

    with monkeypatch.context() as patched:
        patched.setattr(Study, "write", away)
        await world.keep(1.0)
    assert world.problems == ["the database is away"]
    await world.keep(100.0)
    assert world.reports(trial) == 1
    await world.keeper.finish(101.0)


async def test_a_sampler_that_fails_is_asked_again_until_the_search_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def moody(*arguments: Any) -> None:
        raise EnvironmentFailure("not today")

    with monkeypatch.context() as patched:
        patched.setattr(Study, "sample", moody)
        await world.keep(1.0)
        assert world.keeper._sampling is not None
        await world.keeper._sampling
    assert world.problems == ["not today"] and not world.keeper.due
    world.now = 100.0
    assert world.keeper.due
    assert await world.enter() == 0
    world.server.stop = "it is over"
    assert not world.keeper._wanted
    await world.keeper.finish(101.0)


# A study that is locked, or lost.


async def test_nothing_waits_for_a_study_that_another_program_has_locked(world: World) -> None:
    trial = await world.enter()
    with closing(sqlite3.connect(world.out / "study.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for value in (5.0, 6.0):
            world.push(trial, value)
            async with asyncio.timeout(5.0):  # SQLite waits for a minute
                await world.keeper.keep(1.0)
            assert world.latest(trial).vector.tolist() == [value]
        other.execute("ROLLBACK")
    async with asyncio.timeout(10.0):
        await world.keeper.finish(2.0)
    assert [len(known.phases) for known in Study(*world.arguments, True).trials()][trial] == 2


async def lost(
    tmp_path: Path, values: tuple[float, ...] = (5.0,), method: str = "hypertrick"
) -> None:
    """A search that has reported, and whose parent is gone."""
    world = World(tmp_path, method=method)
    trial = await world.enter()
    for value in values:
        world.push(trial, value)
    await world.keep(1.0)
    await world.keeper.finish(2.0)


@pytest.mark.parametrize("how", ["deleted", "emptied"])
async def test_a_search_does_not_go_on_without_its_study(tmp_path: Path, how: str) -> None:
    """Its new trials would take the old ones' weights over, with other settings."""
    await lost(tmp_path)
    for path in tmp_path.glob("study.db*"):
        path.unlink() if how == "deleted" or path.name != "study.db" else path.write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"the study is empty, though .*trials holds 1"):
        World(tmp_path, resumes=True)


async def test_a_directory_of_a_trial_that_the_study_does_not_know_is_put_aside(
    tmp_path: Path,
) -> None:
    await lost(tmp_path)
    shutil.copytree(tmp_path / "trials/0000", tmp_path / "trials/0002")
    world = World(tmp_path, resumes=True)
    assert [path.name for path in tmp_path.glob("trials/lost-0002-*")]
    assert not (tmp_path / "trials/0002").exists() and "is not in the study" in world.problems[0]
    await world.keeper.finish(0.0)


async def test_trials_of_somebody_elses_study_name_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lost(tmp_path)
    params = {"algorithm.gamma": 0.9, "environment.id": "subprocess:Popen"}
    theirs = TrialRecord(number=0, state="running", params=params, phases=[], checkpoint="")
    monkeypatch.setattr(Study, "trials", lambda _: [theirs])
    with pytest.raises(ConfigurationError, match="may not have 'subprocess' imported"):
        World(tmp_path, resumes=True)


@pytest.mark.parametrize("method", ["hypertrick", "pbt"])
async def test_weights_that_were_trained_with_other_settings_are_not_taken(
    tmp_path: Path, method: str
) -> None:
    """But of a population one may have copied another before the study heard of it."""
    await lost(tmp_path, method=method)
    folder = CheckpointFolder(tmp_path / "trials/0000/checkpoints")
    found = folder.latest()
    assert found is not None
    other = {0.9: 0.99, 0.99: 0.9}[found.snapshot.experiment["algorithm"]["gamma"]]
    found.snapshot.experiment["algorithm"]["gamma"] = other
    folder.save_latest(found.signature, found.vector, found.snapshot)
    world = World(tmp_path, resumes=True, method=method)
    assert (world.search.trials[0].vector is None) == (method == "hypertrick")
    told = [problem for problem in world.problems if "was trained with other settings" in problem]
    assert len(told) == (method == "hypertrick")
    await world.keeper.finish(0.0)
