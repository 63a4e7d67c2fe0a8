"""The document on a terminal of so many columns and rows. It needs 80×24 and uses more.

Laws of this file:
- A row is cut where the terminal ends. What matters most stands first.
- Rows of children that do not fit are counted in the last row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from genkidama.formats import bar, curve, duration, megabytes, plural, rate

__all__ = ["frame"]

#: Columns of what a line is about.
_LABEL = 9

#: A bar and a curve are no longer than this.
_LONGEST = 60

#: Measures with so large values are rates or counts.
_LARGE = 100.0

#: Columns of the table of children: heading, and how many columns the terminal has at least.
_COLUMNS = {
    "child": 0,
    "state": 0,
    "cores": 100,
    "steps/s": 0,
    "updates": 90,
    "return": 0,
    "stale": 0,
    "exchanged": 0,
    "trip": 100,
    "in": 110,
    "out": 110,
    "distance": 120,
    "lag": 130,
    "version": 130,
    "address": 150,
}


def frame(document: dict[str, Any], width: int, height: int, words: str = "") -> RenderableType:
    """The display of a moment.

    Args:
        document: as the feed gives it.
        width: columns of the terminal.
        height: its rows; one stays free for the cursor.
        words: a line at the end, as why there is no connection.
    """
    head = [*_head(document, width)]
    if words:
        head.append(Text(words, style="yellow"))
    room = max(1, height - 1)
    head = head[:room]
    for row in head:
        row.no_wrap = True
        row.overflow = "ellipsis"
    left = room - len(head)
    if left < 3:
        return Group(*head)
    made = _trials if document["search"] is not None else _children
    return Group(*head, made(document, width, left))


def _head(document: dict[str, Any], width: int) -> Iterator[Text]:
    run, learning = document["run"], document["learning"]
    title = [run["environment"], run["algorithm"], run["rule"], f"run {run['name']}", run["state"]]
    yield Text(" · ".join(title), style="bold")
    share, left = run["share"], run["left"]
    parts = [duration(run["elapsed"])]
    if run["reason"]:
        parts.append(run["reason"])
    elif left is not None:
        parts.append(f"at most {duration(left)} left")
    told = " · ".join(parts)
    if share is None:
        yield _line("time", told)
    else:
        words = f" {share:4.0%} · {told}"
        drawn = bar(share, max(4, min(_LONGEST, width - len(words))))
        yield Text.assemble((drawn, "cyan"), words)
    value = "none yet" if learning["mean_return"] is None else f"{learning['mean_return']:.1f}"
    value += f" of {run['goal']:g}" if run["goal"] is not None else ""
    points = [(row[0], row[2]) for row in learning["curve"]["rows"] if row[2] is not None]
    room = min(_LONGEST, width - _LABEL - len(value) - 2)
    drawn = curve(points, room) if len(points) > 1 and room > 0 else ""
    yield Text.assemble(f"{'return':<{_LABEL}}{value}  ", (drawn, "green"))
    speed = [f"{learning['steps_per_second']:,.0f} steps/s", plural(learning["steps"], "step")]
    speed += [plural(learning["episodes"], "episode"), f"update {learning['update']:,.0f}"]
    yield _line("speed", " · ".join(speed))
    if learning["figures"]:
        found = learning["figures"].items()
        yield _line("measures", " · ".join(f"{name} {_number(value)}" for name, value in found))
    if document["refusals"]:
        found = document["refusals"].items()
        yield _line("refused", " · ".join(f"{code} {count:,}" for code, count in found))
    for part in document["parts"] or []:
        yield _line("part", f"{part['part']} of {part['of']}: {part['state']}")
    for note in run["notes"]:
        yield Text(f"note: {note}", style="yellow")


def _children(document: dict[str, Any], width: int, room: int) -> Table:
    names = [name for name, least in _COLUMNS.items() if width >= least]
    table = _table(names)
    found = document["children"]
    children = sorted(found, key=lambda row: (row["state"] != "training", row["name"]))
    shown, hidden = _fitting(children, room)
    for child in shown:
        away = child["state"] != "training"
        cells = _cells(child, document["time"])
        table.add_row(*(cells[name] for name in names), style="dim" if away else "")
    if hidden:
        table.add_row(f"… and {hidden} more", style="dim")
    return table


def _cells(child: dict[str, Any], now: float) -> dict[str, str]:
    away = child["state"] != "training"
    moment = child["exchanged"]
    trip = child["round_trip"]
    return {
        "child": child["name"],
        "state": f"away: {child['why']}"[:40] if away else ("joined", "training")[bool(moment)],
        "cores": _or_dash(child["cores"], "d"),
        "steps/s": "" if away else f"{child['steps_per_second']:,.0f}",
        "updates": f"{child['updates']:,.0f}",
        "return": _or_dash(child["last_return"], ".1f"),
        "stale": "" if away else str(child["staleness"]),
        "exchanged": _ago(moment, now),
        "trip": "–" if trip is None else f"{1e3 * trip:.1f} ms",
        "in": megabytes(child["bytes_in"]),
        "out": megabytes(child["bytes_out"]),
        "distance": _or_dash(child["distance"], ".2g"),
        "lag": _or_dash(child["lag"], ".1f"),
        "version": child["software"],
        "address": child["address"] or "",
    }


def _trials(document: dict[str, Any], width: int, room: int) -> Table:
    search = document["search"]
    names = ["trial", "state", "score", "phases", "node", "settings"]
    table = _table(names)
    trials = sorted(search["trials"], key=lambda row: (row["state"] != "running", -row["number"]))
    shown, hidden = _fitting(trials, room)
    for trial in shown:
        settings = ", ".join(f"{key}={_short(value)}" for key, value in trial["settings"].items())
        node = trial["phases"][-1]["node"] if trial["phases"] else ""
        done = sum(phase["to"] is not None for phase in trial["phases"])
        score = _or_dash(trial["score"], ".1f")
        cells = [str(trial["number"]), trial["state"], score]
        cells += [f"{done} of {search['phases']}", node, settings]
        table.add_row(*cells, style="" if trial["state"] == "running" else "dim")
    if hidden:
        table.add_row("…", f"and {hidden} more", style="dim")
    return table


def _table(names: list[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        left = name in ("child", "state", "node", "settings", "version", "address")
        table.add_column(
            name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis"
        )
    return table


def _fitting(rows: list[dict[str, Any]], room: int) -> tuple[list[dict[str, Any]], int]:
    """The rows that there is room for below a heading, and how many are left out."""
    if len(rows) < room:
        return rows, 0
    return rows[: room - 2], len(rows) - room + 2


def _line(label: str, words: str) -> Text:
    return Text(f"{label:<{_LABEL}}{words}")


def _number(value: float) -> str:
    return rate(value) if abs(value) >= _LARGE else f"{value:.3g}"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _ago(moment: float | None, now: float) -> str:
    if moment is None:
        return "–"
    seconds = max(0.0, now - moment)
    return f"{seconds:.1f} s ago" if seconds < 60.0 else f"{duration(seconds)} ago"
