"""The plug between a core and what it learns: a learner turns a rollout into losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from genkidama.errors import ConfigurationError
from genkidama.learning.algorithms import learner_class
from genkidama.learning.model import Model
from genkidama.learning.optimizers import Optimizer, clip_gradient
from genkidama.learning.rollout import Rollout
from genkidama.settings import Algorithm

__all__ = [
    "Learner",
    "make_learner",
    "reads_log_mu",
    "reads_replay",
    "updates",
]


class Learner(Protocol):
    """What `algorithm.name` names: a class of one's own is `"module:Class"` with these two methods.

    It may say more of itself in class attributes, all of them optional:

    - `reads_replay = True`: it samples `rollout.replay`, so `replay.steps` must not be 0.
    - `reads_log_mu = True`: it needs log μ of the actions, in rollouts and in what it samples.
    - `head`: a function from the action space to a `Head` of its own, which decides how to act.
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
            f"algorithm.name = {name!r}: cannot be built: {type(error).__name__}: {error}"
        ) from error
    if reads_replay(learner) and not model.experiment.replay.steps:
        raise ConfigurationError(
            f"replay.steps = 0: {name!r} samples the replay tensor; set it to how many steps "
            "each core is to keep, with child.backend = 'hogwild'"
        )
    if reads_log_mu(learner) and algorithm.epsilon and not hasattr(kind, "head"):
        raise ConfigurationError(
            f"algorithm.epsilon = {algorithm.epsilon}: {name!r} reads log μ, which knows the "
            "policy's own actions only; set it to 0"
        )
    return learner


def reads_replay(learner: Learner) -> bool:
    """Whether it samples `rollout.replay`."""
    return bool(getattr(learner, "reads_replay", False))


def reads_log_mu(learner: Learner) -> bool:
    """Whether it needs log μ of the actions."""
    return bool(getattr(learner, "reads_log_mu", False))


def updates(
    losses: Iterable[Tensor], model: Model, optimizer: Optimizer, rate: float, limit: float
) -> Iterator[None]:
    """One update from each loss: its gradient in `model.gradient`, and a step.

    After each update it is the caller's turn.

    Args:
        losses: scalars, as a learner yields them.
        model: whose numbers they depend on.
        optimizer: over the weights that are stepped.
        rate: the learning rate.
        limit: the gradient's longest Euclidean norm; 0 means none.
    """
    gradient = model.gradient
    for loss in losses:
        gradient.zero_()
        loss.backward()
        if limit:
            clip_gradient(gradient, limit)
        optimizer.step(gradient, rate)
        yield
