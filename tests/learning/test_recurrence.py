"""The GRU and its way back beside torch's, and the sequences that it goes through."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.learning.recurrence import (
    GRU,
    behind,
    packed,
    parameters,
    sequence_starts,
    shuffled,
)
from genkidama.learning.rollout import Rollout
from genkidama.learning.spaces import KnownSpaces
from genkidama.protocol.vector import unflatten
from tests.learning.both import gradients, in_tensors

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def starts_of(lengths: list[int]) -> np.ndarray:
    return np.concatenate([np.arange(length) == 0 for length in lengths])


@given(lengths)
def test_each_step_of_a_packing_continues_the_sequences_that_are_longest(
    lengths: list[int],
) -> None:
    starts = starts_of(lengths)
    order, places, counts = packed(starts)
    assert order[places].tolist() == list(range(sum(lengths)))
    assert counts == [sum(length > t for length in lengths) for t in range(max(lengths))]
    before: list[int] = []
    for t, part in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        assert starts[part].all() if not t else not starts[part].any()
        assert not t or [row - 1 for row in part] == before[: len(part)]
        before = part.tolist()


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 8))
def test_a_sequence_ends_with_its_trajectory_or_when_it_is_long(
    ends: list[bool], longest: int
) -> None:
    expected, length = [], 0
    for t in range(len(ends)):
        length = 0 if not t or ends[t - 1] or length == longest else length
        expected.append(length == 0)
        length += 1
    assert sequence_starts(np.array(ends), longest).tolist() == expected


@given(lengths, st.integers(1, 20), st.integers(0, 99))
def test_minibatches_are_of_whole_sequences(lengths: list[int], size: int, seed: int) -> None:
    starts = starts_of(lengths)
    order, parts = shuffled(len(starts), size, np.random.default_rng(seed), starts)
    assert sorted(order.tolist()) == list(range(len(starts)))
    assert [begin for begin, _ in parts] == [0, *(end for _, end in parts[:-1])]
    assert parts[-1][1] == len(starts)
    for begin, end in parts:
        rows = order[begin:end]
        assert starts[rows[0]] and end - begin < size + max(lengths)
        assert all(b == a + 1 or starts[b] for a, b in pairwise(rows))
    assert len(parts) >= sum(lengths) // (size + max(lengths))


def a_gru(inputs: int, size: int) -> tuple[GRU, list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    parts = [rng.normal(0.0, 0.5, shape) for _, shape in parameters(inputs, size)]
    views = [part.astype(np.float32) for part in parts]
    slopes = [np.full_like(part, np.nan) for part in views]
    return GRU(views, slopes), views, slopes


@given(lengths, st.integers(1, 4), st.integers(1, 5))
def test_states_and_gradients_are_torchs(lengths: list[int], inputs: int, size: int) -> None:
    gru, parts, slopes = a_gru(inputs, size)
    rng, m = np.random.default_rng(1), sum(lengths)
    x, h, d = (rng.normal(size=(m, n)).astype(np.float32) for n in (inputs, size, size))
    states = gru.forward(x, h, starts_of(lengths))
    below = gru.backward(d)

    theirs = torch.nn.GRU(inputs, size).double()
    for parameter, part in zip(theirs.parameters(), parts, strict=True):
        parameter.data = torch.from_numpy(part).double()
    given = torch.from_numpy(x).double().requires_grad_()
    found, first = [], 0
    for length in lengths:
        begin = torch.from_numpy(h[first]).double()[None]
        found.append(theirs(given[first : first + length], begin)[0])
        first += length
    expected = torch.cat(found)
    np.testing.assert_allclose(states, expected.detach().numpy(), atol=1e-5)
    (expected * torch.from_numpy(d)).sum().backward()
    assert given.grad is not None
    np.testing.assert_allclose(below, given.grad.numpy(), rtol=1e-3, atol=1e-4)
    for parameter, slope in zip(theirs.parameters(), slopes, strict=True):
        assert parameter.grad is not None
        np.testing.assert_allclose(slope, parameter.grad.numpy(), rtol=1e-3, atol=1e-4)


CHOICES = gymnasium.spaces.Discrete(3)
BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,))
NUMBERS = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
PICTURES = gymnasium.spaces.Box(0, 255, (6, 7, 2), np.uint8)


def remembering(spaces: Any, name: str = "ppo", **network: Any) -> Model:
    settings = {"hidden": [6], "memory": 5, "sequence_length": 4, "initialization": "uniform"}
    algorithm: dict[str, Any] = {"name": name, "gae_lambda": 0.8, "entropy_coefficient": 0.1}
    if name == "ppo":
        algorithm |= {"minibatch_size": 8, "batch_size": 16, "epochs": 2}
    return Model(
        Experiment.from_dict({"network": settings | network, "algorithm": algorithm}), spaces
    )


def rollout(model: Model) -> Rollout:
    """16 steps of two lanes, whose states are those that the model has come to."""
    rng = np.random.default_rng(2)
    ends = np.isin(np.arange(16), (2, 7, 15))
    seen = rng.integers(0, 9, (19, model.observation_size - model.memory)).astype(np.float32)
    states = rng.uniform(-1.0, 1.0, (19, model.memory)).astype(np.float32)
    rows = behind(states, seen)
    for t in range(15):
        if not ends[t]:
            model.network.acting()(rows[t])
            rows[t + 1, : model.memory] = model.network.state[0]
    actions = rng.integers(0, 3, (16, 1)) if model.choices else rng.normal(size=(16, 2))
    return Rollout(
        rows[:16],
        actions.astype(model.head.dtype),
        rng.normal(size=16).astype(np.float32),
        ends,
        np.array([7, 15]),
        rows[16:18],
    )


@pytest.mark.parametrize("name", ["a3c", "ppo"])
@pytest.mark.parametrize("actions", [CHOICES, BOX])
@pytest.mark.parametrize("sde_steps", [0, 4])
def test_learning_by_hand_is_that_of_autograd(
    name: str, actions: gymnasium.Space[Any], sde_steps: int
) -> None:
    if sde_steps and actions is CHOICES:
        pytest.skip("gSDE is for Box actions")
    spaces = KnownSpaces(NUMBERS, actions)
    model = remembering(spaces, name, sde_steps=sde_steps)
    data = rollout(model)
    ours, theirs = gradients(model, data), gradients(in_tensors(model, spaces), data)
    assert len(ours) == len(theirs) == (1 if name == "a3c" else 4)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5 * np.abs(other).max())
    memory = unflatten(ours[0], model.signature)
    assert all(np.abs(memory[name]).max() > 1e-6 for name, _ in parameters(6, 5))


@pytest.mark.parametrize("sde_steps", [0, 2])
@pytest.mark.parametrize("hidden", [[6], [4, 6]])
def test_one_row_alone_is_as_among_others(sde_steps: int, hidden: list[int]) -> None:
    model = remembering(KnownSpaces(NUMBERS, BOX), hidden=hidden, sde_steps=sde_steps)
    rows = np.random.default_rng(0).uniform(-1.0, 1.0, (4, 8)).astype(np.float32)
    given = [model.exploration(np.random.default_rng(5), lanes) for lanes in (1, 4)]
    alone, together = (
        act(*filter(None, [explored]))
        for act, explored in zip(
            (model.network.acting, model.network.acting_together), given, strict=True
        )
    )
    outputs = together(rows).copy()
    states = model.network.state.copy()
    np.testing.assert_allclose(alone(rows[0]), outputs[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.network.state, states[:1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.evaluate(rows)[0], outputs, rtol=1e-4, atol=1e-6)
    if sde_steps:
        assert given[0] is not None and given[1] is not None
        np.testing.assert_allclose(given[0].noise[0], given[1].noise[0], rtol=1e-4)


@pytest.mark.parametrize("spaces", [KnownSpaces(NUMBERS, CHOICES), KnownSpaces(PICTURES, CHOICES)])
def test_what_was_acted_is_what_is_unrolled(spaces: Any) -> None:
    """From the stored state of each row, from that of each sequence, and from the first alone."""
    model = remembering(spaces)
    data = rollout(model)
    network, native = model.network, model.native
    alone = model.evaluate(native(data.observations))
    for longest in (4, 1, 16):
        changed = replace(
            data, observations=data.observations.copy(), cut_values=np.zeros(2, np.float32)
        )
        starts = sequence_starts(data.ends, longest)
        changed.observations[~starts, : model.memory] = np.nan  # nobody reads these
        outputs, values = network(native(changed.observations), starts)
        for found, expected in zip((outputs, values), alone, strict=True):
            detached = found if isinstance(found, np.ndarray) else found.detach().numpy()
            np.testing.assert_allclose(detached, expected, rtol=1e-3, atol=1e-5)


def test_initial_numbers_do_not_depend_on_what_computes() -> None:
    spaces = KnownSpaces(NUMBERS, CHOICES)
    model = remembering(spaces, initialization="orthogonal")
    tensors = type(in_tensors(model, spaces))(model.experiment, spaces)
    assert tensors.signature == model.signature
    assert np.array_equal(tensors.numbers, model.numbers)
    parts = unflatten(model.numbers, model.signature)
    weight = parts["memory.weight_hh_l0"]
    np.testing.assert_allclose(weight.T @ weight, np.eye(5), atol=1e-5)
    assert not parts["memory.bias_ih_l0"].any()


def test_a_mask_is_behind_what_is_seen() -> None:
    settings = Environment(id="tests.environments:Doors", options={"columns": 3})
    spaces = make_environment(settings)
    model = remembering(spaces)
    tensors = in_tensors(model, spaces)
    observation, _ = spaces.reset(seed=1)
    row = model.recalled(observation)
    outputs, _ = model.evaluate(row[None])
    valid = observation[-model.mask :] > 0.0
    assert np.array_equal(outputs[0] > -1e30, valid) and not valid.all()
    np.testing.assert_allclose(model.network.acting()(row), outputs[0], rtol=1e-5)
    np.testing.assert_allclose(tensors.evaluate(row[None])[0], outputs, rtol=1e-5)


def test_statistics_leave_the_state_alone() -> None:
    spaces = KnownSpaces(NUMBERS, CHOICES)
    experiment = remembering(spaces).experiment.with_settings(
        {"environment.normalize_observations": True}
    )
    model = Model(experiment, spaces)
    moments = model.moments("observations")
    assert moments is not None
    moments.add(np.random.default_rng(0).normal(3.0, 2.0, (50, 8)))
    row = np.full((1, 8), 0.5, np.float32)
    assert (model.seen(row)[0, :5] == 0.5).all() and (model.seen(row)[0, 5:] < 0.0).all()
