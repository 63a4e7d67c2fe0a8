"""Players in place of a policy, people and programs, and recorders of what is played."""

from __future__ import annotations

import json
import os
import shlex
import struct
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.learning.actions import action_of, first
from genkidama.learning.demonstrations import DemonstrationWriter
from genkidama.learning.environments import as_number
from genkidama.learning.starts import own_start, starts_of
from genkidama.runs.evaluation import recorded_starts
from genkidama.runtime.files import disk_errors, write_atomically
from genkidama.runtime.import_strings import describe_error, is_import_string, load_object
from genkidama.runtime.signals import deferred

Array = npt.NDArray[Any]

#: A step of an episode: the observation, the next action and the return so far; None at the end.
Step = tuple[Any, Any, float]

#: Steps of a block, and numbers of its observations, at most: whatever kills a recording, no more
#: is lost.
_BLOCK_STEPS, _BLOCK_NUMBERS = 1000, 1 << 22

#: Keys by words in the names of actions.
_KEYS = {word: word for word in ("left", "right", "up", "down")} | {"main": "up", "fire": "return"}

#: The keys of the numbers of a continuous action, two for each, down and up.
_PAIRS = (("left", "right"), ("down", "up"), ("a", "d"), ("s", "w"), ("j", "l"), ("k", "i"))

#: With a shift key, the keys mean this part of the way.
_FINE = 0.3

#: An event of Linux's joysticks: milliseconds, value, kind, number (linux/joystick.h).
_EVENT = struct.Struct("=IhBB")
_BUTTON, _AXIS = 1, 2
_INITIAL = 0x80
_FULL = 32767.0

#: From this deflection on a stick means a direction.
_TILTED = 0.5

#: Names of the actions of well-known environments, in their order.
_NAMES = {
    "Acrobot": ("left", "none", "right"),
    "CartPole": ("left", "right"),
    "LunarLander": ("none", "left engine", "main engine", "right engine"),
    "MountainCar": ("left", "none", "right"),
}


class Player(Protocol):
    """Somebody who is asked for each action, as the environment takes it."""

    #: Lines that say how to play; none of a program.
    keys: Sequence[str]

    def begin(self) -> None:
        """Another episode begins."""

    def act(self, observation: Any) -> Any:
        """The next action."""


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes the steps that are made in an environment."""

    def __init__(self, environment: gymnasium.Env[Any, Any], writer: DemonstrationWriter) -> None:
        super().__init__(environment)
        self._writer = writer
        size = int(np.prod(environment.observation_space.shape or ()))
        self._most = max(1, min(_BLOCK_STEPS, _BLOCK_NUMBERS // max(1, size)))
        self._observations: list[Any] = []
        self._actions: list[Any] = []
        self._rewards: list[float] = []
        #: What was recorded.
        self.episodes = self.steps = 0
        #: Steps that were not.
        self.left_out = 0

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self.cut()
        observation, info = self.env.reset(**given)
        self._observations = [np.array(observation)]  # the next one may overwrite it
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        taken = np.array(action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._observations.append(np.array(observation))
        self._actions.append(taken)
        self._rewards.append(as_number(reward))
        over = bool(terminated or truncated)
        if over or len(self._actions) == self._most:
            self._write(bool(terminated), bool(truncated))
        if over:
            self.episodes += 1
            self._writer.flush()
        return observation, reward, terminated, truncated, info

    def cut(self) -> None:
        """Writes the steps of an episode that does not go on."""
        if self._rewards:
            self._write(False, True)

    def tell(self, path: str | Path, say: Callable[[str], None]) -> None:
        """Says what was recorded, if there is any."""
        if self.steps:
            words = f"{plural(self.steps, 'step')} of {plural(self.episodes, 'whole episode')}"
            file = shlex.quote(str(path))
            say(f"{path}: {words}; for genkidama train … --demonstrations {file}")
        if self.left_out:
            words = f"{plural(self.left_out, 'step')} left out"
            say(f"{path}: {words}, since they, or steps beside them, hold NaN or infinity")

    def _write(self, terminated: bool, truncated: bool) -> None:
        count = len(self._rewards)  # noted last: Ctrl-C may come between two notes
        with deferred():
            if self._writer.add(
                self._observations[: count + 1],
                self._actions[:count],
                self._rewards,
                terminated,
                truncated,
            ):
                self.steps += count
            else:
                self.left_out += count
            del self._observations[:count], self._actions[:count], self._rewards[:count]


class StartRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes a start of each episode: its seed, and its actions up to a random step.

    Those that the file has already are kept.

    Raises:
        ConfigurationError: the file holds something else, or the action space is a Tuple or a
            Dict.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any], path: Path) -> None:
        super().__init__(environment)
        space = environment.action_space
        if isinstance(space, gymnasium.spaces.Tuple | gymnasium.spaces.Dict):
            raise ConfigurationError(
                f"--record {path}: a start is a list of numbers or of arrays, but the action space "
                f"is {space}"
            )
        self._path = path
        self._seed, self._actions = 0, list[Any]()
        self.starts: list[Any] = []
        if path.exists():
            self.starts = recorded_starts(str(path))
            starts_of(str(path), self.starts)
        self._before = len(self.starts)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._seed, self._actions = given["seed"], []
        return self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._actions.append(np.asarray(action).tolist())
        result = self.env.step(action)
        if result[2] or result[3]:
            self.cut()
        return result

    def cut(self) -> None:
        """Writes a start of the episode that ends here."""
        if self._actions:
            end = np.random.default_rng(self._seed).integers(len(self._actions))
            start = {"seed": self._seed, "actions": self._actions[:end]}
            with deferred(), disk_errors(self._path):
                write_atomically(self._path, json.dumps([*self.starts, start]).encode())
                self.starts.append(start)
                self._actions = []

    def tell(self, say: Callable[[str], None]) -> None:
        """Says what was recorded, if there is any."""
        count = len(self.starts)
        new = f", {count - self._before} of them new," if self._before else ""
        if count > self._before:
            file = shlex.quote(str(self._path))
            say(f"{self._path}: {plural(count, 'start')}{new} for evaluate --starts {file}")


class Function:
    """A controller of the user's own.

    Args:
        name: an import string of a function from an observation to an action, or of a class whose
            instances are called so. A method `reset()` is called before each episode.
        space: of the actions.
    """

    keys: Sequence[str] = ()

    def __init__(self, name: str, space: gymnasium.Space[Any]) -> None:
        self._name, self._space = name, space
        found = load_object(name, "--controller")
        with in_one_line(f"--controller {name} fails"):
            self._act = found() if isinstance(found, type) else found
        if not callable(self._act):
            raise ConfigurationError(
                f"--controller {name}: is a {type(found).__name__}; name a function from an "
                "observation to an action"
            )

    def begin(self) -> None:
        if (reset := getattr(self._act, "reset", None)) is not None:
            with in_one_line(f"--controller {self._name} fails"):
                reset()

    def act(self, observation: Any) -> Any:
        with in_one_line(f"--controller {self._name} fails"):
            given = self._act(observation)
        action = action_of(self._space, given)
        if action is None:
            raise ConfigurationError(
                f"--controller {self._name}: gives {given!r}, which is none of {self._space}"
            )
        return action


@contextmanager
def in_one_line(words: str) -> Iterator[None]:
    """Turns any exception of another's code into one line, which begins with these words."""
    try:
        yield
    except GenkidamaError:
        raise
    except Exception as error:
        raise EnvironmentFailure(f"{words}: {describe_error(error)}") from error


class Keyboard:
    """A person at the keys, as long as the window has them.

    A key of a number of an action is its lowest or highest value, and none its middle.
    """

    def __init__(self, space: gymnasium.Space[Any], names: Sequence[str]) -> None:
        self._space, self._names = space, names
        self._last = 0
        #: pygame's names of the keys that are held down.
        self.held: AbstractSet[str] = frozenset()
        self.keys: Sequence[str] = _keys_of(space, names, "keyboard")

    def begin(self) -> None:
        self._last = 0

    def act(self, observation: Any) -> Any:
        return self.chosen(self.held, self._tilt())

    def _tilt(self) -> Array:
        """The deflection of each number, from −1 to 1."""
        if not isinstance(self._space, gymnasium.spaces.Box):
            return np.zeros(0)
        size = int(np.prod(self._space.shape))
        tilt = np.zeros(size)
        for number, (down, up) in enumerate(_PAIRS[:size]):
            tilt[number] = (up in self.held) - (down in self.held)
        return tilt * (_FINE if {"left shift", "right shift"} & self.held else 1.0)

    def chosen(self, held: AbstractSet[str], tilt: Array) -> Any:
        """The action of these keys or, of a continuous one, of these deflections."""
        space = self._space
        if isinstance(space, gymnasium.spaces.Box):
            low = np.where(np.isfinite(space.low), space.low, -1.0).reshape(-1)
            high = np.where(np.isfinite(space.high), space.high, 1.0).reshape(-1)
            rest = np.where((low < 0.0) & (high > 0.0), 0.0, (low + high) / 2.0)
            action = rest + np.where(tilt < 0.0, rest - low, high - rest) * tilt
            return action.astype(space.dtype).reshape(space.shape)
        assert isinstance(space, gymnasium.spaces.Discrete)
        self._last = key_action(held, self._names, int(space.n), self._last)
        return int(space.start) + self._last


class Gamepad(Keyboard):
    """A person at a game pad or joystick, as Linux gives it at /dev/input/js*."""

    def __init__(self, space: gymnasium.Space[Any], names: Sequence[str], path: Path) -> None:
        super().__init__(space, names)
        self.keys = _keys_of(space, names, "gamepad")
        try:
            self._device = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise EnvironmentFailure(
                f"--controller gamepad: {path}: {error.strerror}; connect one, name another by "
                "gamepad:/dev/input/js1, or take --controller keyboard or module:function"
            ) from None
        self._axes: dict[int, float] = {}
        self._buttons: set[int] = set()
        self._left = b""

    def act(self, observation: Any) -> Any:
        self._read()
        held = {str(number) for number in self._buttons}
        x, y = self._axes.get(0, 0.0), self._axes.get(1, 0.0)
        tilted = {"left": x < -_TILTED, "right": x > _TILTED}
        tilted |= {"up": y < -_TILTED, "down": y > _TILTED}
        held |= {name for name, is_so in tilted.items() if is_so}
        size = int(np.prod(self._space.shape or ()))
        # Up is negative there.
        tilt = [self._axes.get(axis, 0.0) * (-1.0 if axis % 2 else 1.0) for axis in range(size)]
        return self.chosen(held, np.array(tilt))

    def _read(self) -> None:
        """Takes all events that have come."""
        try:
            while found := os.read(self._device, 64 * _EVENT.size):
                self._left += found
        except BlockingIOError:
            pass
        except OSError as error:
            raise EnvironmentFailure(
                f"--controller gamepad: {error.strerror}; connect it again"
            ) from None
        whole = len(self._left) - len(self._left) % _EVENT.size
        for _, value, kind, number in _EVENT.iter_unpack(self._left[:whole]):
            if kind & ~_INITIAL == _AXIS:
                self._axes[number] = max(-1.0, value / _FULL)
            elif kind & ~_INITIAL == _BUTTON:
                (self._buttons.add if value else self._buttons.discard)(number)
        self._left = self._left[whole:]

    def close(self) -> None:
        os.close(self._device)


def action_names(environment: gymnasium.Env[Any, Any]) -> list[str]:
    """Names of the actions; empty if they are unknown. A custom environment may have
    `get_action_meanings()`, as Atari games do."""
    meanings = getattr(environment.unwrapped, "get_action_meanings", None)
    if meanings is not None:
        return [str(name) for name in meanings()]
    spec = environment.spec
    if spec is None or not isinstance(environment.action_space, gymnasium.spaces.Discrete):
        return []
    return list(_NAMES.get(spec.name, ()))


def key_action(held: AbstractSet[str], names: Sequence[str], number: int, before: int) -> int:
    """The action, from 0 on, of the keys that are held down; `before` if they mean none."""
    for action in range(min(number, 10)):
        if str(action) in held:
            return action
    wanted = held & set(_KEYS.values())
    for action, name in enumerate(names):
        if {key for word, key in _KEYS.items() if word in name.lower()} == wanted:
            return action
    return before


def _keys_of(space: gymnasium.Space[Any], names: Sequence[str], by: str) -> list[str]:
    """Lines that say how to play in a space.

    Raises:
        ConfigurationError: nobody can.
    """
    if isinstance(space, gymnasium.spaces.Box) and space.dtype.kind == "f":
        size = int(np.prod(space.shape))
        if by == "gamepad":
            return [f"axis {number}: number {number} of the action" for number in range(size)]
        if size <= len(_PAIRS):
            lines = [f"{down}, {up}: number {n}" for n, (down, up) in enumerate(_PAIRS[:size])]
            return [*lines, "with shift: gently"]
    if isinstance(space, gymnasium.spaces.Discrete):
        words = "button" if by == "gamepad" else "key"
        lines = [
            f"{words} {number}: {names[number] if number < len(names) else f'action {number}'}"
            for number in range(min(int(space.n), 10))
        ]
        return [*lines, "or arrows, Return for fire" if by == "keyboard" else "or the first stick"]
    raise ConfigurationError(
        f"--controller {by}: has no keys for {space}; name a function of yours, "
        "--controller module:function"
    )


def player_of(name: str, environment: gymnasium.Env[Any, Any]) -> Function | Keyboard:
    """The player that `--controller` names.

    Raises:
        ConfigurationError: there is none of this name, or it cannot play in this environment.
        EnvironmentFailure: there is no game pad.
    """
    space = environment.action_space
    kind, _, device = name.partition(":")
    if name == "keyboard":
        return Keyboard(space, action_names(environment))
    if kind == "gamepad":
        return Gamepad(space, action_names(environment), Path(device or "/dev/input/js0"))
    if is_import_string(name):
        return Function(name, space)
    raise ConfigurationError(
        f"--controller {name}: expected 'keyboard', 'gamepad', 'gamepad:/dev/input/jsN' or an "
        "import string 'module:function'"
    )


def controlled(
    player: Player, environment: gymnasium.Env[Any, Any], seed: tuple[int, int]
) -> Iterator[Step]:
    """One episode of a player, as `steps_of` gives that of a policy. The player is asked when the
    step has been shown."""
    observation = own_start(environment, seed[-1], np.random.SeedSequence(seed))
    player.begin()
    total, over = 0.0, False
    while not over:
        yield observation, first(environment.action_space), total
        action = player.act(observation)
        observation, reward, terminated, truncated, _ = environment.step(action)
        total += as_number(reward)
        over = bool(terminated or truncated)
    yield observation, None, total
