"""Shared memory and queues of a child's agents and engine: rollouts in slots, weights, counters.

An agent owns E lanes, one environment each. A lane has K slots. A slot holds one rollout of up to T
steps. A step's place in the flat arrays is its row: (lane · K + slot) · T + t.

Laws of this file:
- A slot belongs to its agent until its index is put into the training queue, with `busy` set. It
  belongs to its agent again when a trainer has copied it and cleared `busy`.
- An agent asks for a prediction by `position` (the row of the observation), then `asked` + 1, then
  the lane's index in the prediction queue. The answer is written at that row, and then `answered` =
  `asked`. So a request of an agent that has died meanwhile does no harm, nor does a request that is
  read twice.
- Each thread counts in its own row of `counters`. Whoever reads them adds them up.
- A queue is a pipe of indices, four bytes each. Writes of so few bytes are atomic. A read takes one
  index, or all that are there up to a maximum, and sleeps while there is none. Nothing is pickled.
- A bell is a pipe of meaningless bytes. It says "look again"; ringing once too often does no harm.
"""

from __future__ import annotations

import array
import fcntl
import os
import termios
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.child.worker import StopWorker
from genkidama.protocol.diagnostics import SHAPE
from genkidama.runtime.shared_block import Block


class Count(IntEnum):
    """The columns of `Slots.counters`."""

    PREDICTIONS = 0
    PREDICTION_BATCHES = 1
    #: Rollouts taken from the training queue.
    ROLLOUTS = 2
    #: Steps that were trained on.
    STEPS = 3
    UPDATES = 4
    #: Updates between acting and learning, summed over these steps.
    LAG = 5


@dataclass(frozen=True)
class SlotLayout:
    """The sizes that the memory follows from."""

    #: N_A, at most.
    agents: int
    #: E: lanes of an agent.
    environments: int
    #: K: slots of a lane.
    rollouts: int
    #: T: steps of a slot.
    steps: int
    observation_shape: tuple[int, ...]
    #: NumPy's name of the observations' type.
    observation_type: str
    #: Numbers of an action.
    action_columns: int
    #: Numbers of the weight vector.
    size: int
    #: Those of them that are trainable.
    trainable: int
    #: Vectors of optimizer state.
    state_rows: int
    #: Threads that count.
    threads: int

    def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        lanes = self.agents * self.environments
        slots = lanes * self.rollouts
        rows = slots * self.steps
        return {
            # θ_C, or on a GPU the copy of it that was published last.
            "weights": ((self.size,), np.float32),
            # The change of a GPU's weights by an exchange.
            "change": ((self.trainable,), np.float32),
            # Optimizer state, and steps so far; on a GPU a copy as `weights`.
            "state": ((self.state_rows, self.trainable), np.float32),
            "clock": ((1,), np.float64),
            # By row: what the agent saw; what it did, V(s), log μ(a|s), and the number of updates
            # at that prediction.
            "observations": ((rows, *self.observation_shape), self.observation_type),
            "actions": ((rows, self.action_columns), np.float32),
            "values": ((rows,), np.float32),
            "log_mu": ((rows,), np.float32),
            "born": ((rows,), np.int64),
            # By row: the reward, and the discounted return of the episode so far, as the
            # environment gives them.
            "rewards": ((rows,), np.float32),
            "discounted": ((rows,), np.float32),
            # By slot: steps; V of the observation after the last of them; whether the episode could
            # go on there; see the laws.
            "lengths": ((slots,), np.int64),
            "bootstraps": ((slots,), np.float32),
            "cut": ((slots,), np.bool_),
            "busy": ((slots,), np.bool_),
            # By lane: see the laws.
            "position": ((lanes,), np.int64),
            "asked": ((lanes,), np.int64),
            "answered": ((lanes,), np.int64),
            "counters": ((self.threads, len(Count)), np.int64),
            # By thread, and then by agent: how learning goes (`genkidama.protocol.diagnostics`).
            "diagnostics": ((self.threads + self.agents, *SHAPE), np.float64),
            # By agent: the semaphore vector, and whether it should end.
            "semaphore": ((self.agents,), np.bool_),
            "stop": ((self.agents,), np.bool_),
            # The part of the run that is done.
            "progress": ((1,), np.float64),
        }


class Slots(Block):
    """The arrays that `SlotLayout.parts` names."""

    layout: SlotLayout

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return int(self.counters[:, Count.UPDATES].sum())

    def mark_of(self, agent: int) -> int | None:
        """A number that changes with each step of an agent; None while it waits for the engine."""
        layout = self.layout
        lanes = slice(agent * layout.environments, (agent + 1) * layout.environments)
        asked = self.asked[lanes]
        # A full slot that the trainers have not got yet may be one more.
        full = self.busy.reshape(-1, layout.rollouts)[lanes].sum(1) >= layout.rollouts - 1
        if full.any() or (asked != self.answered[lanes]).any():
            return None
        return int(asked.sum())

    def mark_of_engine(self) -> int | None:
        """A number that changes when the engine does anything; None while nobody waits for it."""
        if not self.busy.any() and (self.asked == self.answered).all():
            return None
        return int(self.counters.sum())


@dataclass(frozen=True)
class Ends:
    """An agent's ends of the pipes; they can be handed to a process that is being started."""

    predictions: Connection
    training: Connection
    bell: Connection


#: The index that tells the thread which takes it to end.
LEAVE = 2**32 - 1

_INDEX = np.dtype("<u4")


def pipe() -> tuple[Connection, Connection]:
    """A one-way pipe: the end to read, the end to write."""
    reader, writer = Pipe(duplex=False)
    return reader, writer


def put(queue: int, indices: Iterable[int]) -> None:
    """Appends indices to the queue with this descriptor, together. A StopWorker says that no
    process is left that could take any."""
    try:
        os.write(queue, array.array("I", indices).tobytes())
    except BrokenPipeError:
        raise StopWorker from None


def take(queue: int, most: int) -> npt.NDArray[np.uint32]:
    """One index, and all others that are there, up to `most`; sleeps until there is one."""
    return np.frombuffer(os.read(queue, _INDEX.itemsize * most), _INDEX)


def waiting(queue: int) -> int:
    """The number of indices in the queue."""
    count = array.array("i", [0])
    fcntl.ioctl(queue, termios.FIONREAD, count)
    return count[0] // _INDEX.itemsize


def ring(bell: int) -> None:
    """Wakes the process that sleeps in a read of this bell. One that is gone needs no waking."""
    try:
        os.write(bell, b"\0")
    except (BrokenPipeError, BlockingIOError):  # the latter: it has not looked for 64 KiB of bells
        return
