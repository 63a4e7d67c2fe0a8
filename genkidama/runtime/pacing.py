"""Restarts, backoff, patience, and limits on repeated messages.

Pure: time and chance are arguments.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Generic, TypeVar

T = TypeVar("T")


class RestartPolicy:
    """Decides whether and when a worker that died is started again.

    Args:
        most: deaths in a row after which it is given up.
        window: seconds after which a death no longer counts as one of the row.
        rest: seconds before a restart, doubled with each death; 0 for none.
        at_once: deaths in a row that are followed by no rest.
        half_life: seconds without a death that halve the count from which the rest follows. Work
            does not reset that count then; without a half-life it does.
    """

    #: The longest rest, in seconds.
    LONGEST_REST = 60.0

    def __init__(
        self,
        most: int,
        *,
        window: float = math.inf,
        rest: float = 0.0,
        at_once: int = 1,
        half_life: float = math.inf,
    ) -> None:
        self.most = most
        self._window, self._half_life = window, half_life
        self._rest, self._at_once = rest, at_once
        self._row: list[float] = []
        self._weight = 0
        self._last = math.inf

    @property
    def deaths(self) -> int:
        """The deaths in a row, as of the last one."""
        return len(self._row)

    @property
    def given_up(self) -> bool:
        """True if the last death was one too many."""
        return self.deaths >= self.most

    def died(self, now: float) -> float:
        """Counts a death at `now`; returns the seconds to rest before the restart.

        `given_up` says whether there is to be one.
        """
        halvings = max(0.0, now - self._last) // self._half_life
        self._weight = (self._weight >> int(min(halvings, 64.0))) + 1
        self._row = [*(moment for moment in self._row if now - moment < self._window), now]
        self._last = now
        excess = min(self._weight - self._at_once, 64)
        return min(self.LONGEST_REST, self._rest * 2.0 ** (excess - 1)) if excess > 0 else 0.0

    def worked(self) -> None:
        """Ends the row: the worker has done something useful since its last death."""
        self._row.clear()
        if self._half_life == math.inf:
            self._weight = 0


class Patience:
    """The wait for an answer before one goes on without it: several times the usual wait.

    The usual one is the median of the newest, so a single long one changes nothing.
    """

    #: Seconds, also before the first answer, and multiple of the usual wait.
    LEAST, TIMES = 0.5, 5.0
    #: The share of the time for which a link may hold up work.
    HELD_UP = 0.15

    def __init__(self) -> None:
        self._waits: deque[float] = deque(maxlen=9)

    def waited(self, seconds: float) -> None:
        """Notes how long an answer has taken."""
        self._waits.append(seconds)

    @property
    def seconds(self) -> float:
        """Seconds to wait for the next answer."""
        return max(self.LEAST, self.TIMES * median(self._waits) if self._waits else 0.0)

    def beside(self, hidden: float, work: float) -> float:
        """Seconds to wait for the next answer, while other work fills the first `hidden` of them.

        Where even the quickest of the newest answers, which had nothing to wait for but the link,
        would hold up work for more than 15 % of the time, they are not waited for.

        Args:
            hidden: seconds in which something else is done.
            work: seconds of the work that is held up then; 0 if not known.
        """
        held_up = min(self._waits) - hidden if self._waits and work else 0.0
        costs = held_up > self.HELD_UP * (work + held_up)
        return min(hidden, self.seconds) if costs else self.seconds


class Backoff:
    """Seconds before each further try: a random part of a bound that doubles, from the first to the
    greatest of `bounds`. `chance` gives uniform random numbers in [0, 1). For `early` tries the
    bound stays at four times the first one.
    """

    def __init__(
        self, bounds: tuple[float, float], chance: Callable[[], float], early: int = 0
    ) -> None:
        self._bounds = bounds
        self._chance = chance
        self._early = early
        self.reset()

    def reset(self) -> None:
        """Begins with the first bound again, after a success."""
        self._tries = 0

    def wait(self) -> float:
        """Seconds before the next try, between a tenth of the bound and all of it."""
        doublings = max(min(self._tries, 2), self._tries - self._early)
        self._tries += 1
        bound = min(self._bounds[1], self._bounds[0] * 2.0 ** min(doublings, 64))
        return (0.1 + 0.9 * self._chance()) * bound


class Once:
    """Tells news from repetition, for messages about a state that lasts."""

    def __init__(self) -> None:
        #: The message of the state at present; empty if there is nothing to say.
        self.message = ""

    def is_new(self, message: str) -> bool:
        """Notes the state; whether it is to be said: not empty, and unlike the one before."""
        before, self.message = self.message, message
        return message not in ("", before)


class Throttle(Generic[T]):
    """Lets one message of a kind through per interval, in seconds, and counts the others."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._quiet_until: dict[str, float] = {}
        self._held: dict[str, tuple[T, int]] = {}

    def add(self, kind: str, message: T, now: float) -> bool:
        """Takes a message; whether it is to be said at once. If not, `due` returns it later."""
        _, count = self._held.get(kind, (message, 0))
        if not count and now >= self._quiet_until.get(kind, now):
            self._quiet_until[kind] = now + self._seconds
            return True
        self._held[kind] = message, count + 1
        return False

    def due(self, now: float, last: bool = False) -> list[tuple[T, int]]:
        """Sums of the messages held back: the newest of a kind, and how many there were.

        If it is the last call, it returns all, not only those whose interval has passed.
        """
        kinds = [kind for kind in self._held if last or now >= self._quiet_until[kind]]
        self._quiet_until.update(dict.fromkeys(kinds, now + self._seconds))
        return [self._held.pop(kind) for kind in kinds]
