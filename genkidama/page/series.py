"""Curves that stay short, and that know which of their rows were sent. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Row", "Series", "short"]

#: Its first number is a time that never goes back.
Row: TypeAlias = tuple[float | None, ...]


class Series:
    """Rows over time, thinned out as they become many. A row that was sent is never changed.

    Args:
        columns: what the numbers of a row are; the first is a time.
        most: so many rows are kept at most.
    """

    def __init__(self, columns: tuple[str, ...], most: int) -> None:
        self.columns = columns
        self.rows: list[Row] = []
        self._most = most
        self._gap = 0.0
        self._newest: Row | None = None
        #: How many rows were sent; -1 when they have to be sent anew.
        self._sent = 0

    def add(self, time: float, *values: float | None) -> None:
        """Takes in one row. If it comes too soon after the last, it waits for a later one."""
        row = (time, *values)
        rows = self.rows
        if rows and time - (rows[-1][0] or 0.0) < self._gap:
            self._newest = row
            return
        self._newest = None
        rows.append(row)
        if len(rows) > self._most:
            self._gap = 2.0 * (time - (rows[0][0] or 0.0)) / self._most
            self.rows = rows[::2]
            self._sent = -1

    def finish(self) -> None:
        """Nothing follows: the newest row counts."""
        if self._newest is not None:
            self.rows.append(self._newest)
            self._newest = None

    def whole(self) -> dict[str, Any]:
        """All rows that were sent."""
        rows = self.rows if self._sent < 0 else self.rows[: self._sent]
        return {"columns": self.columns, "rows": rows}

    def send(self) -> dict[str, Any]:
        """The rows that were not sent yet, or all in place of those that were. They count as
        sent."""
        replace = self._sent < 0
        found = {"columns": self.columns, "rows": self.rows[max(0, self._sent) :]}
        self._sent = len(self.rows)
        return {**found, "replace": True} if replace else found


def short(value: float) -> float:
    """Six digits: enough for eyes, and half as many bytes."""
    return float(f"{value:.6g}")
