"""What a child has done since its last push, kept within what a push may report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from genkidama.messages import LARGEST_RETURN, permitted_measures

__all__ = ["Gathered", "LeftOut"]

#: One push reports the newest returns, at most so many. Even a day without a parent then fits into
#: a push.
_MOST_RETURNS = 4096


@dataclass(frozen=True)
class LeftOut:
    """What a push may not report: the number of returns, and the names of measures."""

    returns: int = 0
    measures: tuple[str, ...] = ()


@dataclass
class Gathered:
    """Work that the parent has not heard of."""

    #: Environment steps.
    steps: int = 0
    #: Undiscounted return of each of the newest finished episodes.
    returns: list[float] = field(default_factory=list)
    #: The backend's own figures, the newest that there are.
    measures: dict[str, float] = field(default_factory=dict)

    def add(self, steps: int, returns: list[float], measures: dict[str, float]) -> LeftOut:
        """Adds the work since the last call, and leaves out what a push may not carry.

        Args:
            steps: environment steps.
            returns: undiscounted, one for each episode that ended. A push carries no return that
                is NaN, infinite or beyond ±1e30.
            measures: the backend's own figures; see `genkidama.messages.permitted_measures`.

        Returns:
            What has been left out. A NaN or infinite measure means "not measured", and is not
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
