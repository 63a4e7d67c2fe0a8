"""Learners, which turn a rollout into losses: their protocol, their updates, and shared parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from genkidama.config.schedules import SCHEDULES
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.forms import learner_class
from genkidama.learning.model import Model
from genkidama.learning.optimizers import Optimizer, clip_gradient
from genkidama.learning.rollout import NoSteps, Rollout
from genkidama.protocol.diagnostics import Diagnostics
from genkidama.runtime.import_strings import user_errors

if TYPE_CHECKING:
    from torch import Generator, Tensor

Array = npt.NDArray[Any]

#: The loss of an update, for whoever asks.
Loss = Callable[[], float]


class Learner(Protocol):
    """A value of `algorithm.name`: a user's class is `"module:Class"` with these two methods.

    In the place of `losses`, or beside them, it may have a generator `gradients(rollout, rng)` in
    NumPy: it writes each gradient into `model.gradient` and yields a `Loss`, or None. It is used
    where NumPy has the network and the head (`forms`). What a subclass changes, it must write anew:
    with other losses, or another `log_probability` of its head, it does not inherit its base's
    gradients.

    It may have class attributes, all of them optional:

    - `reads_replay = True`: it samples `rollout.replay`, so `replay.steps` must not be 0.
    - `reads_log_mu = True`: it needs log μ of the actions, in rollouts and in what it samples.
    - `reads_target = True`: it needs `rollout.target`, θ⁻.
    - `head`: a function from the action space to a `Head` of its own, which decides how to act. One
      with `greedy = True` takes the best action whatever is asked: its outputs are values.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None: ...

    def losses(self, rollout: Rollout, rng: Generator) -> Iterator[Tensor]:
        """Yields scalar losses, one an update, from a rollout of tensors.

        Before the next is asked for, the backend has computed this one's gradient and stepped the
        shared weights. Unless `pull_steps` says otherwise, the model has the newest weights.
        """
        ...


class TargetReader:
    """A learner that reads `rollout.target`."""

    reads_target = True
    _model: Model
    _twin: Any = None

    def _behind(self, rollout: Rollout) -> Any:
        """The network over θ⁻, which others change in place."""
        if self._twin is None:
            assert rollout.target is not None
            self._twin = self._model.twin(rollout.target)
        return self._twin


def make_learner(algorithm: Algorithm, model: Model) -> Learner:
    """The learner that `[algorithm]` names."""
    name = algorithm.name
    kind = learner_class(algorithm)
    with user_errors(f"algorithm.name = {name!r}: cannot be built"):
        learner: Learner = kind(algorithm, model)
    if reads_replay(learner) and not model.experiment.replay.steps:
        raise ConfigurationError(
            f"replay.steps = 0: {name!r} samples the replay tensor; set it to how many steps "
            "each core is to keep, with child.backend = 'hogwild'"
        )
    if model.experiment.role == "learn" and not reads_replay(learner):
        raise ConfigurationError(
            f"algorithm.name = {name!r}: learns from what its own core plays, but this child only "
            "learns; take one that samples the replay, as 'dqn', or child.roles = ['bundle']"
        )
    epsilon = max(algorithm.epsilon, algorithm.final_epsilon)
    if reads_log_mu(learner) and epsilon and not hasattr(kind, "head"):
        raise ConfigurationError(
            f"algorithm.epsilon = {epsilon}: {name!r} reads log μ, which knows the policy's own "
            "actions only; set algorithm.epsilon and final_epsilon to 0"
        )
    return learner


def reads_replay(learner: Learner) -> bool:
    """True if it samples `rollout.replay`."""
    return bool(getattr(learner, "reads_replay", False))


def reads_target(learner: Learner) -> bool:
    """True if it needs `rollout.target`."""
    return bool(getattr(learner, "reads_target", False))


def reads_log_mu(learner: Learner) -> bool:
    """True if it needs log μ of the actions."""
    return bool(getattr(learner, "reads_log_mu", False))


def updates(
    gradients: Iterable[Loss | None],
    model: Model,
    optimizer: Optimizer,
    rate: float,
    diagnostics: Diagnostics | None = None,
) -> Iterator[Loss | None]:
    """One update from each gradient in `model.gradient`. After each it is the caller's turn.

    No gradient is longer than `algorithm.max_gradient_norm`. One whose loss is an outlier
    (`algorithm.outlier_sigmas`) is left out. They end where a replay has lost its steps.
    """
    gradient, losses = model.gradient, model.losses
    limit = model.experiment.algorithm.max_gradient_norm
    with suppress(NoSteps):
        for loss in gradients:
            if losses.sigmas and loss is not None and losses.is_outlier(loss()):
                continue
            norm = clip_gradient(gradient, limit) if limit else None
            if diagnostics is not None and diagnostics.updated():
                diagnostics.close(clip_gradient(gradient, math.inf) if norm is None else norm)
            optimizer.step(gradient, rate)
            yield loss


# Actor-critics.


def normalized(advantage: Array) -> Array:
    """Mean 0 and standard deviation 1; a batch of one step stays as it is."""
    if len(advantage) < 2:
        return advantage
    result: Array = (advantage - advantage.mean()) / (advantage.std(ddof=1) + 1e-8)
    return result


def share_of_step(algorithm: Algorithm, n: int) -> np.float32:
    """s: the part of one of n steps in a loss."""
    return np.float32(1.0 if algorithm.reduction == "sum" else 1.0 / n)


def actor_critic_slopes(
    value: Array, returns: Array, c_e: float, algorithm: Algorithm
) -> tuple[Array, float]:
    """The derivatives of an actor-critic's loss with respect to V_t and each H_t.

    They are 2·s·c_v·(V_t − R_t), (n,), and −s·c_e.
    """
    share = share_of_step(algorithm, len(value))
    at_value = (2.0 * share * np.float32(algorithm.value_coefficient)) * (value - returns)
    return at_value, -float(share) * c_e


def actor_critic_losses(
    algorithm: Algorithm, c_e: float, policy_loss: float, residual: Array, entropy: float
) -> dict[str, float]:
    """The losses of an actor-critic's update: means over its n steps, and what it minimizes.

    Args:
        policy_loss: of a step.
        residual: R_t − V(s_t), (n,).
        entropy: of a step.
    """
    n = len(residual)
    value_loss = float(np.dot(residual, residual)) / n
    loss = policy_loss + algorithm.value_coefficient * value_loss - c_e * entropy
    return {
        "loss": loss * (n if algorithm.reduction == "sum" else 1),
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
    }


def entropy_coefficient(algorithm: Algorithm, progress: float) -> float:
    """c_e at this progress of the run, in [0, 1]."""
    start, end = algorithm.entropy_coefficient, algorithm.final_entropy_coefficient
    done = progress / algorithm.entropy_fraction
    return SCHEDULES[algorithm.entropy_schedule](start, end, done)
