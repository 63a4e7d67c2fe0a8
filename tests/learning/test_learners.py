"""Learners: by their names, their updates, and the diagnostics that they note."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
import torch

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm, Environment, Network, Optimizer
from genkidama.errors import ConfigurationError
from genkidama.learning.a3c import A3C
from genkidama.learning.environments import make_environment
from genkidama.learning.forms import learner_class
from genkidama.learning.heads import Categorical
from genkidama.learning.learners import (
    Learner,
    entropy_coefficient,
    make_learner,
    reads_log_mu,
    reads_replay,
    updates,
)
from genkidama.learning.model import Model
from genkidama.learning.optimizers import make_optimizer
from genkidama.learning.ppo import PPO
from genkidama.learning.rollout import NoSteps, Rollout
from genkidama.learning.tensors.tensor_model import TensorModel
from genkidama.plugins.gorila.dqn import DQN
from genkidama.plugins.gorila.vtrace import VTrace
from genkidama.protocol import diagnostics
from genkidama.protocol.diagnostics import SHAPE, Diagnostics, Window
from tests.helpers import python
from tests.learning.both import tensors
from tests.learning.devices import DEVICES
from tests.plugins.gorila import test_dqn as q
from tests.plugins.gorila import test_vtrace as v

#: What learns from its newest batch; the others need a replay.
ON_POLICY = ("a3c", "ppo")


class Regression:
    """A learner of one's own: values become the rewards; the policy stays."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self.factor = algorithm.options["factor"]
        self.model = model

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[torch.Tensor]:
        _, values = self.model.network(rollout.observations)
        yield self.factor * (values - torch.from_numpy(rollout.rewards)).square().mean()


def model(
    name: str = "a3c", space: str = "CartPole-v1", form: type[Model] = Model, **algorithm: object
) -> Model:
    experiment = Experiment(
        environment=Environment(id=space),
        network=Network(hidden=(4,)),
        algorithm=Algorithm(name=name, **algorithm),  # type: ignore[arg-type]
    )
    environment = make_environment(experiment.environment)
    try:
        return form(experiment, environment)
    finally:
        environment.close()


def rollout(model: Model, n: int = 6, cuts: int = 1) -> Rollout:
    rng = np.random.default_rng(0)
    width = model.observation_size
    ends = np.zeros(n, np.bool_)
    ends[-1] = True
    return Rollout(
        model.native(rng.normal(size=(n, width)).astype(np.float32)),
        model.native(rng.integers(2, size=(n, model.head.columns)).astype(model.head.dtype)),
        rng.normal(size=n).astype(np.float32),
        ends,
        np.full(cuts, n - 1, np.intp),
        model.native(np.zeros((cuts, width), np.float32)),
    )


def test_algorithms_are_known_by_name() -> None:
    kinds = {name: learner_class(Algorithm(name=name)) for name in (*ON_POLICY, "dqn", "vtrace")}
    assert kinds == {"a3c": A3C, "ppo": PPO, "dqn": DQN, "vtrace": VTrace}
    for name in ON_POLICY:
        kind = kinds[name]
        ours = model(name)
        assert type(make_learner(ours.experiment.algorithm, ours)) is kind


def test_a_learner_of_ones_own_is_named_by_an_import_string() -> None:
    ours = model(f"{__name__}:Regression", options={"factor": 2.0})
    learner = make_learner(ours.experiment.algorithm, ours)
    assert isinstance(learner, Regression)
    data = rollout(ours)
    (loss,) = learner.losses(data, torch.Generator())
    loss.backward()
    _, values = ours.network(data.observations)
    expected = 2.0 * 2.0 * (values.detach() - torch.from_numpy(data.rewards)).mean()
    assert ours.gradient[ours.signature.slices["value.2.bias"]] == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{__name__}:Missing", f"module {__name__!r} has no 'Missing'"),
        ("genkidama_absent:Learner", "cannot import 'genkidama_absent'"),
    ],
)
def test_an_import_string_that_leads_nowhere_is_told_in_one_line(name: str, sentence: str) -> None:
    ours = model()
    with pytest.raises(ConfigurationError) as caught:
        make_learner(Algorithm(name=name), ours)
    assert str(caught.value).startswith(f"algorithm.name = {name!r}: {sentence}")
    assert len(str(caught.value).splitlines()) == 1


# What a learner of one's own may say of itself.


class Sampling(Regression):
    reads_replay = True
    reads_log_mu = True


class Headed(Sampling):
    @staticmethod
    def head(space: gymnasium.Space[Any]) -> Categorical:
        if isinstance(space, gymnasium.spaces.Box):
            raise ConfigurationError("only for Discrete actions")
        assert isinstance(space, gymnasium.spaces.Discrete), space
        head = Categorical(space)
        head.columns = 3
        return head


def named(name: str, steps: int = 0, space: str = "CartPole-v1", **algorithm: Any) -> Model:
    experiment = Experiment.from_dict(
        {
            "environment": {"id": space},
            "algorithm": {"name": f"{__name__}:{name}", "options": {"factor": 2.0}, **algorithm},
            "replay": {"steps": steps},
        }
    )
    return Model(experiment, make_environment(experiment.environment))


def refusal(model: Model) -> str:
    with pytest.raises(ConfigurationError) as caught:
        make_learner(model.experiment.algorithm, model)
    return str(caught.value)


def test_a_learner_that_samples_needs_something_to_be_remembered() -> None:
    name = f"{__name__}:Sampling"
    assert refusal(named("Sampling")) == (
        f"replay.steps = 0: {name!r} samples the replay tensor; set it to how many steps each core "
        "is to keep, with child.backend = 'hogwild'"
    )
    ours = named("Sampling", 1000)
    learner = make_learner(ours.experiment.algorithm, ours)
    assert reads_replay(learner)
    assert reads_log_mu(learner)


def test_a_child_that_only_learns_needs_a_learner_that_samples() -> None:
    changes = {"replay.steps": 2000, "replay.url": "embedded", "child.roles": ["learn"]}
    for name in ("ppo", "dqn"):
        given = model("ppo")
        given.experiment = given.experiment.with_settings({**changes, "algorithm.name": name})
        if name == "dqn":
            make_learner(given.experiment.algorithm, given)
            continue
        with pytest.raises(ConfigurationError, match=r"^algorithm.name = 'ppo': learns from what"):
            make_learner(given.experiment.algorithm, given)


def test_log_mu_of_random_actions_is_known_to_a_head_of_ones_own_alone() -> None:
    assert refusal(named("Sampling", 1000, epsilon=0.5)) == (
        f"algorithm.epsilon = 0.5: '{__name__}:Sampling' reads log μ, which knows the policy's own "
        "actions only; set algorithm.epsilon and final_epsilon to 0"
    )
    ours = named("Headed", 1000, epsilon=0.5)
    make_learner(ours.experiment.algorithm, ours)
    assert ours.head.columns == 3


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        ("Pendulum-v1", "only for Discrete actions"),
        (
            f"{__name__}:odd",
            f"algorithm.name = '{__name__}:Headed': its head cannot be built: "
            "AssertionError: MultiBinary(2)",
        ),
    ],
)
def test_a_head_that_does_not_suit_the_actions_is_told_in_one_line(
    space: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        named("Headed", 1000, space)
    assert str(caught.value).startswith(sentence)


def odd() -> gymnasium.Env[Any, Any]:
    """CartPole with another space of actions."""
    environment = gymnasium.make("CartPole-v1").unwrapped
    environment.action_space = gymnasium.spaces.MultiBinary(2)
    return environment


# What holds for every learner that is built in.


@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize(("space", "n", "cuts"), [("CartPole-v1", 6, 1), ("Pendulum-v1", 1, 0)])
def test_any_batch_gives_finite_losses_with_gradients(
    name: str, space: str, n: int, cuts: int
) -> None:
    """A batch of one step, and one that needs no value of a state that follows, are batches too."""
    ours = model(
        name, space, entropy_coefficient=0.01, normalize_advantages=True, epochs=2, minibatch_size=4
    )
    learner: Learner = make_learner(ours.experiment.algorithm, ours)
    data, again, before = rollout(ours, n, cuts), rollout(ours, n, cuts), ours.vector.copy()
    for loss in ours.gradients(learner, data, ours.generator(0)):
        assert math.isfinite(loss())
        assert np.isfinite(ours.gradient).all() and ours.gradient.any()
    # It changes no weights and no data.
    assert np.array_equal(ours.vector, before)
    for kept in ("observations", "actions", "rewards", "ends", "cuts", "cut_observations"):
        assert np.array_equal(getattr(data, kept), getattr(again, kept))


def gradient(ours: Model, data: Rollout) -> np.ndarray:
    """The sum of the gradients of all losses."""
    learner = make_learner(ours.experiment.algorithm, ours)
    found = ours.gradients(learner, data, ours.generator(0))
    return np.sum([ours.gradient.copy() for _ in found], 0)


@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize(
    ("start", "progress", "c_e"),
    [(0.4, 0.0, 0.4), (0.4, 0.25, 0.325), (0.4, 1.0, 0.1), (0.0, 1.0, 0.1)],
)
def test_the_entropys_weight_follows_the_runs_progress(
    name: str, start: float, progress: float, c_e: float
) -> None:
    scheduled = model(
        name,
        entropy_coefficient=start,
        final_entropy_coefficient=0.1,
        entropy_schedule="linear",
    )
    constant = model(name, entropy_coefficient=c_e)
    assert entropy_coefficient(scheduled.experiment.algorithm, progress) == pytest.approx(c_e)
    found = gradient(scheduled, replace(rollout(scheduled), progress=progress))
    expected = gradient(constant, rollout(constant))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    without = model(name)
    assert np.abs(found - gradient(without, rollout(without))).max() > 1e-5


def test_an_entropy_may_fade_early() -> None:
    fading = Algorithm(entropy_coefficient=0.4, entropy_schedule="linear", entropy_fraction=0.25)
    found = [entropy_coefficient(fading, progress) for progress in (0.0, 0.125, 0.25, 1.0)]
    assert found == pytest.approx([0.4, 0.2, 0.0, 0.0])


@pytest.mark.parametrize("name", ON_POLICY)
def test_values_after_the_cuts_that_are_given_are_not_computed(name: str) -> None:
    ours = model(name, epochs=1, minibatch_size=20)
    data = rollout(ours)
    _, values = ours.evaluate(data.cut_observations)
    given = replace(data, cut_observations=data.cut_observations[:0], cut_values=values)
    np.testing.assert_allclose(gradient(ours, given), gradient(ours, data), rtol=1e-4, atol=1e-6)
    assert len(ours.joined(data)) == 7 and len(ours.joined(given)) == 6
    other = gradient(ours, replace(given, cut_values=values + 5.0))
    assert np.abs(other - gradient(ours, data)).max() > 1e-2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ON_POLICY)
def test_on_a_device_the_same_is_learned(name: str, given: bool, device: str) -> None:
    vtrace = given and name == "a3c"
    here = model(name, entropy_coefficient=0.01, minibatch_size=4, vtrace=vtrace)
    environment = make_environment(here.experiment.environment)
    there = TensorModel(here.experiment, environment, device=device)
    environment.close()
    found = []
    for ours in (here, there):
        data = rollout(ours)
        if given:
            outputs, _ = ours.evaluate(data.observations)
            data = replace(
                data,
                cut_observations=data.cut_observations[:0],
                cut_values=ours.evaluate(data.cut_observations)[1],
                log_mu=ours.log_probability(outputs, data.actions),
            )
        learner = make_learner(ours.experiment.algorithm, ours)
        rng = ours.generator(0)
        found.append(
            [torch.as_tensor(ours.gradient).cpu() for _ in ours.gradients(learner, data, rng)]
        )
    assert isinstance(there.gradient, torch.Tensor) and found[0][0].any()
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4)


# Updates.


class Squares:
    """A learner: three times ½θ² of all parameters, whose gradient is θ."""

    def __init__(self, ours: Model) -> None:
        self._ours = ours

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[torch.Tensor]:
        for _ in range(3):
            yield sum(
                (0.5 * parameter.square().sum() for parameter in self._ours.network.parameters()),
                torch.zeros(()),
            )


@pytest.mark.parametrize("limit", [0.0, 0.01, 1e6])
def test_each_loss_is_an_update_with_its_own_gradient_and_then_it_is_the_callers_turn(
    limit: float,
) -> None:
    ours = model(form=TensorModel, max_gradient_norm=limit)
    shared, start = ours.vector.copy(), ours.vector.copy()
    optimizer = make_optimizer(
        Optimizer(name="sgd"), shared, np.zeros((1, len(shared)), np.float32), np.zeros(1)
    )
    ours.gradient.fill(5.0)  # what is left of something else
    norm = float(np.linalg.norm(start))
    step = 0.5 * min(1.0, limit / norm if limit else 1.0) * start
    found = ours.gradients(Squares(ours), rollout(ours), ours.generator(0))
    for times, loss in enumerate(updates(found, ours, optimizer, 0.5), 1):
        assert loss is not None
        assert loss() == pytest.approx(0.5 * norm**2 if times < 3 else 0.0, rel=1e-4)
        # The model itself stays where it is.
        np.testing.assert_allclose(shared, start - min(times, 2) * step, rtol=1e-4, atol=1e-6)
        if times == 2:
            ours.vector[:] = 0.0  # the caller's turn: the third gradient is taken here, and is 0
    assert times == 3 and not ours.gradient.any()


def test_a_learner_leaves_a_gradient_out_whose_loss_is_far_above_its_own_earlier_ones() -> None:
    ours = model(outlier_sigmas=2.0)
    stepped: list[float] = []

    class Noting:
        def step(self, gradient: np.ndarray, rate: float) -> None:
            stepped.append(float(gradient[0]))

    # Their mean is 3 and their deviation 1, whatever their signs.
    losses = [2.0, 4.0, -2.0, -4.0] * 5 + [5.1, -5.3, math.nan, 4.0]

    def gradients() -> Iterator[Any]:
        for loss in losses:
            ours.gradient[:] = loss
            yield lambda loss=loss: loss

    found = list(updates(gradients(), ours, Noting(), 1.0))
    assert len(found) == len(losses) - 2 and ours.losses.outliers == 2
    np.testing.assert_allclose(stepped, [*losses[:20], math.nan, 4.0])


def test_updates_end_where_a_shared_replay_has_lost_its_steps() -> None:
    ours = model()

    def gradients() -> Iterator[Any]:
        yield None
        raise NoSteps("32 steps asked for, 0 are there")

    optimizer = make_optimizer(
        Optimizer(name="sgd"), ours.vector, np.zeros((1, ours.trainable), np.float32), np.zeros(1)
    )
    assert list(updates(gradients(), ours, optimizer, 0.1)) == [None]


def test_a_name_imports_no_other_learner() -> None:
    code = (
        "import sys\n"
        "from genkidama.learning.forms import learner_class\n"
        "from genkidama.config.sections import Algorithm\n"
        "learner_class(Algorithm(name='a3c'))\n"
        "print('genkidama.learning.ppo' in sys.modules)\n"
    )
    said = python("-c", code)
    assert said.stdout == "False\n", said.stderr


N = 80
FORMS = pytest.mark.parametrize("form", [Model, TensorModel])


@pytest.fixture(autouse=True)
def each_update_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "_SAMPLES", 1)


def noted(ours: Model, data: Rollout) -> dict[str, float]:
    """What the learner notes of one update, with a gradient's norm limited to 0.01."""
    sums = np.zeros(SHAPE)
    data.diagnostics = Diagnostics(sums)
    limited = msgspec.structs.replace(ours.experiment.algorithm, max_gradient_norm=0.01)
    ours.experiment = msgspec.structs.replace(ours.experiment, algorithm=limited)
    learner = make_learner(ours.experiment.algorithm, ours)
    found = ours.gradients(learner, data, ours.generator(0))

    class Nowhere:
        def step(self, gradient: np.ndarray, rate: float) -> None:
            assert np.linalg.norm(gradient) <= 0.0101

    for _ in updates(found, ours, Nowhere(), 0.0, data.diagnostics):
        pass
    return Window().read(sums)


def expected(ours: Model, data: Rollout, policy: Any, c_e: float) -> dict[str, float]:
    """The same in Python's floats: `policy` turns log π, log μ and A of a step into its loss."""
    algorithm = ours.experiment.algorithm
    outputs, values = ours.evaluate(data.observations)
    _, behind = ours.evaluate(data.cut_observations)
    assert isinstance(ours.head, Categorical)
    returns = [0.0] * N
    following = float(behind[0])
    for t in reversed(range(N)):  # λ = 1: the return from the cut on
        following = returns[t] = float(data.rewards[t]) + algorithm.gamma * following
    losses = []
    squares = []
    entropies = []
    for t in range(N):
        row = [float(one) for one in outputs[t]]
        log_z = math.log(sum(math.exp(one) for one in row))
        log_pi = row[int(data.actions[t, 0])] - log_z
        advantage = returns[t] - float(values[t])
        log_mu = None if data.log_mu is None else float(data.log_mu[t])
        losses.append(policy(log_pi, log_mu, advantage))
        squares.append(advantage**2)
        entropies.append(-sum(math.exp(one - log_z) * (one - log_z) for one in row))
    residual = [one - float(value) for one, value in zip(returns, values, strict=True)]
    mean = {
        "policy_loss": float(np.mean(losses)),
        "value_loss": float(np.mean(squares)),
        "entropy": float(np.mean(entropies)),
        "explained_variance": 1.0 - float(np.var(residual) / np.var(returns)),
        "samples": float(N),
    }
    loss = mean["policy_loss"] + 0.7 * mean["value_loss"] - c_e * mean["entropy"]
    return mean | {"loss": loss * (N if algorithm.reduction == "sum" else 1)}


def agrees(found: dict[str, float], expected: dict[str, float], ours: Model) -> None:
    assert found.pop("gradient_norm") > 0.01  # as it was before it was limited
    assert found == pytest.approx(expected, rel=2e-4, abs=2e-5)


@FORMS
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a3c(form: type[Model], reduction: str) -> None:
    ours = model(
        "a3c",
        form=form,
        gamma=0.9,
        value_coefficient=0.7,
        entropy_coefficient=0.3,
        reduction=reduction,
    )
    data = rollout(ours, N)
    found = noted(ours, data)
    agrees(found, expected(ours, data, lambda log_pi, _, a: -log_pi * a, 0.3), ours)


@FORMS
def test_ppo(form: type[Model], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = model(
        "ppo", form=form, gamma=0.9, gae_lambda=1.0, value_coefficient=0.7, epochs=1,
        minibatch_size=N, normalize_advantages=False, clip=0.2,
    )  # fmt: skip
    data = rollout(ours, N)
    # The policy before the batch, as if others had moved the weights since.
    old = np.log(np.random.default_rng(5).uniform(0.3, 0.8, N)).astype(np.float32)
    given = iter(old)
    monkeypatch.setattr(ours, "log_probability", lambda *_: old)

    def policy(log_pi: float, _: float | None, advantage: float) -> float:
        log_mu = float(next(given))
        ratio = math.exp(log_pi - log_mu)
        clipped.append(abs(ratio - 1.0) > 0.2)
        divergence.append(ratio - 1.0 - (log_pi - log_mu))
        return -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)

    clipped: list[bool] = []
    divergence: list[float] = []
    slow = expected(ours, data, policy, 0.0)
    slow |= {"clip_fraction": np.mean(clipped), "approximate_kl": np.mean(divergence)}
    assert 0.1 < slow["clip_fraction"] < 0.9
    agrees(noted(ours, data), slow, ours)


@FORMS
def test_vtrace_from_the_replay(form: type[Model]) -> None:
    """The newest batch and one drawn trajectory, both off the policy: means over the steps of both.

    A step's loss is −log π·A with V-trace's A, its returns are V-trace's targets.
    """
    gamma, rho, c = 0.9, 1.2, 0.8
    made = v.model_of(
        gamma=gamma, gae_lambda=1.0, value_coefficient=0.7, minibatch_size=6, n_steps=6,
        batch_updates=1, vtrace_rho=rho, vtrace_c=c,
    )  # fmt: skip
    ours = form(made.experiment, v.SPACES)
    rng = np.random.default_rng(4)
    replay: Any = v.Remembered(rng, wrap=tensors if form is TensorModel else None)
    data = v.rollout_of(rng, N, replay=replay)
    data = tensors(data) if form is TensorModel else data
    found = noted(ours, data)
    rows: list[dict[str, float]] = []
    for part in [data, *replay.given]:
        outputs, values = ours.evaluate(part.observations)
        _, behind = ours.evaluate(part.cut_observations)
        following = dict(zip(part.cuts.tolist(), behind.tolist(), strict=True))
        carried = 0.0  # v_{t+1} − V(s_{t+1})
        for t in reversed(range(len(part.rewards))):
            row = outputs[t] - np.log(np.exp(outputs[t]).sum())
            log_pi, value = float(row[int(part.actions[t, 0])]), float(values[t])
            ratio = math.exp(log_pi - float(part.log_mu[t]))
            ahead = following.get(t, 0.0) if part.ends[t] else float(values[t + 1])
            carried = 0.0 if part.ends[t] else carried
            delta = float(part.rewards[t]) + gamma * ahead - value
            advantage = min(rho, ratio) * (delta + gamma * carried)
            carried = min(rho, ratio) * delta + gamma * min(c, ratio) * carried
            rows.append(
                {
                    "policy_loss": -log_pi * advantage,
                    "value_loss": carried**2,
                    "entropy": -float((np.exp(row) * row).sum()),
                    "approximate_kl": ratio - 1.0 - math.log(ratio),
                    "target": value + carried,
                    "residual": carried,
                }
            )
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    spread = [float(np.var([row[name] for row in rows])) for name in ("residual", "target")]
    del mean["target"], mean["residual"]
    mean["loss"] = mean["policy_loss"] + 0.7 * mean["value_loss"] - 0.1 * mean["entropy"]
    mean |= {"explained_variance": 1.0 - spread[0] / spread[1], "samples": N + 6.0}
    assert mean["approximate_kl"] > 0.05  # they are off the policy
    agrees(found, mean, ours)


@FORMS
def test_dqn(form: type[Model]) -> None:
    made = q.model_of(Network(hidden=(8,)), huber=1.0, double=False, batch_updates=1)
    ours = form(made.experiment, q.spaces_of())
    steps = q.steps_of(np.random.default_rng(3), 50)
    target = np.random.default_rng(1).normal(size=ours.trainable).astype(np.float32)
    data = q.rollout_of(ours, q.Remembered(steps), target)
    known = q.values_of(ours, ours.vector[: ours.trainable], steps.observations)
    behind = q.values_of(ours, target, steps.following)
    chosen = [float(row[a]) for row, a in zip(known, steps.actions[:, 0], strict=True)]
    errors = [
        chosen[t] - float(steps.rewards[t]) - float(steps.discounts[t]) * float(behind[t].max())
        for t in range(50)
    ]
    huber = [0.5 * e * e if abs(e) <= 1.0 else abs(e) - 0.5 for e in errors]
    slow = {
        "loss": np.mean([float(w) * h for w, h in zip(steps.weights, huber, strict=True)]),
        "td_error": np.mean(np.abs(errors)),
        "q_mean": np.mean(chosen),
        "samples": 50.0,
    }
    agrees(noted(ours, data), slow, ours)
