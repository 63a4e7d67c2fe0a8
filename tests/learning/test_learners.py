from __future__ import annotations

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
from genkidama.learning.algorithms import ALGORITHMS, learner_class
from genkidama.learning.environments import make_environment
from genkidama.learning.heads import Categorical
from genkidama.learning.learners import (
    Learner,
    gradients,
    make_learner,
    reads_log_mu,
    reads_replay,
    updates,
)
from genkidama.learning.model import Model
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.learning.ppo import PPO
from genkidama.learning.rollout import Rollout
from genkidama.plugins.gorila.dqn import DQN
from genkidama.plugins.gorila.off_policy import VTrace

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


def model(name: str = "a3c", space: str = "CartPole-v1", **algorithm: object) -> Model:
    experiment = Experiment(
        environment=Environment(id=space),
        network=Network(hidden=(4,)),
        algorithm=Algorithm(name=name, **algorithm),  # type: ignore[arg-type]
    )
    environment = make_environment(experiment.environment)
    try:
        return Model(experiment, environment)
    finally:
        environment.close()


def rollout(model: Model, n: int = 6, cuts: int = 1) -> Rollout:
    rng = np.random.default_rng(0)
    width = model.observation_size
    ends = np.zeros(n, np.bool_)
    ends[-1] = True
    return Rollout(
        torch.from_numpy(rng.normal(size=(n, width)).astype(np.float32)),
        torch.from_numpy(rng.integers(2, size=(n, model.head.columns)).astype(np.float32)),
        rng.normal(size=n).astype(np.float32),
        ends,
        np.full(cuts, n - 1, np.intp),
        torch.zeros(cuts, width),
    )


def test_algorithms_are_known_by_name() -> None:
    kinds = {name: learner_class(Algorithm(name=name)) for name in ALGORITHMS}
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
    torch.testing.assert_close(
        ours.gradient[ours.signature.slices["value.2.bias"]], expected.reshape(1)
    )


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


def test_a_learner_that_says_nothing_reads_neither() -> None:
    for ours in (named("Regression"), model("a3c"), model("ppo")):
        learner = make_learner(ours.experiment.algorithm, ours)
        assert not reads_replay(learner)
        assert not reads_log_mu(learner)


def test_log_mu_of_random_actions_is_known_to_a_head_of_ones_own_alone() -> None:
    assert refusal(named("Sampling", 1000, epsilon=0.5)) == (
        f"algorithm.epsilon = 0.5: '{__name__}:Sampling' reads log μ, which knows the policy's own "
        "actions only; set it to 0"
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
@pytest.mark.parametrize("space", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize(("n", "cuts"), [(6, 1), (6, 0), (1, 1), (1, 0)])
def test_any_batch_gives_finite_losses_with_gradients(
    name: str, space: str, n: int, cuts: int
) -> None:
    """A batch of one step, and one that needs no value of a state that follows, are batches too."""
    ours = model(
        name, space, entropy_coefficient=0.01, normalize_advantages=True, epochs=2, minibatch_size=4
    )
    learner: Learner = make_learner(ours.experiment.algorithm, ours)
    for loss in learner.losses(rollout(ours, n, cuts), torch.Generator().manual_seed(0)):
        ours.gradient.zero_()
        loss.backward()
        assert loss.shape == () and torch.isfinite(loss)
        assert torch.isfinite(ours.gradient).all() and ours.gradient.any()


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_learner_changes_no_weights_and_no_data(name: str) -> None:
    ours = model(name)
    data, again, before = rollout(ours), rollout(ours), ours.vector.clone()
    list(
        make_learner(ours.experiment.algorithm, ours).losses(data, torch.Generator().manual_seed(0))
    )
    assert torch.equal(ours.vector, before)
    assert torch.equal(data.observations, again.observations) and torch.equal(
        data.actions, again.actions
    )
    assert (data.rewards == again.rewards).all() and (data.ends == again.ends).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", ON_POLICY)
def test_on_a_gpu_the_same_is_learned(name: str, given: bool) -> None:
    here = model(name, entropy_coefficient=0.01, minibatch_size=4)
    experiment = msgspec.structs.replace(
        here.experiment,
        algorithm=msgspec.structs.replace(
            here.experiment.algorithm, vtrace=given and name == "a3c"
        ),
    )
    environment = make_environment(experiment.environment)
    there = Model(experiment, environment, device="cuda")
    environment.close()
    data = rollout(here)
    if given:
        with torch.no_grad():
            outputs, _ = here.network(data.observations)
            log_mu = here.head.log_probability(outputs, data.actions).numpy()
            _, values = here.network(data.cut_observations)
        data = replace(
            data,
            cut_observations=data.cut_observations[:0],
            cut_values=values.numpy(),
            log_mu=log_mu,
        )
    for ours in (here, there):
        for loss in make_learner(ours.experiment.algorithm, ours).losses(
            data, torch.Generator().manual_seed(0)
        ):
            loss.backward()
    assert there.gradient.is_cuda and here.gradient.any()
    torch.testing.assert_close(there.gradient.cpu(), here.gradient, rtol=1e-3, atol=1e-4)


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
    ours = model()
    shared, start = ours.vector.clone(), ours.vector.clone()
    optimizer = make_optimizer(
        Optimizer(name="sgd"), shared, torch.zeros(STATE_ROWS["sgd"], len(shared)), np.zeros(1)
    )
    ours.gradient.fill_(5.0)  # what is left of something else
    norm = start.norm().item()
    step = 0.5 * min(1.0, limit / norm if limit else 1.0) * start
    found = gradients(Squares(ours), ours, rollout(ours), torch.Generator())
    for times, _ in enumerate(updates(found, ours, optimizer, 0.5, limit), 1):
        torch.testing.assert_close(
            shared, start - min(times, 2) * step
        )  # the model itself stays where it is
        if times == 2:
            ours.vector.zero_()  # the caller's turn: the third gradient is taken here, and is 0
    assert times == 3 and not ours.gradient.any()
