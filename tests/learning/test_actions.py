"""Several discrete columns, and masks: what is never sampled, and which gradients are nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatten
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.actions import (
    INVALID,
    MaskedBox,
    action_of,
    bounds,
    choices,
    columns,
    converter,
)
from genkidama.learning.environments import make_environment
from genkidama.learning.heads import (
    Categorical,
    Mixed,
    MultiCategorical,
    head_for,
    samples_of_lanes,
)
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.learning.tensors.tensor_model import TensorModel
from tests.learning import both

seeds = st.integers(0, 2**32 - 1)
sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)
DOORS = {"id": "tests.environments:Doors"}


def drawn(nvec: list[int], batch: int, seed: int) -> tuple[MultiCategorical, Any, Any]:
    """A head, outputs of which about half are invalid (but not all of a column), and actions."""
    rng = np.random.default_rng(seed)
    head = MultiCategorical(MultiDiscrete(nvec))
    valid = rng.random((batch, head.outputs)) < 0.5
    actions = rng.integers(nvec, size=(batch, len(nvec)))
    np.put_along_axis(valid, actions + np.cumsum([0, *nvec])[:-1], True, 1)
    outputs = rng.normal(scale=3.0, size=(batch, head.outputs)).astype(np.float32)
    return head, np.where(valid, outputs, INVALID), actions


@given(sizes, st.integers(1, 6), seeds)
def test_columns_are_independent_categoricals_and_slopes_are_autograds(
    nvec: list[int], batch: int, seed: int
) -> None:
    head, outputs, actions = drawn(nvec, batch, seed)
    given_outputs = torch.from_numpy(outputs).requires_grad_()
    parts = given_outputs.split(nvec, 1)
    each = [torch.distributions.Categorical(logits=part) for part in parts]
    chosen = torch.from_numpy(actions)
    expected = sum(one.log_prob(chosen[:, i]) for i, one in enumerate(each))
    entropy = sum(Categorical(Discrete(part.shape[1])).entropy(part) for part in parts)
    log_pi, found = head.log_probability(given_outputs, chosen), head.entropy(given_outputs)
    np.testing.assert_allclose(log_pi.detach(), expected.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.detach(), entropy.detach(), rtol=1e-4, atol=1e-5)
    slopes = head.slopes(outputs, actions)
    np.testing.assert_allclose(slopes.log_pi, log_pi.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(slopes.entropy(), found.detach(), rtol=1e-4, atol=1e-5)
    weights = np.random.default_rng(seed + 1).normal(size=batch).astype(np.float32)
    (log_pi @ torch.from_numpy(weights) + 0.3 * found.sum()).backward()
    by_hand = slopes.back(weights, 0.3)
    assert given_outputs.grad is not None
    np.testing.assert_allclose(by_hand, given_outputs.grad, rtol=1e-3, atol=1e-5)
    assert not by_hand[outputs == INVALID].any() and np.isfinite(by_hand).all()
    np.testing.assert_allclose(
        [np.add.reduceat(head.probabilities(row), np.cumsum([0, *nvec])[:-1]) for row in outputs],
        1.0,
        rtol=1e-5,
    )


@given(sizes, seeds, st.sampled_from([0.0, 0.5, 1.0]))
def test_what_is_invalid_is_never_sampled(nvec: list[int], seed: int, epsilon: float) -> None:
    head, outputs, _ = drawn(nvec, 1, seed)
    heads: list[Any] = [(head, outputs)]
    if len(nvec) == 1:
        heads.append((Categorical(Discrete(nvec[0])), outputs))
    for one, given_outputs in heads:
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        many = given_outputs.repeat(40, 0)
        sample = one.sampler(rng, epsilon)
        taken = [
            np.reshape([sample(row) for row in many], (40, -1)),
            samples_of_lanes(one, rng, epsilon, 40)(many)[0],
            one.sample(torch.from_numpy(many), epsilon, generator).numpy(),
            np.reshape(one.mode(given_outputs[0]), (1, -1)),
        ]
        places = np.concatenate(taken) + np.cumsum([0, *nvec])[:-1]
        assert (given_outputs[0][places] > INVALID).all()
        assert (np.concatenate(taken) < nvec).all()


def test_uniformly_random_columns_are_uniform_among_valid_choices() -> None:
    head = MultiCategorical(MultiDiscrete([3, 2]))
    outputs = np.array([9.0, INVALID, 0.0, 0.0, 5.0], np.float32)
    sample = head.sampler(np.random.default_rng(0), 1.0)
    actions = np.array([sample(outputs) for _ in range(20_000)])
    assert (actions == 0).mean(0) == pytest.approx([0.5, 0.5], abs=0.02)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03


# In both forms of learning.


def models(environment: dict[str, Any], **sections: Any) -> tuple[Model, Model, Any]:
    experiment = Experiment.from_dict(
        {"environment": environment, "network": {"hidden": [7]}, **sections}
    )
    made = make_environment(experiment.environment)
    model = Model(experiment, made)
    rng = np.random.default_rng(0)
    model.numbers[: model.trainable] = rng.normal(scale=0.5, size=model.trainable)
    return model, both.in_tensors(model, made), made


def played(model: Model, environment: Any, n: int = 12) -> Rollout:
    """n steps of random valid actions, which end nowhere but with the last."""
    rng = np.random.default_rng(1)
    observations = [environment.reset(seed=3)[0]]
    sample, actions = model.head.sampler(rng, 0.0), []
    for _ in range(n):
        outputs = model.network.acting()(observations[-1])
        actions.append(sample(outputs))
        observation, _, terminated, _, _ = environment.step(model.head.to_environment(actions[-1]))
        observations.append(environment.reset()[0] if terminated else observation)
    ends = np.zeros(n, np.bool_)
    ends[-1] = True
    return Rollout(
        np.array(observations[:-1], np.float32),
        np.reshape(actions, (n, -1)).astype(np.int64),
        rng.normal(size=n).astype(np.float32),
        ends,
        np.array([n - 1]),
        np.array(observations[-1:], np.float32),
    )


@pytest.mark.parametrize("options", [{}, {"columns": 3}, {"binary": True}])
@pytest.mark.parametrize("place", ["key", "info", "none"])
@pytest.mark.parametrize("name", ["a3c", "ppo"])
def test_both_forms_take_the_same_gradients(options: Any, place: str, name: str) -> None:
    environment = DOORS | {
        "options": options | {"place": place},
        "action_mask": "info" if place == "info" else "key",
    }
    algorithm = {"name": name, "entropy_coefficient": 0.1}
    if name == "ppo":
        algorithm |= {"minibatch_size": 6, "epochs": 1}
    model, tensors, made = models(environment, algorithm=algorithm)
    assert bool(model.mask) == (place != "none")
    rollout = played(model, made)
    by_hand, by_autograd = both.gradients(model, rollout), both.gradients(tensors, rollout)
    assert len(by_hand) == (2 if name == "ppo" else 1)
    for ours, theirs in zip(by_hand, by_autograd, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    if place != "none":
        outputs, _ = model.evaluate(rollout.observations)
        valid = rollout.observations[:, -model.mask :] > 0.0
        assert ((outputs > INVALID) == valid).all() and not valid.all()
        # Of what no observation allows, the last layer's rows have no gradient.
        never = ~valid.any(0)
        assert never.any()
        for gradient in by_hand:
            part = gradient[model.signature.slices["policy.2.weight"]].reshape(model.mask, -1)
            assert not part[never].any() and part[~never].any()


@pytest.mark.parametrize("normalize", [False, True])
def test_a_mask_stays_as_it_is_where_observations_are_normalized(normalize: bool) -> None:
    model, tensors, made = models(DOORS | {"normalize_observations": normalize})
    observations = played(model, made).observations
    if (moments := model.moments("observations")) is not None:
        moments.add(3.0 * observations + 1.0)
    seen = model.seen(observations)
    assert np.array_equal(seen[:, -4:], observations[:, -4:])
    assert np.array_equal(seen, observations) != normalize
    ours, theirs = (one.evaluate(one.native(seen)) for one in (model, tensors))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)
    one_by_one = [model.network.acting()(row) for row in seen]
    np.testing.assert_allclose(one_by_one, ours[0], rtol=1e-4, atol=1e-5)
    together = model.network.acting_together()(seen)
    np.testing.assert_allclose(together, ours[0], rtol=1e-4, atol=1e-5)


# Where masks come from.


def test_images_and_parts_keep_their_form_for_the_network() -> None:
    picture = Box(0, 255, (2, 3, 1), np.uint8)
    space = MaskedBox(Dict({"action_mask": MultiBinary(4), "picture": picture}), 4)
    assert (space.shape, space.dtype, space.rest) == ((10,), np.uint8, picture)
    image = np.arange(6, dtype=np.uint8).reshape(2, 3, 1)
    joined = space.join({"picture": image, "action_mask": np.array([0, 1, 1, 0])})
    assert joined.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 1, 0]
    parts = {"action_mask": MultiBinary(2), "at": Discrete(3), "speed": Box(-1.0, 1.0, (2,))}
    space = MaskedBox(Dict(parts), 2)
    assert (space.shape, space.rest.shape) == ((7,), (5,))
    seen = {"at": 1, "speed": np.array([0.5, -0.5], np.float32), "action_mask": [True, False]}
    assert space.join(seen).tolist() == [0, 1, 0, 0.5, -0.5, 1, 0]
    # Nothing is valid where an episode has ended: then no choice is forbidden.
    assert space.join(seen | {"action_mask": [0, 0]})[-2:].tolist() == [1, 1]
    with pytest.raises(EnvironmentFailure, match="an action mask of 3 numbers: expected 2"):
        space.join(seen | {"action_mask": [1, 1, 1]})


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (
            {"id": "Pendulum-v1", "action_mask": "info"},
            r"environment.action_mask = 'info': the action space is Box.*; leave it out",
        ),
        (
            {"id": "ALE/Pong-v5", "vectorized": True, "action_mask": "info"},
            "environment.action_mask = 'info': a vectorized form has no masks",
        ),
    ],
)
def test_masks_that_cannot_be_are_refused(environment: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        make_environment(Experiment.from_dict({"environment": environment}).environment)


def test_a_missing_mask_is_said() -> None:
    settings = {"id": "CartPole-v1", "action_mask": "info"}
    made = make_environment(Experiment.from_dict({"environment": settings}).environment)
    with pytest.raises(EnvironmentFailure, match="the environment's info has no 'action_mask'"):
        made.reset()


def test_dqn_refuses_dueling_with_masks() -> None:
    algorithm = {"name": "dqn", "dueling": True}
    model, _, _ = models(DOORS, algorithm=algorithm, replay={"steps": 1000})
    with pytest.raises(ConfigurationError, match=r"algorithm\.dueling = True"):
        make_learner(model.experiment.algorithm, model)


# Actions in parts, and whole numbers within bounds.

GEAR = Box(-2, 1, (2,), np.int16)
PARTS = Dict(
    {
        "gear": GEAR,
        "wheel": Box(-1.0, 1.0, (2, 2)),
        "deep": Tuple((Discrete(3, start=5), MultiBinary(2), Box(0.0, 9.0, (), np.float64))),
    }
)


def test_parts_of_an_action_are_stored_discrete_first_and_given_back_in_their_structure() -> None:
    # Gymnasium sorts the keys: deep, gear, wheel.
    assert (columns(PARTS), choices(PARTS)) == (10, (3, 2, 2, 4, 4))
    low, high = bounds(PARTS)
    assert low.tolist() == [0.0, -1.0, -1.0, -1.0, -1.0] and high.tolist() == [9.0, 1, 1, 1, 1]
    stored = np.array([2, 0, 1, 3, 0, 11.0, 0.5, -0.5, 7.0, 0.0], np.float32)
    given = converter(PARTS)(stored)
    assert PARTS.contains(given)
    number, bits, height = given["deep"]
    assert (number, bits.tolist(), height.tolist()) == (7, [0, 1], 9.0)
    assert given["gear"].tolist() == [1, -2] and given["gear"].dtype == np.int16
    assert given["wheel"].tolist() == [[0.5, -0.5], [1.0, 0.0]]
    typed = action_of(PARTS, [7, 0, 1, 9.0, 1, -2, 0.5, -0.5, 1.0, 0.0])
    assert np.array_equal(flatten(PARTS, typed), flatten(PARTS, given))
    assert action_of(PARTS, [7, 0, 1]) is None and action_of(PARTS, [0] * 11) is None


@given(st.integers(1, 6), seeds)
def test_log_pi_and_entropy_of_mixed_actions_are_sums_and_slopes_are_autograds(
    batch: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    head = head_for(PARTS)
    assert isinstance(head, Mixed) and (head.columns, head.outputs) == (10, 15 + 2 * 5)
    outputs = rng.normal(size=(batch, head.outputs)).astype(np.float32)
    actions = np.column_stack(
        (rng.integers(choices(PARTS), size=(batch, 5)), rng.normal(size=(batch, 5)))
    ).astype(np.float32)
    tensor = torch.from_numpy(outputs).requires_grad_()
    logits = tensor[:, :15].split([3, 2, 2, 4, 4], 1)
    parts = [torch.distributions.Categorical(logits=part) for part in logits]
    normal = torch.distributions.Normal(tensor[:, 15:20], tensor[:, 20:].exp())
    chosen = torch.from_numpy(actions)
    expected = sum(part.log_prob(chosen[:, i]) for i, part in enumerate(parts))
    expected = expected + normal.log_prob(chosen[:, 5:]).sum(1)
    uncertain = sum(part.entropy() for part in parts) + normal.entropy().sum(1)
    log_pi, entropy = head.log_probability(tensor, chosen), head.entropy(tensor)
    np.testing.assert_allclose(log_pi.detach(), expected.detach(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy.detach(), uncertain.detach(), rtol=1e-4, atol=1e-4)
    slopes = head.slopes(outputs, actions)
    np.testing.assert_allclose(slopes.log_pi, log_pi.detach(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(slopes.entropy(), entropy.detach(), rtol=1e-4, atol=1e-4)
    weights = rng.normal(size=batch).astype(np.float32)
    (log_pi @ torch.from_numpy(weights) + 0.3 * entropy.sum()).backward()
    assert tensor.grad is not None
    np.testing.assert_allclose(slopes.back(weights, 0.3), tensor.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.25, 1.0])
def test_mixed_actions_are_drawn_from_both_distributions(epsilon: float) -> None:
    head = head_for(Tuple((Discrete(2), Box(-1.0, 1.0, (1,)))))
    outputs = np.array([0.0, np.log(3.0), 4.0, np.log(0.1)], np.float32)
    count = 4000
    sample = head.sampler(np.random.default_rng(0), epsilon)
    tensor = torch.from_numpy(outputs).repeat(count, 1)
    for drawn in (
        np.stack([sample(outputs) for _ in range(count)]),
        head.sample(tensor, epsilon, torch.Generator().manual_seed(0)).numpy(),
        samples_of_lanes(head, np.random.default_rng(1), epsilon, count)(tensor.numpy())[0],
    ):
        assert drawn.shape == (count, 2) and drawn.dtype == np.float32
        uniform = drawn[:, 1] < 2.0  # the Gaussian is far from there
        assert uniform.mean() == pytest.approx(epsilon, abs=0.03)
        for some, right in ((drawn[uniform], 0.5), (drawn[~uniform], 0.75)):
            if len(some):
                assert some[:, 0].mean() == pytest.approx(right, abs=0.06)
    assert head.mode(outputs).tolist() == [1.0, 4.0]


@pytest.mark.parametrize("kind", [Model, TensorModel])
def test_a_perceptron_has_outputs_for_mixed_actions_and_takes_observations_of_any_shape(
    kind: Any,
) -> None:
    stage = SimpleNamespace(observation_space=Box(-1.0, 1.0, (2, 3)), action_space=PARTS)
    model = kind(Experiment(), stage)
    assert model.signature.slices["log_deviation"].stop == 5  # one for each continuous column
    seen = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    outputs, values = model.evaluate(seen)
    assert outputs.shape == (4, 25) and values.shape == (4,)
    np.testing.assert_allclose(model.network.acting()(seen[1]), outputs[1], rtol=1e-5, atol=1e-6)
    together = model.network.acting_together()(seen)
    np.testing.assert_allclose(together, outputs, rtol=1e-5, atol=1e-6)


def test_a_mask_of_mixed_actions_is_for_their_choices_alone() -> None:
    space = MaskedBox(Dict({"action_mask": MultiBinary(3), "seen": Box(0.0, 1.0, (2,))}), 3, 4)
    given = {"action_mask": np.array([0, 1, 1]), "seen": np.array([0.5, 1.0])}
    assert space.join(given).tolist() == [0.5, 1.0, 0, 1, 1, 1, 1, 1, 1]
    given["action_mask"] = np.zeros(3)
    assert space.join(given).tolist() == [0.5, 1.0] + 7 * [1]
    with pytest.raises(ConfigurationError, match="its action_mask has 3 numbers, but the actions "):
        MaskedBox(Dict({"action_mask": MultiBinary(3), "seen": Box(0.0, 1.0, (2,))}), 4)
