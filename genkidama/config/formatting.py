"""Numbers, values and errors as text for people. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

#: Nouns whose plural is not the noun with an s.
_PLURALS = {"child": "children", "process": "processes"}

#: What remains is estimated when so much of the whole is done.
_LEAST_DONE = 0.02

#: The heights of a curve in one line.
_HEIGHTS = "▁▂▃▄▅▆▇█"


def plural(count: int, noun: str) -> str:
    """A count with its noun: `"1 child"`, `"0 children"`, `"1,234 episodes"`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {_PLURALS.get(noun, noun + 's')}"


def recording(path: object) -> str:
    """The command that records demonstrations into this file, for errors."""
    return f"`genkidama play FILE.toml --controller keyboard --record {path}`"


def bar(share: float, width: int = 20) -> str:
    """`share` in [0, 1] as a bar of `width` characters."""
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)


def curve(points: Sequence[tuple[float, float]], width: int) -> str:
    """The course of a value over time, in at most `width` characters: `"▁▂▄▅▇█"`."""
    if not points:
        return ""
    first, last = points[0][0], points[-1][0]
    columns: dict[int, float] = {}
    for time, value in points:
        share = (time - first) / (last - first) if last > first else 0.0
        columns[min(width - 1, int(share * width))] = value
    low, high = min(columns.values()), max(columns.values())
    top = len(_HEIGHTS) - 1
    text, level = "", 0
    for column in range(max(columns) + 1 if width > 0 else 0):
        if column in columns:
            level = round((columns[column] - low) / (high - low) * top) if high > low else 0
        text += _HEIGHTS[level]
    return text


def remaining(elapsed: float, before: float, share: float) -> float | None:
    """Seconds that are left at the pace so far; None if too little is done.

    `elapsed` are the seconds in which the share of the whole has grown from `before` to `share`.
    """
    done = share - before
    return elapsed * (1.0 - share) / done if done > _LEAST_DONE else None


def duration(seconds: float) -> str:
    """Seconds as a clock shows them: `"0:42"`, `"12:05"` or `"3:07:00"`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def energy(watt_hours: float) -> str:
    """As `1.93 Wh` or `1,234 Wh`."""
    return f"{watt_hours:,.0f} Wh" if watt_hours >= 100 else f"{watt_hours:.3g} Wh"


def rate(value: float) -> str:
    """A number a second, with a decimal where it is small: `"2,950"`, `"4.2"`."""
    return f"{value:,.0f}" if value >= 10.0 else f"{value:.1f}"


def megabytes(size: int) -> str:
    """Bytes in units of 10⁶: `"31 MB"`."""
    return f"{round(size / 1e6)} MB"


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"(?s)^(\w+://).*@", r"\1…@", url)


def one_line(error: BaseException, length: int = 300) -> str:
    """An error's text, or else its kind, in one line of about `length` characters at most."""
    text = " ".join(f"{error}".split()) or type(error).__name__
    return text if len(text) <= length else f"{text[:length]} …"


def printable(text: str) -> str:
    """Another machine's words without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def shortened(text: str, longest: int = 400) -> str:
    """The text, or its beginning and end if it has more than `longest` characters."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} … {text[-half:]}"


def show(value: Any) -> str:
    """A number for people: `8,521`, `231.4`, `0.00033`; a dash for NaN. Other values stay.

    Where only more digits than four tell it from 1, it has more.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(text for text in texts if text != "1" or value == 1)


def toml_value(value: Any) -> str:
    """A value as TOML has it in one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml_value(each)}' for key, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


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
