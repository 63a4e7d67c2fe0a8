"""What a core remembers, and how it is drawn from: the parts of a replay put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from genkidama.child.collector import Rooms
from genkidama.child.global_replay import shared_by_all
from genkidama.child.memory import SharedMemory
from genkidama.child.priorities import Forest
from genkidama.child.replay import ReplayTensor, Share
from genkidama.child.sampling import LearnersReplay
from genkidama.learning.model import Model
from genkidama.learning.rollout import Replay

__all__ = ["Memory", "remembered"]


class Memory(Rooms, Protocol):
    """Where a core's steps go."""

    def rehearse(self) -> None:
        """Fills all rows: as much memory as there ever will be."""
        ...


def remembered(
    memory: SharedMemory,
    model: Model,
    rng: np.random.Generator,
    index: int,
    writer: str = "",
    check: Callable[[], None] = lambda: None,
) -> tuple[Memory, Replay | None]:
    """The share that a core writes, and what its learner samples.

    Args:
        memory: the child's.
        model: for its shapes and its experiment.
        rng: decides what is drawn.
        index: the core.
        writer, check: as `Ring` takes them.

    Returns:
        The second is None where only the newest batch is kept.
    """
    experiment = model.experiment
    batch, lanes = experiment.algorithm.batch_size, experiment.environment.lanes
    tensor = ReplayTensor(memory, batch, model.observation_shape, model.head.columns)
    if experiment.shares_replay:
        return shared_by_all(Share(tensor, index), model, rng, writer, check)
    if not tensor.kept:
        return Share(tensor, index), None
    forest = None
    if memory.priorities.size:
        forest = Forest(memory, tensor, experiment.replay.priority_exponent)
    noted = None if forest is None else partial(forest.written, index)
    share = Share(tensor, index, lanes, noted)
    return share, LearnersReplay(tensor, model, rng, index, forest)
