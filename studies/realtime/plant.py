"""The rotary pendulum of `examples/rotary/`, which notes when it was given each action."""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "examples/rotary"))

from rotary import RotaryPendulum


class Plant(RotaryPendulum):
    """The pendulum on a wall clock.

    Args:
        path: a file to which each step appends the time: float64, by `time.monotonic`.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._times = open(path, "ab", buffering=0)  # noqa: SIM115  # `close` does

    def step(self, action: Any) -> Any:
        self._times.write(struct.pack("d", time.monotonic()))
        return super().step(action)

    def close(self) -> None:
        self._times.close()
