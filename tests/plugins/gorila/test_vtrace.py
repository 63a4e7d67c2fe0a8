from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Network
from genkidama.learning.a3c import A3C
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.plugins.gorila.settings import ReplaySettings
from genkidama.plugins.gorila.vtrace import VTrace
from tests.learning.both import gradients, in_tensors

SPACES: Any = SimpleNamespace(
    observation_space=Box(-9.0, 9.0, (3,)), action_space=Discrete(4, start=5)
)


def model_of(**algorithm: Any) -> Model:
    experiment = Experiment(
        network=Network(hidden=(5,), initialization="normal", initial_deviation=0.7),
        algorithm=Algorithm(name="vtrace", start_steps=10, entropy_coefficient=0.1, **algorithm),
        replay=ReplaySettings(steps=100),
    )
    return Model(experiment, SPACES)


def rollout_of(rng: np.random.Generator, n: int, **more: Any) -> Rollout:
    ends = rng.random(n) < 0.3
    ends[-1] = True
    cuts = np.flatnonzero(ends & (rng.random(n) < 0.5))
    return Rollout(
        rng.normal(size=(n, 3)).astype(np.float32),
        rng.integers(4, size=(n, 1)),
        rng.normal(size=n).astype(np.float32),
        ends,
        cuts,
        rng.normal(size=(len(cuts), 3)).astype(np.float32),
        log_mu=rng.normal(-1.4, 0.4, n).astype(np.float32),
        **more,
    )


class Remembered:
    def __init__(self, rng: np.random.Generator, known: int = 100, wrap: Any = None) -> None:
        self.rng = rng
        self.wrap = wrap or (lambda rollout: rollout)
        self.known = known
        self.given: list[Rollout] = []
        self.asked: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self.known

    def trajectories(self, count: int, length: int, *, own: bool = False) -> Rollout:
        self.asked.append((count, length))
        self.given.append(self.wrap(rollout_of(self.rng, 6)))
        return self.given[-1]


def test_its_updates_are_a3cs_with_vtrace_of_the_newest_batch_and_of_what_is_drawn() -> None:
    rng = np.random.default_rng(0)
    model = model_of(minibatch_size=30, n_steps=7, batch_updates=2, vtrace_rho=1.2, vtrace_c=0.8)
    replay: Any = Remembered(rng)
    rollout = rollout_of(rng, 9, replay=replay, progress=0.25)
    learner = make_learner(model.experiment.algorithm, model)
    assert type(learner) is VTrace
    found = [model.gradient.copy() for _ in model.gradients(learner, rollout, None)]
    assert replay.asked == [(4, 7)] * 2
    assert [drawn.progress for drawn in replay.given] == [0.25] * 2
    # The same by A3C, whose V-trace is tested against its definition.
    peer = A3C(
        Algorithm(name="a3c", vtrace=True, entropy_coefficient=0.1, vtrace_rho=1.2, vtrace_c=0.8),
        model,
    )
    for gradient, part in zip(found, [rollout, *replay.given], strict=True):
        next(model.gradients(peer, part, None))
        assert gradient == pytest.approx(model.gradient, rel=1e-3, abs=1e-5)
    # And by torch.
    by_autograd = gradients(in_tensors(model, SPACES), replace(rollout, replay=None))
    assert found[0] == pytest.approx(by_autograd[0], rel=1e-3, abs=1e-5)


def test_only_the_newest_batch_is_learned_from_while_too_little_is_remembered() -> None:
    rng = np.random.default_rng(0)
    model = model_of()
    replay: Any = Remembered(rng, 9)
    learner = make_learner(model.experiment.algorithm, model)
    rollout = rollout_of(rng, 9, replay=replay)
    assert len(list(model.gradients(learner, rollout, None))) == 1
    assert replay.asked == []
