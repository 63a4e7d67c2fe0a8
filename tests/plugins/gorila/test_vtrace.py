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


PLAIN = Network(hidden=(5,), initialization="normal", initial_deviation=0.7)


def model_of(network: Network = PLAIN, **algorithm: Any) -> Model:
    experiment = Experiment(
        network=network,
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


@pytest.mark.parametrize("of_tensors", [False, True])
def test_a_burn_in_brings_stored_states_up_to_date(of_tensors: bool) -> None:
    network = Network(hidden=(5,), memory=3, initialization="normal", initial_deviation=0.7)
    model = model_of(network=network, minibatch_size=9, n_steps=3, burn_in=2)
    if of_tensors:
        model = in_tensors(model, SPACES)
    rng, size = np.random.default_rng(0), 3

    def stored(rollout: Rollout) -> Rollout:
        """Trajectories of 1 to 5 steps; the third begins an episode."""
        ends = np.isin(np.arange(14), (0, 2, 7, 11, 13))
        states = rng.uniform(-1.0, 1.0, (16, size)).astype(np.float32)
        states[3] = 0.0
        seen = rng.normal(size=(16, 3)).astype(np.float32)
        rows = np.concatenate((states, seen), 1)
        whole = rollout_of(rng, 14)
        log_mu, cuts = whole.log_mu, np.array([7, 13])
        native = model.native
        return Rollout(
            native(rows[:14]),
            native(whole.actions),
            whole.rewards,
            ends,
            cuts,
            native(rows[14:]),
            log_mu=log_mu,
        )

    def plain(rows: Any) -> Any:
        return np.array(rows.numpy() if of_tensors else rows)

    kept: list[Rollout] = []

    def wrap(rollout: Rollout) -> Rollout:
        given = stored(rollout)
        kept.append(replace(given, observations=model.native(plain(given.observations))))
        return given

    replay: Any = Remembered(rng, wrap=wrap)
    learner = make_learner(model.experiment.algorithm, model)
    nothing = replace(rollout_of(rng, 1), rewards=np.zeros(0, np.float32), replay=replay)
    found = [model.gradient.copy() for _ in model.gradients(learner, nothing, None)]
    assert replay.asked == [(3, 5)] and len(found) == 1

    # By one row after the other.
    rows = plain(kept[0].observations)
    one = SimpleNamespace(network=model.twin(model.numbers[: model.trainable]))
    left = []
    for first, last in ((0, 0), (1, 2), (3, 7), (8, 11), (12, 13)):
        steps = 0 if first == 3 else min(2, last - first)
        for t in range(first, first + steps):
            model.evaluate(model.native(rows[t : t + 1]), one.network)
            state = one.network.states if of_tensors else one.network.state
            rows[t + 1, :size] = plain(state)[0]
        left += range(first + steps, last + 1)
    assert left == [0, 2, 3, 4, 5, 6, 7, 10, 11, 13]
    expected = replace(
        kept[0],
        observations=model.native(rows[left]),
        actions=kept[0].actions[left],
        rewards=kept[0].rewards[left],
        ends=np.isin(left, (0, 2, 7, 11, 13)),
        cuts=np.array([left.index(7), left.index(13)]),
        log_mu=kept[0].log_mu[left],  # type: ignore[index]
    )
    peer = A3C(Algorithm(name="a3c", vtrace=True, entropy_coefficient=0.1), model)
    next(model.gradients(peer, expected, None))
    np.testing.assert_allclose(found[0], model.gradient, rtol=1e-3, atol=1e-5)
    next(model.gradients(peer, kept[0], None))
    assert np.abs(found[0] - model.gradient).max() > 0.01


def test_only_the_newest_batch_is_learned_from_while_too_little_is_remembered() -> None:
    rng = np.random.default_rng(0)
    model = model_of()
    replay: Any = Remembered(rng, 9)
    learner = make_learner(model.experiment.algorithm, model)
    rollout = rollout_of(rng, 9, replay=replay)
    assert len(list(model.gradients(learner, rollout, None))) == 1
    assert replay.asked == []
