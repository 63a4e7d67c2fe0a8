"""Backends, rules and learners in docs/notes/: the pages' code, put to work."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from genkidama.child.backend import Backend, make_backend
from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.parent import Parent
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.blend import Rule, Update
from tests.helpers import PATIENCE, ROOT, Started, small, starting, until
from tests.server.rules import check_rule, contribution
from tests.texts import code_block


def from_page(page: str, words: str) -> Experiment:
    """The experiment of a page that has these words."""
    return Experiment.from_dict(tomllib.loads(code_block(page, "toml", words)))


EVOLUTION = from_page("docs/notes/backends.md", "[child]")

#: By module, its code on a page and a word of it.
MODULES = {
    "evolution": ("docs/notes/backends.md", "class EvolutionStrategy"),
    "stale": ("docs/notes/rules.md", "class Stale"),
    "recall": ("docs/notes/learners.md", "class Recall"),
    "greedy": ("docs/notes/learners.md", "class EpsilonGreedy"),
}

# The page's own recipe for its contract: a fixture, and the tests that ask for it run here.
exec(code_block("docs/notes/backends.md", "python", "TestContract"))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the modules of the pages, from which everybody can import them."""
    folder = tmp_path_factory.mktemp("mine")
    for module, (page, words) in MODULES.items():
        (folder / f"{module}.py").write_text(code_block(page, "python", words))
    with (folder / "greedy.py").open("a") as file:
        file.write("\nfrom recall import Recall\n\n\nclass Q(Recall):\n    head = EpsilonGreedy\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
        yield folder
    for module in MODULES:
        sys.modules.pop(module, None)


def backend(**sections: dict[str, Any]) -> Backend:
    return make_backend(
        small(**{**sections, "child": {"backend": "evolution:EvolutionStrategy"}}), 2, "pi"
    )


def test_a_run_with_it_learns(tmp_path: Path) -> None:
    run = train(EVOLUTION, children=2, cores=1, out=tmp_path / "run", episodes=0)
    exchanges = [event for event in run.history() if event["event"] == "exchange"]
    measures = [event for event in run.history() if event["event"] == "measures"]
    assert exchanges[0]["mean_return"] < 40.0
    assert exchanges[-1]["mean_return"] >= 150.0  # which ends the run long before its 400 updates
    assert len(exchanges) < 400
    # Every push has measures. On a busy machine the second child may be too late for any push.
    assert {event["child"] for event in measures} == {event["child"] for event in exchanges}
    assert len(measures) == len(exchanges)
    assert {event["backend"] for event in measures} == {EVOLUTION.child.backend}
    assert all(event["best"] >= event["spread"] > 0.0 for event in measures)
    assert not [path for path in (run.path / "logs").iterdir() if "Traceback" in path.read_text()]


async def test_it_exchanges_a_network_that_can_be_evaluated() -> None:
    evolution = backend()
    try:
        signature = await evolution.startup()
    finally:
        await evolution.shutdown()
    model = Model(small(), make_environment(small().environment))
    assert signature == model.signature
    np.testing.assert_array_equal(evolution.snapshot(), model.numbers)


@pytest.mark.parametrize(
    ("environment", "error", "words"),
    [
        ({"id": "NoSuch-v1"}, ConfigurationError, "environment.id = 'NoSuch-v1'"),
        (
            {"normalize_observations": True},
            ConfigurationError,
            "environment.normalize_observations = True",
        ),
        (
            {"id": "tests.tiny:Faulty", "options": {"fault": "raise", "after": 3}},
            EnvironmentFailure,
            "ValueError: the cable",
        ),
        (
            {"id": "tests.tiny:Faulty", "options": {"fault": "kill", "after": 3}},
            EnvironmentFailure,
            "BrokenProcessPool",
        ),
    ],
)
async def test_what_goes_wrong_is_told(
    environment: dict[str, Any], error: type[Exception], words: str
) -> None:
    async def train() -> None:
        evolution = backend(environment=environment)
        try:
            await evolution.startup()
            await evolution.begin(None)
            await evolution.due()
        finally:
            await evolution.shutdown()

    with pytest.raises(error, match=words):
        await asyncio.wait_for(train(), PATIENCE)


CHILD = """
import asyncio
from genkidama.child.backend import make_backend
from tests.helpers import small

async def main():
    backend = make_backend(small(child={"backend": "evolution:EvolutionStrategy"}), 2, "pi")
    await backend.startup()
    await backend.begin(None)
    await backend.due()
    print("trains", flush=True)
    await asyncio.sleep(3600.0)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_nothing_is_left_behind_when_the_child_is_killed(folder: Path) -> None:
    (folder / "child.py").write_text(CHILD)
    with starting(folder) as start:
        child: Started = start("child")
        until(lambda: "trains" in child.out, "training")
        assert len(child.family()) > 2
        child.popen.kill()
        child.vanish(10.0)


RULES = (ROOT / "docs/notes/rules.md").read_text()
STALE = from_page("docs/notes/rules.md", "[parent]")


def rule() -> Rule:
    return Parent(STALE).server.trials.rule


def test_it_keeps_the_promises_of_every_rule() -> None:
    check_rule(type(rule()))


def test_a_table_names_each_field_of_a_contribution_and_each_method_of_a_rule() -> None:
    methods = [name for name in vars(Rule) if callable(getattr(Rule, name)) and name[0] != "_"]
    for name in [*Update.__struct_fields__, *methods]:
        assert re.search(rf"^\| `{name}[`(]", RULES, re.MULTILINE), name


def test_a_stale_push_counts_less_and_the_momentum_goes_on() -> None:
    subject = rule()
    parent = np.zeros(1, DTYPE)
    subject.apply(parent, contribution(np.full(1, 8.0, DTYPE), staleness=3))
    assert parent.tolist() == [2.0]  # α = 0.5 · 4^−0.5
    subject.apply(parent, contribution(np.full(1, 2.0, DTYPE)))
    assert parent.tolist() == [2.5]  # nothing is taken, and 0.25 · 2 is the momentum


def test_a_wrong_option_is_told_in_one_line() -> None:
    wrong = STALE.with_settings({"parent.rule_options": {"momentum": 1.0}})
    with pytest.raises(ConfigurationError, match="momentum at least 0 and below 1") as caught:
        Parent(wrong)
    assert "\n" not in str(caught.value)


RECALL = from_page("docs/notes/learners.md", "[replay]")


async def test_it_learns_from_what_both_cores_remember() -> None:
    orchestrator = CoreOrchestrator(RECALL, 2)
    returns: list[float] = []
    try:
        async with asyncio.timeout(90):
            await orchestrator.startup()
            await orchestrator.begin(None)
            both = orchestrator.memory.head
            while len(returns) < 30 or np.mean(returns[-30:]) < 50.0 or not both.all():
                await orchestrator.due()
                returns += orchestrator.take_work().returns
                orchestrator.release()
    finally:
        await orchestrator.shutdown()
    assert np.mean(returns[:20]) < 40.0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"replay.steps": 0}, "replay.steps = 0: 'recall:Recall' samples the replay tensor"),
        ({"replay.steps": 0, "child.backend": "ga3c"}, "replay.steps = 0: "),
        ({"algorithm.epsilon": 0.1}, "algorithm.epsilon = 0.1: 'recall:Recall' reads log μ"),
    ],
)
def test_what_it_cannot_do_without_is_told_in_one_line(
    changes: dict[str, Any], sentence: str
) -> None:
    experiment = RECALL.with_settings(changes)
    model = Model(experiment, make_environment(experiment.environment))
    with pytest.raises(ConfigurationError) as caught:
        make_learner(experiment.algorithm, model)
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value).splitlines()) == 1


async def test_a_run_that_remembers_nothing_is_refused_before_anything_trains() -> None:
    orchestrator = CoreOrchestrator(RECALL.with_settings({"replay.steps": 0}), 1)
    try:
        with pytest.raises(ConfigurationError, match=r"^replay\.steps = 0: "):
            await orchestrator.startup()
    finally:
        await orchestrator.shutdown()


def test_a_head_of_its_own_decides_how_to_act() -> None:
    experiment = RECALL.with_settings({"algorithm.name": "greedy:Q"})
    model = Model(experiment, make_environment(experiment.environment))
    values = np.array([0.5, 2.0], np.float32)
    rng = np.random.default_rng(0)
    assert {int(model.head.sampler(rng, 0.0)(values)) for _ in range(100)} == {1}
    act = model.head.sampler(rng, 0.5)
    assert 0.15 < np.mean([act(values) == 0 for _ in range(1000)]) < 0.35
    # It says itself how probable an action is. So ε is its own business.
    algorithm = msgspec.structs.replace(experiment.algorithm, epsilon=0.5)
    make_learner(algorithm, model)
