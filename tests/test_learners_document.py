"""docs/learners.md: the learner and the head in it, taken from the page and put to work."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from genkidama.child.orchestrator import CoreOrchestrator
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from tests.helpers import ROOT
from tests.texts import code_block

PAGE = "docs/learners.md"
EXPERIMENT = Experiment.from_dict(tomllib.loads(code_block(PAGE, "toml", "[replay]")))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the page's code, from which everybody can import it."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "recall.py").write_text(code_block(PAGE, "python", "class Recall"))
    (folder / "greedy.py").write_text(
        code_block(PAGE, "python", "class EpsilonGreedy")
        + "\nfrom recall import Recall\n\n\nclass Q(Recall):\n    head = EpsilonGreedy\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
        yield folder


async def test_it_learns_from_what_both_cores_remember() -> None:
    orchestrator = CoreOrchestrator(EXPERIMENT, 2)
    returns: list[float] = []
    try:
        async with asyncio.timeout(90):
            await orchestrator.startup()
            await orchestrator.begin(None)
            while len(returns) < 30 or np.mean(returns[-30:]) < 80.0:
                await orchestrator.due()
                returns += orchestrator.take_work().returns
                orchestrator.release()
        assert orchestrator.memory.head.all()
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
    experiment = EXPERIMENT.with_settings(changes)
    model = Model(experiment, make_environment(experiment.environment))
    with pytest.raises(ConfigurationError) as caught:
        make_learner(experiment.algorithm, model)
    assert str(caught.value).startswith(sentence)
    assert len(str(caught.value).splitlines()) == 1


async def test_a_run_that_remembers_nothing_is_refused_before_anything_trains() -> None:
    orchestrator = CoreOrchestrator(EXPERIMENT.with_settings({"replay.steps": 0}), 1)
    try:
        with pytest.raises(ConfigurationError, match=r"^replay\.steps = 0: "):
            await orchestrator.startup()
    finally:
        await orchestrator.shutdown()


def test_a_head_of_its_own_decides_how_to_act() -> None:
    experiment = EXPERIMENT.with_settings({"algorithm.name": "greedy:Q"})
    model = Model(experiment, make_environment(experiment.environment))
    values = np.array([0.5, 2.0], np.float32)
    rng = np.random.default_rng(0)
    assert {int(model.head.sampler(rng, 0.0)(values)) for _ in range(100)} == {1}
    act = model.head.sampler(rng, 0.5)
    assert 0.15 < np.mean([act(values) == 0 for _ in range(1000)]) < 0.35
    # It says itself how probable an action is. So ε is its own business.
    algorithm = msgspec.structs.replace(experiment.algorithm, epsilon=0.5)
    make_learner(algorithm, model)
