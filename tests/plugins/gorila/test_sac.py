"""SAC by value: the gradient against finite differences and autograd, targets, actions, updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary
from hypothesis import given, settings
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.exploration import LEAST_VARIANCE
from genkidama.learning.heads import samples_of_lanes
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, Transitions
from genkidama.learning.soft_actor_critic import INITIAL_LOG_DEVIATION, drawn, dropout
from genkidama.learning.tensors.networks import Network
from genkidama.learning.tensors.soft_networks import SoftNetwork
from genkidama.learning.tensors.tensor_model import TensorModel
from genkidama.plugins.gorila import sac as module
from genkidama.plugins.gorila.sac import SAC, SquashedGaussian, tensor_dropout
from genkidama.protocol.diagnostics import SHAPE, Diagnostics, Window

Array = np.ndarray

BOX = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 3.0], np.float32))
SPACES: Any = SimpleNamespace(observation_space=Box(-9.0, 9.0, (3,)), action_space=BOX)


def experiment(network: dict[str, Any] | None = None, **algorithm: Any) -> Experiment:
    return Experiment.from_dict(
        {
            "seed": 5,
            "network": {"hidden": [5, 4], "activation": "relu", **(network or {})},
            "algorithm": {"name": "sac", "batch_size": 4, "start_steps": 10, **algorithm},
            "replay": {"steps": 100},
        }
    )


def model_of(*, spread: float = 0.7, **given: Any) -> Model:
    """A model whose numbers are nowhere special."""
    model = Model(experiment(**given), SPACES)
    model.numbers[:] = np.random.default_rng(3).normal(0.0, spread, model.signature.size)
    return model


def steps_of(rng: np.random.Generator, m: int = 6) -> Transitions:
    terminated = rng.random(m) < 0.3
    return Transitions(
        observations=rng.normal(size=(m, 3)).astype(np.float32),
        actions=np.tanh(rng.normal(size=(m, 2))).astype(np.float32),
        rewards=(3.0 * rng.normal(size=m)).astype(np.float32),
        following=rng.normal(size=(m, 3)).astype(np.float32),
        terminated=terminated,
        truncated=~terminated & (rng.random(m) < 0.3),
        log_mu=np.full(m, np.nan, np.float32),
        discounts=np.where(terminated, 0.0, 0.9).astype(np.float32),
        weights=np.ones(m, np.float32),
        places=np.arange(m),
    )


class Remembered:
    """A replay that gives what it was told, and counts what it was asked for."""

    def __init__(self, steps: Transitions, there: int = 100) -> None:
        self.steps, self.there = steps, there
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.there

    def sample(self, count: int, **_: Any) -> Transitions:
        self.asked.append(count)
        return Transitions(
            **{
                name: np.resize(column, (count, *column.shape[1:]))
                for name, column in vars(self.steps).items()
            }
        )

    def prioritize(self, *_: Any) -> None:
        raise NotImplementedError

    def trajectories(self, *_: Any, **__: Any) -> Rollout:
        raise NotImplementedError


def rollout_of(model: Model, replay: Any, target: Array, played: int = 4, **more: Any) -> Rollout:
    nothing: Any = np.empty(0)
    rewards: Any = np.zeros(played, np.float32)
    return Rollout(
        nothing,
        nothing,
        rewards,
        nothing,
        nothing,
        nothing,
        replay=replay,
        target=model.native(target),
        **more,
    )


# The obvious form, in float64.


def parts_of(model: Model, vector: Array) -> dict[str, Array]:
    slices = model.signature.slices
    return {name: vector[slices[name]].reshape(shape) for name, shape in model.signature.entries}


def layers_of(parts: dict[str, Array], stack: str) -> list[tuple[Array, Array]]:
    names = [name for name in parts if name.startswith(f"{stack}.")]
    return [(parts[w], parts[b]) for w, b in zip(names[::2], names[1::2], strict=True)]


def perceptron(
    layers: list[tuple[Array, Array]],
    x: Array,
    activation: str,
    norm: bool,
    factors: list[Array] | None = None,
) -> Array:
    """Its outputs (m, outputs) for x (m, inputs); `factors` (m, width) of each hidden layer."""
    for number, (weight, bias) in enumerate(layers):
        x = x @ weight.T + bias
        if number < len(layers) - 1:
            if factors is not None:
                x = x * factors[number]
            if norm:
                x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
            x = np.tanh(x) if activation == "tanh" else np.maximum(x, 0.0)
    return x


class Oracle:
    """Everything for m steps, as the paper has it for one."""

    def __init__(self, model: Model, vector: Array) -> None:
        settings = model.experiment
        self._parts = parts_of(model, vector)
        self._activation = settings.network.activation
        self._norm = settings.algorithm.layer_norm
        self.alpha = math.exp(float(self._parts["temperature.log_alpha"]))

    def q(self, twin: int, s: Array, a: Array, kept: list[Array]) -> Array:
        """Its last argument: the factors of each hidden layer's units, (2, width, m); or none."""
        layers = [(w[twin], b[twin]) for w, b in layers_of(self._parts, "critics")]
        both = np.concatenate((s, a), 1)
        factors = [each[twin].T for each in kept] or None
        return perceptron(layers, both, self._activation, self._norm, factors)[:, 0]

    def least(self, s: Array, a: Array, kept: list[Array]) -> Array:
        return np.minimum(self.q(0, s, a, kept), self.q(1, s, a, kept))

    def features(self, s: Array) -> Array:
        *hidden, (weight, _) = layers_of(self._parts, "policy")
        same = np.eye(weight.shape[1]), np.zeros(weight.shape[1])
        return perceptron([*hidden, same], s, self._activation, False)

    def act(self, s: Array, noise: Array, z: Array) -> tuple[Array, Array]:
        """Its last argument: the features for gSDE's variances, which no gradient goes through."""
        out = perceptron(layers_of(self._parts, "policy"), s, self._activation, False)
        if "log_deviation" in self._parts:
            each = (z[:, :, None] * np.exp(self._parts["log_deviation"])) ** 2
            out = np.concatenate((out, 0.5 * np.log(each.sum(1) + LEAST_VARIANCE)), 1)
        mean, log_deviation = np.split(out, 2, 1)
        deviation = np.exp(log_deviation.clip(-20.0, 2.0))
        u = mean + deviation * noise
        normal = np.exp(-0.5 * ((u - mean) / deviation) ** 2) / (deviation * math.sqrt(2 * math.pi))
        return np.tanh(u), np.log(normal).sum(1) - np.log(1.0 - np.tanh(u) ** 2).sum(1)


def losses_of(
    model: Model,
    fixed: Array,
    steps: Transitions,
    targets: Array,
    noise: Array,
    kept: list[list[Array]],
) -> Callable[[Array], float]:
    """The sum of the losses of critics, policy and log α at a vector; what each takes for given is
    at `fixed`.

    The policy's loss varies the policy alone, that of α varies log α alone. `kept`: the factors of
    the passes for y, for Q(s, a) and for Q(s, a_π), of each hidden layer (2, width, m)."""
    given_, s, entropy = Oracle(model, fixed), steps.observations, -2.0
    features = given_.features(s)
    _, fixed_log_pi = given_.act(s, noise, features)
    _, known, own = kept

    def losses(vector: Array) -> float:
        there = Oracle(model, vector)
        errors = [there.q(twin, s, steps.actions, known) - targets for twin in range(2)]
        critics = sum(0.5 * error**2 for error in errors)
        action, log_pi = there.act(s, noise, features)
        policy = given_.alpha * log_pi - given_.least(s, action, own)
        temperature = -math.log(there.alpha) * (fixed_log_pi + entropy)
        return float(np.mean(critics + policy + temperature))

    return losses


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    ("layer_norm", "sde_steps", "rate"),
    [(False, 0, 0.0), (True, 0, 0.0), (False, 3, 0.0), (False, 0, 0.4), (True, 0, 0.4)],
)
def test_the_gradient_is_that_of_the_definition(
    activation: str, layer_norm: bool, sde_steps: int, rate: float
) -> None:
    network = {"activation": activation, "hidden": [4, 3], "sde_steps": sde_steps}
    model = model_of(spread=0.4, network=network, layer_norm=layer_norm)
    rng = np.random.default_rng(8)
    steps, noise = steps_of(rng, 4), rng.normal(size=(2, 4, 2)).astype(np.float32)
    shapes = [(2, 4, 4), (2, 3, 4)] if rate else []
    kept = [dropout(rng, rate, shapes) for _ in range(3)]
    assert not rate or all((layer == 0.0).any() for each in kept for layer in each)
    behind = rng.normal(0.0, 0.7, model.trainable).astype(np.float32)

    model.gradient.fill(np.nan)
    passes = iter(kept)
    found = model.network.learn(steps, noise, -2.0, model.twin(behind), lambda: next(passes))
    targets = found["targets"]
    now, old = Oracle(model, model.numbers.astype(float)), Oracle(model, behind.astype(float))
    s = steps.following.astype(float)
    action, log_pi = now.act(s, noise[0], now.features(s))
    soft = old.least(s, action, kept[0]) - now.alpha * log_pi
    np.testing.assert_allclose(targets, steps.rewards + steps.discounts * soft, rtol=1e-3)

    at = model.numbers.astype(float)
    losses = losses_of(model, at, steps, targets.astype(float), noise[1], kept)
    step = 1e-5
    for number in range(model.trainable):
        moved = np.zeros_like(at)
        moved[number] = step
        slope = (losses(at + moved) - losses(at - moved)) / (2.0 * step)
        assert model.gradient[number] == pytest.approx(slope, rel=2e-3, abs=3e-4), number


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["tanh", "relu"]),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([0, 3]),
    st.lists(st.integers(2, 9), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_both_forms_take_the_same_gradients(
    activation: str, layer_norm: bool, rate: float, sde_steps: int, hidden: list[int], seed: int
) -> None:
    network = {"activation": activation, "hidden": hidden, "sde_steps": sde_steps}
    model = model_of(
        network=network,
        layer_norm=layer_norm,
        critic_dropout=rate,
        updates_per_step=0.5,
        minibatch_size=6,
    )
    there = TensorModel(model.experiment, SPACES, vector=model.numbers)
    assert there.signature == model.signature
    rng = np.random.default_rng(seed)
    steps, behind = steps_of(rng), rng.normal(0.0, 0.7, model.trainable).astype(np.float32)
    noise = [rng.normal(size=(2, 6, 2)).astype(np.float32) for _ in range(2)]
    kept = [dropout(rng, rate, [(2, width, 6) for width in hidden]) for _ in range(6)]

    found = []
    for each in (model, there):
        given_, masks = iter(noise), iter(kept)

        def array_masks(_: Any, rate: float, shapes: Any, masks: Any = masks) -> list[Array]:
            assert [layer.shape for layer in kept[0]] == shapes
            return next(masks)

        def tensor_masks(
            _: Any, rate: float, shapes: Any, rng: Any, masks: Any = masks
        ) -> list[torch.Tensor]:
            layers = [torch.from_numpy(layer).transpose(1, 2) for layer in next(masks)]
            assert [tuple(layer.shape) for layer in layers] == shapes
            return layers

        rollout = rollout_of(each, Remembered(steps), behind)
        draws: Any = SimpleNamespace(standard_normal=lambda *_, given_=given_: next(given_))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                module, "tensor_noise", lambda *_, given_=given_: torch.from_numpy(next(given_))
            )
            if rate:
                patch.setattr(module, "dropout", array_masks)
                patch.setattr(module, "tensor_dropout", tensor_masks)
            learner = make_learner(each.experiment.algorithm, each)
            each.gradient.fill(np.nan)
            taken = each.gradients(learner, rollout, draws)
            found.append([each.gradient.copy() for _ in taken])
    assert len(found[0]) == len(found[1]) == 2, "half an update for each of four steps"
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


@given(st.floats(0.01, 0.99), st.integers(0, 2**32 - 1))
def test_dropout_leaves_out_its_share_and_keeps_the_mean(rate: float, seed: int) -> None:
    count = 2 * 50 * 100
    shapes = [(2, 50, 100), (2, 7, 3)]
    ours = dropout(np.random.default_rng(seed), rate, shapes)
    generator = torch.Generator().manual_seed(seed)
    theirs = [layer.numpy() for layer in tensor_dropout(torch.empty(0), rate, shapes, generator)]
    for layers in (ours, theirs):
        assert [layer.shape for layer in layers] == shapes
        assert all(layer.dtype == np.float32 for layer in layers)
        assert np.unique(layers[0]) == pytest.approx([0.0, 1.0 / (1.0 - rate)], rel=1e-5)
        left_out = np.count_nonzero(layers[0] == 0.0)
        assert abs(left_out - rate * count) < 7.0 * math.sqrt(count * rate * (1.0 - rate))
        assert not np.array_equal(*layers[0]), "each critic has its own"


def test_a_value_leaves_nothing_out() -> None:
    seen = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    plain, dropping = (model_of(critic_dropout=rate) for rate in (0.0, 0.9))
    behind, noise = (
        dropping.twin(dropping.numbers[: dropping.trainable].copy()),
        np.zeros((2, 6, 2)),
    )
    kept = dropout(np.random.default_rng(2), 0.9, [(2, width, 6) for width in (5, 4)])
    steps = steps_of(np.random.default_rng(2))
    dropping.network.learn(steps, noise.astype(np.float32), -2.0, behind, lambda: kept)
    np.testing.assert_array_equal(plain.evaluate(seen)[1], dropping.evaluate(seen)[1])
    there = TensorModel(dropping.experiment, SPACES, vector=dropping.numbers)
    np.testing.assert_allclose(there.evaluate(seen)[1], plain.evaluate(seen)[1], rtol=1e-4)


@pytest.mark.parametrize("form", [Model, TensorModel])
def test_observations_of_any_shape_are_vectors(form: type[Model]) -> None:
    found = []
    steps = steps_of(rng := np.random.default_rng(2))
    wide = {
        name: rng.normal(size=(6, 6)).astype(np.float32) for name in ("observations", "following")
    }
    for shape in ((6,), (3, 2)):
        spaces: Any = SimpleNamespace(observation_space=Box(-9.0, 9.0, shape), action_space=BOX)
        model = form(experiment(updates_per_step=0.5, minibatch_size=6), spaces)
        model.numbers[:] = np.random.default_rng(3).normal(0.0, 0.7, model.signature.size)
        shaped = {name: each.reshape(6, *shape) for name, each in wide.items()}
        replay = Remembered(replace(steps, **shaped))
        learner = make_learner(model.experiment.algorithm, model)
        rollout = rollout_of(model, replay, model.numbers[: model.trainable].copy())
        taken = model.gradients(learner, rollout, model.generator(4))
        gradients = [model.gradient.copy() for _ in taken]
        seen = shaped["observations"]
        outputs, values = model.evaluate(seen)
        acting, together = model.network.acting(), model.network.acting_together()
        found.append([*gradients, outputs, values, acting(seen[1]), np.array(together(seen))])
    assert len(found[0]) == 6
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sde_steps", [0, 3])
def test_both_forms_begin_alike(sde_steps: int) -> None:
    given_ = experiment(network={"sde_steps": sde_steps})
    ours, theirs = Model(given_, SPACES), TensorModel(given_, SPACES)
    np.testing.assert_array_equal(ours.numbers, theirs.numbers)
    seen = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    for mine, other in zip(ours.evaluate(seen), theirs.evaluate(seen), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


class Wide(Network):
    """A user's network, of no special form."""

    def __init__(self, observation_space: Any, action_space: Any, settings: Any) -> None:
        super().__init__()
        self.body = torch.nn.Linear(observation_space.shape[0], 6)
        self.policy = torch.nn.Linear(6, 2 * action_space.shape[0])
        self.value = torch.nn.Linear(6, 1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.body(observations))
        return self.policy(hidden), self.value(hidden).squeeze(1)


@pytest.mark.parametrize("network", [{"name": f"{__name__}:Wide"}, {"activation": "elu"}])
def test_the_critics_of_any_network_drop_out(network: dict[str, Any]) -> None:
    """With everything left out, a critic is the bias of its last layer."""
    model = Model(experiment(network=network), SPACES)
    net, steps = model.network, steps_of(np.random.default_rng(2))
    seen, actions = torch.from_numpy(steps.observations), torch.from_numpy(steps.actions)
    shapes = [(2, 6, width) for width in net.critic_widths]
    nothing = [torch.zeros(shape) for shape in shapes]
    layers = net.critics if network.get("activation") else net.critics.layers
    for part in list(layers.parameters())[1:-1:2]:
        part.data[:] = 0.0  # other biases
    layers[-1].bias.data[:] = torch.tensor([[1.0], [2.0]])
    found = net.critics(seen, actions, nothing).detach().numpy()
    np.testing.assert_array_equal(found, np.repeat([[1.0], [2.0]], 6, 1))
    assert not np.array_equal(net.critics(seen, actions).detach().numpy(), found)


@pytest.mark.parametrize(
    "network", [{"name": f"{__name__}:Wide"}, {"activation": "elu"}], ids=["user", "elu"]
)
def test_another_network_learns_by_the_same_loss(network: dict[str, Any]) -> None:
    """Each part of the one loss reaches its own numbers alone, with the gradient of separate
    losses."""
    model = Model(experiment(network=network), SPACES)
    net = model.network
    assert isinstance(net, SoftNetwork)
    rng = np.random.default_rng(2)
    steps = steps_of(rng)
    seen, actions = torch.from_numpy(steps.observations), torch.from_numpy(steps.actions)
    noise, targets = torch.randn(6, 2), torch.randn(6)
    loss, found = net.loss(seen, actions, targets, noise, -2.0)
    model.gradient[:] = 0.0
    loss.backward()
    together = model.gradient.copy()

    model.gradient[:] = 0.0
    critics = 0.5 * ((net.critics(seen, actions) - targets) ** 2).sum(0).mean()
    by_name = dict(net.named_parameters())
    own = {name: part for name, part in by_name.items() if name.startswith("critics")}
    slopes = torch.autograd.grad(critics, list(own.values()), allow_unused=True)
    size = model.signature.slices
    for name, slope in zip(own, slopes, strict=True):
        wanted = np.zeros(own[name].numel()) if slope is None else slope.numpy().reshape(-1)
        np.testing.assert_allclose(together[size[name]], wanted, rtol=1e-4, atol=1e-6)
    assert any(together[size[name]].any() for name in by_name if name.startswith("policy"))
    log_pi = found["log_pi"].detach().mean()
    assert together[-1] == pytest.approx(-(float(log_pi) - 2.0), rel=1e-4)


@pytest.mark.parametrize("sde_steps", [0, 3])
def test_what_only_acts_has_the_policy_alone(sde_steps: int) -> None:
    given_ = experiment(network={"sde_steps": sde_steps})
    sends = Experiment.from_dict(given_.to_dict() | {"parent": {"rule": "experience"}})
    whole, alone = Model(sends, SPACES, learns=True), Model(sends, SPACES)
    assert whole.acts_only is False and alone.acts_only is True
    count = alone.signature.size
    assert whole.signature.entries[: len(alone.signature.entries)] == alone.signature.entries
    alone.numbers[:] = whole.numbers[:count]
    seen = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    outputs, values = whole.evaluate(seen)
    np.testing.assert_array_equal(alone.evaluate(seen)[0], outputs)
    assert np.isfinite(values).all() and np.isnan(alone.evaluate(seen)[1]).all()


def test_a_value_is_the_smaller_q_of_the_mode() -> None:
    model = model_of()
    seen = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    outputs, values = model.evaluate(seen)
    oracle = Oracle(model, model.numbers.astype(float))
    wanted = oracle.least(seen, np.tanh(outputs[:, :2]), [])
    np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["arrays", "tensors", "convolution"])
def test_values_begin_at_the_initial_value(form: str) -> None:
    spaces, network, seen = SPACES, {"hidden": [5, 4]}, (7, 3)
    if form == "tensors":
        network["activation"] = "elu"
    elif form == "convolution":
        image = Box(0, 255, (36, 36, 3), np.uint8)
        spaces = SimpleNamespace(observation_space=image, action_space=BOX)
        network, seen = {"name": "convolutional", "hidden": [8]}, (7, *image.shape)
    observations = np.random.default_rng(1).uniform(0.0, 9.0, seen)
    found = []
    for value in (-70.0, 0.0, 30.0):
        model = Model(experiment(network, initial_value=value), spaces, learns=True)
        assert isinstance(model, TensorModel) == (form != "arrays")
        found.append(model.evaluate(observations.astype(spaces.observation_space.dtype))[1])
    np.testing.assert_allclose(found[0] + 70.0, found[1], atol=1e-4)
    np.testing.assert_allclose(found[2] - 30.0, found[1], atol=1e-4)


# Actions.


def test_the_first_actions_are_nearly_uniform() -> None:
    model = Model(experiment(), SPACES)
    assert model.network.parts["policy.4.bias"][2:].tolist() == pytest.approx(
        [INITIAL_LOG_DEVIATION] * 2
    )
    sample = model.head.together(np.random.default_rng(4), 0.0, 4000)
    outputs, _ = model.evaluate(np.random.default_rng(1).normal(size=(4000, 3)).astype(np.float32))
    actions = np.sort(sample(outputs)[0][:, 0])
    distance = np.abs((actions + 1.0) / 2.0 - np.linspace(0.0, 1.0, len(actions))).max()
    assert distance < 0.05, "of the distribution functions"


@settings(deadline=None)
@given(st.floats(-2.0, 2.0), st.floats(-1.5, 0.5))
def test_the_density_of_actions_adds_up_to_1(mean: float, log_deviation: float) -> None:
    actions = np.linspace(-1.0, 1.0, 20_001)[1:-1].astype(np.float32)[:, None]
    outputs = np.tile(np.float32([mean, log_deviation]), (len(actions), 1))
    log_pi = SquashedGaussian.slopes(outputs, actions).log_pi
    assert np.exp(log_pi.astype(float)).sum() * 1e-4 == pytest.approx(1.0, abs=0.03)


def test_log_pi_of_a_drawn_action_is_that_of_the_head_and_of_torch() -> None:
    rng = np.random.default_rng(6)
    outputs = (0.5 * rng.normal(size=(50, 4)) - 0.5).astype(np.float32)  # not where a is ±1
    found = drawn(outputs.T, rng.normal(size=(2, 50)).astype(np.float32))
    head, actions = SquashedGaussian(BOX), found.actions.T
    by_head = head.slopes(outputs, actions).log_pi
    by_torch = head.log_probability(torch.from_numpy(outputs), torch.from_numpy(actions))
    np.testing.assert_allclose(by_head, found.log_pi, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(by_torch.numpy(), by_head, rtol=1e-3, atol=1e-3)


def test_slopes_of_the_head_are_those_of_torch() -> None:
    rng = np.random.default_rng(6)
    outputs = (3.0 * rng.normal(size=(20, 4))).astype(np.float32)
    actions = np.tanh(rng.normal(size=(20, 2))).astype(np.float32)
    head = SquashedGaussian(BOX)
    tensor = torch.from_numpy(outputs.copy()).requires_grad_()
    weights = rng.normal(size=20).astype(np.float32)
    (
        head.log_probability(tensor, torch.from_numpy(actions)) * torch.from_numpy(weights)
    ).sum().backward()
    assert tensor.grad is not None
    back = head.slopes(outputs, actions).back(weights, 0.0)
    np.testing.assert_allclose(back, tensor.grad.numpy(), rtol=1e-3, atol=1e-3)


def test_actions_reach_the_bounds_and_no_farther() -> None:
    head = SquashedGaussian(BOX)
    assert head.to_environment(np.float32([-1.0, 1.0])).tolist() == [-2.0, 3.0]
    assert head.to_environment(np.float32([0.0, 0.0])).tolist() == [0.0, 1.5]
    extreme = head.sampler(np.random.default_rng(1), 0.0)(np.float32([90.0, -90.0, 2.0, 2.0]))
    assert BOX.contains(head.to_environment(extreme))
    assert head.mode(np.float32([90.0, -90.0, 0.0, 0.0])).tolist() == [1.0, -1.0]
    doubles = gymnasium.spaces.Box(-0.1, 0.1, (1,), np.float64)  # as float32 0.1 is larger
    act = SquashedGaussian(doubles).to_environment
    assert all(doubles.contains(act(np.float32([end])).astype(np.float64)) for end in (-1, 1))


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_state_dependent_noise_is_squashed_too(activation: str) -> None:
    """a = tanh(m + θᵀz), with the same θ for `sde_steps` steps, of a density that log π is of."""
    network = {"sde_steps": 3, "activation": activation}
    sends = experiment(network=network).to_dict() | {"parent": {"rule": "experience"}}
    model = Model(Experiment.from_dict(sends), SPACES)
    assert model.acts_only
    model.numbers[:] = np.random.default_rng(3).normal(0.0, 0.5, model.signature.size)
    states = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
    plain = model.evaluate(states)[0]

    def exploring(lanes: int) -> tuple[Any, Any]:
        exploration = model.exploration(np.random.default_rng(2), lanes)
        assert exploration is not None
        return exploration, model.network.acting_together(exploration)

    # 400 lanes in each of the states, and three matrices for each lane.
    seen = np.repeat(states, 400, 0)
    exploration, together = exploring(len(seen))
    draw = samples_of_lanes(model.head, np.random.default_rng(4), 0.0, len(seen), exploration)
    found = []
    for _ in range(9):
        actions, given_ = draw(together(seen))
        found.append(actions.copy())
        assert (np.clip(given_, BOX.low, BOX.high) == given_).all()
    u = np.arctanh(np.clip(found, -1.0 + 1e-7, 1.0 - 1e-7)).reshape(3, 3, 3, 400, 2)
    assert (np.ptp(u, 1) < 1e-2).all() and (np.ptp(u, 0) > 1e-2).any()
    u = u[:, 0]
    np.testing.assert_allclose(np.median(u, (0, 2)), plain[:, :2], atol=0.15)
    far = np.median(np.abs(u - plain[:, None, :2]), (0, 2))
    np.testing.assert_allclose(far, 0.6745 * np.exp(plain[:, 2:]), 0.15, 1e-3)

    exploration, together = exploring(1)
    draw = samples_of_lanes(model.head, np.random.default_rng(4), 0.0, 1, exploration)
    expected = [draw(together(states[:1]))[0][0].copy() for _ in range(7)]
    exploration, _ = exploring(1)
    one = model.head.sampler(np.random.default_rng(4), 0.0, exploration)  # type: ignore[call-arg]
    act = model.network.acting(exploration)
    np.testing.assert_allclose([one(act(states[0])) for _ in range(7)], expected, rtol=1e-4)


def test_images_have_no_state_dependent_noise() -> None:
    camera: Any = SimpleNamespace(observation_space=Box(0, 255, (8, 8, 1), np.uint8))
    camera.action_space = BOX
    with pytest.raises(ConfigurationError, match=r"the network 'actor-critic', but .*'convol"):
        Model(experiment(network={"sde_steps": 3}), camera)


def test_epsilon_is_the_share_of_uniform_actions() -> None:
    head = SquashedGaussian(BOX)
    still = np.tile(np.float32([0.0, 0.0, -20.0, -20.0]), (4000, 1))
    actions, given_ = head.together(np.random.default_rng(1), 0.25, 4000)(still)
    assert np.mean(np.abs(actions[:, 0]) > 1e-3) == pytest.approx(0.25, abs=0.03)
    assert (np.clip(given_, BOX.low, BOX.high) == given_).all()
    generator = torch.Generator().manual_seed(1)
    drawn_ = head.sample(torch.from_numpy(still), 0.25, generator)
    assert (drawn_[:, 0].abs() > 1e-3).float().mean() == pytest.approx(0.25, abs=0.03)
    assert (drawn_.abs() <= 1.0).all()


@pytest.mark.parametrize(
    ("space", "way_out"),
    [
        (Discrete(3), "take 'dqn' or 'ppo'"),
        (MultiBinary(3), "take 'ppo'"),
        (Box(0, 3, (2,), np.int64), "its actions are continuous, but the action space is Box(0, 3"),
        (Box(-np.inf, np.inf, (2,)), "put a wrapper with finite bounds"),
        (Box(0.0, np.inf, (2,)), "put a wrapper with finite bounds"),
    ],
)
def test_what_has_no_bounds_is_refused_by_name(space: gymnasium.Space[Any], way_out: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Model(
            experiment(),
            SimpleNamespace(observation_space=Box(-9.0, 9.0, (3,)), action_space=space),
        )
    assert "'sac'" in str(error.value) and way_out in str(error.value)


# Updates.


@pytest.mark.parametrize(
    ("per_step", "played", "counts"),
    [("auto", 4, [4, 4]), (0.375, 4, [1, 2, 1, 2]), (2.0, 3, [6]), (3.0, 0, [12])],
)
def test_updates_follow_the_steps(per_step: Any, played: int, counts: list[int]) -> None:
    model = model_of(updates_per_step=per_step, minibatch_size=6)
    learner = SAC(model.experiment.algorithm, model)
    replay = Remembered(steps_of(np.random.default_rng(1)))
    target, rng = model.numbers[: model.trainable].copy(), np.random.default_rng(1)
    for count in counts:
        replay.asked.clear()
        rollout = rollout_of(model, replay, target, played)
        assert sum(1 for _ in learner.gradients(rollout, rng)) == count
        assert sum(replay.asked) == 6 * count


def test_nothing_is_learned_before_there_are_enough_steps() -> None:
    model = model_of()
    replay = Remembered(steps_of(np.random.default_rng(1)), there=9)
    target, rng = model.numbers[: model.trainable].copy(), np.random.default_rng(1)
    learner = SAC(model.experiment.algorithm, model)
    assert not list(learner.gradients(rollout_of(model, replay, target), rng))
    replay.there = 10
    assert list(learner.gradients(rollout_of(model, replay, target), rng))


def test_what_is_due_decides_where_it_is_asked() -> None:
    model = model_of(minibatch_size=6)
    answers = iter([True] * 7 + [False])
    rollout = rollout_of(
        model,
        Remembered(steps_of(np.random.default_rng(1))),
        model.numbers[: model.trainable].copy(),
        0,
        due=lambda: next(answers),
    )
    learner = SAC(model.experiment.algorithm, model)
    assert sum(1 for _ in learner.gradients(rollout, np.random.default_rng(1))) == 7


def test_diagnostics_say_what_was_learned() -> None:
    model = model_of(updates_per_step=100, minibatch_size=6)
    sums = np.zeros(SHAPE)
    diagnostics = Diagnostics(sums)
    rollout = rollout_of(
        model,
        Remembered(steps_of(np.random.default_rng(1))),
        model.numbers[: model.trainable].copy(),
        diagnostics=diagnostics,
    )
    losses = [
        float(loss())
        for loss in SAC(model.experiment.algorithm, model).gradients(
            rollout, np.random.default_rng(1)
        )
    ]
    diagnostics.close(1.0)
    figures = Window().read(sums)
    assert {"loss", "policy_loss", "td_error", "q_mean", "entropy"} <= figures.keys()
    assert min(losses) <= figures["loss"] <= max(losses)
