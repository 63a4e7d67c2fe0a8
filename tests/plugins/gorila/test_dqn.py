"""DQN by value, and by torch: the loss, the targets, the gradient, and what a head does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Environment, Network
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import INVALID, MaskedBox
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, Transitions
from genkidama.plugins.gorila.dqn import DQN, Greedy
from genkidama.plugins.gorila.settings import ReplaySettings
from tests.learning.both import in_tensors


class Remembered:
    """A replay that gives what it was told, and notes what it was asked for."""

    def __init__(self, steps: Transitions) -> None:
        self.steps = steps
        self.there = 100
        self.asked: list[dict[str, Any]] = []
        self.errors: list[np.ndarray] = []

    def __len__(self) -> int:
        return self.there

    def sample(self, count: int, **keywords: Any) -> Transitions:
        self.asked.append({"count": count} | keywords)
        return self.steps

    def prioritize(self, places: np.ndarray, errors: np.ndarray) -> None:
        assert np.array_equal(places, self.steps.places)
        self.errors.append(np.array(errors))

    def trajectories(self, count: int, length: int, *, own: bool = False) -> Rollout:
        raise NotImplementedError


def model_of(network: Network, exponent: float = 0.0, space: Any = None, **algorithm: Any) -> Model:
    experiment = Experiment(
        network=network,
        algorithm=Algorithm(name="dqn", start_steps=10, **algorithm),
        replay=ReplaySettings(steps=100, priority_exponent=exponent),
        environment=Environment(),
    )
    return Model(experiment, spaces_of(space))


def spaces_of(space: Any = None) -> Any:
    return SimpleNamespace(
        observation_space=Box(-9.0, 9.0, (3,)) if space is None else space,
        action_space=Discrete(4, start=5),
    )


def steps_of(rng: np.random.Generator, m: int = 7, shape: tuple[int, ...] = (3,)) -> Transitions:
    terminated = rng.random(m) < 0.3
    return Transitions(
        observations=rng.normal(size=(m, *shape)).astype(np.float32),
        actions=rng.integers(4, size=(m, 1)),
        rewards=(3.0 * rng.normal(size=m)).astype(np.float32),
        following=rng.normal(size=(m, *shape)).astype(np.float32),
        terminated=terminated,
        truncated=~terminated & (rng.random(m) < 0.3),
        log_mu=np.full(m, np.nan, np.float32),
        discounts=np.where(terminated, 0.0, 0.9 ** rng.integers(1, 4, m)).astype(np.float32),
        weights=rng.random(m).astype(np.float32),
        places=np.arange(m),
    )


def rollout_of(model: Model, replay: Remembered, target: np.ndarray, progress: float = 0.0) -> Any:
    nothing: Any = np.empty(0)
    return Rollout(
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        nothing,
        progress=progress,
        replay=replay,
        target=model.native(target),
    )


def values_of(model: Model, vector: np.ndarray, observations: np.ndarray) -> np.ndarray:
    """Q of each action at the numbers of `vector`."""
    kept = model.numbers.copy()
    model.numbers[: model.trainable] = vector
    outputs, values = model.evaluate(model.native(observations))
    if model.experiment.algorithm.dueling:
        outputs = values[:, None] + outputs - outputs.mean(1, keepdims=True)
    model.numbers[:] = kept
    return outputs


networks = st.builds(
    Network,
    hidden=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    activation=st.sampled_from(["tanh", "relu"]),
    shared=st.booleans(),
    initialization=st.just("normal"),
    initial_deviation=st.just(0.7),
)


@settings(max_examples=25)
@given(
    networks,
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.0, 2.5]),
    st.sampled_from(["mean", "sum"]),
    st.integers(0, 2**32 - 1),
)
def test_the_gradient_is_that_of_the_definition_by_hand_and_by_torch(
    network: Network, double: bool, dueling: bool, huber: float, reduction: str, seed: int
) -> None:
    """y = R + γ^m·Q⁻(s′, a*), step by step; then the loss' slope by finite differences of torch."""
    rng = np.random.default_rng(seed)
    model = model_of(network, double=double, dueling=dueling, huber=huber, reduction=reduction)
    algorithm = model.experiment.algorithm
    target = rng.normal(size=model.trainable).astype(np.float32)
    steps = steps_of(rng)
    replay = Remembered(steps)
    behind = values_of(model, target, steps.following)
    now = values_of(model, model.vector, steps.following)
    expected = []
    for t in range(7):
        best = int((now if double else behind)[t].argmax())
        expected.append(steps.rewards[t] + steps.discounts[t] * behind[t, best])
    chosen = values_of(model, model.vector, steps.observations)[np.arange(7), steps.actions[:, 0]]
    errors = chosen - np.array(expected, np.float32)
    losses = [
        w * (0.5 * e * e if not huber or abs(e) <= huber else huber * (abs(e) - 0.5 * huber))
        for w, e in zip(steps.weights.tolist(), errors.tolist(), strict=True)
    ]
    found = []
    for each in (model, in_tensors(model, spaces_of())):
        learner = make_learner(algorithm, each)
        assert isinstance(learner, DQN)
        each.gradient.fill(np.nan)
        rollout = rollout_of(each, replay, target)
        loss = next(each.gradients(learner, rollout, each.generator(0)))
        assert loss() == pytest.approx(getattr(np, reduction)(losses), rel=1e-3, abs=1e-4)
        assert replay.errors[-1] == pytest.approx(errors, rel=1e-3, abs=1e-3)
        found.append(each.gradient)
    by_hand, by_torch = found
    assert np.linalg.norm(by_hand - by_torch) <= 1e-4 * max(1.0, np.linalg.norm(by_torch))


@pytest.mark.parametrize("double", [False, True])
def test_a_target_is_of_a_valid_action_and_nothing_flows_to_the_others(double: bool) -> None:
    rng = np.random.default_rng(0)
    space = MaskedBox(Box(-9.0, 9.0, (3,)), 4)
    model = model_of(Network(hidden=(5,)), space=space, double=double)
    model.numbers[:] = rng.normal(size=model.trainable)
    target = rng.normal(size=model.trainable).astype(np.float32)
    steps = steps_of(rng, 50, (7,))
    for observations in (steps.observations, steps.following):
        observations[:, 3:] = rng.random((50, 4)) < 0.5
        observations[:, 3:6] = np.maximum(observations[:, 3:6], [[1, 0, 0]])
        observations[:, 6] = 0.0  # the last action is never valid
    steps.actions[:] = 0
    behind, now = (values_of(model, each, steps.following) for each in (target, model.vector))
    valid = steps.following[:, 3:] > 0.0
    best = np.where(valid, now if double else behind, -np.inf).argmax(1)
    targets = steps.rewards + steps.discounts * behind[np.arange(50), best]
    errors = values_of(model, model.vector, steps.observations)[:, 0] - targets
    found = []
    for each in (model, in_tensors(model, spaces_of(space))):
        replay = Remembered(steps)
        learner = make_learner(model.experiment.algorithm, each)
        next(each.gradients(learner, rollout_of(each, replay, target), each.generator(0)))
        assert replay.errors[-1] == pytest.approx(errors, rel=1e-3, abs=1e-3)
        found.append(each.gradient.copy())
        layer = each.gradient[model.signature.slices["policy.2.weight"]].reshape(4, -1)
        assert layer[0].any() and not layer[1:].any()
    assert np.linalg.norm(found[0] - found[1]) <= 1e-4 * np.linalg.norm(found[1])


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0])
def test_a_masked_action_is_never_taken(epsilon: float) -> None:
    head = Greedy(Discrete(4))
    outputs = np.array([INVALID, -3.0, INVALID, 2.0], np.float32)
    many = outputs[None].repeat(2000, 0)
    rng = np.random.default_rng(0)
    sample = head.sampler(rng, epsilon)
    for taken in (
        [sample(row) for row in many],
        head.together(rng, epsilon, 2000)(many)[0].ravel(),
        head.sample(torch.from_numpy(many), epsilon, torch.Generator().manual_seed(0)).ravel(),
    ):
        counts = np.bincount(taken, minlength=4)
        assert counts[0] == counts[2] == 0
        assert counts[1] == pytest.approx(1000 * epsilon, abs=120 * epsilon)


def test_it_asks_for_as_many_updates_as_are_set_with_a_correction_that_reaches_1() -> None:
    model = model_of(Network(hidden=(4,)), 0.6, batch_updates=3, minibatch_size=5, n_steps=2)
    replay = Remembered(steps_of(np.random.default_rng(0)))
    learner = make_learner(model.experiment.algorithm, model)
    for progress in (0.0, 1.0):
        rollout = rollout_of(model, replay, np.zeros(model.trainable, np.float32), progress)
        assert len(list(model.gradients(learner, rollout, model.generator(0)))) == 3
    assert (
        replay.asked
        == [{"count": 5, "steps": 2, "correction": 0.4}] * 3
        + [{"count": 5, "steps": 2, "correction": 1.0}] * 3
    )


def test_it_draws_uniformly_without_an_exponent_and_waits_for_enough_steps() -> None:
    model = model_of(Network(hidden=(4,)))
    replay = Remembered(steps_of(np.random.default_rng(0)))
    learner = make_learner(model.experiment.algorithm, model)
    rollout = rollout_of(model, replay, np.zeros(model.trainable, np.float32))
    assert len(list(model.gradients(learner, rollout, None))) == 1
    assert "correction" not in replay.asked[0]
    late = msgspec.structs.replace(model.experiment.algorithm, start_steps=101)
    assert list(model.gradients(make_learner(late, model), rollout, None)) == []
    replay.there = 0
    early = msgspec.structs.replace(model.experiment.algorithm, start_steps=0)
    assert list(model.gradients(make_learner(early, model), rollout, None)) == []


def test_uniform_samples_of_all_updates_are_drawn_together_and_each_is_used_once() -> None:
    model = model_of(Network(hidden=(4,)), batch_updates=3, minibatch_size=5)
    replay = Remembered(steps_of(np.random.default_rng(0), 15))
    seen: list[int] = []
    replay.prioritize = lambda places, errors: seen.extend(places)  # type: ignore[method-assign]
    rollout = rollout_of(model, replay, np.zeros(model.trainable, np.float32))
    learner = make_learner(model.experiment.algorithm, model)
    assert len(list(model.gradients(learner, rollout, model.generator(0)))) == 3
    assert seen == list(range(15))
    assert replay.asked == [{"count": 15, "steps": 1}]


def test_theta_minus_is_read_where_it_lies() -> None:
    """It changes behind the learner's back: the next update knows."""
    model = model_of(Network(hidden=(4,)), double=False)
    replay = Remembered(steps_of(np.random.default_rng(0)))
    learner = make_learner(model.experiment.algorithm, model)
    target = np.zeros(model.trainable, np.float32)
    rollout = rollout_of(model, replay, target)
    for number in range(2):
        target[:] = model.numbers * number
        list(model.gradients(learner, rollout, model.generator(0)))
    now = values_of(model, model.vector, replay.steps.observations)
    behind = values_of(model, target, replay.steps.following).max(1)
    chosen = now[np.arange(7), replay.steps.actions[:, 0]]
    assert replay.errors[0] == pytest.approx(chosen - replay.steps.rewards, abs=1e-5)
    assert replay.errors[1] == pytest.approx(
        chosen - replay.steps.rewards - replay.steps.discounts * behind, abs=1e-5
    )


# The head.


def test_the_best_action_is_taken_but_with_probability_epsilon() -> None:
    head = Greedy(Discrete(4, start=5))
    outputs = np.array([0.0, 3.0, 1.0, 2.0], np.float32)
    rng = np.random.default_rng(0)
    one, several = head.sampler(rng, 0.2), head.together(rng, 0.2, 3)
    singles = np.array([int(one(outputs)) for _ in range(6000)])
    stored, taken = several(np.tile(outputs, (3, 1)))
    assert stored.shape == (3, 1)
    assert taken == (stored[:, 0] + 5).tolist()
    lanes = np.concatenate([several(np.tile(outputs, (3, 1)))[0][:, 0] for _ in range(2000)])
    generator = torch.Generator().manual_seed(0)
    batch = head.sample(torch.from_numpy(np.tile(outputs, (6000, 1))), 0.2, generator)
    for actions in (singles, lanes, batch[:, 0].numpy()):
        shares = np.bincount(actions, minlength=4) / 6000
        assert shares == pytest.approx([0.05, 0.85, 0.05, 0.05], abs=0.02)
    assert {int(head.sampler(rng, 0.0)(outputs)) for _ in range(50)} == {1}
    assert head.mode(outputs) == 1


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"^algorithm.name = 'dqn': values a number of act"
    ):
        Greedy(gymnasium.spaces.Box(-1.0, 1.0, (2,)))
