"""The shared memory of a child's processes, and its reads and writes by an exchange.

Laws of this file:
- `SharedMemory` is one anonymous block, passed on by its descriptor. A layout names its arrays:
  those of every core, and those that an optional part of a core adds.
- A core's steps go through a `RolloutSink`: a `BatchSink`, or that of a plug-in.
- `SharedWeights` and `DiagnosticsReader` are the orchestrator's access, the same for each backend.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from genkidama.child.capacity import replay_refusal
from genkidama.config.experiment import Experiment
from genkidama.config.schedules import exploration, learning_rate
from genkidama.errors import ConfigurationError
from genkidama.protocol.diagnostics import CYCLE_COUNTS, SHAPE, Window
from genkidama.protocol.vector import DTYPE, Vector, blend
from genkidama.runtime.machine import available_bytes
from genkidama.runtime.shared_block import Block

Array = npt.NDArray[Any]

#: The checksum covers this many numbers of a core's rows, from the place where it writes; of wide
#: rows the last numbers, of at least so many rows.
_CHECKSUM_NUMBERS, _CHECKSUM_ROWS = 8 << 20, 4096

#: The arrays that a restarted child would miss.
_STATE = ("weights", "state", "clock")

#: Diagnostics are means over at least this time: exchanges may come a hundred times a second. At
#: first it is this share of the time since the first ones, so the end of a short run is not lost.
_LEAST_SECONDS, _LEAST_SHARE = 0.25, 0.1


class SharedArray(NamedTuple):
    """Shape and type of one array in the memory of a child."""

    #: Without the axis of cores.
    shape: tuple[int, ...]
    dtype: str
    #: Whether there is one for each core. Then the array's first axis is C.
    per_core: bool = True
    #: Whether a reset of the weights zeroes it.
    reset: bool = False


@dataclass(frozen=True)
class Layout:
    """The arrays of a child's memory. It travels to each process with the block."""

    arrays: Mapping[str, SharedArray]
    #: C: core processes.
    cores: int = 1

    def for_cores(self, cores: int) -> Layout:
        """The same for another number of cores; with 0, only what all cores share is left."""
        return replace(self, cores=cores)

    def parts(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        return {
            name: ((self.cores, *array.shape) if array.per_core else array.shape, array.dtype)
            for name, array in self.arrays.items()
        }

    @property
    def replay_shape(self) -> tuple[int, int, int]:
        """C, N and M of the replay tensor."""
        rows, columns = self.arrays["replay"].shape
        return self.cores, rows, columns

    @property
    def replay_bytes(self) -> int:
        """Bytes of the replay tensor and of what optional parts keep beside it for each core."""
        own = SharedMemory.__annotations__.keys() - {"replay"}
        return sum(
            np.dtype(dtype).itemsize * int(np.prod(shape))
            for name, (shape, dtype) in self.parts().items()
            if self.arrays[name].per_core and name not in own
        )


def check_replay(experiment: Experiment, layout: Layout) -> None:
    """Refuses a replay tensor for which there is no room, before it is made."""
    steps = 0 if experiment.shares_replay else experiment.replay_steps
    batch, size = experiment.algorithm.batch_size, layout.replay_bytes
    if why := replay_refusal(available_bytes(), layout.replay_shape, size, steps, batch):
        raise ConfigurationError(why)


#: The arrays of environments with a clock.
CLOCKS = {
    "cycles": SharedArray((CYCLE_COUNTS,), "int64"),
    "answered": SharedArray((1,), "float64", per_core=False),
    "resetting": SharedArray((1,), "bool"),
}


def core_arrays(
    *,
    rows: int,
    columns: int,
    size: int,
    trainable: int,
    state_rows: int = 1,
    shared_state: bool = True,
) -> dict[str, SharedArray]:
    """The arrays that every core needs.

    N `rows` and M `columns` are a core's share of the replay tensor, `size` the numbers of the
    weight vector, of which `trainable` are trained. `state_rows` are the vectors of a set of
    optimizer state, which all cores share, or each has its own.
    """
    sets = (1,) if shared_state else ()
    return {
        "weights": SharedArray((size,), "float32", per_core=False),
        "gradients": SharedArray((trainable,), "float32"),
        "state": SharedArray((*sets, state_rows, trainable), "float32", not shared_state, True),
        "clock": SharedArray(sets, "float64", not shared_state, True),
        "replay": SharedArray((rows, columns), "float32"),
        "head": SharedArray((), "int64"),
        "diagnostics": SharedArray(SHAPE, "float64"),
        "semaphore": SharedArray((), "bool"),
        "progress": SharedArray((2,), "float64", per_core=False),
        "stop": SharedArray((1,), "bool", per_core=False),
        "averaging": SharedArray((6,), "float64", per_core=False),
        "resting": SharedArray((1,), "float64", per_core=False),
    }


class SharedMemory(Block):
    """The arrays that the cores of a child share; those of optional parts are attributes alike."""

    layout: Layout

    #: θ_O, the child's weights: float32 (size,).
    weights: Array
    #: One gradient a core: float32 (C, trainable).
    gradients: Array
    #: Optimizer state: float32 (sets, rows, trainable), one set or one for each core.
    state: Array
    #: Optimizer steps so far: float64 (sets,).
    clock: Array
    #: T[C × N × M]: a share for each core, which it alone writes: float32.
    replay: Array
    #: The place in its share where each core writes next: int64 (C,).
    head: Array
    #: Sums about each core's learning (`genkidama.protocol.diagnostics`): float64 (C, figures, 2).
    diagnostics: Array
    #: The semaphore vector: bool (C,).
    semaphore: Array
    #: The share of the run that is done, and the last version of θ_P heard of: float64 (2,).
    progress: Array
    #: Whether the cores should end: bool (1,).
    stop: Array
    #: `chunk`: how often θ_O ← θ_P; seconds until the parent answers; n; seconds of a chunk of core
    #: 0; pushes so far; and after how many of them θ_O is ready to learn from: float64 (6,).
    averaging: Array
    #: The share of each core's lanes that rest, to spare a machine that is throttled: float64 (1,).
    resting: Array
    #: With `environment.period`: counts of action cycles, int64 (C, CYCLE_COUNTS), and when the
    #: parent answered last, by `time.monotonic`: float64 (1,).
    cycles: Array
    answered: Array
    #: Whether an environment with a clock is being reset, which may take any time: bool (C, 1).
    resetting: Array


def progress_checksum(memory: SharedMemory, index: int, blocks: int = 0) -> int:
    """A number that changes when a core makes a step or finds a gradient.

    It may stay the same over a step that changes nothing, which happens now and then. `blocks` are
    the parts of a core's rows that `head` counts; 0 if it counts rows.
    """
    rows = memory.replay[index]
    count = max(_CHECKSUM_ROWS, _CHECKSUM_NUMBERS // max(1, rows.shape[1]))
    wide = slice(-(_CHECKSUM_NUMBERS // count), None)
    parts = blocks or max(1, len(rows))
    checksum = zlib.crc32(memory.gradients[index])
    for first in {0, int(memory.head[index]) % parts * (len(rows) // parts)}:
        some = np.ascontiguousarray(rows[first : first + count, wide])
        checksum = zlib.crc32(some.data, checksum)
    return checksum


class ReplayRows(NamedTuple):
    """Views of the rows that a core writes its next batch to, one array a column."""

    observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array


class RolloutSink(Protocol):
    """Takes the steps of a core; `BatchSink`, if they are needed for one update alone."""

    def begin(self, goes_on: bool) -> ReplayRows:
        """The rows that the next batch is written to.

        `goes_on` if the batch continues the episode in which the last one was cut.
        """
        ...

    def end(self, steps: int, cuts: list[int], following: list[Array], log_mu: Any) -> None:
        """The batch of so many steps is written.

        The trajectory is cut after the steps `cuts`, in their order, where the observations
        `following` follow. log μ of the actions is (steps,) or one number for all.
        """
        ...

    def rehearse(self) -> None:
        """Fills all rows: as much memory as there ever will be."""
        ...


class BatchSink:
    """A core's share of the replay tensor with room for one batch, which only this core reads."""

    def __init__(
        self,
        memory: SharedMemory,
        index: int,
        observation_shape: tuple[int, ...],
        action_columns: int,
    ) -> None:
        tensor = memory.replay[index]
        width = math.prod(observation_shape)
        last = width + action_columns
        if tensor.shape[1] != last + 3:
            raise ValueError(f"a batch of {tensor.shape[1]} columns, expected {last + 3}")
        self._tensor = tensor
        self._head = memory.head[index : index + 1]
        self._rows = ReplayRows(
            tensor[:, :width].reshape(-1, *observation_shape),
            tensor[:, width:last],
            *(tensor[:, column] for column in range(last, last + 3)),
        )

    def begin(self, goes_on: bool) -> ReplayRows:
        return self._rows

    def end(self, steps: int, cuts: list[int], following: list[Array], log_mu: Any) -> None:
        self._head[0] = steps

    def rehearse(self) -> None:
        self._tensor[1:] = self._tensor[:1]


class LearnedState(Protocol):
    """A block of shared memory with the state of learning."""

    #: θ_C: float32, shape (size,).
    weights: Array
    #: Optimizer state: float32, any shape.
    state: Array
    #: Optimizer steps so far: float64, any shape.
    clock: Array
    #: The share of the run that is done comes first: float64.
    progress: Array


class SharedWeights:
    """θ_C, the optimizer's state and the run's progress, while processes read and write them.

    The vector has the initial weights, as bytes of float32.
    """

    def __init__(self, memory: LearnedState, vector: bytes) -> None:
        self._memory = memory
        memory.weights[:] = np.frombuffer(vector, DTYPE)

    def begin(self, weights: Vector | None) -> None:
        """θ_C ← these weights, or stays as it is."""
        if weights is not None:
            self._memory.weights[:] = weights

    def snapshot(self) -> Vector:
        """A copy of θ_C."""
        return self._memory.weights.copy()

    def blend(self, sent: Vector, parent: Vector, beta: float, keep_changes: bool) -> None:
        """θ_C ← (1−β)θ_C + βθ_P, after θ_C was pushed as `sent`.

        With `keep_changes` θ_C may have changed since. Then the changes are kept: θ_C ← θ_C + β(θ_P
        − θ_sent), which is the same without changes. They are kept in any case after a push that
        was sent again.
        """
        if not beta:
            return
        if keep_changes or not np.array_equal(self._memory.weights, sent):
            self._memory.weights += change(sent, parent, beta)
        else:
            blend(self._memory.weights, parent, beta)

    def reset(self, weights: Vector) -> None:
        """θ_C ← these weights; the optimizer's state is forgotten."""
        self._memory.state[:] = 0.0
        self._memory.clock[:] = 0.0
        self._memory.weights[:] = weights

    def state(self) -> dict[str, Array]:
        """Copies of everything that a restarted child would miss."""
        return {name: getattr(self._memory, name).copy() for name in _STATE}

    def restore(self, state: dict[str, Array]) -> None:
        """Takes over the result of `state`, except arrays whose shape has changed.

        So another number of cores or another optimizer starts with fresh momenta.
        """
        for name, array in state.items():
            ours = getattr(self._memory, name)
            if ours.shape == array.shape:
                ours[:] = array

    def set_progress(self, progress: float) -> None:
        """Sets the share of the run that is done, in [0, 1]."""
        self._memory.progress[0] = progress


def change(sent: Vector, parent: Vector, beta: float) -> Vector:
    """The step of an exchange for weights that have changed since the push: β(θ_P − θ_sent)."""
    return (parent - sent) * DTYPE.type(beta)


class DiagnosticsReader:
    """Reads the sums that a child's processes write, as means for its pushes.

    `cores` explore, each with its own ε; 0 if all have the same.
    """

    def __init__(self, experiment: Experiment, cores: int = 0) -> None:
        self._optimizer = experiment.optimizer
        self._algorithm = experiment.algorithm
        self._parts = [core / max(1, cores - 1) for core in range(max(1, cores))]
        self._window = Window()
        self._began = math.inf
        self._next = 0.0

    def figures(self, sums: Array, progress: float, version: float = 0.0) -> dict[str, float]:
        """The diagnostics since the last ones; empty if these are too new, or nothing was noted.

        The sums have a row for each process, float64 (processes, *SHAPE).
        """
        now = time.monotonic()
        if now < self._next:
            return {}
        figures = self._window.read(sums.sum(0))
        if not figures:
            return {}
        self._began = min(self._began, now)
        self._next = now + min(_LEAST_SECONDS, _LEAST_SHARE * (now - self._began))
        if "samples" in figures:
            figures["learning_rate"] = learning_rate(self._optimizer, progress)
        algorithm = self._algorithm
        if algorithm.epsilon or algorithm.final_epsilon:
            shares = [exploration(algorithm, progress, version, part) for part in self._parts]
            figures["epsilon"] = sum(shares) / len(shares)
        return figures
