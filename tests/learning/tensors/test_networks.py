from __future__ import annotations

import itertools
import os
from typing import Any

import gymnasium
import hypothesis
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Environment
from genkidama.config.sections import Network as Settings
from genkidama.config.sections import Optimizer as OptimizerSettings
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import INVALID, MaskedBox
from genkidama.learning.heads import head_for
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.learning.rollout import Rollout
from genkidama.learning.spaces import KnownSpaces
from genkidama.learning.tensors.networks import Network
from genkidama.learning.tensors.tensor_model import TensorModel, survives_a_fork
from genkidama.protocol.vector import unflatten


def vectors(size: int) -> Box:
    return Box(-np.inf, np.inf, (size,))


def model(
    settings: Settings,
    observations: int = 8,
    actions: gymnasium.Space[Any] | None = None,
    **experiment: Any,
) -> Model:
    return TensorModel(
        Experiment(network=settings, **experiment),
        KnownSpaces(vectors(observations), actions or Discrete(4)),
    )


# Acting is the network's own forward pass.

widths = st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple)
actions = st.one_of(
    st.integers(1, 5).map(Discrete), st.integers(1, 4).map(lambda n: Box(-1.0, 1.0, (n,)))
)


@given(
    widths,
    st.integers(1, 10),
    actions,
    st.booleans(),
    st.sampled_from(["tanh", "elu", "silu"]),
    st.integers(0, 2**31 - 1),
)
def test_acting_is_the_forward_pass(
    hidden: tuple[int, ...],
    observations: int,
    space: gymnasium.Space[Any],
    shared: bool,
    activation: Any,
    seed: int,
) -> None:
    settings = Settings(
        hidden=hidden,
        shared=shared,
        activation=activation,
        initialization="normal",
        initial_deviation=0.5,
    )
    ours = model(settings, observations, space, seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        act = ours.network.acting()
        batch = rng.normal(scale=2.0, size=(4, observations)).astype(np.float32)
        before = batch.copy()
        outputs, values = ours.network(torch.from_numpy(batch))
        assert outputs.shape == (4, head_for(space).outputs) and values.shape == (4,)
        for observation, expected in zip(batch, outputs, strict=True):
            np.testing.assert_allclose(
                act(observation), expected.detach().numpy(), rtol=1e-4, atol=1e-5
            )
        assert (batch == before).all()
        # Biases, deviations and weights change, and what is handed out then follows.
        ours.vector[:] = rng.normal(scale=0.5, size=len(ours.vector))


# What is built.


def test_the_thesis_network_has_2949_parameters() -> None:
    ours = model(
        Settings(
            hidden=(128,),
            activation="tanh",
            shared=False,
            initialization="normal",
            initial_deviation=0.1,
        )
    )
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


def test_a_shared_trunk_has_the_gradients_of_both_and_separate_ones_do_not_touch() -> None:
    for shared in (False, True):
        ours = model(Settings(hidden=(5,), shared=shared))
        _, values = ours.network(torch.ones(2, 8))
        values.sum().backward()
        touched = {
            name for name, part in ours.signature.slices.items() if ours.gradient[part].any()
        }
        first = "body" if shared else "value"
        assert {f"{first}.0.weight", f"{first}.0.bias"} <= touched
        assert not any(name.startswith("policy") for name in touched)


@pytest.mark.parametrize("observations", [Discrete(5), Dict({"a": Discrete(2)})])
@pytest.mark.parametrize("kind", [Model, TensorModel])
def test_the_built_in_network_takes_numbers_only(
    kind: type[Model], observations: gymnasium.Space[Any]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(Experiment(), KnownSpaces(observations, Discrete(2)))
    assert str(caught.value).startswith(
        "network.name = 'actor-critic': takes numbers, but the environment's observation space is "
        f"{observations}; "
    )


# Images.


def pictures(shape: tuple[int, ...], dtype: type = np.uint8) -> Box:
    return Box(0, 1 if dtype is np.bool_ else 255, shape, dtype)


def convolutional(
    shape: tuple[int, int, int],
    convolutions: tuple[tuple[int, int, int], ...],
    dtype: type = np.uint8,
    actions: gymnasium.Space[Any] | None = None,
    **settings: Any,
) -> Model:
    network = Settings(
        name="convolutional",
        convolutions=convolutions,
        **{"hidden": (5,), "activation": "relu"} | settings,
    )
    return Model(
        Experiment(network=network), KnownSpaces(pictures(shape, dtype), actions or Discrete(3))
    )


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def same(images: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int) -> np.ndarray:
    """A convolution padded as TensorFlow's SAME, an output at a time.

    Shapes: images (C, H, W), weight (outputs, C, kernel, kernel).
    """
    _, *sizes = images.shape
    kernel = weight.shape[2]
    outputs = [-(-size // stride) for size in sizes]
    starts = []
    for size, count in zip(sizes, outputs, strict=True):
        padding = max((count - 1) * stride + kernel - size, 0)
        starts.append(-(padding // 2))  # the odd one comes last
    result = np.zeros((len(weight), *outputs))
    for o, y, x in np.ndindex(*result.shape):
        total = float(bias[o])
        for c, i, j in np.ndindex(*weight.shape[1:]):
            row, column = starts[0] + y * stride + i, starts[1] + x * stride + j
            if 0 <= row < sizes[0] and 0 <= column < sizes[1]:  # zeros elsewhere
                total += weight[o, c, i, j] * images[c, row, column]
        result[o, y, x] = total
    return result


kernels = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5))


@hypothesis.settings(max_examples=40)
@hypothesis.example(
    1, 4, 6, ((2, 4, 3),), True
)  # 3 pixels of padding in the one direction, 1 in the other
@given(
    st.integers(1, 2),
    st.integers(4, 9),
    st.integers(4, 9),
    st.lists(kernels, min_size=1, max_size=2).map(tuple),
    st.booleans(),
)
def test_a_convolutional_network_is_its_definition(
    channels: int,
    height: int,
    width: int,
    convolutions: tuple[tuple[int, int, int], ...],
    bytes_: bool,
) -> None:
    if any(
        kernel > -(-min(height, width) // stride)
        for (_, _, stride), (_, kernel, _) in itertools.pairwise(convolutions)
    ):  # too small for the second
        convolutions = convolutions[:1]
    ours = convolutional(
        (channels, height, width),
        convolutions,
        np.uint8 if bytes_ else np.float32,
        initialization="uniform",
    )
    batch = np.random.default_rng(height * width).integers(
        256, size=(2, channels, height, width), dtype=np.uint8
    )
    parts = unflatten(ours.numbers, ours.signature)
    weights = [
        name.removesuffix(".weight")
        for name in parts
        if name.startswith("body") and name.endswith("weight")
    ]
    assert len(weights) == len(convolutions) + 1
    outputs, values = ours.network(torch.from_numpy(batch if bytes_ else batch.astype(np.float32)))
    for image, policy, value in zip(
        batch.astype(np.float64), outputs.detach().numpy(), values.tolist(), strict=True
    ):
        hidden = image / 128.0 - 1.0 if bytes_ else image
        for name, (_, _, stride) in zip(weights, convolutions, strict=False):
            hidden = relu(same(hidden, parts[f"{name}.weight"], parts[f"{name}.bias"], stride))
        hidden = relu(
            parts[f"{weights[-1]}.weight"] @ hidden.reshape(-1) + parts[f"{weights[-1]}.bias"]
        )
        close = {"rtol": 1e-3, "atol": 1e-4 if bytes_ else 1e-2}
        np.testing.assert_allclose(
            policy, parts["policy.weight"] @ hidden + parts["policy.bias"], **close
        )
        np.testing.assert_allclose(
            value, (parts["value.weight"] @ hidden + parts["value.bias"])[0], **close
        )


def test_ga3cs_network_has_1005623_parameters() -> None:
    ours = convolutional(
        (4, 84, 84),
        ((16, 8, 4), (32, 4, 2)),
        actions=Discrete(6),
        hidden=(256,),
        initialization="uniform",
    )
    assert ours.trainable == ours.signature.size == 1_005_623
    assert [shape for _, shape in ours.signature.entries] == [
        (16, 4, 8, 8),
        (16,),
        (32, 16, 4, 4),
        (32,),
        (256, 32 * 11 * 11),  # ⌈⌈84/4⌉/2⌉ pixels
        (256,),
        (6, 256),
        (6,),
        (1, 256),
        (1,),
    ]


def test_images_of_bytes_are_the_same_as_floats_and_stay_what_they_were() -> None:
    network = convolutional((2, 9, 9), ((3, 3, 2),), initialization="uniform").network
    batch = torch.arange(2 * 2 * 81, dtype=torch.uint8).reshape(2, 2, 9, 9)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            bytes_, floats = network(batch), network(floats_of := batch.float())
        assert torch.equal(bytes_[0], floats[0]) and torch.equal(bytes_[1], floats[1])
        assert torch.equal(floats_of, batch.float())
    for observation in batch.numpy():
        expected = network(torch.from_numpy(observation[None]))[0][0].detach().numpy()
        np.testing.assert_allclose(network.acting()(observation), expected, rtol=1e-4, atol=1e-6)


def test_images_of_floats_and_normalized_ones_are_taken_as_they_are() -> None:
    shape, convolutions = (1, 4, 4), ((2, 3, 1),)
    floats = convolutional(shape, convolutions, np.float32)
    normalized = Model(
        Experiment(
            network=floats.experiment.network, environment=Environment(normalize_observations=True)
        ),
        KnownSpaces(pictures(shape), Discrete(3)),
    )
    batch = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(normalized.network(batch)[1], floats.network(batch)[1])
    assert not torch.equal(
        convolutional(shape, convolutions).network(batch)[1], floats.network(batch)[1]
    )


@pytest.mark.parametrize("name", ["actor-critic", "convolutional"])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_uniform_weights_and_biases_are_within_one_over_the_root_of_their_inputs(
    name: str, activation: Any
) -> None:
    settings: dict[str, Any] = {
        "hidden": (300,),
        "activation": activation,
        "initialization": "uniform",
    }
    ours = (
        model(Settings(**settings), 100)
        if name == "actor-critic"
        else convolutional((3, 11, 11), ((64, 5, 2),), **settings)
    )
    shapes = dict(ours.signature.entries)
    for weight in (entry for entry in shapes if entry.endswith("weight")):
        bound = np.prod(shapes[weight][1:]) ** -0.5
        for entry in (weight, weight.replace("weight", "bias")):
            numbers = ours.numbers[ours.signature.slices[entry]]
            assert np.abs(numbers).max() <= bound * 1.0001
            n = len(numbers)
            if n >= 64:
                assert np.abs(numbers).max() > 0.9 * bound
                # The uniform distribution's.
                assert numbers.std() == pytest.approx(bound / 3**0.5, rel=6 * 0.45 / n**0.5)


@pytest.mark.parametrize("name", ["actor-critic", "convolutional"])
def test_deviations_of_continuous_actions_start_at_1_and_do_not_depend_on_the_state(
    name: str,
) -> None:
    space = Box(-1.0, 1.0, (2,))
    if name == "actor-critic":
        ours = model(Settings(hidden=(5,), initialization="normal"), 3, space)
        seen = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    else:
        ours = convolutional((1, 5, 5), ((2, 3, 2),), actions=space, initialization="uniform")
        seen = torch.arange(175, dtype=torch.uint8).reshape(7, 1, 5, 5)
    assert ours.signature.entries[0] == ("log_deviation", (2,))
    outputs, values = ours.network(seen)
    assert outputs.shape == (7, 4) and values.shape == (7,)
    assert not outputs[:, 2:].any()
    assert outputs[:, :2].std(0).min() > 0
    outputs[:, 2:].sum().backward()
    assert ours.gradient[ours.signature.slices["log_deviation"]].tolist() == [7.0, 7.0]


def built(kind: str, width: int = 200, **settings: Any) -> Model:
    """A network of one kind, each of its layers with at most as many outputs as inputs."""
    if kind == "convolutional":
        return convolutional((4, 13, 13), ((16, 5, 2),), hidden=(40,), **settings)
    return model(Settings(hidden=(width, width), shared=kind == "shared", **settings), width)


KINDS = pytest.mark.parametrize("kind", ["shared", "separate", "convolutional"])


@KINDS
def test_normal_weights_have_the_deviation_that_was_asked_for_and_biases_are_zero(
    kind: str,
) -> None:
    ours = built(kind, initialization="normal", initial_deviation=0.3)
    for name, part in ours.signature.slices.items():
        numbers = ours.numbers[part]
        n = len(numbers)
        if name.endswith("bias"):
            assert not numbers.any()
            continue
        assert abs(numbers.mean()) < 6 * 0.3 / n**0.5
        assert numbers.std() == pytest.approx(0.3, rel=6 / (2 * n) ** 0.5)
        # Normal and not uniform: kurtosis 3 (a uniform distribution has 1.8), with deviation
        # √(24/n).
        kurtosis = np.mean((numbers / numbers.std()) ** 4)
        assert kurtosis == pytest.approx(3.0, abs=6 * (24 / n) ** 0.5)


@KINDS
def test_orthogonal_weights_have_their_gains(kind: str) -> None:
    ours = built(kind, width=30)
    weights = [entry for entry in ours.signature.entries if entry[0].endswith("weight")]
    last = {"policy": 0.01, "value": 1.0}
    found = dict.fromkeys((True, False), 0)
    for name, shape in weights:
        rows = ours.numbers[ours.signature.slices[name]].reshape(shape[0], -1)
        emits = shape[0] in (1, ours.head.outputs)
        gain = last[name.partition(".")[0]] if emits else 2.0**0.5
        found[emits] += 1
        np.testing.assert_allclose(rows @ rows.T, gain**2 * np.eye(len(rows)), atol=1e-4 * gain)
    assert found == {True: 2, False: 4 if kind == "separate" else 2}


@pytest.mark.parametrize(
    "observations",
    [
        Discrete(5),
        vectors(8),
        pictures((4, 1, 9, 9, 1)),
        pictures((1, 9, 9), np.int16),
        Dict({"a": Discrete(2)}),
    ],
)
def test_the_convolutional_network_takes_images_only(observations: gymnasium.Space[Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Model(
            Experiment(network=Settings(name="convolutional")),
            KnownSpaces(observations, Discrete(2)),
        )
    assert str(caught.value) == (
        "network.name = 'convolutional': takes images of uint8, bool or floats, but the "
        f"environment's observation space is {observations}"
    )


@pytest.mark.parametrize(
    ("channels", "shape", "convolutions", "number", "kernel", "height", "width"),
    [
        ("first", (84, 84, 4), ((16, 8, 4), (32, 4, 2)), 1, 8, 84, 4),
        ("first", (4, 7, 20), ((16, 8, 4),), 1, 8, 7, 20),
        ("first", (1, 12, 12), ((16, 8, 4), (32, 4, 2)), 2, 4, 3, 3),
        ("last", (4, 84, 84), ((16, 8, 4),), 1, 8, 4, 84),
    ],
)
def test_images_that_a_kernel_does_not_fit_into_are_refused(
    channels: str,
    shape: tuple[int, int, int],
    convolutions: Any,
    number: int,
    kernel: int,
    height: int,
    width: int,
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        convolutional(shape, convolutions, channels=channels)
    order = "height, width, channels" if channels == "last" else "channels, height, width"
    assert str(caught.value) == (
        f"network.convolutions = {convolutions}: the kernel {kernel} of convolution {number} is "
        f"larger than its images of {height} × {width}; "
        f"{pictures(shape)} is taken as {order} (network.channels = {channels!r})"
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.bool_])
def test_where_the_channels_stand_makes_no_difference(dtype: type) -> None:
    """In outputs, values and gradients; bool is 0 and 1."""
    convolutions = ((3, 3, 2), (2, 2, 1))
    first = convolutional((4, 7, 5), convolutions, dtype, initialization="uniform")
    last = convolutional((7, 5, 4), convolutions, dtype, initialization="uniform", channels="last")
    last.vector[:] = first.vector
    images = np.random.default_rng(0).integers(2, size=(6, 4, 7, 5)).astype(dtype)
    turned = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    found = []
    for model, batch in ((first, images), (last, turned)):
        outputs, values = model.network(torch.from_numpy(model.seen(batch)))
        (outputs.sum() + values.square().sum()).backward()
        found.append([outputs.detach(), values.detach(), torch.from_numpy(model.gradient)])
        acted = np.stack([model.network.acting()(one) for one in batch])
        np.testing.assert_allclose(acted, outputs.detach().numpy(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert found[0][1].std() > 0


# A network of one's own.


class Pictures(Network):
    """A subclass as the documentation asks for it, for observations that are no vectors."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        settings: Settings,
    ) -> None:
        super().__init__()
        assert isinstance(observation_space, Box)
        self.body = torch.nn.Linear(
            int(np.prod(observation_space.shape)), settings.options["width"]
        )
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
    """The commonest mistake: values with a last dimension, which broadcast in a subtraction."""

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, values = super().forward(observations)
        return outputs, values[:, None]


class Frozen(Pictures):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.body.requires_grad_(False)


class Usual(Pictures):
    """With parts that elsewhere differ between learning and acting."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.norm = torch.nn.BatchNorm1d(self.body.out_features)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.dropout(self.norm(self.body(observations.flatten(1))))
        return self.policy(hidden), self.value(hidden).squeeze(1)


class Quick(Pictures):
    """It acts in its own way, which knows nothing of masks."""

    def acting(self, exploration: Any = None) -> Any:
        raise AssertionError("its input has a mask behind it")

    acting_together = acting


class NoNetwork(torch.nn.Module):
    def __init__(self, *_: Any) -> None:
        super().__init__()


def own(network: str, algorithm: str = "a3c") -> Model:
    experiment = Experiment(
        network=Settings(name=f"{__name__}:{network}", options={"width": 6}),
        algorithm=Algorithm(name=algorithm, value_coefficient=1.0),
    )
    return Model(experiment, KnownSpaces(Box(0.0, 1.0, (2, 3)), Discrete(3)))


def test_an_observation_gives_the_same_alone_and_among_others() -> None:
    ours = own("Usual")
    seen = np.random.default_rng(1).random((5, 2, 3), np.float32)
    with torch.no_grad():
        together = ours.network(torch.from_numpy(seen))[0].numpy()
    for _ in range(2):
        alone = [ours.network.acting()(each) for each in seen]
        np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)


def test_what_requires_no_gradient_is_not_worn_away() -> None:
    frozen = Experiment(
        network=Settings(name=f"{__name__}:Frozen", options={"width": 6}),
        optimizer=OptimizerSettings(weight_decay=1e-4),
    )
    with pytest.raises(ConfigurationError, match=r"^optimizer.weight_decay = 0.0001: would wear "):
        Model(frozen, KnownSpaces(Box(0.0, 1.0, (2, 3)), Discrete(3)))


def test_with_masks_a_network_acts_by_its_forward_pass() -> None:
    spaces = KnownSpaces(MaskedBox(Box(0.0, 1.0, (2, 3)), 3), Discrete(3))
    network = Settings(name=f"{__name__}:Quick", options={"width": 6})
    outputs = Model(Experiment(network=network), spaces).network.acting()(
        np.array([*[0.5] * 6, 1.0, 0.0, 1.0], np.float32)
    )
    assert outputs[1] == INVALID and (outputs[[0, 2]] > INVALID).all()


@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
def test_a_network_of_ones_own_acts_and_learns(algorithm: str) -> None:
    ours = own("Pictures", algorithm)
    assert (
        isinstance(ours.network, Pictures)
        and ours.trainable == ours.signature.size == 6 * 6 + 6 + 6 * 3 + 3 + 6 + 1
    )
    rng = np.random.default_rng(0)
    observations = rng.random((8, 2, 3)).astype(np.float32)
    expected, _ = ours.network(torch.from_numpy(observations))
    np.testing.assert_allclose(
        ours.network.acting()(observations[3]), expected[3].detach(), rtol=1e-5
    )

    settings = OptimizerSettings(name="sgd", learning_rate=0.05)
    state = np.zeros((STATE_ROWS["sgd"], ours.trainable), np.float32)
    optimizer = make_optimizer(settings, ours.vector, state, np.zeros(1))
    learner = make_learner(ours.experiment.algorithm, ours)
    ends = np.ones(8, np.bool_)
    rollout = Rollout(
        torch.from_numpy(observations),
        torch.ones(8, 1),
        np.full(8, 2.0, np.float32),
        ends,
        np.zeros(0, np.intp),
        torch.zeros(0, 2, 3),
    )
    before_pi, before_v = (part.detach() for part in ours.network(rollout.observations))
    for _ in ours.gradients(learner, rollout, ours.generator(0)):
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


def test_an_error_of_ones_own_constructor_is_told_with_the_setting_that_named_it() -> None:
    with pytest.raises(
        ConfigurationError,
        match=f"network.name = '{__name__}:Unready': cannot be built: "
        "RuntimeError: no weights today",
    ):
        own("Unready")


@pytest.mark.parametrize("name", ["WrongOutputs", "WrongValues"])
def test_a_network_whose_outputs_do_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        own(name)


def test_what_can_be_done_again_after_a_fork_is_told_from_what_cannot() -> None:
    done: list[int] = []

    def threaded() -> None:  # as a torch whose threads no fork inherits
        if done:
            raise RuntimeError(f"cannot go on in {os.getpid()}")
        done.append(os.getpid())

    assert not survives_a_fork(threaded)
    assert done == []  # this process has done nothing
    assert survives_a_fork(os.getpid)


def test_a_work_that_fails_at_once_survives_nothing() -> None:
    assert not survives_a_fork(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("shape", "as_taken"),
    [
        ((5, 5, 3), (3, 5, 5)),
        ((20, 30, 1), (1, 20, 30)),
        ((3, 64, 48), (3, 64, 48)),
        ((40, 50), (1, 40, 50)),
        ((4, 40, 50, 3), (12, 40, 50)),
        ((4, 3, 40, 50), (12, 40, 50)),
    ],
)
def test_images_of_any_size_get_convolutions_without_a_setting(
    shape: tuple[int, ...], as_taken: tuple[int, int, int]
) -> None:
    ours = Model(
        Experiment(network=Settings(hidden=(5,))), KnownSpaces(pictures(shape), Discrete(2))
    )
    assert ours.experiment.network.name == "convolutional"
    layers = [part for part in ours.network.modules() if isinstance(part, torch.nn.Conv2d)]
    small = min(as_taken[1:]) < 36
    assert [(one.in_channels, one.kernel_size[0]) for one in layers] == (
        [(as_taken[0], 3)] if small else [(as_taken[0], 8), (16, 4)]
    )
    images = np.random.default_rng(0).integers(256, size=(2, *shape), dtype=np.uint8)
    moved = np.moveaxis(images, -1, -3) if shape[-1] in (1, 3) else images
    plain = Model(
        Experiment(network=Settings(name="convolutional", hidden=(5,), channels="first")),
        KnownSpaces(pictures(as_taken), Discrete(2)),
        vector=ours.vector.copy(),
    )
    expected = plain.evaluate(moved.reshape(2, *as_taken))
    for found, wanted in zip(ours.evaluate(images), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
