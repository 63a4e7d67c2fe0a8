"""gSDE: the density against an oracle of loops, both forms against each other, and the noise."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.learning.exploration import LEAST_VARIANCE, Exploration
from genkidama.learning.heads import samples_of_lanes
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.learning.spaces import KnownSpaces
from genkidama.learning.tensors.networks import Network
from tests.learning import both

SIGHT, COLUMNS = 3, 2


class Robot(gymnasium.Env[Any, Any]):
    """Its spaces alone are of interest."""

    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (SIGHT,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (COLUMNS,), np.float32)


def exploring(**sections: dict[str, Any]) -> Experiment:
    network = {"hidden": [5, 4], "sde_steps": 4, **sections.pop("network", {})}
    return Experiment.from_dict(
        {
            "environment": {"id": f"{__name__}:Robot"},
            "network": network,
            "algorithm": {"name": "ppo", "batch_size": 8, "minibatch_size": 8, "epochs": 1},
            **sections,
        }
    )


def made(seed: int = 0, **sections: dict[str, Any]) -> Model:
    """A model whose parameters, those of the noise included, are anything."""
    model = Model(exploring(**sections), Robot())
    model.numbers[:] = 0.5 * np.random.default_rng(seed).standard_normal(len(model.numbers))
    return model


def policy_layers(model: Model) -> list[tuple[np.ndarray, np.ndarray]]:
    parts = model.network.parts
    stacks = ("body", "policy") if model.experiment.network.shared else ("policy",)
    names = [n for n in parts if n.startswith(stacks) and n.endswith("weight")]
    return [(parts[n], parts[n.replace("weight", "bias")]) for n in names]


def oracle(model: Model, state: np.ndarray, fixed: np.ndarray | None = None) -> Any:
    """μ(s), the variances and z(s) of one observation, by loops in float64.

    Args:
        fixed: z for the variances, through which no gradient goes.
    """
    *hidden, (weight, bias) = policy_layers(model)
    z = state.astype(np.float64)
    for matrix, offset in hidden:
        z = np.tanh(matrix.astype(np.float64) @ z + offset)
    mean = weight.astype(np.float64) @ z + bias
    log_deviation = model.network.parts["log_deviation"].astype(np.float64)
    known = z if fixed is None else fixed
    variance = np.array(
        [
            sum((known[i] * np.exp(log_deviation[i, j])) ** 2 for i in range(len(known)))
            + LEAST_VARIANCE
            for j in range(COLUMNS)
        ]
    )
    return mean, variance, z


def log_density(mean: np.ndarray, variance: np.ndarray, action: np.ndarray) -> float:
    return float(
        sum(
            -0.5 * (action[j] - mean[j]) ** 2 / variance[j]
            - 0.5 * np.log(2.0 * np.pi * variance[j])
            for j in range(COLUMNS)
        )
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("hidden", [[4], [5, 4]])
def test_the_gradient_is_that_of_an_oracles_finite_differences(
    shared: bool, hidden: list[int]
) -> None:
    model = made(network={"shared": shared, "hidden": hidden})
    rng = np.random.default_rng(1)
    states = rng.standard_normal((6, SIGHT)).astype(np.float32)
    actions = rng.standard_normal((6, COLUMNS)).astype(np.float32)
    weights = rng.standard_normal(6).astype(np.float32)
    at_entropy = 0.7
    outputs, values = model.network.forward(states)
    log_pi, back, entropy = model.head.slopes(outputs, actions)
    known = [oracle(model, state) for state in states]
    for row, (mean, variance, _) in enumerate(known):
        np.testing.assert_allclose(outputs[row, :COLUMNS], mean, atol=1e-5)
        np.testing.assert_allclose(np.exp(2.0 * outputs[row, COLUMNS:]), variance, rtol=1e-4)
        assert log_pi[row] == pytest.approx(log_density(mean, variance, actions[row]), abs=1e-3)
        each = 0.5 * np.log(2.0 * np.pi * np.e * variance).sum()
        assert entropy()[row] == pytest.approx(each, abs=1e-4)
    model.gradient[:] = np.nan
    model.network.backward(back(weights, at_entropy), np.zeros_like(values))

    def loss() -> float:
        total = 0.0
        for state, action, weight, (_, _, z) in zip(states, actions, weights, known, strict=True):
            mean, variance, _ = oracle(model, state, fixed=z)
            total += weight * log_density(mean, variance, action)
            total += at_entropy * 0.5 * np.log(2.0 * np.pi * np.e * variance).sum()
        return total

    places = [
        place
        for name, place in model.signature.slices.items()
        if name == "log_deviation" or name.startswith(("policy", "body"))
    ]
    for index in np.concatenate([np.arange(place.start, place.stop) for place in places]):
        before = model.numbers[index]
        step = np.float32(2**-8)
        model.numbers[index] = before + step
        above = loss()
        model.numbers[index] = before - step
        below = loss()
        model.numbers[index] = before
        expected = (above - below) / (2.0 * float(step))
        assert model.gradient[index] == pytest.approx(expected, rel=0.02, abs=0.02), index


@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
@pytest.mark.parametrize("shared", [False, True])
def test_both_forms_take_the_same_gradients(algorithm: str, shared: bool) -> None:
    model = made(
        network={"shared": shared},
        algorithm={
            "name": algorithm,
            "batch_size": 8,
            "entropy_coefficient": 0.1,
            **({"minibatch_size": 4} if algorithm == "ppo" else {}),
        },
    )
    rng = np.random.default_rng(5)
    n = 8
    rollout = Rollout(
        rng.standard_normal((n, SIGHT)).astype(np.float32),
        rng.standard_normal((n, COLUMNS)).astype(np.float32),
        rng.standard_normal(n).astype(np.float32),
        np.arange(n) == n - 1,
        np.array([n - 1]),
        rng.standard_normal((1, SIGHT)).astype(np.float32),
    )
    tensors = both.in_tensors(model, Robot())
    assert model.signature == tensors.signature
    for ours, theirs in zip(
        both.gradients(model, rollout), both.gradients(tensors, rollout), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert np.abs(ours[model.signature.slices["log_deviation"]]).min() > 0.0


@pytest.mark.parametrize("kind", ["numpy", "by hand", "torch"])
@pytest.mark.parametrize("lanes", [1, 3])
def test_an_action_is_the_mean_and_a_matrix_times_the_features(kind: str, lanes: int) -> None:
    model: Any = made(network={"activation": "silu"} if kind == "torch" else {})
    network = model.network if kind != "by hand" else both.in_tensors(model, Robot()).network
    exploration = model.exploration(np.random.default_rng(2), lanes)
    head = model.head
    states = np.random.default_rng(3).standard_normal((8, lanes, SIGHT)).astype(np.float32)
    sample = samples_of_lanes(head, np.random.default_rng(4), 0.0, lanes, exploration)
    one = head.sampler(np.random.default_rng(4), 0.0, exploration)
    matrices = []
    act = network.acting(exploration) if lanes == 1 else network.acting_together(exploration)
    for state in states:
        if lanes == 1:
            outputs = act(state[0])[None]
            actions = one(outputs[0])[None]
        else:
            outputs = act(state)
            actions, taken = sample(outputs)
            assert np.abs(taken).max() <= 1.0  # the environments' are within the bounds
        plain = model.evaluate(state)[0]
        np.testing.assert_allclose(outputs, plain, atol=1e-5)
        if kind == "torch":
            with torch.no_grad():
                features = network.parts(torch.from_numpy(state))[2].numpy()
        else:
            features = np.stack([oracle(model, row)[2] for row in state])
        matrices.append(exploration._matrices.copy())
        for lane in range(lanes):
            noise = actions[lane] - plain[lane, :COLUMNS]
            np.testing.assert_allclose(noise, features[lane] @ matrices[-1][lane], atol=1e-5)
    for t in range(1, 8):
        assert np.array_equal(matrices[t], matrices[t - 1]) == (t != 4)  # sde_steps = 4
    for lane in range(1, lanes):
        assert not np.array_equal(matrices[0][lane], matrices[0][0])


def test_the_noise_has_the_density_that_log_pi_is_of() -> None:
    model = made(network={"sde_steps": 1})
    exploration = model.exploration(np.random.default_rng(0), 5000)
    assert exploration is not None
    act = model.network.acting_together(exploration)
    states = np.random.default_rng(1).standard_normal((5, SIGHT)).astype(np.float32)
    seen = np.repeat(states, 1000, 0)
    drawn = np.array([(act(seen), exploration.noise.copy())[1] for _ in range(20)])
    for state, noise in zip(states, np.split(drawn, 5, 1), strict=True):
        _, variance, _ = oracle(model, state)
        np.testing.assert_allclose(noise.mean((0, 1)), 0.0, atol=0.05 * variance.max() ** 0.5)
        np.testing.assert_allclose(noise.var((0, 1)), variance, rtol=0.05)


def test_with_newer_weights_the_same_draw_is_scaled_anew() -> None:
    exploration = Exploration(np.random.default_rng(0), (3, 2), 2, 100)
    features = np.ones((2, 3), np.float32)
    exploration.scale(np.zeros((3, 2), np.float32))
    exploration.explore(features)
    before = exploration.noise.copy()
    exploration.scale(np.full((3, 2), np.log(3.0), np.float32))
    exploration.explore(features)
    np.testing.assert_allclose(exploration.noise, 3.0 * before, rtol=1e-5)
    exploration.explore(np.full((1, 3), 2.0, np.float32))  # one of two lanes plays
    np.testing.assert_allclose(exploration.noise[0], 6.0 * before[0], rtol=1e-5)


def test_a_uniformly_random_action_comes_before_the_noise() -> None:
    model = made()
    exploration = model.exploration(np.random.default_rng(0), 1)
    assert exploration is not None
    exploration.noise[:] = 50.0
    sample = model.head.sampler(np.random.default_rng(1), 0.5, exploration)  # type: ignore[call-arg]
    drawn = np.array([sample(np.zeros(4, np.float32)) for _ in range(400)])
    explored = (drawn == 50.0).all(1)
    assert 0.4 < explored.mean() < 0.6
    assert np.abs(drawn[~explored]).max() <= 1.0


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ({}, -2.0),
        ({"log_deviation": -3.29}, -3.29),
        ({"sde_steps": 0}, 0.0),
        ({"sde_steps": 0, "log_deviation": 0.5}, 0.5),
        ({"initialization": "uniform", "log_deviation": 0.5}, 0.5),
    ],
)
def test_how_large_the_noise_is_at_the_start(network: dict[str, Any], expected: float) -> None:
    for activation in ("tanh", "silu"):
        settings = exploring(network={"activation": activation, **network})
        model = Model(settings, Robot())
        shape = dict(model.signature.entries)["log_deviation"]
        assert shape == ((4, COLUMNS) if settings.network.sde_steps else (COLUMNS,))
        found = model.numbers[model.signature.slices["log_deviation"]]
        np.testing.assert_allclose(found, expected)


class Camera(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 255, (1, 8, 8), np.uint8)
    action_space = Robot.action_space


def test_images_have_it_too() -> None:
    network = {"name": "convolutional", "convolutions": [[2, 4, 4]], "hidden": [6]}
    model: Any = Model(exploring(network=network), Camera())
    assert dict(model.signature.entries)["log_deviation"] == (6, COLUMNS)
    exploration = model.exploration(np.random.default_rng(0), 2)
    seen = np.random.default_rng(1).integers(0, 256, (2, 1, 8, 8), np.uint8)
    outputs = model.network.acting_together(exploration)(seen)
    with torch.no_grad():
        means, _, features = model.network.parts(torch.from_numpy(seen.astype(np.float32)))
    variance = features.numpy() ** 2 @ np.exp(-4.0 * np.ones((6, COLUMNS))) + LEAST_VARIANCE
    np.testing.assert_allclose(outputs[:, :COLUMNS], means.numpy(), atol=1e-6)
    np.testing.assert_allclose(outputs[:, COLUMNS:], 0.5 * np.log(variance), rtol=1e-4)
    for lane in range(2):
        noise = features[lane].numpy() @ exploration._matrices[lane]
        np.testing.assert_allclose(exploration.noise[lane], noise, atol=1e-5)


class Own(Network):
    def __init__(self, observation_space: Any, action_space: Any, settings: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(SIGHT, 2 * COLUMNS)

    def forward(self, observations: Any) -> Any:
        outputs = self.layer(observations)
        return outputs, outputs[:, 0]


def test_where_there_is_none_that_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"sde_steps = 4: .* Discrete\(.\); set it to 0"):
        Model(exploring(), make_environment(Experiment.from_dict({}).environment))
    with pytest.raises(
        ConfigurationError, match=r"sde_steps = 4: .*network.name = .*:Own'; set it"
    ):
        Model(exploring(network={"name": f"{__name__}:Own"}), Robot())
    both = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), Robot.action_space])
    with pytest.raises(ConfigurationError, match=r"sde_steps = 4: .* Tuple\(.*\); set it to 0"):
        Model(exploring(), KnownSpaces(Robot.observation_space, both))
    with pytest.raises(ConfigurationError, match=r"sde_steps = 4: the backend ga3c .* 'hogwild'"):
        exploring(child={"backend": "ga3c"})
    assert Model(exploring(network={"sde_steps": 0}), Robot()).exploration(None, 1) is None  # type: ignore[arg-type]
