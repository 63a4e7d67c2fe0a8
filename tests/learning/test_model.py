from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.config.sections import Network as Settings
from genkidama.learning.heads import head_for
from genkidama.learning.model import Model, RunningMeanStd
from genkidama.learning.spaces import KnownSpaces
from genkidama.learning.tensors.networks import Network
from genkidama.learning.tensors.tensor_model import TensorModel
from genkidama.protocol.vector import blend, unflatten


def stage(shape: tuple[int, ...] = (3,), actions: int = 2) -> KnownSpaces:
    return KnownSpaces(Box(-np.inf, np.inf, shape), Discrete(actions))


class Modules(Network):
    """Whatever modules torch has.

    Layers of any widths, convolutions, norms, scalars, a tied weight, a frozen one, a buffer.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        settings: Settings,
    ) -> None:
        super().__init__()
        widths = settings.hidden
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(a, b, bias=b % 2 == 0) for a, b in pairwise(widths)
        )
        self.norm = torch.nn.LayerNorm(widths[-1])
        self.picture = torch.nn.Conv2d(2, widths[0], (1, 3))
        self.memory = torch.nn.GRUCell(widths[0], 3)
        self.frozen = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
        self.tied = self.norm.weight
        self.empty = torch.nn.Parameter(torch.zeros(0, 4))
        # Not contiguous, as a transposed initialization leaves it.
        self.turned = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).T)
        self.register_buffer("constant", torch.ones(5))
        self.outputs = head_for(action_space).outputs

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = sum(
            ((parameter * (i + 1)).sum() for i, parameter in enumerate(self.parameters())),
            self.scale,
        )
        rows = len(observations)
        return total * torch.ones(rows, self.outputs), total * torch.ones(rows)


class Buffered(Network):
    """A parameter and a constant."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        settings: Settings,
    ) -> None:
        super().__init__()
        self.body = torch.nn.Linear(3, head_for(action_space).outputs)
        self.register_buffer("constant", torch.ones(3))

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = self.body(observations + self.constant)
        return outputs, outputs[:, 0]


def vectors(form: type[Model] = TensorModel, **settings: Any) -> Any:
    network = Settings(hidden=(5,), initialization="normal")
    return form(Experiment(network=network, **settings), stage())


FORMS = pytest.mark.parametrize("form", [Model, TensorModel])


# Laws of the file: views.


def test_every_parameter_and_gradient_is_a_view_into_one_vector() -> None:
    given = np.full(Model(Experiment(), stage()).trainable, 9.0, np.float32)
    model = TensorModel(Experiment(), stage(), given)
    assert model.gradient is given
    for vector, tensors in (
        (model.vector, [parameter.data for parameter in model.network.parameters()]),
        (model.gradient, [parameter.grad for parameter in model.network.parameters()]),
    ):
        start = vector.ctypes.data
        for tensor in tensors:
            assert tensor is not None and tensor.data_ptr() == start and tensor.is_contiguous()
            start += 4 * tensor.numel()
        assert start == vector.ctypes.data + 4 * model.trainable


def test_backward_writes_the_gradient_vector_and_adds_to_what_is_there() -> None:
    model = vectors()
    assert not model.gradient.any()
    for times in (1, 2):
        model.network(torch.ones(4, 3))[1].sum().backward()
        assert model.gradient[model.signature.slices["value.2.bias"]].tolist() == [4.0 * times]
    model.gradient[:] = 0.0
    assert all(
        parameter.grad is not None and not parameter.grad.any()
        for parameter in model.network.parameters()
    )


@pytest.mark.parametrize("set_to_none", [None, True, False])
def test_zero_grad_can_never_detach_the_gradients_from_the_vector(set_to_none: bool | None) -> None:
    """By default torch sets gradients to None.

    A new tensor would take their place, which no optimizer of ours sees.
    """
    model = vectors()
    gradients = []
    for _ in range(2):
        if set_to_none is None:
            model.network.zero_grad()
        else:
            model.network.zero_grad(set_to_none=set_to_none)
        assert not model.gradient.any()
        model.network(torch.ones(4, 3))[1].sum().backward()
        gradients.append(model.gradient.copy())
    assert gradients[0].any()
    assert np.array_equal(*gradients)


# Memory that is given.


@FORMS
@pytest.mark.parametrize("whole", [True, False])
def test_over_a_vector_that_is_given_a_network_is_what_stands_there(
    form: type[Model], whole: bool
) -> None:
    plain = vectors(environment=Environment(normalize_observations=True))
    given = np.linspace(0.0, 1.0, plain.signature.size, dtype=np.float32)
    given = given if whole else given[: plain.trainable].copy()
    before, gradient = given.copy(), np.full(plain.trainable, 9.0, np.float32)
    model = form(plain.experiment, stage(), gradient, given)
    assert model.vector is given and model.gradient is gradient
    assert np.array_equal(given, before)
    plain.numbers[: len(before)] = before
    seen = np.ones((2, 3), np.float32)
    for ours, theirs in zip(model.evaluate(seen), plain.evaluate(seen), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    given[:] = 0.0
    outputs, values = model.evaluate(seen)
    assert not outputs.any() and not values.any() and not model.numbers.any()


@FORMS
def test_networks_over_one_vector_are_one_with_gradients_of_their_own(form: type[Model]) -> None:
    first = vectors(form)
    second = form(first.experiment, stage(), vector=first.vector)
    twin = first.twin(first.vector)
    seen = first.native(np.ones((1, 3), np.float32))
    for _ in range(2):
        expected = first.evaluate(seen)[0]
        assert np.array_equal(expected, second.evaluate(seen)[0])
        assert np.array_equal(expected, first.evaluate(seen, twin)[0])
        first.vector += 0.1
    first.gradient[:] = 1.0
    assert not second.gradient.any()


def test_on_another_device_all_is_there_and_statistics_stay_with_the_host() -> None:
    """The device "meta" has no memory. But whatever has a place must say that it is there."""
    experiment = Experiment(
        network=Settings(name=f"{__name__}:Buffered"),
        environment=Environment(normalize_observations=True),
    )
    model = TensorModel(experiment, stage(), device="meta")
    assert model.device == torch.device("meta")
    tensors = [
        *model.network.parameters(),
        *(parameter.grad for parameter in model.network.parameters()),
        *model.network.buffers(),
    ]
    assert {
        tensor.device.type
        for tensor in (model.vector, model.gradient, *tensors)
        if tensor is not None
    } == {"meta"}
    assert not hasattr(model, "numbers")
    numbers = np.zeros(model.signature.size, np.float32)
    moments = model.moments("observations", numbers)
    assert moments is not None
    moments.add(np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    model.numbers = numbers
    normalize = model.normalizer()
    assert normalize is not None
    assert normalize(np.array([3.0, 2.0, 2.0], np.float32)).tolist() == pytest.approx(
        [1.0, 0.0, 0.0]
    )


# The signature.


def test_the_signature_lists_the_parameters_in_the_modules_order_and_statistics_last() -> None:
    model = vectors(environment=Environment(normalize_observations=True, normalize_rewards=True))
    names = [name for name, _ in model.signature.entries]
    assert names == [
        *(name for name, _ in model.network.named_parameters()),
        "statistics.observations",
        "statistics.returns",
    ]
    assert model.signature.entries[-2:] == (
        ("statistics.observations", (7,)),
        ("statistics.returns", (3,)),
    )
    assert model.signature.size == len(model.vector) == model.trainable + 10
    assert len(model.gradient) == model.trainable
    assert not model.vector[model.trainable :].any()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"normalize_observations": True}, ["observations"]),
        ({"normalize_rewards": True}, ["returns"]),
        ({}, []),
    ],
)
def test_there_are_statistics_only_where_they_are_asked_for(
    settings: dict[str, bool], names: list[str]
) -> None:
    model = vectors(environment=Environment(**settings))
    assert [
        name for name in ("observations", "returns") if model.moments(name) is not None
    ] == names
    assert (model.normalizer() is not None) == ("observations" in names)


layer_sizes = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple)


@given(layer_sizes, st.integers(1, 4), st.integers(0, 2**31 - 1))
def test_any_module_survives_the_way_into_the_vector_and_back(
    hidden: tuple[int, ...], actions: int, seed: int
) -> None:
    experiment = Experiment(seed=seed, network=Settings(name=f"{__name__}:Modules", hidden=hidden))
    environment = stage(actions=actions)
    model = Model(experiment, environment)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = Modules(environment.observation_space, environment.action_space, experiment.network)
    parts = {name: parameter.detach().numpy() for name, parameter in plain.named_parameters()}
    assert model.signature.entries == tuple((name, part.shape) for name, part in parts.items())
    assert len({"tied", "norm.weight"} & set(parts)) == 1  # one tensor, once in the vector
    # Into the vector: the same numbers as an ordinary torch module has.
    flat = np.concatenate([parts[name].ravel() for name, _ in model.signature.entries])
    assert (model.numbers == flat).all()
    # And back: whatever stands in the vector is what the parameters are.
    model.vector[:] = np.arange(model.signature.size)
    for name, part in unflatten(model.numbers, model.signature).items():
        assert (model.network.get_parameter(name).detach().numpy() == part).all()
    # The gradients, too, are those of the ordinary module.
    plain.load_state_dict(model.network.state_dict())
    for network in (model.network, plain):
        network(torch.zeros(2, 3))[1].sum().backward()
    for name, parameter in plain.named_parameters():
        expected = torch.zeros(parameter.shape) if parameter.grad is None else parameter.grad
        found = model.gradient[model.signature.slices[name]].reshape(parameter.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# Randomness.


@FORMS
def test_equal_seeds_give_equal_vectors_whatever_the_global_generators_did(
    form: type[Model],
) -> None:
    first = vectors(form, seed=7).vector
    torch.rand(3)
    np.random.rand(3)
    assert np.array_equal(first, vectors(form, seed=7).vector)
    assert not np.array_equal(first, vectors(form, seed=8).vector)


@pytest.mark.parametrize("name", ["actor-critic", f"{__name__}:Modules"])
def test_the_global_generator_stays_as_it_was(name: str) -> None:
    before = torch.get_rng_state()
    Model(Experiment(seed=3, network=Settings(name=name)), stage())
    assert torch.equal(before, torch.get_rng_state())


# Normalized observations.


def test_observations_are_normalized_with_the_statistics_in_the_vector() -> None:
    model = Model(
        Experiment(
            environment=Environment(normalize_observations=True),
            network=Settings(name=f"{__name__}:Modules", hidden=(2,)),
        ),
        stage((2, 2)),
    )
    data = (
        np.random.default_rng(0)
        .normal([[1.0, -20.0], [300.0, 0.0]], [[0.5, 2.0], [10.0, 1.0]], (5000, 2, 2))
        .astype(np.float32)
    )
    moments = model.moments("observations")
    assert moments is not None
    moments.add(data.reshape(5000, -1))
    normalize = model.normalizer()
    assert normalize is not None
    batch = normalize(data)
    assert batch.dtype == np.float32 and batch.shape == data.shape
    np.testing.assert_allclose(batch.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(batch.std(0), 1.0, atol=1e-3)
    # One observation as a batch of them.
    np.testing.assert_allclose(normalize(data[7]), batch[7], rtol=1e-6)
    assert normalize(np.array([[1e9, -1e9], [300.0, 0.0]], np.float32)).reshape(-1)[
        :2
    ].tolist() == [10.0, -10.0]
    # Another vector's statistics, as the shared one's in a core.
    other = np.zeros_like(model.numbers)
    theirs = model.moments("observations", other)
    assert theirs is not None
    theirs.add(np.ones((4, 4)))
    assert other[model.signature.slices["statistics.observations"]].tolist() == [4.0] * 9


def test_without_data_observations_pass_unchanged_but_cut() -> None:
    normalize = vectors(environment=Environment(normalize_observations=True)).normalizer()
    assert normalize is not None
    assert normalize(np.array([1.0, -2.0, 300.0], np.float32)).tolist() == [1.0, -2.0, 10.0]


def moments(*batches: np.ndarray) -> tuple[np.ndarray, RunningMeanStd]:
    """The memory, and the moments over it after these batches of shape (n, d)."""
    memory = np.zeros(RunningMeanStd.size(batches[0].shape[1]), np.float32)
    result = RunningMeanStd(memory)
    for batch in batches:
        result.add(batch)
    return memory, result


batch_sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5)
dimensions = st.integers(1, 4)
seeds = st.integers(0, 2**32 - 1)


@given(batch_sizes, dimensions, seeds, st.floats(-5, 5), st.floats(0.5, 5))
def test_the_moments_of_batches_are_numpys_of_all_data(
    sizes: list[int], dimension: int, seed: int, mean: float, deviation: float
) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.normal(mean, deviation, (size, dimension)).astype(np.float32) for size in sizes]
    data = np.concatenate(batches).astype(np.float64)
    memory, ours = moments(*batches)
    assert memory[0] == len(data)
    found_mean, found_deviation = ours.mean_and_deviation()
    assert found_mean.dtype == found_deviation.dtype == np.float32
    assert found_mean.shape == found_deviation.shape == (dimension,)
    if len(data) > 1:
        np.testing.assert_allclose(found_mean, data.mean(0), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found_deviation**2, data.var(0), rtol=1e-2, atol=1e-3)


@given(st.integers(2, 60), st.integers(2, 60), dimensions, seeds, st.floats(0.01, 0.99))
def test_blending_two_is_taking_a_weighted_mixture_of_their_data(
    n: int, m: int, dimension: int, seed: int, alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(2.0, 1.0, (n, dimension)), rng.normal(-1.0, 3.0, (m, dimension))
    (memory, ours), (theirs, _) = moments(one), moments(other)
    blend(memory, theirs, alpha)
    found_mean, found_deviation = ours.mean_and_deviation()
    if memory[0] < 2.0:
        return
    # Every sample of the one counts 1−α, every one of the other α.
    weights = np.repeat([1 - alpha, alpha], [n, m])
    data = np.concatenate((one, other))
    mean = np.average(data, axis=0, weights=weights)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        found_deviation**2,
        np.average((data - mean) ** 2, axis=0, weights=weights),
        rtol=1e-2,
        atol=1e-3,
    )


def test_what_float32_leaves_of_many_small_additions_adds_up() -> None:
    model = vectors(Model, environment=Environment(normalize_observations=True))
    memory = model.numbers[model.signature.slices["statistics.observations"]]
    memory[:] = [1000.0, *[2.0**26] * 3, *[2.0**30] * 3]  # steps of 8 and of 128
    for _ in range(1024):
        model.moments("observations").add(np.full((1, 3), 3.0, np.float32))
    assert memory.tolist() == [2024.0, *[2.0**26 + 3072.0] * 3, *[2.0**30 + 9216.0] * 3]


@pytest.mark.parametrize("rows", [8, 1000])
def test_numbers_far_from_0_are_scaled_by_their_deviation(rows: int) -> None:
    rng = np.random.default_rng(0)
    model = vectors(Model, environment=Environment(normalize_observations=True))
    true_mean, true_deviation = np.array([1000.0, -101_325.0, 300.0]), np.array([2.0, 150.0, 0.0])
    # Small batches at the end, when the sums are large.
    for size in [1000] * 270 + [rows] * (30_000 // rows):
        data = rng.normal(true_mean, true_deviation, (size, 3)).astype(np.float32)
        model.moments("observations").add(data)
    mean, deviation = model.mean_and_deviation()
    assert np.abs(mean - true_mean).max() < 1.0
    np.testing.assert_allclose(deviation[:2], true_deviation[:2], rtol=0.1)
    assert deviation[2] == pytest.approx(0.3, rel=1e-3), "of a constant"


def test_the_count_never_grows_for_ever_and_the_past_fades() -> None:
    memory, ours = moments(np.zeros((600_000, 1)), np.zeros((600_000, 1)))
    assert memory[0] == 1_200_000
    ours.add(np.ones((1000, 1)))  # above a million: halved first
    assert memory.tolist() == [601_000.0, 1000.0, 1000.0]
    for _ in range(40):
        ours.add(np.full((100_000, 1), 5.0))
    assert memory[0] <= 1_100_000
    assert ours.mean_and_deviation()[0][0] == pytest.approx(5.0, abs=0.3)


@pytest.mark.parametrize("rows", [0, 1])
def test_next_to_no_data_means_nothing_is_scaled(rows: int) -> None:
    memory, ours = moments(np.full((rows, 2), 7.0))
    mean, deviation = ours.mean_and_deviation()
    assert mean.tolist() == [0.0, 0.0] and deviation.tolist() == [1.0, 1.0]
    assert memory[0] == rows


def test_constant_data_have_a_deviation_that_can_be_divided_by() -> None:
    _, ours = moments(np.full((1000, 2), [0.0, 3.3], np.float32))
    mean, deviation = ours.mean_and_deviation()
    np.testing.assert_allclose(mean, [0.0, 3.3], rtol=1e-5)
    assert (deviation > 0).all() and (deviation < 0.01).all()


def test_the_moments_are_a_view_and_leave_their_neighbours_alone() -> None:
    vector = np.full(9, 8.0, np.float32)
    vector[2:7] = 0.0
    RunningMeanStd(vector[2:7]).add(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert vector.tolist() == [8.0, 8.0, 3.0, 9.0, 12.0, 35.0, 56.0, 8.0, 8.0]
    assert RunningMeanStd.size(2) == 5


# Rewards as they are learned from.


@pytest.mark.parametrize(
    ("settings", "statistics", "expected"),
    [
        ({}, None, [-4.0, 0.5, 3.0]),
        ({"reward_scale": 0.5}, None, [-2.0, 0.25, 1.5]),
        ({"clip_rewards": 1.0}, None, [-1.0, 0.5, 1.0]),
        (
            {"reward_scale": 0.5, "clip_rewards": 1.75},
            None,
            [-1.75, 0.25, 1.5],
        ),  # the scaled ones are cut
        ({"reward_scale": 3.0}, (-2.0, 2.0), [-6.0, 0.75, 4.5]),  # deviation 2
        ({"reward_scale": 3.0, "clip_rewards": 5.0}, (-2.0, 2.0), [-5.0, 0.75, 4.5]),
        ({"reward_scale": 3.0}, (7.0,), [-12.0, 1.5, 9.0]),  # no deviation of one number
    ],
)
def test_rewards_are_scaled_divided_by_the_returns_deviation_and_cut(
    settings: dict[str, float], statistics: tuple[float, ...] | None, expected: list[float]
) -> None:
    rewards = np.array([-4.0, 0.5, 3.0], np.float32)
    environment = Environment(normalize_rewards=statistics is not None, **settings)
    model = vectors(Model, environment=environment)
    if statistics is not None:
        model.moments("returns").add(np.array(statistics)[:, None])
    result = model.scaled(rewards)
    assert result.dtype == np.float32 and result.tolist() == pytest.approx(expected)
    assert rewards.tolist() == [-4.0, 0.5, 3.0]
