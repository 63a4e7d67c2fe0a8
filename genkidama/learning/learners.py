"""Learners, which turn a rollout into losses: their protocol, their updates, and shared parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genkidama.config.schedules import SCHEDULES
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.heads import same_owner
from genkidama.learning.model import Model, learner_class
from genkidama.learning.optimizers import Optimizer, clip_gradient
from genkidama.learning.rollout import Rollout
from genkidama.protocol.diagnostics import Diagnostics
from genkidama.runtime.user_errors import describe_error

__all__ = [
    "Learner",
    "by_autograd",
    "entropy_coefficient",
    "evaluated",
    "gradients",
    "make_learner",
    "normalized",
    "note_losses",
    "reads_log_mu",
    "reads_replay",
    "reads_target",
    "updates",
]

Array = npt.NDArray[Any]


class Learner(Protocol):
    """A value of `algorithm.name`: a user's class is `"module:Class"` with these two methods.

    It may have class attributes, all of them optional:

    - `reads_replay = True`: it samples `rollout.replay`, so `replay.steps` must not be 0.
    - `reads_log_mu = True`: it needs log μ of the actions, in rollouts and in what it samples.
    - `reads_target = True`: it needs `rollout.target`, θ⁻.
    - `head`: a function from the action space to a `Head` of its own, which decides how to act. One
      with `greedy = True` takes the best action whatever is asked: its outputs are values.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None: ...

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        """Yields scalar losses, one an update.

        Before the next is asked for, the backend has computed this one's gradient and stepped the
        shared weights. Unless `pull_steps` says otherwise, the model has the newest weights.
        """
        ...


def make_learner(algorithm: Algorithm, model: Model) -> Learner:
    """The learner that `[algorithm]` names.

    Raises:
        ConfigurationError: an import string that leads nowhere, or to something that cannot be
            built, or to a learner that other settings deprive of what it reads.
    """
    name = algorithm.name
    kind = learner_class(algorithm)
    try:
        learner: Learner = kind(algorithm, model)
    except ConfigurationError:
        raise
    except Exception as error:  # a learner of the user's own may raise anything
        raise ConfigurationError(
            f"algorithm.name = {name!r}: cannot be built: {describe_error(error)}"
        ) from error
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
            f"algorithm.epsilon = {epsilon}: {name!r} reads log μ, which knows the "
            "policy's own actions only; set it to 0"
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


def gradients(
    learner: Learner, model: Model, rollout: Rollout, rng: torch.Generator
) -> Iterator[None]:
    """Each loss' gradient, one after the other, in `model.gradient`.

    A learner may write them itself, in a generator `gradients(rollout, rng)` beside its `losses`.
    It is asked where the network exists in NumPy, and with a head that has `slopes`. What a
    subclass changes, it must write anew: with other losses or another `log_probability` it does
    not inherit its base's gradients.
    """
    if (
        model.by_hand is not None
        and same_owner(learner, "gradients", "losses")
        and same_owner(model.head, "slopes", "log_probability", "entropy")
    ):
        by_hand: Iterator[None] = learner.gradients(rollout, rng)  # type: ignore[attr-defined]
        return by_hand
    return by_autograd(learner.losses(rollout, rng), model.gradient)


def by_autograd(losses: Iterable[Tensor], gradient: Tensor) -> Iterator[None]:
    """Each loss' gradient, one after the other, in `gradient`."""
    for loss in losses:
        gradient.zero_()
        loss.backward()
        yield


def updates(
    gradients: Iterable[None],
    model: Model,
    optimizer: Optimizer,
    rate: float,
    limit: float,
    diagnostics: Diagnostics | None = None,
) -> Iterator[None]:
    """One update from each gradient in `model.gradient`. After each it is the caller's turn.

    Args:
        gradients: as the function of this name gives them.
        model: whose numbers they belong to.
        optimizer: over the weights that are stepped.
        rate: the learning rate.
        limit: the gradient's longest Euclidean norm; 0 means none.
        diagnostics: where norms of gradients are noted, now and then.
    """
    gradient = model.gradient
    for _ in gradients:
        norm = clip_gradient(gradient, limit) if limit else None
        if diagnostics is not None and diagnostics.updated():
            diagnostics.close(clip_gradient(gradient, math.inf) if norm is None else norm)
        optimizer.step(gradient, rate)
        yield


# Actor-critics.


def normalized(advantage: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1; a batch of one step stays as it is."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def note_losses(
    diagnostics: Diagnostics,
    algorithm: Algorithm,
    c_e: float,
    policy_loss: float,
    residual: Array,
    entropy: float,
    **more: float,
) -> None:
    """Notes the losses of an actor-critic's update: means over its n steps, and what it minimizes.

    Args:
        policy_loss: of a step.
        residual: R_t − V(s_t), (n,).
        entropy: of a step.
        more: further diagnostics.
    """
    n = len(residual)
    value_loss = float(np.dot(residual, residual)) / n
    loss = policy_loss + algorithm.value_coefficient * value_loss - c_e * entropy
    diagnostics.add(
        n,
        loss=loss * (n if algorithm.reduction == "sum" else 1),
        policy_loss=policy_loss,
        value_loss=value_loss,
        entropy=entropy,
        **more,
    )


def entropy_coefficient(algorithm: Algorithm, progress: float) -> float:
    """c_e at this progress of the run, in [0, 1]."""
    return SCHEDULES[algorithm.entropy_schedule](
        algorithm.entropy_coefficient,
        algorithm.final_entropy_coefficient,
        progress / algorithm.entropy_fraction,
    )


def evaluated(model: Model, rollout: Rollout) -> tuple[Tensor, Tensor, Array, Array]:
    """Outputs and values of a rollout's n steps and k cuts, for any learner.

    Returns:
        The policy's outputs (n, outputs) and the values (n,) of the steps, on the model's device;
        these values again, and those of the observations after the cuts (k,), as arrays.
    """
    n, cut_values = len(rollout.rewards), rollout.cut_values
    if model.by_hand is not None and not torch.is_grad_enabled():
        seen = rollout.observations
        if cut_values is None:
            seen = torch.cat((seen, rollout.cut_observations))
        found, known = model.by_hand.evaluate(seen.numpy())
        behind = known[n:] if cut_values is None else cut_values
        return torch.from_numpy(found[:n]), torch.from_numpy(known[:n]), known[:n], behind
    if cut_values is not None:
        outputs, values = model.network(rollout.observations.to(model.device))
        return outputs, values, values.detach().cpu().numpy(), cut_values
    outputs, values = model.network(
        torch.cat((rollout.observations, rollout.cut_observations)).to(model.device)
    )
    known = values.detach().cpu().numpy()
    return outputs[:n], values[:n], known[:n], known[n:]
