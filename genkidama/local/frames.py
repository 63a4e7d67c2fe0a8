"""How a standing is laid out on so many columns and rows. It needs 80×24 and uses more.

Laws of this file:
- A row is cut where the terminal ends. What matters most stands first.
- Rows of children that do not fit are counted in the last row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from genkidama.diagnostics import DIAGNOSTICS, WEIGHTS
from genkidama.formats import bar, curve, duration, plural, rate
from genkidama.local.tries import Tries
from genkidama.standing import Member, Standing
from genkidama.tuning.standing import Node, SearchStanding

__all__ = ["frame"]

#: Columns of what a row is about.
_LABEL = 9

#: A bar and a curve are no longer than this.
_LONGEST = 72

#: From so many columns on, rows of children have more columns.
_WIDE = 110

#: What a backend measures, as people write it; other names stay.
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

#: What a child's state may take, so that no long reason pushes its numbers away.
_LONGEST_STATE = 40

#: Measures with so large values are rates or counts.
_LARGE = 100.0

#: Style of a row, and its cells.
Row = tuple[str, list[str]]


def frame(
    standing: Standing | SearchStanding | Tries, now: float, width: int, height: int
) -> RenderableType:
    """The display of a moment.

    Args:
        now: by the clock of the standing's events, in seconds.
        width: columns of the terminal.
        height: its rows; one stays free for the cursor.
    """
    match standing:
        case Standing():
            head, table = _run(standing, now, width)
        case SearchStanding():
            head, table = _search(standing, now, width)
        case Tries():
            head, table = _evaluation(standing, now, width), []
    room = max(1, height - 1)
    rows = head[:room]
    rows += _table(table, room - len(rows) - 1, width)
    for row in rows:
        row.no_wrap = True
        row.overflow = "ellipsis"
    return Group(*rows)


def _run(standing: Standing, now: float, width: int) -> tuple[list[Text], list[Row]]:
    last = standing.last
    title = [standing.name, standing.algorithm, f"run {standing.run}" if standing.run else ""]
    rows = [_title(title, width), _bar(standing, now, width, "at most")]
    if last is not None:
        goal = standing.stop.mean_return
        value = "" if last.mean_return is None else f"{last.mean_return:.1f}"
        if goal is not None:
            value += f" of {goal:g}"
        rows.append(_curve("return", value or "no episode has ended", standing.curve.points, width))
        parts = [
            f"{standing.speed(now):,.0f} steps/s",
            plural(last.steps, "step"),
            plural(last.episodes, "episode"),
            f"update {last.update:,.0f}",
        ]
        rows.append(_labelled("speed", parts, width))
    figures = standing.figures()
    rows += _wrapped("learning", _worded(_taken(figures)), width, _LEARNING_ROWS)
    rows += _wrapped("measures", _worded(figures), width, 1)
    wide = width >= _WIDE
    head = ["child", "state", "exchanged", "staleness", "steps/s", *(["steps"] if wide else [])]
    table = [("bold", head)]
    members = sorted(standing.members.items(), key=lambda item: (bool(item[1].away), item[0]))
    for name, member in members:
        cells = [
            name,
            _state(member, over=bool(standing.reason)),
            _ago(member.exchanged, now),
            "" if member.away else str(member.staleness),
            "" if member.away else f"{member.pace.rate(now):,.0f}",
        ]
        if wide:
            cells += [f"{member.steps:,}", "" if member.away else _measured(member.figures)]
        table.append(("dim" if member.away else "", cells))
    if wide:
        head.append("measures" if any(row[-1] for _, row in table[1:]) else "")
    return rows, table


def _search(standing: SearchStanding, now: float, width: int) -> tuple[list[Text], list[Row]]:
    title = [standing.name, standing.search.method, f"run {standing.run}" if standing.run else ""]
    trials = plural(standing.search.trials, "trial")
    best = standing.best
    value = (
        "no trial has a score" if best is None else f"{standing.scores[best]:.1f} (trial {best})"
    )
    rows = [
        _title(title, width),
        _bar(standing, now, width, "about"),
        _labelled("trials", [f"{len(standing.states)} of {trials}", standing.counts()], width),
        _curve("best", value, standing.curve.points, width),
        _labelled("speed", [f"{standing.speed(now):,.0f} steps/s"], width),
    ]
    leading = standing.leading()
    if leading is not None:
        # Trials differ in their settings, so a mean over them would say nothing.
        parts = [f"trial {leading.trial}", *_worded(_taken(dict(leading.figures)))]
        rows += _wrapped("learning", parts, width, _LEARNING_ROWS)
    wide = width >= _WIDE and leading is not None
    head = ["node", "state", "exchanged", "trial", "phase", "return"]
    table = [("bold", [*head, *(["measures"] if wide else [])])]
    nodes = sorted(standing.nodes.items(), key=lambda item: (bool(item[1].away), item[0]))
    for name, node in nodes:
        found = None if node.trial is None else standing.returns.get(node.trial)
        cells = [
            name,
            _state(node),
            _ago(node.exchanged, now),
            "" if node.trial is None else str(node.trial),
            f"{min(node.phase + 1, standing.search.phases)} of {standing.search.phases}",
            "" if found is None else f"{found:.1f}",
        ]
        if wide:
            cells.append("" if node.away else _measured(node.figures))
        table.append(("dim" if node.away else "", cells))
    return rows, table


def _evaluation(standing: Tries, now: float, width: int) -> list[Text]:
    episodes = plural(standing.episodes, "episode")
    rows = [
        _title([f"evaluating {standing.done} of {episodes}"], width),
        _bar(standing, now, width, "about"),
    ]
    if standing.mean is not None:
        parts = [f"{standing.mean:.1f} ± {standing.std:.1f}", f"minimum {standing.minimum:.1f}"]
        rows.append(_labelled("return", parts, width))
    return rows


def _title(parts: Iterable[str], width: int) -> Text:
    return Text(_fitting([part for part in parts if part], width), style="bold")


def _bar(standing: Standing | SearchStanding | Tries, now: float, width: int, bound: str) -> Text:
    """How much is done, for how long it has gone on, and how long it will."""
    share = standing.share(now)
    left = standing.left(now)
    parts = [duration(standing.elapsed(now))]
    if standing.reason:
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


def _labelled(label: str, parts: Iterable[str], width: int) -> Text:
    return Text(f"{label:<{_LABEL}}" + _fitting(list(parts), width - _LABEL))


def _wrapped(label: str, parts: list[str], width: int, most: int) -> list[Text]:
    """The parts in as many rows as they need, up to so many; what does not fit is left out."""
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


def _taken(figures: dict[str, float]) -> dict[str, float]:
    """The diagnostics among the figures, which are taken out of them."""
    return {name: figures.pop(name) for name in DIAGNOSTICS if name in figures}


def _measured(figures: dict[str, float]) -> str:
    return "  ".join(_worded({name: one for name, one in figures.items() if name not in WEIGHTS}))


def _worded(figures: dict[str, float]) -> list[str]:
    return [f"{_WORDS.get(name, name)} {_number(value)}" for name, value in figures.items()]


def _number(value: float) -> str:
    return rate(value) if abs(value) >= _LARGE else f"{value:.3g}"


def _state(member: Member | Node, over: bool = False) -> str:
    if member.away:
        return f"away: {member.away}"
    if over:
        return "done"
    return "joined" if member.exchanged is None else "training"


def _ago(moment: float | None, now: float) -> str:
    if moment is None:
        return "–"
    seconds = max(0.0, now - moment)
    return f"{seconds:.1f} s ago" if seconds < 60.0 else f"{duration(seconds)} ago"


def _table(rows: Sequence[Row], room: int, width: int) -> list[Text]:
    """A blank row, and then the rows that there is room for.

    The first two columns and the last of a wide table stand on the left, numbers on the right.
    """
    if len(rows) < 2 or room < 2:
        return []
    if len(rows) > room:
        hidden = len(rows) - room + 1
        rows = [*rows[: room - 1], ("dim", [f"… and {hidden} more"])]
    full = [cells for _, cells in rows if len(cells) > 1]
    columns = len(full[0])
    widths = [max(cell_len(cells[column]) for cells in full) for column in range(columns)]
    # A long reason must not push the numbers off the screen.
    others = sum(widths[:6]) - widths[1] + 2 * min(5, columns - 1)
    widths[1] = max(8, min(widths[1], width - others, _LONGEST_STATE))
    found = [Text("")]
    for style, cells in rows:
        line = Text(style=style)
        for column, cell in enumerate(cells):
            text = Text(cell)
            if len(cells) > 1:
                text.truncate(widths[column], overflow="ellipsis")
                text.align("left" if column in (0, 1, 6) else "right", widths[column])
            line.append_text(text)
            line.append("  ")
        line.rstrip()
        found.append(line)
    return found
