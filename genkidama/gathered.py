"""What a child has done since its last push, kept within what a push may report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from genkidama.messages import LARGEST_RETURN, permitted_measures

__all__ = ["Gathered", "LeftOut"]

#: One push reports the newest returns, at most so many: even a day without a parent fits into it.
_MOST_RETURNS = 4096


@dataclass(frozen=True)
class LeftOut:
    """What is not reported: how many returns, and which measures."""

    returns: int = 0
    measures: tuple[str, ...] = ()


@dataclass
class Gathered:
    """Work that the parent has not heard of."""

    #: Environment steps.
    steps: int = 0
    #: Undiscounted return of each finished episode, the newest ones.
    returns: list[float] = field(default_factory=list)
    #: Figures of the backend's own, of the newest time that has any.
    measures: dict[str, float] = field(default_factory=dict)

    def add(self, steps: int, returns: list[float], measures: dict[str, float]) -> LeftOut:
        """Adds what was done since the last call; what a push may not carry is left out.

        Args:
            steps: environment steps.
            returns: undiscounted, one for each episode that ended. A push carries none that is NaN,
                infinite or beyond ±1e30.
            measures: figures of the backend's own; see `genkidama.messages.permitted_measures`.

        Returns:
            What has been left out. A measure that is NaN or infinite stands for none, and is not
            mentioned.
        """
        reported = [value for value in returns if abs(value) <= LARGEST_RETURN]
        permitted = permitted_measures(measures)
        self.steps += steps
        self.returns = (self.returns + reported)[-_MOST_RETURNS:]
        self.measures = permitted or self.measures
        unknown = (name for name in measures if name not in permitted)
        figures = tuple(name for name in unknown if abs(measures[name]) < math.inf)
        return LeftOut(len(returns) - len(reported), figures)
