"""What a core remembers, and how it is drawn from: the parts of a replay put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np

from genkidama.child.collector import RolloutSink
from genkidama.child.replay_tensor import ReplayTensor, RingSegment
from genkidama.child.shared_memory import SharedMemory
from genkidama.learning.model import Model
from genkidama.learning.rollout import Replay
from genkidama.plugins.gorila.global_replay import shared_by_all
from genkidama.plugins.gorila.sampling import LearnersReplay, SumTrees

__all__ = ["ReplayParts", "make_replay"]


class ReplayParts(RolloutSink, Protocol):
    """Where a core's steps go."""

    def rehearse(self) -> None:
        """Fills all rows: as much memory as there ever will be."""
        ...


def make_replay(
    memory: SharedMemory,
    model: Model,
    rng: np.random.Generator,
    index: int,
    writer: str = "",
    check: Callable[[], None] = lambda: None,
) -> tuple[ReplayParts, Replay | None]:
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
        return shared_by_all(RingSegment(tensor, index), model, rng, writer, check)
    if not tensor.kept:
        return RingSegment(tensor, index), None
    forest = None
    if memory.priorities.size:
        forest = SumTrees(memory, tensor, experiment.replay.priority_exponent)
    noted = None if forest is None else partial(forest.written, index)
    share = RingSegment(tensor, index, lanes, noted)
    return share, LearnersReplay(tensor, model, rng, index, forest)
