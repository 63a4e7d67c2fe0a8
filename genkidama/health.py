"""Detection of processes that hang. Pure.

Laws of this file:
- Nobody is told the time. An age grows by ticks, and a tick never counts for much: a machine that
  was asleep, or a crew that was stopped, finds nobody old when it wakes.
- A process that waits for others has no age.
- What is too long follows from what it took before: the longest silence of any process of the crew
  counts, and is forgotten slowly. They all do the same.
"""

from __future__ import annotations

__all__ = ["Ages"]

#: A tick makes nobody older than by so many seconds.
_LONGEST_TICK = 2.0

#: So many times as long as ever before is too long.
_TIMES = 4.0

#: A process that has not said anything yet builds its environment. That may take so many times as
#: long.
_BIRTH_TIMES = 10.0

#: The longest silence counts for half as much after so many seconds.
_HALF_LIFE = 600.0


class Ages:
    """For how long each process has done nothing.

    Args:
        patience: so many seconds are never too long; 0 means that none ever are.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        #: Seconds since the last sign of life, of those that should give one.
        self._ages: dict[int, float] = {}
        self._newborn: set[int] = set()
        self._longest = 0.0

    @property
    def limit(self) -> float:
        """From how many seconds on a process hangs."""
        return max(self._patience, _TIMES * self._longest)

    def born(self, index: int) -> None:
        """The process has just been started."""
        self._ages[index] = 0.0
        self._newborn.add(index)

    def sign(self, index: int) -> None:
        """It has done something."""
        if index in self._newborn:
            self._newborn.discard(index)
        else:
            self._longest = max(self._longest, self._ages.get(index, 0.0))
        self._ages[index] = 0.0

    def rest(self, index: int) -> None:
        """It waits for others from now on, until `wake`."""
        self._newborn.discard(index)
        self._ages.pop(index, None)

    def wake(self, index: int) -> None:
        """It need not wait any more."""
        self._ages.setdefault(index, 0.0)

    def gone(self, index: int) -> None:
        """It is dead, or nobody cares for it any more."""
        self.rest(index)

    def tick(self, seconds: float) -> None:
        """So many seconds have passed since the last tick."""
        seconds = min(max(0.0, seconds), _LONGEST_TICK)
        self._longest *= 0.5 ** (seconds / _HALF_LIFE)
        for index in self._ages:
            self._ages[index] += seconds

    @property
    def quiet(self) -> list[int]:
        """Those that have been silent for so long that it is worth a look."""
        return [index for index, age in self._ages.items() if age > self._patience / 4.0]

    @property
    def hung(self) -> list[tuple[int, float]]:
        """Those that hang, and for how many seconds they have done nothing."""
        if not self._patience:
            return []
        return [
            (index, age)
            for index, age in self._ages.items()
            if age > self.limit * (_BIRTH_TIMES if index in self._newborn else 1.0)
        ]
