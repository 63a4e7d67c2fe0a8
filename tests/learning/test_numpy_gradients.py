"""The network in NumPy: the same outputs, values and gradients as torch gives."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Network
from genkidama.learning.a3c import A3C
from genkidama.learning.heads import Categorical
from genkidama.learning.learners import gradients, make_learner
from genkidama.learning.model import Model
from genkidama.learning.networks import ActorCritic
from genkidama.learning.numpy_gradients import ACTIVATIONS
from genkidama.learning.ppo import PPO
from genkidama.learning.rollout import Rollout

#: How far a gradient may be from torch's, as a part of its length.
CLOSE = 1e-4


def model_of(
    algorithm: Algorithm, network: Network, inputs: int = 3, columns: int = 0, actions: int = 3
) -> Model:
    """A model for `columns` continuous actions, or for one of discrete `actions`."""
    space = Box(-1.0, 1.0, (columns,)) if columns else Discrete(actions, start=5)
    spaces: Any = SimpleNamespace(
        observation_space=Box(-9.0, 9.0, (inputs,)),
        action_space=space,
    )
    return Model(Experiment(algorithm=algorithm, network=network), spaces)


def rollout_of(model: Model, n: int, rng: np.random.Generator, acted: bool) -> Rollout:
    """n steps of several trajectories, some of them cut; `acted` by another policy."""
    ends = rng.random(n) < 0.3
    cut = rng.random(n) < 0.5
    ends[-1] = True
    cuts = np.flatnonzero(ends & cut)
    head, width = model.head, model.observation_size
    actions = (
        rng.integers(head.outputs, size=(n, 1))
        if isinstance(head, Categorical)
        else rng.normal(size=(n, head.columns))
    )
    return Rollout(
        torch.from_numpy(rng.normal(size=(n, width)).astype(np.float32)),
        torch.from_numpy(actions.astype(head.dtype)),
        rng.normal(size=n).astype(np.float32),
        ends,
        cuts,
        torch.from_numpy(rng.normal(size=(len(cuts), width)).astype(np.float32)),
        log_mu=rng.normal(-1.0, 0.4, n).astype(np.float32) if acted else None,
    )


def found(model: Model, rollout: Rollout) -> list[np.ndarray]:
    """Each gradient that the model's learner takes, whatever was in the vector before."""
    learner = make_learner(model.experiment.algorithm, model)
    model.gradient.fill_(float("nan"))
    generator = torch.Generator().manual_seed(3)
    return [model.gradient.numpy().copy() for _ in gradients(learner, model, rollout, generator)]


networks = st.builds(
    Network,
    hidden=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    activation=st.sampled_from(sorted(ACTIVATIONS)),
    shared=st.booleans(),
    initialization=st.just("normal"),
    initial_deviation=st.just(0.7),
)
common = {
    "gamma": st.just(0.9),
    "gae_lambda": st.sampled_from([0.0, 0.9, 1.0]),
    "value_coefficient": st.sampled_from([0.25, 1.0]),
    "entropy_coefficient": st.sampled_from([0.0, 0.3]),
    "reduction": st.sampled_from(["mean", "sum"]),
    "normalize_advantages": st.booleans(),
}
algorithms = st.one_of(
    st.builds(Algorithm, name=st.just("a3c"), vtrace=st.booleans(), **common),
    st.builds(
        Algorithm,
        name=st.just("ppo"),
        epochs=st.integers(1, 2),
        minibatch_size=st.integers(2, 12),
        clip=st.sampled_from([0.1, 0.5]),
        **common,
    ),
)


@settings(deadline=None, max_examples=60)
@given(
    algorithm=algorithms,
    network=networks,
    inputs=st.integers(1, 6),
    columns=st.integers(0, 3),
    n=st.integers(1, 30),
    acted=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradients_by_hand_are_those_of_torch(
    algorithm: Algorithm,
    network: Network,
    inputs: int,
    columns: int,
    n: int,
    acted: bool,
    seed: int,
) -> None:
    ours = model_of(algorithm, network, inputs, columns)
    torchs = model_of(algorithm, network, inputs, columns)
    rng = np.random.default_rng(seed)
    numbers = 0.7 * rng.normal(size=len(ours.numbers))
    for model in (ours, torchs):
        model.numbers[:] = numbers
    assert ours.by_hand is not None
    torchs.by_hand = None
    data = rollout_of(ours, n, rng, acted)
    pairs = list(zip(found(ours, data), found(torchs, data), strict=True))
    assert len(pairs) == (
        1 if algorithm.name == "a3c" else algorithm.epochs * -(-n // algorithm.minibatch_size)
    )
    for by_hand, expected in pairs:
        assert np.linalg.norm(by_hand - expected) <= CLOSE * np.linalg.norm(expected) + 1e-7


@pytest.mark.parametrize("columns", [0, 2])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_outputs_and_values_are_those_of_torch_for_the_weights_of_now(
    activation: str, shared: bool, columns: int
) -> None:
    network = Network(hidden=(8, 5), activation=activation, shared=shared)  # type: ignore[arg-type]
    model = model_of(Algorithm(), network, columns=columns)
    assert model.by_hand is not None
    rng = np.random.default_rng(0)
    act = model.acting()
    # More rows than before, fewer, one; and more than are computed at once.
    for rows in (7, 30, 2, 1, 1300):
        model.numbers[:] = rng.normal(size=len(model.numbers))
        seen = rng.normal(size=(rows, 3)).astype(np.float32)
        with torch.no_grad():
            outputs, values = (part.numpy() for part in model.network(torch.from_numpy(seen)))
        for by_hand in (model.by_hand.forward, model.by_hand.evaluate):
            ours, ours_values = by_hand(seen)
            np.testing.assert_allclose(ours, outputs, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(ours_values, values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(act(seen), outputs, rtol=1e-4, atol=1e-5)


def test_what_is_evaluated_stays_whatever_is_computed_next() -> None:
    model = model_of(Algorithm(), Network(hidden=(4,)))
    assert model.by_hand is not None
    outputs, values = model.by_hand.evaluate(np.ones((3, 3), np.float32))
    known = outputs.copy(), values.copy()
    model.by_hand.forward(np.full((3, 3), 5.0, np.float32))
    np.testing.assert_array_equal(outputs, known[0])
    np.testing.assert_array_equal(values, known[1])


# Whatever is another thing than what the hand has written is torch's.


class Halved(PPO):
    """Other losses."""

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[torch.Tensor]:
        for loss in super().losses(rollout, rng):
            yield 0.5 * loss


class HalvedA3C(A3C):
    """Other losses."""

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[torch.Tensor]:
        for loss in super().losses(rollout, rng):
            yield 0.5 * loss


class Same(PPO):
    """The same under another name."""


class Tempered(Categorical):
    """Another distribution."""

    def log_probability(self, outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return super().log_probability(0.5 * outputs, actions)


class WithTempered(PPO):
    @staticmethod
    def head(space: gymnasium.Space[Any]) -> Categorical:
        assert isinstance(space, Discrete)
        return Tempered(space)


class Own(PPO):
    """Gradients of its own."""

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[torch.Tensor]:
        raise AssertionError("nobody asks")

    def gradients(self, rollout: Rollout, rng: torch.Generator) -> Iterator[None]:
        self._model.gradient.fill_(7.0)
        yield


class Cubed(ActorCritic):
    """Another forward pass over the same parameters."""

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(observations**3)


class Normed(ActorCritic):
    """Another layer, and the same forward pass."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.policy.insert(1, torch.nn.LayerNorm(4))


@pytest.mark.parametrize("name", ["Halved", "HalvedA3C", "WithTempered"])
def test_a_learner_with_other_losses_or_another_head_is_not_taken_for_its_base(name: str) -> None:
    algorithm = Algorithm(name=f"{__name__}:{name}", epochs=1, minibatch_size=99)
    model = model_of(algorithm, Network(hidden=(4,)))
    data = rollout_of(model, 9, np.random.default_rng(0), False)
    (gradient,) = found(model, data)
    (loss,) = make_learner(algorithm, model).losses(data, torch.Generator().manual_seed(3))
    model.gradient.zero_()
    loss.backward()
    np.testing.assert_array_equal(gradient, model.gradient.numpy())


def test_a_learner_that_changes_no_loss_is_taken_by_hand_and_may_write_its_own_gradients() -> None:
    for name in ("Same", "Own"):
        algorithm = Algorithm(name=f"{__name__}:{name}", epochs=1, minibatch_size=99)
        model = model_of(algorithm, Network(hidden=(4,)))
        model.network.forward = None  # type: ignore[assignment]
        gradient, *_ = found(model, rollout_of(model, 9, np.random.default_rng(0), False))
        assert np.isfinite(gradient).all()
        assert (gradient == 7.0).all() == (name == "Own")


@pytest.mark.parametrize("name", ["Cubed", "Normed"])
def test_a_network_that_computes_something_else_is_not_taken_for_its_base(name: str) -> None:
    network = Network(name=f"{__name__}:{name}", hidden=(4,))
    model = model_of(Algorithm(), network)
    assert model.by_hand is None
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    with torch.no_grad():
        expected = model.network(torch.from_numpy(seen))[0].numpy()
    np.testing.assert_allclose(model.acting()(seen), expected, rtol=1e-6)
    np.testing.assert_allclose(model.network.acting()(seen[0]), expected[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("activation", ["elu", "silu"])
def test_other_activations_are_torchs_alone(activation: str) -> None:
    model = model_of(Algorithm(epochs=1), Network(hidden=(4,), activation=activation))  # type: ignore[arg-type]
    assert model.by_hand is None
    (gradient,) = found(model, rollout_of(model, 9, np.random.default_rng(0), False))
    assert np.isfinite(gradient).all()
    assert gradient.any()
