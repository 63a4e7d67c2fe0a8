"""How a report and its figures are written: numbers, times, names of settings, sections, tables.

Pure.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from genkidama.formats import duration

__all__ = [
    "WIDTH",
    "clock",
    "counted",
    "percent",
    "section",
    "short_names",
    "show",
    "table",
    "wrapped",
]

#: Columns of a report: those of the smallest terminal.
WIDTH = 80


def show(value: Any) -> str:
    """A number for people: `8,521`, `231.4`, `0.00033`; a dash for NaN. Other values stay."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def clock(seconds: float) -> str:
    """`42.5 s`, `12:05` (minutes) or `3:07:00`."""
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def percent(share: float, digits: int = 1) -> str:
    """`56.7 %`; a dash for NaN."""
    return "–" if math.isnan(share) else f"{100 * share:.{digits}f} %"


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """By dotted setting, its last word, or all of it where that says too little."""
    last = {key: key.rpartition(".")[2] for key in keys}
    return {
        key: word if list(last.values()).count(word) == 1 and word not in ("name", "id") else key
        for key, word in last.items()
    }


def counted(counts: dict[str, int]) -> str:
    """`3 completed, 1 stopped`."""
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def section(title: str, lines: Iterable[str]) -> str:
    """A part of a report: its title, underlined, and its lines."""
    titles = wrapped(title)
    return "\n".join([*titles, "─" * max(map(len, titles)), *lines])


def wrapped(sentence: str, indent: int = 0) -> list[str]:
    """A paragraph's lines, all but the first one indented."""
    return textwrap.wrap(sentence, WIDTH, subsequent_indent=" " * indent)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Columns as wide as their widest entry, to the right but for the first `left` of them."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
