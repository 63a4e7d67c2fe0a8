"""Demonstrations: steps that somebody else has made, in a file, and beside a learner's replay.

Laws of this file:
- A file is a stream of blocks. A block is a whole safetensors file: the consecutive steps of one
  episode, or of a part of it, with the environment's spaces in its metadata. So `cat` joins files.
- A block is appended at once, and nothing before it is touched. Whoever is killed meanwhile leaves
  a piece of a block at the end, which readers leave out, and which the next recording replaces.
- Reading executes nothing. A damaged block is an error that names the file, the block, and how to
  keep the blocks before it. A checksum finds a flipped bit.
- Actions are stored as the environment takes them, so that any learner can have them.
- Demonstrations stay beside the replay, and no step of the learner's own ever replaces them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from genkidama._version import __version__
from genkidama.config.formatting import plural, recording
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import choices, columns, first
from genkidama.learning.model import Model, Spaces
from genkidama.learning.rollout import Replay, Rollout, Transitions
from genkidama.learning.spaces import data_of, describe_spaces, space_of
from genkidama.protocol.vector import are_numbers, checksum
from genkidama.runtime.files import disk_errors

Array = npt.NDArray[Any]

#: The metadata's `format`; a change that old readers cannot ignore raises the number.
FORMAT = "genkidama-steps-1"

#: No header is longer.
_MOST_HEADER = 1 << 20

#: Bytes before a header, which are its length.
_LENGTH = 8

#: Actions may be this part of their range outside of it, by rounding.
_ROUNDING = 1e-5


class Steps(NamedTuple):
    """n consecutive steps of one episode."""

    #: (n + 1, ...), uint8 of images, else float32: the last one followed the last step.
    observations: Array
    #: (n, ...) of the action space's shape, int64 or float32.
    actions: Array
    #: (n,) float32.
    rewards: Array
    #: (n,) bool each; true at the end alone.
    terminated: Array
    truncated: Array


class Demonstrations(NamedTuple):
    """The contents of a file."""

    path: Path
    #: The id of the environment, its spaces, and who played, of the first block.
    environment: str
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    source: str
    blocks: list[Steps]
    #: Bytes at the end that are no whole block.
    rest: int

    @property
    def steps(self) -> int:
        return sum(len(block.rewards) for block in self.blocks)

    def about(self, environment: str) -> str:
        """A line about the file, for who learns in the environment of this id."""
        words = f"{self.path}: {plural(self.steps, 'step')} by {self.source}"
        if self.environment != environment:
            words += f", in {self.environment}"
        if self.rest:
            words += f"; {plural(self.rest, 'byte')} at its end are no whole block, and left out"
        return words


# The file.


class _Block(NamedTuple):
    """The place of a block, and its metadata."""

    start: int
    stop: int
    metadata: dict[str, str]


def _blocks(file: BinaryIO, path: Path) -> Iterator[_Block]:
    """The whole blocks of a file, whose headers alone are read."""
    size = os.fstat(file.fileno()).st_size
    start, number = 0, 1
    while start + _LENGTH <= size:
        file.seek(start)
        length = int.from_bytes(file.read(_LENGTH), "little")
        if length > _MOST_HEADER:
            raise _damaged(path, number, start, "its header has no length")
        begin = start + _LENGTH + length
        if begin > size:
            return
        try:
            header = json.loads(file.read(length))
            metadata = header.pop("__metadata__")
            stop = begin + max(int(each["data_offsets"][1]) for each in header.values())
            if metadata["format"] != FORMAT:
                raise ValueError(f"its format is {metadata['format']!r}, expected {FORMAT!r}")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            why = str(error) if "format" in str(error) else "it has no header of steps"
            raise _damaged(path, number, start, why) from None
        if stop > size:
            return
        yield _Block(start, stop, metadata)
        start, number = stop, number + 1


def _damaged(path: Path, number: int, start: int, why: str) -> ConfigurationError:
    if number == 1:
        return ConfigurationError(
            f"{path}: is no file of demonstrations: {why}; {recording(path)} writes one"
        )
    return ConfigurationError(
        f"{path}: block {number} is damaged: {why}; `head -c {start} {path} > FILE` keeps the "
        f"{plural(number - 1, 'block')} before it"
    )


def _opened(path: Path, mode: str = "rb", buffering: int = -1) -> Any:
    if path.exists() and not path.is_file():  # a pipe would wait for its writer
        raise ConfigurationError(f"{path}: is no file; name a file of demonstrations")
    try:
        return path.open(mode, buffering)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: no such file of demonstrations; {recording(path)} makes one"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror}; let this user read it"
        ) from None


def load(path: str | Path) -> Demonstrations:
    """Reads a file.

    Raises:
        ConfigurationError: it is not there, has no whole block, or is damaged; the message is one
            line with the way out.
    """
    path = Path(path)
    blocks: list[Steps] = []
    with _opened(path) as file:
        size, end = os.fstat(file.fileno()).st_size, 0
        spaces: Any = None
        head: dict[str, str] = {}
        for number, block in enumerate(_blocks(file, path), 1):
            head = head or block.metadata
            file.seek(block.start)
            try:
                found = safetensors.numpy.load(file.read(block.stop - block.start))
                if block.metadata["checksum"] != checksum(found, block.metadata):
                    raise ValueError("its checksum is another")
                steps = Steps(*(found[name] for name in Steps._fields))
                spaces = spaces or [space_of(data) for data in json.loads(head["spaces"])]
            except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
                why = str(error).splitlines()[0]
                raise _damaged(path, number, block.start, why) from None
            if block.metadata["spaces"] != head["spaces"]:
                raise ConfigurationError(
                    f"{path}: block {number} has other spaces than the first one; record them "
                    "into a file of their own"
                )
            if problem := _problem(steps, *spaces):
                raise _damaged(path, number, block.start, problem)
            blocks.append(steps)
            end = block.stop
    if not blocks:
        raise ConfigurationError(f"{path}: has no whole episode; {recording(path)} adds some")
    seen, chosen = spaces
    environment = json.loads(head["environment"])["id"]
    return Demonstrations(path, environment, seen, chosen, head["source"], blocks, size - end)


def _problem(
    steps: Steps, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]
) -> str:
    """The fault of a block; empty if there is none."""
    count = len(steps.rewards) if steps.rewards.ndim else 0
    seen = np.uint8 if observations.dtype == np.uint8 else np.float32
    chosen = np.float32 if isinstance(actions, gymnasium.spaces.Box) else np.int64
    for name, array, kind, shape in (
        ("observations", steps.observations, seen, (count + 1, *(observations.shape or ()))),
        ("actions", steps.actions, chosen, (count, *(actions.shape or ()))),
        ("rewards", steps.rewards, np.float32, (max(1, count),)),
        ("terminated", steps.terminated, np.bool_, (count,)),
        ("truncated", steps.truncated, np.bool_, (count,)),
    ):
        if array.dtype != kind or array.shape != shape:
            wanted = f"{np.dtype(kind)} {list(shape)}"
            return f"its {name} are {array.dtype} {list(array.shape)}, expected {wanted}"
        if kind == np.float32 and not are_numbers(array.reshape(len(array), -1)).all():
            return f"its {name} hold NaN or infinity"
    if (steps.terminated | steps.truncated)[:-1].any():
        return "its episode ends before its last step"
    return ""


class DemonstrationWriter:
    """Appends blocks to a file, which is made if it is not there.

    Args:
        path: of the file. One of this environment's spaces gets more blocks.
        environment: `[environment]` as plain values.
        spaces: as the environment has them, wrappers included.
        source: who plays.

    Raises:
        ConfigurationError: another process writes to it, it is none of demonstrations, or those
            have other spaces; or there is no form of these spaces.
        EnvironmentFailure: it cannot be written.
    """

    def __init__(
        self, path: Path, environment: dict[str, Any], spaces: Spaces, source: str
    ) -> None:
        described = describe_spaces(spaces)
        actions = spaces.action_space
        if described is None or actions.shape is None:
            space = spaces.observation_space if described is None else actions
            raise ConfigurationError(
                f"{path}: steps in {space} cannot be recorded; put a wrapper around the "
                "environment that has Box, Discrete, MultiDiscrete or MultiBinary"
            )
        self.path = path
        self._head = {
            "format": FORMAT,
            "software": __version__,
            "environment": json.dumps(environment),
            "spaces": json.dumps(described),
            "source": source,
        }
        self._seen: Any = np.uint8 if spaces.observation_space.dtype == np.uint8 else np.float32
        self._chosen: Any = np.float32 if isinstance(actions, gymnasium.spaces.Box) else np.int64
        #: Blocks and bytes in it so far.
        self.blocks = self._end = 0
        with disk_errors(path):
            path.open("ab").close()
        self._file = _opened(path, "r+b", 0)
        try:
            self._prepare()
        except BaseException:
            self._file.close()
            raise

    def _prepare(self) -> None:
        """Looks for the end of the blocks that are there."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(
                f"{self.path}: another process is recording there; choose another name"
            ) from None
        size = os.fstat(self._file.fileno()).st_size
        for block in _blocks(self._file, self.path):
            if block.metadata["spaces"] != self._head["spaces"]:
                theirs = json.loads(block.metadata["environment"])["id"]
                raise ConfigurationError(
                    f"{self.path}: has steps of {theirs}, whose spaces are others; choose another "
                    "name"
                )
            self._end = block.stop
            self.blocks += 1
        if size and not self.blocks:
            raise ConfigurationError(
                f"{self.path}: has no whole block of steps; remove it, or choose another name"
            )

    def add(
        self,
        observations: Sequence[Any],
        actions: Sequence[Any],
        rewards: Sequence[float],
        terminated: bool,
        truncated: bool,
    ) -> bool:
        """Appends n ≥ 1 consecutive steps of an episode, with n + 1 observations; whether they were
        appended. With NaN, or numbers that no environment gives, they are not.

        Args:
            observations, actions, rewards: as the environment has them.
            terminated, truncated: whether the last step has ended the episode.
        """
        count = len(rewards)
        ends = np.zeros((2, count), np.bool_)
        ends[:, -1] = terminated, truncated
        steps = Steps(
            np.asarray(observations, self._seen),
            np.asarray(actions, self._chosen),
            np.asarray(rewards, np.float32),
            ends[0].copy(),
            ends[1].copy(),
        )
        if not all(are_numbers(array).all() for array in steps[:3]):
            return False
        tensors = steps._asdict()
        metadata = {**self._head, "checksum": checksum(tensors, self._head)}
        content = safetensors.numpy.save(tensors, metadata)
        file = self._file
        with disk_errors(self.path):
            try:
                file.truncate(self._end)
                file.seek(self._end)
                left = memoryview(content)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(self._end)
                raise
        self._end += len(content)
        self.blocks += 1
        return True

    def flush(self) -> None:
        """Has the blocks so far survive a power cut, which takes a moment."""
        with disk_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flushes and closes the file; one without a block is removed."""
        try:
            self.flush()
            if not self._end:
                self.path.unlink(missing_ok=True)
        finally:
            self._file.close()


# Beside a replay.


class DemonstrationReplay:
    """The steps of files, to sample.

    Raises:
        ConfigurationError: as `load`, or a file does not fit the model's environment.
    """

    def __init__(self, paths: Sequence[str], model: Model, rng: np.random.Generator) -> None:
        self._model, self._rng = model, rng
        self._gamma = model.experiment.algorithm.gamma
        files = [load(path) for path in paths]
        for file in files:
            check_fits(file, model)
        blocks = [block for file in files for block in file.blocks]
        lengths = np.array([len(block.rewards) for block in blocks])
        joined = map(np.concatenate, zip(*blocks, strict=True))
        self._observations, actions, self._rewards, self._terminated, self._truncated = joined
        self._actions = stored(actions, model)
        #: Of each step: the steps to its block's end, itself included, and its observation's row.
        ends = np.repeat(np.cumsum(lengths), lengths)
        self._left = ends - np.arange(len(ends))
        self._rows = np.arange(len(ends)) + np.repeat(np.arange(len(lengths)), lengths)

    def __len__(self) -> int:
        return len(self._rewards)

    def sample(self, count: int, steps: int = 1, replacement: bool = True) -> Transitions:
        """Uniformly random steps, as `Replay.sample` has them. Their places are negative."""
        if not replacement and count > len(self):
            raise ValueError(f"{count} steps asked for, {len(self)} are there")
        begin = (
            self._rng.integers(len(self), size=count)
            if replacement
            else self._rng.choice(len(self), count, replace=False)
        )
        lengths = np.minimum(self._left[begin], steps)
        last = begin + lengths - 1
        model, terminated = self._model, self._terminated[last]
        ahead = np.arange(steps)
        rewards = model.scaled(self._rewards[np.minimum(begin[:, None] + ahead, len(self) - 1)])
        powers = np.where(ahead < lengths[:, None], np.power(self._gamma, ahead), 0.0)
        discounts = np.power(self._gamma, lengths).astype(np.float32)
        discounts[terminated] = 0.0
        return Transitions(
            observations=model.seen(self._observations[self._rows[begin]]),
            actions=self._actions[begin],
            rewards=(rewards * powers.astype(np.float32)).sum(1, dtype=np.float32),
            following=model.seen(self._observations[self._rows[last] + 1]),
            terminated=terminated,
            truncated=self._truncated[last],
            log_mu=np.full(count, np.nan, np.float32),
            discounts=discounts,
            weights=np.ones(count, np.float32),
            places=-1 - begin,
        )


def check_fits(file: Demonstrations, model: Model) -> None:
    """Checks that the steps of a file can be those of a model's environment.

    Raises:
        ConfigurationError: its observations or its actions cannot.
    """
    where = f"algorithm.demonstrations: {file.path}"
    seen = file.observation_space
    if seen.shape != model.observation_shape or (seen.dtype == np.uint8) != model.sees_bytes:
        kind = "uint8" if model.sees_bytes else "float32"
        raise ConfigurationError(
            f"{where}: was recorded in {file.environment} with observations {seen.dtype} "
            f"{list(seen.shape or ())}, but here they are {kind} {list(model.observation_shape)}; "
            "record others in this environment"
        )
    ours, theirs = model.action_space, file.action_space
    same = type(ours) is type(theirs) and ours.shape == theirs.shape
    box = isinstance(ours, gymnasium.spaces.Box)
    if not same or not (box or data_of(ours) == data_of(theirs)):
        raise ConfigurationError(
            f"{where}: was recorded in {file.environment} with actions in {theirs}, but here they "
            f"are in {ours}; record others in this environment"
        )
    for number, block in enumerate(file.blocks, 1):
        beyond = _beyond(block.actions, ours)
        if beyond is not None:
            raise ConfigurationError(
                f"{where}: block {number}: action {beyond.tolist()} is none of {ours}; record "
                "others in this environment"
            )


def _beyond(actions: Array, space: Any) -> Array | None:
    """The first of these actions that is not in the space; None if all are."""
    if isinstance(space, gymnasium.spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        with np.errstate(invalid="ignore"):
            room = np.nan_to_num(_ROUNDING * (high - low), posinf=0.0)
        outside = (actions < low - room) | (actions > high + room)
    else:
        begin = np.zeros(space.shape or (), np.int64) + first(space)
        binary = isinstance(space, gymnasium.spaces.MultiBinary)
        size = 2 if binary else getattr(space, "n", getattr(space, "nvec", 2))
        outside = (actions < begin) | (actions >= begin + size)
    rows = np.flatnonzero(outside.reshape(len(actions), -1).any(1))
    return None if not len(rows) else actions[rows[0]]


def stored(actions: Array, model: Model) -> Array:
    """Actions of the environment (n, ...) as the model's head stores them: (n, columns)."""
    space, head = model.action_space, model.head
    flat = actions.reshape(len(actions), columns(space))
    if getattr(head, "squashes", False):
        one = np.ones(flat.shape[1], np.float32)
        low, high = (np.ravel(head.to_environment(sign * one)) for sign in (-1.0, 1.0))
        flat = np.clip((2.0 * flat - high - low) / (high - low), -1.0, 1.0)
    elif choices(space):
        flat = flat - np.ravel(first(space))
    result: Array = flat.astype(head.dtype)
    return result


class MixedReplay:
    """A replay beside demonstrations: of each minibatch a fixed share of steps are those.

    That is the symmetric sampling of RLPD (Ball et al. 2023, arXiv:2302.02948, §4.1), with a share
    of ½.

    Args:
        algorithm: `minibatch_size`, and `demonstration_share` of it, rounded to whole steps.
    """

    def __init__(
        self, own: Replay, demonstrations: DemonstrationReplay, algorithm: Algorithm
    ) -> None:
        self._own, self._demonstrations = own, demonstrations
        self._minibatch = algorithm.minibatch_size
        #: Demonstrations of a minibatch.
        self._taken = round(algorithm.demonstration_share * self._minibatch)

    def __len__(self) -> int:
        """The number of the learner's own rows, as `Replay` has it."""
        return len(self._own)

    def sample(
        self,
        count: int,
        *,
        own: bool = False,
        replacement: bool = True,
        steps: int = 1,
        correction: float | None = None,
    ) -> Transitions:
        """As `Replay.sample`. Each next `minibatch` steps have their share of demonstrations, which
        stand before the others, count 1 in a loss, and have no priorities."""
        given: dict[str, Any] = {"replacement": replacement, "steps": steps}
        given["correction"] = correction
        if own:
            return self._own.sample(count, own=own, **given)
        theirs = np.arange(count) % self._minibatch < self._taken
        number = int(np.count_nonzero(theirs))
        if not number:
            return self._own.sample(count, **given)
        shown = self._demonstrations.sample(number, steps, replacement)
        if number == count:
            return shown
        drawn = self._own.sample(count - number, **given)
        return Transitions(
            **{
                name: _merged(theirs, column, getattr(drawn, name))
                for name, column in vars(shown).items()
            }
        )

    def prioritize(self, places: Array, errors: Array) -> None:
        """As `Replay.prioritize`, of the learner's own steps."""
        own = places >= 0
        self._own.prioritize(places[own], errors[own])

    def trajectories(self, count: int, length: int, *, own: bool = False) -> Rollout:
        """As `Replay.trajectories`, of the learner's own steps: of others' μ is not known."""
        return self._own.trajectories(count, length, own=own)


def _merged(theirs: Array, shown: Array, drawn: Array) -> Array:
    result: Array = np.empty((len(theirs), *drawn.shape[1:]), drawn.dtype)
    result[theirs], result[~theirs] = shown, drawn
    return result
