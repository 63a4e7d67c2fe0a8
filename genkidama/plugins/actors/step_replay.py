"""The replay of a learner beside the parent: the newest steps of all children, in one ring.

Laws of this file:
- The ring is in the memory that parent and learner share, so it survives a learner that dies.
- A row is a whole step with the observation that followed: s, s′, a, r, terminated. Images of uint8
  are beside it as bytes. It is copied out of a child's rows once, when these arrive.
- `added` counts steps for ever. It is written after the rows, so each row below it is whole.
- The parent writes the ring to `replay.safetensors` in the run's directory, atomically, the oldest
  step first. A ring of another size takes the newest ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import safetensors

from genkidama.config.formatting import megabytes
from genkidama.errors import ConfigurationError
from genkidama.learning.rollout import Rollout, Transitions
from genkidama.plugins.actors.rule import Columns
from genkidama.runtime.files import write_atomically
from genkidama.runtime.machine import available_bytes

if TYPE_CHECKING:
    from genkidama.learning.model import Model

Array = npt.NDArray[Any]

#: The file, in a run's directory.
FILE = "replay.safetensors"

#: Bytes that are left to everything else on the parent's machine.
_RESERVE_BYTES = 64_000_000

#: Rows that are converted at a time.
_ROWS = 4096

#: The file's names for types.
_KINDS = {np.dtype(np.float32): "F32", np.dtype(np.uint8): "U8"}


def replay_parts(
    columns: Columns, steps: int, images: bool
) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and type of each array of a ring of so many steps.

    Raises:
        ConfigurationError: there is no room for it on this machine.
    """
    observation = 0 if images else columns.observation
    parts: dict[str, tuple[tuple[int, ...], Any]] = {
        # s and s′ (none of images), a, r, terminated.
        "replay": ((steps, 2 * observation + columns.action + 2), np.float32),
        # Steps that were ever added.
        "added": ((1,), np.int64),
    }
    if images:
        # s and s′.
        parts["pixels"] = ((steps, 2, columns.observation), np.uint8)
    size = sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in parts.values())
    free = available_bytes()
    if free is not None and steps and size > (room := max(0, free - _RESERVE_BYTES)):
        raise ConfigurationError(
            f"replay.steps = {steps}: the learner's replay takes {megabytes(size)}, "
            f"{megabytes(room)} are free on the parent's machine; at most {steps * room // size} "
            "steps fit"
        )
    return parts


class StepReplay:
    """A ring as its learner sees it: a `genkidama.learning.rollout.Replay` over the arrays of
    `replay_parts`."""

    def __init__(
        self, memory: Any, columns: Columns, model: Model, rng: np.random.Generator
    ) -> None:
        self._table, self._added = memory.replay, memory.added
        self._pixels = getattr(memory, "pixels", None)
        self._columns, self._model = columns, model
        self._rng = rng
        self._gamma = np.float32(model.experiment.algorithm.gamma)

    def __len__(self) -> int:
        return min(int(self._added[0]), len(self._table))

    def add(self, rows: Array) -> int:
        """Adds the steps of rows (n, M) in which no block has a `Columns.problem`; their number."""
        columns = self._columns
        distance = rows[:, columns.following].astype(np.intp)
        steps = np.flatnonzero(distance)
        width, size = columns.observation, len(self._table)
        added = int(self._added[0])
        for first in range(0, len(steps), _ROWS):
            some = steps[first : first + _ROWS][-size:]
            places = (added + np.arange(len(some))) % size
            terminated = rows[some, columns.terminated]
            # Nothing follows a termination, and its own observation stands in.
            after = some + np.where(terminated > 0.0, 0, distance[some])
            seen = rows[some, :width], rows[after, :width]
            rest = rows[some][:, [*range(width, columns.terminated + 1)]]
            if self._pixels is None:
                self._table[places] = np.concatenate((*seen, rest), 1)
            else:
                self._pixels[places] = np.stack(seen, 1)
                self._table[places] = rest
            added += len(some)
            self._added[0] = added
        return len(steps)

    def sample(
        self,
        count: int,
        *,
        own: bool = False,
        replacement: bool = True,
        steps: int = 1,
        correction: float | None = None,
    ) -> Transitions:
        """Random steps, as `Replay.sample` has them.

        Raises:
            ValueError: no steps are there, or what only a child's replay can do is asked for.
        """
        if own or not replacement or steps != 1 or correction is not None:
            raise ValueError("a replay beside the parent gives single steps, uniformly drawn")
        if not (there := len(self)):
            raise ValueError(f"{count} steps asked for, 0 are there")
        places = self._rng.integers(there, size=count)
        drawn = self._table.take(places, 0)
        width = 0 if self._pixels is not None else self._columns.observation
        if self._pixels is None:
            seen, following = drawn[:, :width], drawn[:, width : 2 * width]
        else:
            seen, following = self._pixels.take(places, 0).transpose(1, 0, 2)
        model, at_reward = self._model, 2 * width + self._columns.action
        terminated = drawn[:, at_reward + 1] > 0.0
        return Transitions(
            observations=model.seen(seen.reshape(count, *model.observation_shape)),
            actions=drawn[:, 2 * width : at_reward].astype(model.head.dtype, copy=False),
            rewards=model.scaled(drawn[:, at_reward]),
            following=model.seen(following.reshape(count, *model.observation_shape)),
            terminated=terminated,
            truncated=np.zeros(count, np.bool_),
            log_mu=np.full(count, np.nan, np.float32),
            discounts=np.where(terminated, np.float32(0.0), self._gamma),
            weights=np.ones(count, np.float32),
            places=places,
        )

    def prioritize(self, places: Array, errors: Array) -> None:
        """Does nothing: all steps are as probable."""

    def trajectories(self, count: int, length: int, *, own: bool = False) -> Rollout:
        """Raises a ValueError: steps are kept one by one."""
        raise ValueError("a replay beside the parent gives single steps")


def save(folder: Path, memory: Any) -> int:
    """Writes a ring into a run's directory, atomically, and without a copy of it; its steps.

    Raises:
        EnvironmentFailure: the disk refuses it.
    """
    size, added = len(memory.replay), int(memory.added[0])
    there = min(added, size)
    oldest = added % size if added > size else 0
    header: dict[str, Any] = {}
    parts: list[memoryview] = []
    end = 0
    for name, array in _arrays(memory).items():
        begin, end = end, end + array[:there].nbytes
        shape = [there, *array.shape[1:]]
        header[name] = {"dtype": _KINDS[array.dtype], "shape": shape, "data_offsets": [begin, end]}
        parts += [array[oldest:there].data, array[:oldest].data]
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    write_atomically(folder / FILE, len(words).to_bytes(8, "little"), words, *parts)
    return there


def _arrays(memory: Any) -> dict[str, Array]:
    """The arrays of a ring that a file has, by name."""
    return {name: getattr(memory, name) for name in ("replay", "pixels") if hasattr(memory, name)}


def restore(folder: Path, memory: Any) -> str:
    """Fills an empty ring from the file of a run's directory, if there is one.

    Returns:
        The reason why the file is not used; empty if it is, or if there is none.
    """
    path = folder / FILE
    if not path.exists():
        return ""
    ours = _arrays(memory)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            if set(names := file.keys()) != set(ours):
                return f"it has {sorted(names)}"
            theirs = {name: file.get_slice(name) for name in ours}
            count = theirs["replay"].get_shape()[0]
            there = min(count, len(memory.replay))
            for name, array in ours.items():
                found, none = theirs[name], theirs[name][:0]
                if none.dtype != array.dtype or none.shape[1:] != array.shape[1:]:
                    wanted = f"{array.dtype} {list(array.shape[1:])}"
                    return f"a step is {none.dtype} {list(none.shape[1:])}, expected {wanted}"
                if found.get_shape()[0] != count:
                    return "its arrays are of different lengths"
                for first in range(0, there, _ROWS):
                    last = min(first + _ROWS, there)
                    some = found[count - there + first : count - there + last]
                    if not np.isfinite(some).all():
                        return "it holds NaN or infinity"
                    array[first:last] = some
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        return f"it cannot be read: {error}".splitlines()[0]
    memory.added[0] = there
    return ""
