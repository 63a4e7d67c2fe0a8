"""The display of a run, redrawn repeatedly on a terminal or below a notebook's cell.

Laws of this file:
- A frame is never wider or higher than its terminal, even when that is resized. It needs 80×24.
- A row is cut where the terminal ends, so the most important comes first. Rows of a table that do
  not fit are counted in its last one.
- A display never stops a run: anything that cannot be drawn is left out.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TextIO, TypeAlias

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from genkidama.config.formatting import bar, curve, duration, energy, megabytes, plural, rate, show
from genkidama.protocol.diagnostics import DIAGNOSTICS, HEALTH, WEIGHTS
from genkidama.runs.status import counts

#: Frames a second on a terminal; seconds between two in a notebook; columns and rows there.
_FRAMES = 4
_CELL_SECONDS = 0.5
_CELL = (100, 40)

#: Columns of a row's label, and of the longest bar or curve.
_LABEL = 9
_LONGEST = 72

#: Backends' measures as people write them; other names stay.
_WORDS = {name: name.replace("_", " ") for name in DIAGNOSTICS} | {
    "pps": "PPS",
    "tps": "TPS",
    "approximate_kl": "KL",
    "learning_rate": "lr",
    "kl": "KL of children",
    "too_old": "too old",
    "too_many": "too many",
}

#: Rows of diagnostics, at most.
_LEARNING_ROWS = 3

#: Measures above this are rates or counts.
_LARGE = 100.0

#: Columns of the table of children, and the least width of a terminal that shows them. All but
#: `_ALWAYS` are left out while no row has a value.
_CHILD_COLUMNS = {
    "child": 0,
    "state": 0,
    "exchanged": 0,
    "staleness": 0,
    "steps/s": 0,
    "return": 0,
    "steps": 110,
    "cores": 110,
    "trip": 110,
    "in": 130,
    "out": 130,
    "exchanges": 140,
    "distance": 140,
    "software": 160,
    "address": 170,
    "measures": 110,
}
_ALWAYS = ("child", "state", "exchanged", "staleness", "steps/s")
_TRIAL_COLUMNS = ("trial", "state", "node", "return", "score", "phases", "settings")

#: Columns of text, on the left. Of these `state` gives way to others, and the last ones are cut.
_TEXTS = ("child", "state", "node", "software", "address", "measures", "settings")
_LAST = ("measures", "settings")
_LONGEST_STATE = 40

#: Draws a frame for this many columns and rows.
Draw: TypeAlias = Callable[[int, int], RenderableType]


class Screen:
    """A terminal. A thread draws, so a display ticks while nothing happens."""

    def __init__(self, file: TextIO, draw: Draw) -> None:
        self._console = Console(file=file)
        self._draw = draw
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """Prints a line above the display. The terminal breaks a long one, so it can be copied."""
        with suppress(OSError, ValueError):  # nobody reads any more
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        """Begins to draw."""
        if self._live is None:
            self._live = Live(
                console=self._console,
                get_renderable=lambda: self._draw(*self._console.size),
                refresh_per_second=_FRAMES,
                redirect_stdout=False,
                vertical_overflow="crop",
            )
            with suppress(OSError, ValueError):
                self._live.start()

    def close(self) -> None:
        """Leaves the last frame standing."""
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError, ValueError):
                live.stop()


class Notebook:
    def __init__(self, draw: Draw) -> None:
        self._draw_frame = draw
        self._handle: Any = None
        self._drawn = 0.0

    def say(self, text: str) -> None:
        """A line below what was said before."""
        print(text, flush=True)

    def refresh(self) -> None:
        """Draws anew, if that was not just done."""
        if time.monotonic() - self._drawn >= _CELL_SECONDS:
            self._draw()

    def close(self) -> None:
        """Leaves the last frame standing."""
        self._draw()
        self._handle = None

    def _draw(self) -> None:
        from IPython import display

        self._drawn = time.monotonic()
        content = {"text/html": self._page(html=True), "text/plain": self._page(html=False)}
        if self._handle is None:
            self._handle = display.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def _page(self, html: bool) -> str:
        width, height = _CELL
        console = Console(
            file=io.StringIO(), width=width, height=height, record=True, force_jupyter=False
        )
        console.print(self._draw_frame(width, height))
        if not html:
            return console.export_text()
        return console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)


# Frames.


def frame(
    document: dict[str, Any], width: int, height: int, notes: Iterable[str] = ()
) -> RenderableType:
    """The display of a run or a search, as `GET /status` gives it, with notes below the figures.
    One of the terminal's rows stays free for the cursor."""
    run, learning = document["run"], document["learning"]
    search = document["search"]
    method = run["rule"] if search is None else search["method"]
    title = [run["environment"], run["algorithm"], method]
    title += [f"run {run['name']}" if run["name"] else "", run["state"]]
    rows = [_title(title, width), _bar(run, width, "at most" if search is None else "about")]
    points = [(row[0], row[2]) for row in learning["curve"]["rows"] if row[2] is not None]
    speed = [f"{learning['steps_per_second']:,.0f} steps/s", plural(learning["steps"], "step")]
    speed.append(plural(learning["episodes"], "episode"))
    figures = dict(learning["figures"])
    leading = []
    if search is None:
        value = learning["mean_return"]
        words = "no episode has ended" if value is None else f"{value:.1f}"
        words += "" if value is None or run["goal"] is None else f", goal {run['goal']:g}"
        rows.append(_curve("return", words, points, width))
        speed.append(f"exchange {learning['update']:,.0f}")
    else:
        best = search["best"]
        words = "no trial has a score"
        if best is not None:
            words = f"{best['score']:.1f} (trial {best['trial']})"
        of = f"{search['count']} of {plural(search['planned'], 'trial')}"
        rows.append(_labelled("trials", [of, counts(search)], width))
        rows.append(_curve("best", words, points, width))
        # Trials differ in their settings, so a mean over them would say nothing.
        if (child := _leading(document)) is not None:
            leading = [f"trial {child['trial']}"]
            figures = dict(child["figures"])
    rows.append(_labelled("speed", speed, width))
    taken = {name: figures.pop(name) for name in DIAGNOSTICS if name in figures}
    rows += _wrapped("learning", leading * bool(taken) + _worded(taken), width, _LEARNING_ROWS)
    rows += _wrapped("measures", _worded(figures) if search is None else [], width, 1)
    # Children of one host have one name; the second adds a number and asks again.
    refused = [f"{code} {n:,}" for code, n in document["refusals"].items() if code != "name"]
    rows += _wrapped("refused", refused, width, 1)
    for part in document["parts"] or []:
        rows.append(_labelled("part", [f"{part['part']} of {part['of']}: {part['state']}"], width))
    rows += [Text(note, style="yellow") for note in notes]
    room = max(1, height - 1)
    rows = rows[:room]
    table = _children(document, width) if search is None else _trials(document)
    return _group([*rows, *_table(table, room - len(rows) - 1, width)])


def evaluation_frame(document: dict[str, Any], width: int, height: int) -> RenderableType:
    """The display of an evaluation; `document` is `EvaluationProgress.document`'s."""
    rows = [_title([document["title"]], width), _bar(document["run"], width, "about")]
    if document["done"]:
        mean = f"{document['mean']:.1f} ± {document['std']:.1f}"
        rows.append(_labelled("return", [mean, f"minimum {document['minimum']:.1f}"], width))
    return _group(rows[: max(1, height - 1)])


def _group(rows: list[Text]) -> Group:
    for row in rows:
        row.no_wrap = True
        row.overflow = "ellipsis"
    return Group(*rows)


def _title(parts: Iterable[str], width: int) -> Text:
    return Text(_fitting([part for part in parts if part], width), style="bold")


def _bar(run: dict[str, Any], width: int, bound: str) -> Text:
    """Progress bar: share done, elapsed time, time left."""
    share, left = run["share"], run["left"]
    parts = [duration(run["elapsed"])]
    if run.get("watt_hours"):
        parts.append(energy(run["watt_hours"]))
    if run["reason"]:
        parts.append("ended")
    elif left is not None:
        parts.append(f"{bound} {duration(left)} left")
    if share is None:
        return _labelled("time", parts, width)
    words = f" {share:4.0%} · {' · '.join(parts)}"
    length = max(4, min(_LONGEST, width - len(words)))
    full, _, empty = bar(share, length).partition("░")
    gap = "░" * (length - len(full)) if empty or len(full) < length else ""
    return Text.assemble((full, "cyan"), (gap, "dim"), words)


def _curve(label: str, value: str, points: Sequence[tuple[float, float]], width: int) -> Text:
    words = f"{label:<{_LABEL}}{value}"
    room = min(_LONGEST, width - cell_len(words) - 2)
    drawn = curve(points, room) if room > 0 and len(points) > 1 else ""
    return Text.assemble(words, "  ", (drawn, "green"))


def _labelled(label: str, parts: Sequence[str], width: int) -> Text:
    return Text(f"{label:<{_LABEL}}" + _fitting(parts, width - _LABEL))


def _wrapped(label: str, parts: list[str], width: int, most: int) -> list[Text]:
    """The parts in as many rows as they need, up to `most`; what does not fit is left out."""
    rows: list[Text] = []
    while parts and len(rows) < most:
        text = _fitting(parts, width - _LABEL)
        parts = parts[text.count(" · ") + 1 :]
        rows.append(Text(f"{'' if rows else label:<{_LABEL}}{text}"))
    return rows


def _fitting(parts: Sequence[str], width: int) -> str:
    """As many of the parts as fit, at least the first."""
    text = parts[0] if parts else ""
    for part in parts[1:]:
        if cell_len(text) + 3 + cell_len(part) > width:
            break
        text += f" · {part}"
    return text


def _worded(figures: dict[str, float]) -> list[str]:
    return [f"{_WORDS.get(name, name)} {_number(value)}" for name, value in figures.items()]


def _number(value: float) -> str:
    return rate(value) if abs(value) >= _LARGE else f"{value:.3g}"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _ago(moment: float | None, now: float) -> str:
    if moment is None:
        return "–"
    seconds = max(0.0, now - moment)
    return f"{seconds:.1f} s ago" if seconds < 60.0 else f"{duration(seconds)} ago"


# Tables.

#: Cells by column; one of a child that is away or of a trial that has ended is dim.
Row: TypeAlias = tuple[bool, dict[str, str]]


def _children(document: dict[str, Any], width: int) -> list[Row]:
    over = bool(document["run"]["reason"])
    children = sorted(
        document["children"], key=lambda child: (child["state"] != "training", child["name"])
    )
    rows = [_child(child, document["time"], over) for child in children]
    names = [
        name
        for name, least in _CHILD_COLUMNS.items()
        if width >= least
        and (name in _ALWAYS or any(cells[name] not in ("", "–") for _, cells in rows))
    ]
    return [(away, {name: cells[name] for name in names}) for away, cells in rows]


def _child(child: dict[str, Any], now: float, over: bool) -> Row:
    away = child["state"] != "training"
    trip = child["round_trip"]
    figures = {name: one for name, one in child["figures"].items() if name not in WEIGHTS + HEALTH}
    state = "joined" if child["exchanged"] is None else "training"
    return away, {
        "child": child["name"],
        "state": f"away: {child['why']}" if away else "done" if over else state,
        "exchanged": _ago(child["exchanged"], now),
        "staleness": "" if away else str(child["staleness"]),
        "steps/s": "" if away or over else f"{child['steps_per_second']:,.0f}",
        "return": _or_dash(child["last_return"], ".1f"),
        "steps": f"{child['steps']:,}",
        "cores": _or_dash(child["cores"], "d"),
        "trip": "–" if trip is None else f"{1e3 * trip:.1f} ms",
        "in": megabytes(child["bytes_in"]) if child["bytes_in"] else "–",
        "out": megabytes(child["bytes_out"]) if child["bytes_out"] else "–",
        "exchanges": f"{child['updates']:,.0f}",
        "distance": _or_dash(child["distance"], ".2g"),
        "software": child["software"],
        "address": child["address"] or "",
        "measures": "" if away else "  ".join(_worded(figures)),
    }


def _trials(document: dict[str, Any]) -> list[Row]:
    search = document["search"]
    away = {child["name"] for child in document["children"] if child["state"] != "training"}
    trials = sorted(search["trials"], key=lambda row: (row["state"] != "running", -row["number"]))
    rows = []
    for trial in trials:
        node = trial["phases"][-1]["node"] if trial["phases"] else ""
        done = sum(phase["to"] is not None for phase in trial["phases"])
        settings = ", ".join(f"{key}={show(value)}" for key, value in trial["settings"].items())
        values = [str(trial["number"]), trial["state"], f"{node} (away)" if node in away else node]
        values += [_or_dash(trial["mean_return"], ".1f"), _or_dash(trial["score"], ".1f")]
        values += [f"{min(done, search['phases'])} of {search['phases']}", settings]
        cells = dict(zip(_TRIAL_COLUMNS, values, strict=True))
        rows.append((trial["state"] != "running", cells))
    return rows


def _leading(document: dict[str, Any]) -> dict[str, Any] | None:
    """The node that measures, and whose trial has the best mean return; None if none does."""
    means = {trial["number"]: trial["mean_return"] for trial in document["search"]["trials"]}

    def mean(child: dict[str, Any]) -> float:
        value: float | None = means.get(child["trial"])
        return -math.inf if value is None else value

    children = document["children"]
    measuring = [child for child in children if child["state"] == "training" and child["figures"]]
    return max(measuring, key=mean, default=None)


def _table(rows: Sequence[Row], room: int, width: int) -> list[Text]:
    """A blank row, a heading, and the rows that there is room for."""
    if not rows or room < 2:
        return []
    hidden = len(rows) - (room - 2) if len(rows) > room - 1 else 0
    shown = list(rows[: len(rows) - hidden])
    names = list(rows[0][1])
    lines = [("bold", dict(zip(names, names, strict=True)))]
    lines += [("dim" if dim else "", cells) for dim, cells in shown]
    widths = {name: max(cell_len(cells[name]) for _, cells in lines) for name in names}
    # A long reason must not push the numbers off the screen.
    others = sum(widths[name] + 2 for name in names if name not in ("state", *_LAST))
    widths["state"] = max(8, min(widths["state"], width - others, _LONGEST_STATE))
    found = [Text("")]
    for style, cells in lines:
        row = Text(style=style)
        for name, cell in cells.items():
            text = Text(cell)
            text.truncate(widths[name], overflow="ellipsis")
            text.align("left" if name in _TEXTS else "right", widths[name])
            row.append_text(text)
            row.append("  ")
        row.rstrip()
        found.append(row)
    return [*found, *([Text(f"… and {hidden} more", style="dim")] if hidden else [])]
