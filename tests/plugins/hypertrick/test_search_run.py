"""A Parent that searches and several Children in one loop, with real sockets and a real study."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from genkidama.child.child import Child
from genkidama.child.parent_connection import ParentConnection
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.parent import Parent
from genkidama.runs.run import Run
from studies.faults.searches import check, study_at, trials_of
from tests.helpers import (
    PATIENCE,
    ConstantBackend,
    Serving,
    constant,
    eventually,
    history,
    running,
    url,
)

pytestmark = pytest.mark.usefixtures("ready_tables", "impatient")

SPACE: dict[str, Any] = {
    "network.options.score": {"low": 0.0, "high": 100.0},
    "optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True},
    "algorithm.batch_size": {"low": 64, "high": 128, "step": 32},
    "network.hidden": [[8], [8, 8]],
}

#: Weights of one trial fit another's.
SAME_SHAPE = {"optimizer.learning_rate": SPACE["optimizer.learning_rate"]}

#: What a node needs for an exchange, in seconds; others take the quickest time.
SPEEDS = {"slow": 0.01, "slower": 0.03, "slowest": 1.0}
QUICK = 0.001


class ScoringBackend(ConstantBackend):
    """Earns what its settings say.

    Nodes called `broken…` cannot train, and trials with `gain = nan` diverge.
    """

    def __init__(self, experiment: Experiment, cores: int, name: str) -> None:
        super().__init__(experiment, cores, name)
        rate = experiment.optimizer.learning_rate
        self.score = experiment.network.options.get("score", rate)
        self.seconds = experiment.network.options.get("seconds", SPEEDS.get(name, QUICK))
        if name.startswith("broken"):
            self.failure = EnvironmentFailure(f"{name}: no memory")

    async def due(self) -> None:
        await super().due()
        self.work.returns[-1] = self.score


def searching(base: dict[str, Any] | None = None, **search: Any) -> Experiment:
    """Trials of 3 phases of 20 steps; each exchange is 10 steps."""
    plan = {
        "trials": 8,
        "phases": 3,
        "phase_steps": 20,
        "eviction_rate": 0.5,
        "space": SPACE,
        **search,
    }
    sections = {"stop": {"window": 4}, **(base or {})}
    return constant(**sections, child={"backend": f"{__name__}:ScoringBackend"}, search=plan)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many connections each child has opened."""
    counts: Counter[str] = Counter()
    really = ParentConnection._open

    async def counting(talk: ParentConnection) -> Any:
        counts[talk.session.name] += 1
        return await really(talk)

    monkeypatch.setattr(ParentConnection, "_open", counting)
    return counts


def node(parent: Parent, name: str) -> Child:
    return Child(url(parent.address), name=name)


async def over(parent: Parent, *tasks: asyncio.Task[None]) -> None:
    """Waits until the search is over and these children have ended by themselves."""
    await eventually(
        lambda: parent.server.stop or any(task.done() and task.exception() for task in tasks),
        "the end",
    )
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*tasks)


async def test_fast_and_slow_nodes_come_and_go(tmp_path: Path, opened: Counter[str]) -> None:
    settings = searching(trials=12, return_seconds=0.2)
    out = tmp_path / "run"
    async with running(settings, out) as parent:
        with pytest.raises(EnvironmentFailure, match="broken: no memory"):
            await node(parent, "broken").serve()  # three trials, and then it gives up
        early = asyncio.create_task((leaving := node(parent, "slower")).serve())
        quick = asyncio.create_task(node(parent, "quick").serve())
        slow = asyncio.create_task(node(parent, "slow").serve())
        await eventually(lambda: len(history(out, "report")) >= 4, "reports")
        leaving.stop()
        late = asyncio.create_task(node(parent, "late").serve())
        await over(parent, early, quick, slow, late)
        assert parent.server.connected == []
        assert not parent.server.refusals
    trials = trials_of(out)
    check(out, trials, settings)
    assert [line["trial"] for line in history(out, "trial_failed")] == [0, 1, 2]
    # Each had another node left.
    assert Counter(trial.state for trial in trials)[TrialState.FAIL] == 0
    assert {record["node"] for trial in trials for record in trial.user_attrs["phases"]} >= {
        "quick",
        "slow",
    }
    assert opened.pop("broken") == 3
    assert set(opened.values()) == {1}  # one trial after another on the same connection
    assert [line["reason"] for line in history(out, "stop")] == [parent.server.stop]
    assert all(
        (out / "trials" / f"{number:04d}" / "experiment.toml").is_file() for number in range(12)
    )


async def test_nodes_that_wait_for_a_trial_can_be_stopped_and_keep_their_names(
    tmp_path: Path, opened: Counter[str]
) -> None:
    settings = searching(trials=1, phase_steps=1_000_000)
    async with running(settings, tmp_path / "run") as parent, Serving(node(parent, "busy")) as busy:
        await busy.exchanged(1)
        waiting = [
            Child(url(parent.address)) for _ in range(2)
        ]  # named after this machine, both of them
        tasks = [asyncio.create_task(child.serve()) for child in waiting]
        await eventually(lambda: len(parent.server.connected) == 3, "nodes that wait")
        assert waiting[0].name != waiting[1].name
        before = dict(opened)
        await busy.exchanged(30)
        assert dict(opened) == before  # they ask again on the same connections
        assert [child.status for child in waiting] == ["waiting for a trial of run"] * 2
        for child in waiting:
            child.stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks)
        await eventually(lambda: parent.server.connected == ["busy"], "their goodbyes")
        assert parent.server.trials is not None and not parent.server.trials.idle


async def test_a_node_stopped_in_the_middle_gives_its_trial_up_with_its_last_work(
    tmp_path: Path,
) -> None:
    settings = searching(trials=2, phase_steps=1_000_000)
    async with running(settings, tmp_path / "run") as parent:
        async with Serving(node(parent, "first")) as first:
            await first.exchanged(3)
        search = parent.server.trials
        assert search is not None
        assert (search.trials[0].state, search.trials[0].steps) == (
            "waiting",
            10 * first.backend.exchanges,
        )
        async with Serving(node(parent, "second")) as second:
            await second.exchanged(1)
            assert (search.trials[0].owner, search.trials[0].state) == ("second", "running")
    assert Run(tmp_path / "run" / "trials" / "0000").snapshot.steps == 10 * (
        first.backend.exchanges + second.backend.exchanges
    )


async def test_a_parent_that_is_killed_loses_only_the_phases_under_way(tmp_path: Path) -> None:
    """As kill −9 leaves it: nothing is written at the end."""
    settings = searching(trials=8, phase_steps=100)
    out = tmp_path / "run"
    killed = Parent(settings, out=out, listen="127.0.0.1:0")
    await killed.startup()
    serving = asyncio.create_task(killed.serve())
    address = url(killed.address)
    tasks = [asyncio.create_task(Child(address, name=name).serve()) for name in ("a", "b")]
    await eventually(lambda: len(history(out, "trial_end")) >= 2, "trials")
    killed.stop()
    await serving
    killed.after_message = lambda now: None  # type: ignore[method-assign]
    assert killed._websockets is not None and killed._writer is not None
    killed._websockets.close(code=1001)
    await killed._websockets.wait_closed()
    killed._writer.close()
    before = trials_of(out)
    known = {trial.number: trial.user_attrs.get("phases", []) for trial in before}
    for (
        number,
        phases,
    ) in known.items():  # a report that is in the study has its weights on the disk
        if phases:
            assert Run(out / "trials" / f"{number:04d}").snapshot.steps >= phases[-1]["steps"]
    async with running(settings, out, address.removeprefix("ws://")) as parent:
        await over(parent, *tasks)
    after = trials_of(out)
    check(out, after, settings)
    for trial in after:
        old = known.get(trial.number, [])
        assert trial.user_attrs["phases"][: len(old)] == old


async def test_what_a_kill_left_half_written_is_mended(tmp_path: Path) -> None:
    """Only some settings of a configuration were drawn, and the end of a trial was not told."""
    settings = searching(trials=3, phases=1)
    out = tmp_path / "run"
    async with running(settings, out) as parent:
        await eventually(lambda: parent.server.trials.trials, "a configuration")  # type: ignore[union-attr]
    with study_at(f"sqlite:///{out}/study.db", "run") as study:
        half = study.ask()
        half.suggest_float("network.options.score", 0.0, 100.0)
        whole = study.trials[0]
        record = {
            "phase": 0,
            "node": "a",
            "start": 0.0,
            "end": 1.0,
            "metric": 5.0,
            "order": 1,
            "worse": 0,
            "mode": "none",
        }
        record |= {"verdict": "continue", "steps": 20, "episodes": 2, "report": 0}
        study._storage.set_trial_user_attr(whole._trial_id, "phases", [record])
        study._storage.set_trial_intermediate_value(whole._trial_id, 0, 5.0)
    async with running(settings, out) as parent:
        await node(parent, "one").serve()
    trials = trials_of(out)
    assert [set(trial.params) for trial in trials] == [set(SPACE)] * 3
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 3
    assert (trials[0].value, trials[0].user_attrs["phases"]) == (5.0, [record])
    assert (
        half.number == 1
        and trials[1].params["network.options.score"] == half.params["network.options.score"]
    )
    assert not (out / "trials" / "0000").exists()


# Who does not belong here.


async def refused(
    settings: Experiment, out: Path, kind: type[Exception] = ConfigurationError
) -> str:
    with pytest.raises(kind) as error:
        await Parent(settings, out=out, listen="127.0.0.1:0").startup()
    text = str(error.value)
    assert "\n" not in text
    return text


async def test_a_search_and_a_plain_run_do_not_share_a_directory(tmp_path: Path) -> None:
    async with running(constant(), tmp_path / "plain"):
        pass
    async with running(searching(), tmp_path / "search"):
        pass
    text = await refused(searching(), tmp_path / "plain")
    assert (
        text == f"{tmp_path}/plain: holds a plain run, and this is a search; "
        "choose another directory with --out"
    )
    assert not (tmp_path / "plain" / "study.db").exists()
    text = await refused(constant(), tmp_path / "search")
    assert (
        text == f"{tmp_path}/search: holds a search, and this is a plain run; "
        "choose another directory with --out"
    )


async def test_a_shared_storage_holds_one_study_of_a_name(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/all.db"
    settings = searching(trials=2, phases=1, storage=storage)
    async with running(settings, tmp_path / "run") as parent:
        await node(parent, "one").serve()
    text = await refused(settings, tmp_path / "elsewhere" / "run")
    assert (
        text == f"search.storage = {storage!r}: holds a study 'run' of another run; "
        "choose another directory name with --out"
    )
    async with running(settings, tmp_path / "other") as parent:
        await node(parent, "one").serve()
    for name in ("run", "other"):
        with study_at(storage, name) as study:
            check(tmp_path / name, study.trials, settings)
    assert not (tmp_path / "run" / "study.db").exists()


async def test_a_storage_that_cannot_be_opened(tmp_path: Path) -> None:
    for storage, kind, problem in (
        (
            "sqlite:////nonexistent/folder/study.db",
            EnvironmentFailure,
            "the study cannot be opened: ",
        ),
        (
            "postgresql+psycopg://me:secret@127.0.0.1:1/none",
            EnvironmentFailure,
            "the study cannot be opened: ",
        ),
        ("nonsense", ConfigurationError, ""),
        ("nosuch://here", ConfigurationError, ""),
        ("mysql+nodriver://here/there", ConfigurationError, ""),
    ):
        text = await refused(searching(storage=storage), tmp_path / "run", kind)
        shown = storage.replace("secret", "***")
        assert text.startswith(f"search.storage = {shown!r}: {problem}")
    # Nothing was left behind that would be in the way.
    async with running(searching(), tmp_path / "run"):
        pass


# Samplers and methods.


@pytest.mark.parametrize(
    "search",
    [
        {
            "method": "random",
            "sampler": "optuna.samplers:RandomSampler",
            "sampler_options": {"seed": 5},
        },
        {"method": "successive_halving", "eviction_rate": 0.25, "reduction_factor": 2},
        {"method": "hyperband", "eviction_rate": 0.25, "restart": True},
        {"method": "pbt", "eviction_rate": 0.25, "space": SAME_SHAPE, "trials": 5},
        {
            "method": "asynchronous_hyperband",
            "eviction_rate": 0.25,
            "reduction_factor": 2,
            "sampler": "tpe",
            "sampler_options": {"n_startup_trials": 3},
        },
    ],
    ids=[
        *("random search, import string", "successive halving", "hyperband", "pbt"),
        "asynchronous hyperband, tpe",
    ],
)
async def test_samplers_and_methods(tmp_path: Path, search: dict[str, Any]) -> None:
    settings = searching(**{"trials": 8, **search})
    async with running(settings, tmp_path / "run") as parent:
        await over(
            parent, *(asyncio.create_task(node(parent, name).serve()) for name in ("a", "b"))
        )
    trials = trials_of(tmp_path / "run")
    check(tmp_path / "run", trials, settings)
    assert len({trial.params["optimizer.learning_rate"] for trial in trials}) == len(trials)
    completed = {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert completed == (search.get("method") in ("random", "pbt"))
    copied = {record["verdict"] for t in trials for record in t.user_attrs["phases"]}
    assert ("copy" in copied) == (search.get("method") == "pbt")


async def test_a_node_whose_parent_runs_another_search_now_asks_for_a_trial_of_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both searches draw the same settings for trial 0, which never ends in the first one."""
    really, sampled = ParentConnection._open, asyncio.Event()
    sampled.set()

    async def opening(talk: ParentConnection) -> Any:
        await sampled.wait()
        return await really(talk)

    monkeypatch.setattr(ParentConnection, "_open", opening)
    plan: dict[str, Any] = {"trials": 1, "phases": 1, "space": SAME_SHAPE}
    first, second = (searching(**plan, phase_steps=steps) for steps in (10**9, 20))
    async with running(first, tmp_path / "first") as parent:
        listen = "{}:{}".format(*parent.address)
        task = asyncio.create_task(node(parent, "pi").serve())
        trials = parent.server.trials.trials  # type: ignore[attr-defined]
        await eventually(lambda: task.done() or (0 in trials and trials[0].steps > 200), "steps")
        sampled.clear()
    async with running(second, tmp_path / "second", listen) as parent:
        trials = parent.server.trials.trials  # type: ignore[attr-defined]
        await eventually(lambda: 0 in trials, "a trial that waits")
        sampled.set()
        await over(parent, task)
    (trial,) = trials_of(tmp_path / "second")
    check(tmp_path / "second", [trial], second)
    # It adds 1 to its weights for every 10 steps, and has begun with 0.
    found = Run.open(tmp_path / "second" / "trials" / "0000").load()
    assert found.vector.tolist() == [found.snapshot.steps / 10] * 4
