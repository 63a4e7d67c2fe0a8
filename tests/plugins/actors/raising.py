"""Learners that cannot learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from genkidama.learning.ppo import PPO


class Raising:
    def __init__(self, algorithm: Any, model: Any) -> None:
        pass

    def losses(self, rollout: Any, rng: Any) -> Iterator[Any]:
        raise ValueError("no idea")


class Cut(Raising):
    """Loses what it learns with."""

    def losses(self, rollout: Any, rng: Any) -> Iterator[Any]:
        raise ConnectionResetError("simulator")


class Picky(PPO):
    """A learner that dies of one number."""

    def gradients(self, rollout: Any, rng: Any) -> Iterator[Any]:
        if (rollout.observations == 666.0).any():
            raise ValueError("an evil number")
        return super().gradients(rollout, rng)
