"""Arrays and tensors: the same numbers, outputs, gradients and runs, and which of them it is."""

from __future__ import annotations

import importlib.util
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
from genkidama.errors import ConfigurationError
from genkidama.learning.a3c import A3C
from genkidama.learning.forms import ARRAY_ACTIVATIONS, tensor_setting
from genkidama.learning.heads import Categorical
from genkidama.learning.model import Model
from genkidama.learning.perceptron import ACTIVATIONS
from genkidama.learning.ppo import PPO
from genkidama.learning.rollout import Rollout
from genkidama.learning.tensors.networks import ActorCritic
from genkidama.learning.tensors.tensor_model import TensorModel
from tests.learning.both import gradients, gradients_and_losses, in_tensors

#: How far a gradient may be from torch's, as a part of its length.
CLOSE = 1e-4


def spaces_of(inputs: int = 3, columns: int = 0, actions: int = 3) -> Any:
    """For `columns` continuous actions, or for one of discrete `actions`."""
    space = Box(-1.0, 1.0, (columns,)) if columns else Discrete(actions, start=5)
    return SimpleNamespace(observation_space=Box(-9.0, 9.0, (inputs,)), action_space=space)


def model_of(
    algorithm: Algorithm, network: Network, inputs: int = 3, columns: int = 0, **more: Any
) -> Model:
    experiment = Experiment(algorithm=algorithm, network=network, **more)
    return Model(experiment, spaces_of(inputs, columns))


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
        rng.normal(size=(n, width)).astype(np.float32),
        actions.astype(head.dtype),
        rng.normal(size=n).astype(np.float32),
        ends,
        cuts,
        rng.normal(size=(len(cuts), width)).astype(np.float32),
        log_mu=rng.normal(-1.0, 0.4, n).astype(np.float32) if acted else None,
    )


networks = st.builds(
    Network,
    hidden=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    activation=st.sampled_from(ARRAY_ACTIVATIONS),
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
    rng = np.random.default_rng(seed)
    ours.numbers[:] = 0.7 * rng.normal(size=len(ours.numbers))
    torchs = in_tensors(ours, spaces_of(inputs, columns))
    data = rollout_of(ours, n, rng, acted)
    both = (gradients_and_losses(form, data) for form in (ours, torchs))
    pairs = list(zip(*both, strict=True))
    assert len(pairs) == (
        1 if algorithm.name == "a3c" else algorithm.epochs * -(-n // algorithm.minibatch_size)
    )
    for (by_hand, loss), (expected, theirs) in pairs:
        assert np.linalg.norm(by_hand - expected) <= CLOSE * np.linalg.norm(expected) + 1e-7
        assert loss == pytest.approx(theirs, rel=1e-3, abs=1e-3)


@settings(deadline=None, max_examples=30)
@given(network=networks, columns=st.integers(0, 2), rows=st.sampled_from([1, 2, 30, 1300]))
def test_outputs_and_values_are_those_of_torch_for_the_weights_of_now(
    network: Network, columns: int, rows: int
) -> None:
    model = model_of(Algorithm(), network, columns=columns)
    torchs = in_tensors(model, spaces_of(columns=columns))
    together = model.network.acting_together()
    rng = np.random.default_rng(0)
    close = {"rtol": 1e-4, "atol": 1e-5}
    for rows_of_now in (rows, 7):
        model.numbers[:] = rng.normal(size=len(model.numbers))
        seen = 2.0 * rng.normal(size=(rows_of_now, 3)).astype(np.float32)
        outputs, values = torchs.evaluate(seen)
        evaluated = model.evaluate(seen)
        kept = [part.copy() for part in evaluated]
        for ours, ours_values in (model.network(seen), kept):
            np.testing.assert_allclose(ours, outputs, **close)
            np.testing.assert_allclose(ours_values, values, **close)
        np.testing.assert_allclose(together(seen), outputs, **close)
        one = model.network.acting()
        acted = [one(row) for row in seen[:3].astype(np.float64)]  # of any type that a box has
        np.testing.assert_allclose(acted, outputs[:3], **close)
        one(np.full(3, 7.0))
        model.network(np.full((3, 3), 5.0, np.float32))
        # What was evaluated stays, whatever is computed next.
        for part, again in zip(evaluated, kept, strict=True):
            np.testing.assert_array_equal(part, again)


# A seed means the same in both.


@pytest.mark.parametrize("initialization", ["orthogonal", "normal", "uniform"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("columns", [0, 2])
def test_both_have_the_same_signature_and_begin_with_the_same_numbers(
    initialization: Any, shared: bool, columns: int
) -> None:
    network = Network(hidden=(6, 5), shared=shared, initialization=initialization)
    ours = model_of(Algorithm(), network, columns=columns, seed=7)
    torchs = TensorModel(ours.experiment, spaces_of(columns=columns))
    assert ours.signature == torchs.signature
    assert ours.numbers.tobytes() == torchs.numbers.tobytes()
    assert ours.numbers.any()


# Which it is. Whatever is another thing than what the hand has written is torch's.


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

    def gradients(self, rollout: Rollout, rng: np.random.Generator) -> Iterator[None]:  # type: ignore[override]
        self._model.gradient.fill(7.0)
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


def named(name: str) -> Algorithm:
    return Algorithm(name=f"{__name__}:{name}", epochs=1, minibatch_size=99)


SMALL = Network(hidden=(4,))


@pytest.mark.parametrize(
    ("algorithm", "network", "setting"),
    [
        (Algorithm(name="a3c"), SMALL, ""),
        (Algorithm(name="ppo"), SMALL, ""),
        (named("Same"), SMALL, ""),
        (named("Own"), SMALL, ""),
        (named("Halved"), SMALL, f"algorithm.name = '{__name__}:Halved'"),
        (named("HalvedA3C"), SMALL, f"algorithm.name = '{__name__}:HalvedA3C'"),
        (named("WithTempered"), SMALL, f"algorithm.name = '{__name__}:WithTempered'"),
        (Algorithm(), Network(activation="elu"), "network.activation = 'elu'"),
        (Algorithm(), Network(activation="silu"), "network.activation = 'silu'"),
        (Algorithm(), Network(name=f"{__name__}:Cubed"), f"network.name = '{__name__}:Cubed'"),
        (Algorithm(), Network(name=f"{__name__}:Normed"), f"network.name = '{__name__}:Normed'"),
    ],
)
def test_the_experiment_decides_and_the_setting_that_needs_torch_is_named(
    algorithm: Algorithm, network: Network, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(name=network.name, hidden=(4,), activation=network.activation)
    model = model_of(algorithm, network)
    assert tensor_setting(model.experiment, model.head) == setting
    assert (type(model) is TensorModel) == bool(setting)
    data = rollout_of(model, 9, np.random.default_rng(0), False)
    gradient, *_ = gradients(model, data)
    assert np.isfinite(gradient).all() and gradient.any()
    assert (gradient == 7.0).all() == algorithm.name.endswith("Own")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *_: None if name == "torch" else found(name)
    )
    if not setting:
        model_of(algorithm, network)
        return
    with pytest.raises(ConfigurationError) as caught:
        model_of(algorithm, network)
    assert str(caught.value) == (
        f"{setting}: needs torch, which is not installed: pip install 'genkidama-rl[torch]'"
    )


def test_without_a_head_nothing_of_the_users_is_imported() -> None:
    absent = Experiment(algorithm=Algorithm(name="genkidama_absent:Learner"))
    assert tensor_setting(absent) == "algorithm.name = 'genkidama_absent:Learner'"
    assert tensor_setting(Experiment(algorithm=Algorithm(name="dqn"))) == ""


@pytest.mark.parametrize("name", ["Cubed", "Normed"])
def test_a_network_that_computes_something_else_acts_as_it_computes(name: str) -> None:
    model = model_of(Algorithm(), Network(name=f"{__name__}:{name}", hidden=(4,)))
    seen = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    with torch.no_grad():
        expected = model.network(torch.from_numpy(seen))[0].numpy()
    np.testing.assert_allclose(model.network.acting_together()(seen), expected, rtol=1e-6)
    np.testing.assert_allclose(model.network.acting()(seen[0]), expected[0], rtol=1e-4, atol=1e-6)


def test_a_learner_of_the_users_own_acts_in_numpy_where_its_network_allows() -> None:
    model = model_of(named("Halved"), SMALL)
    model.network.forward = None  # nobody asks
    seen = np.ones((5, 3), np.float32)
    expected = Model(Experiment(network=SMALL), spaces_of()).network.acting_together()(seen)
    np.testing.assert_allclose(model.network.acting_together()(seen), expected, rtol=1e-6)
    np.testing.assert_allclose(model.network.acting()(seen[0]), expected[0], rtol=1e-5)


def test_the_activations_that_arrays_have_are_those_by_which_the_form_is_chosen() -> None:
    assert tuple(ACTIVATIONS) == ARRAY_ACTIVATIONS
