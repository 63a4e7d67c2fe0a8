"""A learner that cannot learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Raising"]


class Raising:
    def __init__(self, algorithm: Any, model: Any) -> None:
        pass

    def losses(self, rollout: Any, rng: Any) -> Iterator[Any]:
        raise ValueError("no idea")
