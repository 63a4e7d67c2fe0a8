from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.experiment import Algorithm, Experiment
from genkidama.experiment import Network as Settings
from genkidama.experiment import Optimizer as OptimizerSettings
from genkidama.learning.heads import head_for
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.learning.networks import ActorCritic, Network
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.learning.rollout import Rollout


class Stage(gymnasium.Env[Any, Any]):
    """Two spaces; nothing is played on it."""

    def __init__(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions


def vectors(size: int) -> Box:
    return Box(-np.inf, np.inf, (size,))


def model(settings: Settings, observations: int = 8, actions: gymnasium.Space[Any] | None = None, **experiment: Any) -> Model:
    return Model(Experiment(network=settings, **experiment), Stage(vectors(observations), actions or Discrete(4)))


# Acting in NumPy is the network's own forward pass.

widths = st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple)
actions = st.one_of(st.integers(1, 5).map(Discrete), st.integers(1, 4).map(lambda n: Box(-1.0, 1.0, (n,))))


@given(widths, st.integers(1, 10), actions, st.booleans(), st.sampled_from(["tanh", "relu", "elu", "silu"]), st.integers(0, 2**31 - 1))
def test_acting_is_the_forward_pass(
    hidden: tuple[int, ...], observations: int, space: gymnasium.Space[Any], shared: bool, activation: Any, seed: int
) -> None:
    settings = Settings(hidden=hidden, shared=shared, activation=activation, initialization="normal", initial_deviation=0.5)
    ours = model(settings, observations, space, seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        act = ours.network.acting()
        batch = rng.normal(scale=2.0, size=(4, observations)).astype(np.float32)
        before = batch.copy()
        outputs, values = ours.network(torch.from_numpy(batch))
        assert outputs.shape == (4, head_for(space).outputs) and values.shape == (4,)
        for observation, expected in zip(batch, outputs, strict=True):
            np.testing.assert_allclose(act(observation), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
        assert (batch == before).all()
        # Biases, deviations and weights change, and what is handed out then follows.
        ours.vector.copy_(torch.from_numpy(rng.normal(scale=0.5, size=len(ours.vector)).astype(np.float32)))


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("space", [Discrete(3), Box(-1.0, 1.0, (2,))])
def test_what_acting_returned_stays_when_it_acts_again(activation: Any, space: gymnasium.Space[Any]) -> None:
    act = model(Settings(hidden=(6,), activation=activation, initialization="normal"), 4, space).network.acting()
    first = act(np.ones(4, np.float32))
    kept = first.copy()
    act(np.full(4, -3.0, np.float32))
    assert (first == kept).all()


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8])
def test_observations_may_be_of_any_type_that_a_box_has(activation: Any, dtype: type) -> None:
    network = model(Settings(hidden=(6, 5), activation=activation, initialization="normal"), 4).network
    observation = np.array([1, 2, 3, 4], dtype)
    expected = network(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))[0][0].detach().numpy()
    np.testing.assert_allclose(network.acting()(observation), expected, rtol=1e-5)


# What is built.


def test_the_thesis_network_has_2949_parameters() -> None:
    ours = model(Settings(hidden=(128,), activation="tanh", shared=False, initialization="normal", initial_deviation=0.1))
    assert ours.trainable == ours.signature.size == 2949
    assert [(name, shape) for name, shape in ours.signature.entries] == [
        ("policy.0.weight", (128, 8)),
        ("policy.0.bias", (128,)),
        ("policy.2.weight", (4, 128)),
        ("policy.2.bias", (4,)),
        ("value.0.weight", (128, 8)),
        ("value.0.bias", (128,)),
        ("value.2.weight", (1, 128)),
        ("value.2.bias", (1,)),
    ]


def test_normal_weights_have_the_deviation_that_was_asked_for_and_biases_are_zero() -> None:
    ours = model(Settings(hidden=(200, 200), initialization="normal", initial_deviation=0.1))
    for name, part in ours.signature.slices.items():
        numbers = ours.numbers[part]
        if name.endswith("bias"):
            assert not numbers.any()
        else:
            n = len(numbers)
            assert abs(numbers.mean()) < 6 * 0.1 / n**0.5
            assert numbers.std() == pytest.approx(0.1, rel=6 / (2 * n) ** 0.5)
            # Normal and not uniform: kurtosis 3 (a uniform distribution has 1.8), its deviation being √(24/n).
            assert np.mean((numbers / numbers.std()) ** 4) == pytest.approx(3.0, abs=6 * (24 / n) ** 0.5)


@pytest.mark.parametrize("shared", [False, True])
def test_orthogonal_weights_have_their_gains(shared: bool) -> None:
    network = model(Settings(hidden=(16, 16), shared=shared), 16).network
    assert isinstance(network, ActorCritic)
    weights = {name: parameter.detach().numpy() for name, parameter in network.named_parameters() if name.endswith("weight")}
    hidden = ["body.0.weight", "body.2.weight"] if shared else [f"{part}.{i}.weight" for part in ("policy", "value") for i in (0, 2)]
    last = "0" if shared else "4"
    assert set(weights) == {*hidden, f"policy.{last}.weight", f"value.{last}.weight"}
    gains = dict.fromkeys(hidden, 2.0**0.5) | {f"policy.{last}.weight": 0.01, f"value.{last}.weight": 1.0}
    for name, gain in gains.items():
        rows = weights[name]
        np.testing.assert_allclose(rows @ rows.T, gain**2 * np.eye(len(rows)), atol=1e-5 * gain)


def test_a_shared_trunk_has_the_gradients_of_both_and_separate_ones_do_not_touch() -> None:
    for shared in (False, True):
        ours = model(Settings(hidden=(5,), shared=shared))
        _, values = ours.network(torch.ones(2, 8))
        values.sum().backward()
        touched = {name for name, part in ours.signature.slices.items() if ours.gradient[part].any()}
        first = "body" if shared else "value"
        assert {f"{first}.0.weight", f"{first}.0.bias"} <= touched
        assert not any(name.startswith("policy") for name in touched)


def test_deviations_of_continuous_actions_start_at_1_and_do_not_depend_on_the_state() -> None:
    ours = model(Settings(hidden=(5,), initialization="normal"), 3, Box(-1.0, 1.0, (2,)))
    assert ours.signature.entries[0] == ("log_deviation", (2,))
    outputs, _ = ours.network(torch.randn(7, 3, generator=torch.Generator().manual_seed(0)))
    assert not outputs[:, 2:].any()
    assert outputs[:, :2].std(0).min() > 0
    outputs[:, 2:].sum().backward()
    assert ours.gradient[ours.signature.slices["log_deviation"]].tolist() == [7.0, 7.0]


@pytest.mark.parametrize("observations", [Discrete(5), Box(0.0, 1.0, (2, 3)), Box(0.0, 1.0, ()), Dict({"a": Discrete(2)})])
def test_the_built_in_network_takes_vectors_only(observations: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Model(Experiment(), Stage(observations, Discrete(2)))
    assert str(caught.value).startswith(
        f"network.name = 'actor-critic': takes vectors, but the environment's observation space is {observations}; "
    )


# A network of one's own.


class Pictures(Network):
    """A subclass as the documentation asks for it, for observations that are no vectors."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], settings: Settings) -> None:
        super().__init__()
        assert isinstance(observation_space, Box)
        self.body = torch.nn.Linear(int(np.prod(observation_space.shape)), settings.options["width"])
        self.policy = torch.nn.Linear(settings.options["width"], head_for(action_space).outputs)
        self.value = torch.nn.Linear(settings.options["width"], 1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.body(observations.flatten(1)))
        return self.policy(hidden), self.value(hidden).squeeze(1)


class Doubles(Pictures):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.double()


class Unready(Pictures):
    def __init__(self, *_: Any) -> None:
        raise RuntimeError("no weights today")


class WrongOutputs(Pictures):
    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, values = super().forward(observations)
        return outputs[:, 1:], values


class WrongValues(Pictures):
    """The commonest mistake: the values' last dimension is left on, and broadcasts where they are subtracted."""

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, values = super().forward(observations)
        return outputs, values[:, None]


class NoNetwork(torch.nn.Module):
    def __init__(self, *_: Any) -> None:
        super().__init__()


def own(network: str, algorithm: str = "a3c") -> Model:
    experiment = Experiment(
        network=Settings(name=f"{__name__}:{network}", options={"width": 6}), algorithm=Algorithm(name=algorithm, value_coefficient=1.0)
    )
    return Model(experiment, Stage(Box(0.0, 1.0, (2, 3)), Discrete(3)))


@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
def test_a_network_of_ones_own_acts_and_learns(algorithm: str) -> None:
    ours = own("Pictures", algorithm)
    assert isinstance(ours.network, Pictures) and ours.trainable == ours.signature.size == 6 * 6 + 6 + 6 * 3 + 3 + 6 + 1
    rng = np.random.default_rng(0)
    observations = rng.random((8, 2, 3)).astype(np.float32)
    expected, _ = ours.network(torch.from_numpy(observations))
    np.testing.assert_allclose(ours.network.acting()(observations[3]), expected[3].detach(), rtol=1e-5)

    settings = OptimizerSettings(name="sgd", learning_rate=0.05)
    optimizer = make_optimizer(settings, ours.vector, torch.zeros(STATE_ROWS["sgd"], ours.trainable), torch.zeros((), dtype=torch.float64))
    learner = make_learner(ours.experiment.algorithm, ours)
    ends = np.ones(8, np.bool_)
    rollout = Rollout(
        torch.from_numpy(observations), torch.ones(8, 1), np.full(8, 2.0, np.float32), ends, np.zeros(0, np.intp), torch.zeros(0, 2, 3)
    )
    before_pi, before_v = (part.detach() for part in ours.network(rollout.observations))
    for loss in learner.losses(rollout, torch.Generator().manual_seed(0)):
        ours.gradient.zero_()
        loss.backward()
        optimizer.step(ours.gradient, settings.learning_rate)
    after_pi, after_v = (part.detach() for part in ours.network(rollout.observations))
    # Action 1 paid 2: it is more probable now, and the states are worth more.
    assert (torch.softmax(after_pi, 1)[:, 1] > torch.softmax(before_pi, 1)[:, 1]).all()
    assert ((after_v - 2).abs() < (before_v - 2).abs()).all()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("NoNetwork", "expected a subclass of genkidama.Network"),
        ("own", "expected a subclass of genkidama.Network"),
        ("Nothing", f"module {__name__!r} has no 'Nothing'"),
        ("Doubles", "parameter 'body.weight' is torch.float64, expected float32"),
    ],
)
def test_what_is_no_network_is_refused_in_one_line(name: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        own(name)
    assert str(caught.value) == f"network.name = '{__name__}:{name}': {sentence}"


def test_an_error_of_ones_own_constructor_comes_through() -> None:
    with pytest.raises(RuntimeError, match="no weights today"):
        own("Unready")


@pytest.mark.parametrize("name", ["WrongOutputs", "WrongValues"])
def test_a_network_whose_outputs_do_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        own(name)
