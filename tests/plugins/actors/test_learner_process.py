"""A parent with a real learner beside it: what children push is learned, whoever dies."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from genkidama.child.orchestrator import CORES
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.parent import Parent
from genkidama.plugins.actors import learner_process as module
from genkidama.plugins.actors.rule import Columns, Experience
from genkidama.plugins.actors.step_replay import FILE
from genkidama.protocol.messages import Goodbye, Leave, Pull, Refusal, Weights, encode
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runtime import forkserver, watchdog
from genkidama.runtime.forkserver import Server, begin
from genkidama.runtime.pacing import RestartPolicy
from tests.helpers import Started, eventually, gone, running, starting, until
from tests.helpers import history as history_of
from tests.learning.blocks import GOES_ON, block
from tests.parent.fake_child import FakeChild
from tests.parent.parents import events

COLUMNS = Columns(2, 1)


def experiment(batch: int = 32, **sections: dict[str, Any]) -> Experiment:
    return Experiment.from_dict(
        {
            "name": "test",
            "environment": {"id": "tests.tiny:Faulty"},
            "network": {"hidden": [4]},
            "optimizer": {"learning_rate": 0.01},
            **sections,
            "parent": {"rule": "experience", "rule_options": {"batch": batch, "backlog": 50}},
        }
    )


def rows(count: int = 32, first: int = 0) -> np.ndarray:
    return block([[(first + number, GOES_ON) for number in range(count)]], COLUMNS).reshape(-1)


def rule_of(parent: Parent) -> Experience:
    rule = parent.server.trials.rule
    assert isinstance(rule, Experience)
    return rule


def child_of(parent: Parent, name: str = "pi", session: str = "1") -> FakeChild:
    signature = parent.server.trial.signature
    assert signature is not None, "a parent with a learner knows its network"
    child = FakeChild(parent.address, name, session, signature)
    child.kind = "experience"
    return child


def learner_process_of(parent: Parent) -> module.LearnerProcess:
    (learner,) = parent.companions
    assert isinstance(learner, module.LearnerProcess)
    return learner


def pid_of(parent: Parent) -> int:
    worker = learner_process_of(parent)._worker
    assert worker is not None
    return worker.pid


def learner_of(parent: Parent) -> psutil.Process:
    return psutil.Process(pid_of(parent))


async def batches(parent: Parent, count: int) -> None:
    await eventually(lambda: rule_of(parent).batches >= count, f"{count} batches")


async def test_what_is_pushed_is_learned_and_the_next_answer_has_it(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent, child_of(parent) as child:
        first = (await child.enter()).vector
        assert first is not None and first.any(), "θ_P is there before anybody has pushed"
        answered = await child.pushed(rows())
        assert answered.tobytes() == first.tobytes()
        await batches(parent, 1)
        again = await child.ask(Pull())
        assert isinstance(again, Weights) and again.vector is not None
        assert again.vector.tobytes() != first.tobytes()
        assert again.version == 1
        none_newer = await child.ask(Pull())
        assert isinstance(none_newer, Weights) and none_newer.vector is None
        for _ in range(5):
            await child.pushed(rows())
        await batches(parent, 6)
        assert parent.server.trial.steps == 60
        learner = learner_of(parent)
    assert not learner.is_running()
    found = events(tmp_path, "measures")
    assert [line["batches"] for line in found] == [1, 2, 3, 4, 5, 6]
    assert found[0]["backend"] == "learner"
    assert {"kl", "lag", "learning_rate", "steps", "too_many", "too_old", "updates"} <= found[
        0
    ].keys()


async def test_a_pull_that_may_wait_is_answered_when_there_is_something_new(tmp_path: Path) -> None:
    async with (
        running(experiment(stop={"steps": 20}), tmp_path) as parent,
        child_of(parent) as waiting,
        child_of(parent, "other") as other,
    ):
        first = (await waiting.enter()).vector
        await other.enter()
        await waiting.connection.send(encode(Pull(wait=True)))
        await other.pushed(rows())
        news = await waiting.hear()
        assert isinstance(news, Weights) and news.vector is not None and first is not None
        assert news.vector.tobytes() != first.tobytes()
        await waiting.connection.send(encode(Pull(wait=True)))
        await waiting.connection.send(encode(Pull(wait=True)))
        older = await waiting.hear()
        assert isinstance(older, Weights) and older.vector is None and not older.stop
        # The second one waits still, and so hears of the end.
        await other.pushed(rows())
        over = await waiting.hear()
        while isinstance(over, Weights) and not over.stop:  # the learner may have been sooner
            over = await waiting.ask(Pull(wait=True))
        assert isinstance(over, Weights) and over.stop == "20 steps done"


async def test_what_comes_next_is_answered_behind_the_pull_that_waits(tmp_path: Path) -> None:
    async with running(experiment(batch=64), tmp_path) as parent, child_of(parent) as child:
        await child.enter()
        await child.connection.send(encode(Pull(wait=True)))
        pulled = await child.push(rows())
        assert isinstance(pulled, Weights) and (pulled.version, pulled.vector) == (0, None)
        answered = await child.hear()
        assert isinstance(answered, Weights) and answered.version == 1
        await child.connection.send(encode(Pull(wait=True)))
        await child.connection.send(encode(Leave()))
        assert isinstance(await child.hear(), Weights)
        assert isinstance(await child.hear(), Goodbye)


#: What a child may say instead of rows, and what it is told.
NONSENSE = (
    (rows()[:-1], "length", "child 'pi' pushes 263 numbers, expected rows of 8 numbers each, "),
    (np.zeros(31, np.float32), "length", "child 'pi' pushes 31 numbers, expected rows of 8 "),
    (np.full(8, np.nan, np.float32), "finite", "child 'pi' pushes NaN or infinity"),
    (np.full(8, 0.5, np.float32), "experience", "child 'pi' pushes a flag that is neither 0 nor 1"),
)


async def test_what_is_no_experience_is_refused_and_counted(tmp_path: Path) -> None:
    async with running(experiment(batch=4), tmp_path) as parent:
        async with FakeChild(parent.address, "other") as child:
            await child.hello()
            reply = await child.join()
            assert isinstance(reply, Refusal)
            assert reply.code == "signature"
            assert "child 'other' has another network" in reply.reason
        async with child_of(parent) as child:
            await child.enter()
            for vector, code, reason in NONSENSE:
                reply = await child.push(vector)
                assert isinstance(reply, Refusal)
                assert (reply.code, reply.reason[: len(reason)]) == (code, reason)
                assert "\n" not in reply.reason
            # A child that learns itself pushes weights. They are no rows, unless by chance.
            child.kind = "weights"
            reply = await child.push(np.ones(child.signature.size, np.float32))
            assert isinstance(reply, Refusal)
            assert "numbers, expected rows of 8 numbers each" in reply.reason
            reply = await child.push(rows(4))
            assert isinstance(reply, Refusal)
            assert (
                reply.reason == "child 'pi' pushes 'weights', the parent's rule takes 'experience'"
            )
            child.kind = "experience"
            counts = {"signature": 1, "length": 3, "finite": 1, "experience": 1, "order": 1}
            assert parent.server.refusals == counts
            assert parent.server.exchanges == 0
            child.sequence = 0
            await child.pushed(rows(4))
            await batches(parent, 1)


async def test_a_learner_that_is_killed_comes_back_with_what_it_had_learned(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent, child_of(parent) as child:
        await child.enter()
        await child.pushed(rows())
        await batches(parent, 1)
        rule = rule_of(parent)
        learned = rule._learned
        assert learned is not None
        killed = learner_of(parent)
        killed.kill()
        await eventually(lambda: pid_of(parent) not in (0, killed.pid), "another learner")
        # Nobody waits meanwhile.
        assert (await child.pushed(rows())).tobytes() == learned.weights.tobytes()
        await batches(parent, 2)
        assert rule._learned is not None
        assert rule._learned.clock[0] == 2 * learned.clock[0]
        steps = np.abs(rule._learned.weights - learned.weights).max()
        assert 0.0 < steps < 0.5
    assert not psutil.pid_exists(killed.pid)


async def test_a_start_that_fails_is_tried_again_and_three_in_a_row_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(experiment(), tmp_path) as parent, child_of(parent) as child:
        await child.enter()
        process, failed = learner_process_of(parent), []
        monkeypatch.setattr(parent, "fail", failed.append)
        process._policy = RestartPolicy(3)  # without rests
        launch, left = process._launch, 1

        def failing(pipe: Connection) -> Any:
            nonlocal left
            left -= 1
            if left >= 0:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
            return launch(pipe)

        monkeypatch.setattr(process, "_launch", failing)
        learner_of(parent).kill()
        await eventually(lambda: process._idle and left < 0, "another learner")
        await child.pushed(rows())
        await batches(parent, 1)
        assert not failed
        left = 1000
        learner_of(parent).kill()
        await eventually(lambda: failed, "it gives up")
        assert left == 998, "after a death and two starts that failed"
    why = "the learner's process died: [Errno 12] Cannot allocate memory"
    assert str(failed[0]) == f"parent.rule = 'experience': {why}"
    assert "learner not started" in capsys.readouterr().err


async def test_a_learner_that_hangs_is_killed_and_replaced_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.05)
    settings = experiment(child={"hang_seconds": 0.75})
    async with running(settings, tmp_path) as parent, child_of(parent) as child:
        await child.enter()
        await child.pushed(rows())
        await batches(parent, 1)
        assert not learner_process_of(
            parent
        )._watch.ages._ages  # one without a batch waits, and may do so
        hung = learner_of(parent)
        hung.suspend()
        await child.pushed(rows())
        await eventually(lambda: pid_of(parent) not in (0, hung.pid), "another learner")
        await child.pushed(rows())
        await batches(parent, 2)
    assert not hung.is_running()
    said = capsys.readouterr().err
    assert "learner lost" in said and "it hung: it did nothing for " in said
    assert "raise child.hang_seconds" in said


async def test_a_learner_that_hangs_as_it_is_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.001)
    settings = experiment(child={"hang_seconds": 0.001})  # shorter than any learner takes
    with pytest.raises(
        EnvironmentFailure, match=r"process died: it hung: it did nothing for \d+ s"
    ):
        await Parent(settings, out=tmp_path, listen="127.0.0.1:0").startup()


async def test_a_parent_that_is_started_again_goes_on_with_the_optimizer(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent, child_of(parent) as child:
        await child.enter()
        await child.pushed(rows())
        await batches(parent, 1)
        await child.pushed(rows(1))
        learned = rule_of(parent)._learned
        assert learned is not None
    saved = CheckpointFolder(tmp_path / "checkpoints").latest()
    assert saved is not None
    assert saved.vector.tobytes() == learned.weights.tobytes()
    assert saved.state["state"].tobytes() == learned.state.tobytes()

    async with running(experiment(), tmp_path) as parent, child_of(parent, session="2") as child:
        reply = await child.enter()
        assert reply.version == 2
        assert reply.vector is not None
        assert reply.vector.tobytes() == learned.weights.tobytes()
        await child.pushed(rows())
        await batches(parent, 1)
        after = rule_of(parent)._learned
        assert after is not None
        assert after.clock[0] == 2 * learned.clock[0] > 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The forkserver of most learners here, which compute with NumPy."""
    found = begin(tmp_path_factory.mktemp("forkserver") / "log")
    CORES.warm_up(experiment(), found)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def _shared(shared: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    joined = Server(shared._control.dup(), pid=shared.pid)
    monkeypatch.setattr(forkserver, "_shared", joined)
    yield
    joined.close()


@pytest.fixture
def nursery(_shared: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One that a test may kill."""
    monkeypatch.setattr(forkserver, "_shared", None)
    mine = begin(tmp_path / "forkserver.log")
    CORES.warm_up(experiment(), mine)
    monkeypatch.setattr(forkserver, "_shared", mine)
    yield mine
    mine.close()


async def test_where_there_is_a_nursery_learners_are_forked_from_it(
    tmp_path: Path, nursery: Server
) -> None:
    async with running(experiment(), tmp_path) as parent, child_of(parent) as child:
        await child.enter()
        first = learner_of(parent)
        assert first.ppid() == nursery.pid
        await child.pushed(rows())
        await batches(parent, 1)
        first.terminate()
        first.send_signal(signal.SIGINT)
        await child.pushed(rows())
        await batches(parent, 2)
        first.kill()
        await eventually(lambda: pid_of(parent) not in (0, first.pid), "another learner")
        second = learner_of(parent)
        assert second.ppid() == nursery.pid
        os.kill(nursery.pid, signal.SIGKILL)
        await eventually(lambda: second.ppid() != nursery.pid, "the nursery's end")
        await child.pushed(rows())
        await batches(parent, 3)
        second.kill()
        await eventually(lambda: pid_of(parent) not in (0, second.pid), "a learner by itself")
        third = learner_of(parent)
        assert third.ppid() == os.getpid()
        await child.pushed(rows())
        await batches(parent, 4)
    assert not third.is_running()


async def test_nothing_is_left_of_a_learner_that_outlives_its_nursery_and_is_deaf(
    tmp_path: Path, nursery: Server
) -> None:
    async with running(experiment(), tmp_path) as parent:
        learner = learner_of(parent)
        learner.suspend()
        os.kill(nursery.pid, signal.SIGKILL)
        await eventually(lambda: learner.ppid() != nursery.pid, "the nursery's end")
    await eventually(lambda: gone(learner.pid), "the learner's end")


@pytest.mark.slow
async def test_a_run_of_another_network_is_not_gone_on_with(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent, child_of(parent) as child:
        await child.enter()
        await child.pushed(rows())
    other = experiment(environment={"id": "tests.environments:Corridor"})
    with pytest.raises(ConfigurationError, match="choose another directory with --out"):
        async with running(other, tmp_path):
            pass


@pytest.mark.slow
async def test_a_learner_that_cannot_begin_is_one_line(tmp_path: Path) -> None:
    options = {"fault": "kill", "where": "construct"}
    settings = experiment(environment={"id": "tests.tiny:Faulty", "options": options})
    reason = "the spaces of 'tests.tiny:Faulty' cannot be seen: the process ended: killed "
    with pytest.raises(EnvironmentFailure, match=reason) as caught:
        await Parent(settings, out=tmp_path, listen="127.0.0.1:0").startup()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
async def test_a_learner_that_never_learns_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    settings = experiment(batch=1, algorithm={"name": "tests.plugins.actors.raising:Raising"})
    parent = Parent(settings, out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    async with child_of(parent) as child:
        await child.enter()
        async with asyncio.timeout(60):
            while not serving.done():
                await child.push(rows(1))
                await asyncio.sleep(0.05)
    why = "died again and again, of every child's rows: ValueError: no idea"
    with pytest.raises(EnvironmentFailure, match=why):
        serving.result()
    await parent.shutdown()


@pytest.mark.slow
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test.toml").write_text(experiment().to_toml())
    with starting(tmp_path) as start:
        process: Started = start(
            "genkidama.parent", "test.toml", "--out", "run", "--listen", "127.0.0.1:0"
        )
        run = tmp_path / "run"
        until(lambda: "listening" in process.err, "the parent listens")
        assert history_of(run, "start")
        assert len(process.family()) == 2
        os.kill(process.pid, signal.SIGKILL)
        process.vanish(10)
        again = start("genkidama.parent", "test.toml", "--out", "run", "--listen", "127.0.0.1:0")
        until(lambda: "listening" in again.err, "the parent listens again")
        again.signal(signal.SIGTERM)
        assert again.wait() == 0
        again.vanish(5)


async def test_one_child_does_not_end_a_run_by_rows_that_kill_the_learner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = experiment(batch=4, algorithm={"name": "tests.plugins.actors.raising:Picky"})
    deadly = rows(4).reshape(-1, COLUMNS.count)
    deadly[:, 0] = 666.0
    async with (
        running(settings, tmp_path) as parent,
        child_of(parent) as honest,
        child_of(parent, "evil") as evil,
    ):
        await honest.enter()
        await evil.enter()
        refusal: Refusal | None = None
        async with asyncio.timeout(60):
            while refusal is None:
                reply = await evil.push(deadly.reshape(-1))
                refusal = reply if isinstance(reply, Refusal) else None
                await honest.pushed(rows(4))
                await asyncio.sleep(0.05)
        assert "'evil': its rows have killed the learner 3 times" in refusal.reason
        before = rule_of(parent).batches
        async with asyncio.timeout(30):
            while rule_of(parent).batches < before + 3:
                await honest.pushed(rows(4))
                await asyncio.sleep(0.05)
    said = [event["reason"] for event in events(tmp_path, "refused")]
    assert any(each.startswith("child 'evil': the learner died of its rows") for each in said)
    assert "ValueError: an evil number" in capsys.readouterr().err


# A learner that samples what it keeps.


def sampling(**sections: dict[str, Any]) -> Experiment:
    return Experiment.from_dict(
        {
            "name": "test",
            "environment": {"id": "tests.tiny:Turning"},
            "network": {"hidden": [4]},
            "algorithm": {"name": "sac", "start_steps": 20, "minibatch_size": 8},
            "replay": {"steps": 1000},
            "parent": {"rule": "experience"},
            **sections,
        }
    )


def added_of(parent: Parent) -> int:
    memory = learner_process_of(parent)._memory
    assert memory is not None
    return int(memory.added[0])


async def test_steps_are_kept_over_a_restart_of_learner_and_parent(tmp_path: Path) -> None:
    async with running(sampling(), tmp_path) as parent, child_of(parent) as child:
        first = (await child.enter()).vector
        assert first is not None
        await child.pushed(rows(10))
        await eventually(lambda: added_of(parent) == 10, "the first steps")
        learner_of(parent).send_signal(signal.SIGKILL)
        before = pid_of(parent)
        await eventually(lambda: pid_of(parent) != before, "another learner")
        await child.pushed(rows(15))
        await eventually(lambda: added_of(parent) == 25, "the steps before, and the new ones")
        process = learner_process_of(parent)
        await eventually(lambda: not process._due and process._idle, "all updates")
        state = rule_of(parent).state()
        assert state["clock"][0] == 4 * 15, "of the steps that this learner was given"
        again = await child.ask(Pull())
        assert isinstance(again, Weights) and again.vector is not None
        assert again.vector.tobytes() != first.tobytes()
    found = events(tmp_path, "measures")
    assert found and found[-1]["replay"] == 25.0

    async with running(sampling(), tmp_path) as parent:
        assert added_of(parent) == 25
        assert np.array_equal(rule_of(parent).state()["state"], state["state"])
        assert parent.server.trial.vector is not None
        assert parent.server.trial.vector.tobytes() == again.vector.tobytes()


async def test_a_replay_is_written_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SAVE_SECONDS", 0.0)
    async with running(sampling(), tmp_path) as parent, child_of(parent) as child:
        await child.enter()
        await child.pushed(rows(10))
        await eventually((tmp_path / FILE).exists, "the file")
        await child.pushed(rows(10))
        await eventually(lambda: added_of(parent) == 20, "what comes after it")


async def test_a_file_of_something_else_is_left_alone_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE).write_bytes(b"nonsense")
    async with running(sampling(), tmp_path) as parent:
        assert added_of(parent) == 0
    assert (tmp_path / FILE).read_bytes() == b"nonsense", "nothing new came"
