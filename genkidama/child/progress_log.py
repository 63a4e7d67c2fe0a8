"""What a child says in its log while all goes well: now and then that it exchanges, and its end."""

from __future__ import annotations

import time
from statistics import fmean

import structlog

__all__ = ["PULSE_SECONDS", "ExchangeLog"]

#: An exchange is logged this often.
PULSE_SECONDS = 10.0

log = structlog.get_logger()


class ExchangeLog:
    """Counts what a child does."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.steps = 0
        self.episodes = 0
        self._began = time.monotonic()
        #: Returns, steps and the clock's time since the last line.
        self._returns: list[float] = []
        self._steps = 0
        self._said = self._began

    def worked(self, steps: int, returns: list[float]) -> None:
        """So many steps were made, and episodes with these returns have ended."""
        self.steps += steps
        self.episodes += len(returns)
        self._returns += returns

    def exchanged(self, child: str, version: int) -> None:
        """The parent has answered. This is logged if nothing was for a while.

        Args:
            version: the parent's, in its answer.
        """
        self.exchanges += 1
        now = time.monotonic()
        seconds = now - self._said
        if seconds < PULSE_SECONDS:
            return
        figures: dict[str, float] = {
            "steps_per_second": round((self.steps - self._steps) / seconds)
        }
        if self._returns:
            figures["mean_return"] = round(fmean(self._returns), 1)
        log.info("exchanging", child=child, version=version, exchanges=self.exchanges, **figures)
        self._said = now
        self._steps = self.steps
        self._returns.clear()

    def ended(self, child: str, parent: str, reason: str) -> None:
        """The child has left. What it did, why it ended and how to go on is logged."""
        log.info(
            "left",
            child=child,
            reason=reason,
            exchanges=self.exchanges,
            steps=self.steps,
            episodes=self.episodes,
            seconds=round(time.monotonic() - self._began),
            next=f"python -m genkidama.child --parent {parent}",
        )
