"""A row of the doctor's answer, and its words for sizes and times."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DAY", "Check", "duration", "size"]

#: In seconds.
DAY = 86400.0

_MIB = 1 << 20
_GIB = 1 << 30


class Check(NamedTuple):
    """One row: what was checked, how it is, what was found and, if it is not ok, what to do."""

    name: str
    #: `"ok"`, `"warning"`, `"failed"` or `"skipped"`.
    status: str
    found: str
    advice: str = ""


def size(count: int) -> str:
    """Bytes for people: `"1.5 GiB"`, `"300 MiB"`."""
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:.0f} MiB"


def duration(seconds: float) -> str:
    """Seconds for people, in the largest unit of which there are two: `"7 seconds"`, `"3 days"`."""
    for unit, length in (("year", 365.25 * DAY), ("day", DAY), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}s"
    return f"{seconds:.0f} seconds"
