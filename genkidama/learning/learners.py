"""The plug between a core and what it learns: a learner turns a rollout into losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from genkidama.errors import ConfigurationError
from genkidama.learning.a3c import A3C
from genkidama.learning.model import Model
from genkidama.learning.optimizers import Optimizer, clip_gradient
from genkidama.learning.ppo import PPO
from genkidama.learning.rollout import Rollout
from genkidama.settings import Algorithm
from genkidama.system.plugs import is_plug, load_plug

__all__ = ["LEARNERS", "Learner", "make_learner", "updates"]


class Learner(Protocol):
    """What `algorithm.name` names: a class of one's own is `"module:Class"` with these two methods."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None: ...

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        """Yields scalar losses, one an update. Before the next is asked for, the backend has computed
        this one's gradient, stepped the shared weights and, unless `pull_steps` says otherwise,
        taken the newest of them into the model."""
        ...


LEARNERS: dict[str, type[Learner]] = {"a3c": A3C, "ppo": PPO}


def make_learner(algorithm: Algorithm, model: Model) -> Learner:
    """The learner that `[algorithm]` names.

    Raises:
        ConfigurationError: an import string that leads nowhere, or to something that cannot be built.
    """
    kind: Any = (
        load_plug(algorithm.name, "algorithm.name")
        if is_plug(algorithm.name)
        else LEARNERS[algorithm.name]
    )
    try:
        learner: Learner = kind(algorithm, model)
    except ConfigurationError:
        raise
    except Exception as error:  # a learner of the user's own may raise anything
        raise ConfigurationError(
            f"algorithm.name = {algorithm.name!r}: cannot be built: {type(error).__name__}: {error}"
        ) from error
    return learner


def updates(
    losses: Iterable[Tensor], model: Model, optimizer: Optimizer, rate: float, limit: float
) -> Iterator[None]:
    """One update from each loss: its gradient in `model.gradient`, and a step. After each it is the caller's turn.

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
