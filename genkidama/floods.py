"""Refusals on their way into history and log: a child gone mad must not fill a disk. Pure."""

from __future__ import annotations

from msgspec import UNSET

from genkidama.events import Refused

__all__ = ["LONGEST_REASON", "SUMMARY_SECONDS", "Floods", "shortened", "times"]

#: Refusals of one code are summed up at most this often.
SUMMARY_SECONDS = 1.0

#: A reason may quote what was sent, as the names of a network's parts, and is cut to so many
#: characters.
LONGEST_REASON = 400


class Floods:
    """Lets the first refusal of a code through, and sums up those that follow it within a second.

    A sum is the last of them, with their `count`.
    """

    def __init__(self) -> None:
        self._quiet_until: dict[str, float] = {}
        self._held: dict[str, Refused] = {}

    def add(self, refused: Refused) -> list[Refused]:
        """What is to be told at once."""
        code, now = refused.code, refused.time
        held = self._held.get(code)
        if held is None and now >= self._quiet_until.get(code, now):
            self._quiet_until[code] = now + SUMMARY_SECONDS
            return [refused]
        if held is not None:
            refused.count = times(held) + 1
        self._held[code] = refused
        return []

    def settle(self, now: float, last: bool = False) -> list[Refused]:
        """The sums that are due at `now` (seconds), with that time; all of them if they are the
        last."""
        due = [code for code in self._held if last or now >= self._quiet_until[code]]
        sums = [self._held.pop(code) for code in due]
        for refused in sums:
            self._quiet_until[refused.code] = now + SUMMARY_SECONDS
            refused.time = now
        return sums


def times(refused: Refused) -> int:
    """How many refusals the event stands for."""
    return 1 if refused.count is UNSET else refused.count


def shortened(reason: str) -> str:
    """The reason, or its beginning and end."""
    if len(reason) <= LONGEST_REASON:
        return reason
    half = LONGEST_REASON // 2
    return f"{reason[:half]} … {reason[-half:]}"
