"""Device: an environment that is driven from outside, by a program that asks for each action.

A robot's firmware or a game has a loop of its own, and any language. It connects to a core and
sends a line of JSON for each observation, with what it has earned since the one before:

    {"observation": [0.1, -0.2], "reward": 1.0, "terminated": false, "truncated": false}

All but the first may be left out. The answer is a line, too: `{"action": 1}`, or a list of
numbers. To an observation that ends an episode it is `{"action": null}`, and to a message that
makes no sense `{"error": "…"}`, after which the connection is closed. One that is lost truncates
its episode.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.runtime.address import listening_socket
from genkidama.runtime.machine import keep_alive

Array = npt.NDArray[Any]

#: The longest line, in bytes.
_LONGEST = 1 << 20

#: A device that loses its power is gone after so many ms.
_SILENCE_MS = 10_000


class Device(gymnasium.Env[Array, Any]):
    """The core's side: `environment.id = "genkidama.learning.device:Device"`.

    Args:
        observations: numbers of an observation.
        actions: how many there are, or `[low, high]` of each number of an action.
        listen: `HOST:PORT`. There is no authentication: leave it to this machine.
    """

    #: The device is the clock: `environment.period` says how often it asks, and nothing waits.
    keeps_time = True

    def __init__(
        self, observations: int, actions: int | list[list[float]], listen: str = "127.0.0.1:8770"
    ) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (observations,), np.float32)
        if isinstance(actions, int):
            self.action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(actions)
        else:
            low, high = np.array(actions, np.float32).T
            self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self._listen = listen
        self._server: socket.socket | None = None
        self._connection: socket.socket
        self._lines: Any = None
        #: Whether the device waits for an action.
        self._asks = False
        self._observation: Array = np.zeros(observations, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        if self._asks:  # a time limit has cut the episode, of which the device knows nothing
            return self._observation, {}
        while (heard := self._hear()) is None or heard[1] or heard[2]:
            pass  # the rest of an episode that nobody plays
        return self._observation, {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._asks = False
        self._say({"action": np.asarray(action).tolist()})
        heard = None if self._lines is None else self._hear()  # another one begins an episode
        reward, terminated, truncated = heard or (0.0, False, True)
        return self._observation, reward, terminated, truncated, {}

    def close(self) -> None:
        self._hang_up()
        if self._server is not None:
            self._server.close()

    def _hear(self) -> tuple[float, bool, bool] | None:
        """Reward, terminated and truncated of the next message; None if there is none."""
        if self._lines is None:
            self._accept()
        try:
            line = self._lines.readline(_LONGEST)
        except OSError:
            line = b""
        if not line:
            self._hang_up()
            return None
        try:
            message = json.loads(line)
            seen = np.array(message["observation"], np.float32)
            reward = float(message.get("reward", 0.0))
            ends = bool(message.get("terminated")), bool(message.get("truncated"))
            if seen.shape != self._observation.shape or not np.isfinite([*seen, reward]).all():
                raise ValueError(f"expected {len(self._observation)} finite numbers and a reward")
        except Exception as error:  # a message may be anything
            self._say({"error": f"{type(error).__name__}: {error}"})
            self._hang_up()
            return None
        self._observation = seen
        self._asks = not any(ends)
        if any(ends):
            self._say({"action": None})
        return (reward, *ends)

    def _accept(self) -> None:
        if self._server is None:
            self._server = listening_socket(self._listen)
        connection, _ = self._server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection, _SILENCE_MS)
        self._connection, self._lines = connection, connection.makefile("rb")

    def _say(self, message: dict[str, Any]) -> None:
        if self._lines is not None:
            try:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                self._hang_up()

    def _hang_up(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._connection.close()
            self._lines = None
            self._asks = False
