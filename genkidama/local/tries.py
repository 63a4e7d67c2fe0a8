"""How an evaluation stands: the returns so far."""

from __future__ import annotations

import math

from genkidama.formats import duration, plural, remaining

__all__ = ["Tries"]


class Tries:
    """The episodes of an evaluation that have been played.

    Args:
        episodes: how many will be.
    """

    reason = ""

    def __init__(self, episodes: int) -> None:
        self.episodes = episodes
        self.done = 0
        self.minimum = math.inf
        self._began = 0.0
        #: When the first ended: what plays them takes its time to start.
        self._first = 0.0
        #: Welford's mean and sum of squared distances from it.
        self._mean = 0.0
        self._squares = 0.0

    def begin(self, now: float) -> None:
        """The first episode begins at `now`, in seconds of any clock."""
        self._began = now

    def take(self, episode_return: float, now: float) -> None:
        """One more episode has ended."""
        self.done += 1
        self._first = now if self.done == 1 else self._first
        self.minimum = min(self.minimum, episode_return)
        distance = episode_return - self._mean
        self._mean += distance / self.done
        self._squares += distance * (episode_return - self._mean)

    @property
    def mean(self) -> float | None:
        """The mean return so far; None before the first."""
        return self._mean if self.done else None

    @property
    def std(self) -> float:
        """Standard deviation of the returns so far."""
        return math.sqrt(self._squares / self.done) if self.done else 0.0

    def elapsed(self, now: float) -> float:
        """Seconds since it began."""
        return now - self._began

    def share(self, now: float) -> float:
        """How much of it is done, in [0, 1]."""
        return self.done / self.episodes

    def left(self, now: float) -> float | None:
        """How many seconds it still takes, about; None if nobody knows."""
        if self.done >= self.episodes:
            return None
        return remaining(now - self._first, 1.0 / self.episodes, self.share(now))

    def line(self, now: float) -> str:
        """All of it in one line, for a log."""
        parts = [f"evaluating {self.done} of {plural(self.episodes, 'episode')}"]
        if self.done:
            parts.append(f"mean return {self._mean:.1f} ± {self.std:.1f}")
        parts.append(duration(self.elapsed(now)))
        left = self.left(now)
        if left is not None:
            parts.append(f"about {duration(left)} left")
        return " · ".join(parts)
