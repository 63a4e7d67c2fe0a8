"""The active trials: which of them run on, phase by phase, in the space of the settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from genkidama.figures.style import INK, RED, evenly, jitter, key, plain
from genkidama.formats import plural
from genkidama.hypertrick.rule import Verdict
from genkidama.hypertrick.space import Dimension
from genkidama.tuning.figures.scale import floor, scores
from genkidama.tuning.findings import Findings
from genkidama.tuning.importance import Importances
from genkidama.tuning.records import PhaseRecord, TrialRecord
from genkidama.tuning.wording import short_names, show

__all__ = ["active_trials"]

#: From a low score to a high one.
_SCORES = LinearSegmentedColormap.from_list("scores", ["#F2E2B8", "#E69F00", "#B0413E", "#3B1C4A"])

_MOST_PANELS = 6

#: Trials that go on, and trials that are stopped: mark, edge, its width.
_STAYS = {True: ("^", INK, 0.6), False: ("v", RED, 1.4)}


@dataclass(frozen=True)
class _Mark:
    """A trial in a panel."""

    x: float
    y: float
    size: float
    report: PhaseRecord


def active_trials(findings: Findings, known: Importances | None) -> Figure | None:
    """A panel a phase; across and up the two settings that matter most, the third by size."""
    everything = scores(findings)
    if not everything:
        return None
    matter = list(known.shares) if known and any(known.shares.values()) else list(findings.space)
    keys = matter[:3]
    reported = 1 + max(phase.phase for trial in findings.trials for phase in trial.phases)
    phases = evenly(reported, _MOST_PANELS)
    columns = min(3, len(phases))
    rows = math.ceil(len(phases) / columns)
    figure = Figure(figsize=(max(5.0, 1.2 + 3.5 * columns), 1.1 + 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    low, high = max(min(everything), floor(everything)), max(everything)
    colours: dict[str, Any] = {
        "cmap": _SCORES,
        "vmin": low,
        "vmax": high if high > low else low + 1.0,
    }
    points = None
    for axes, phase in zip(grid.flat, phases, strict=False):
        marks = [
            mark
            for trial, report in findings.reports_of(phase)
            if (mark := _mark(findings, keys, trial, report)) is not None
        ]
        points = _panel(axes, marks, colours) or points
        axes.set_title(f"phase {phase}: {plural(len(marks), 'trial')}")
        _axis(axes, "x", findings.space[keys[0]])
        if len(keys) > 1:
            _axis(axes, "y", findings.space[keys[1]])
    names = {name: plain(short) for name, short in short_names(findings.space).items()}
    up = names[keys[1]] if len(keys) > 1 else "score"
    _name_axes(list(grid.flat), len(phases), columns, names[keys[0]], up)
    if points is not None:
        bar = figure.colorbar(
            points,
            ax=grid,
            label="score after the phase",
            shrink=0.8,
            aspect=30,
            extend="min" if low > min(everything) else "neither",
        )
        bar.outline.set_visible(False)
    _legend(figure, f"size: {names[keys[2]]}" if len(keys) > 2 else None)
    figure.suptitle("Active trials in the space of the settings", x=0.01, ha="left", fontsize=11)
    return figure


def _mark(
    findings: Findings, keys: list[str], trial: TrialRecord, report: PhaseRecord
) -> _Mark | None:
    """Where and how large a trial is drawn; None if it lacks a setting."""
    x = _place(findings.space[keys[0]], keys[0], trial)
    y = report.score if len(keys) < 2 else _place(findings.space[keys[1]], keys[1], trial)
    if x is None or y is None:
        return None
    size = 55.0
    if len(keys) > 2:
        size = 25.0 + 130.0 * _share(findings.space[keys[2]], trial.params.get(keys[2]))
    return _Mark(x, y, size, report)


def _panel(axes: Axes, marks: list[_Mark], colours: dict[str, Any]) -> PathCollection | None:
    """Draws the trials of a phase; what a colour bar can be made of."""
    points = None
    for stays, (marker, edge, width) in _STAYS.items():
        chosen = [
            mark
            for mark in marks
            if (mark.report.verdict is Verdict.CONTINUE) == stays
            and not math.isnan(mark.report.score)
        ]
        if chosen:
            points = axes.scatter(
                [mark.x for mark in chosen],
                [mark.y for mark in chosen],
                s=[mark.size for mark in chosen],
                c=[mark.report.score for mark in chosen],
                marker=marker,
                edgecolors=edge,
                linewidths=width,
                zorder=3 + stays,
                **colours,
            )
    failed = [mark for mark in marks if math.isnan(mark.report.score)]
    xs, ys = [mark.x for mark in failed], [mark.y for mark in failed]
    axes.plot(xs, ys, "+", color=INK, markersize=8)
    return points


def _name_axes(panels: list[Axes], used: int, columns: int, across: str, up: str) -> None:
    """Names the axes at the left and below, and hides the panels without a phase."""
    for index, axes in enumerate(panels):
        axes.set_visible(index < used)
        if index < used <= index + columns:
            axes.set_xlabel(across)
            axes.tick_params(axis="x", labelbottom=True)
        if index % columns == 0:
            axes.set_ylabel(up)


def _legend(figure: Figure, title: str | None) -> None:
    marks = [
        key(
            label,
            marker,
            color="white",
            markeredgecolor=edge,
            markeredgewidth=width,
            markersize=8,
        )
        for label, (marker, edge, width) in (
            ("goes on", _STAYS[True]),
            ("stopped after it", _STAYS[False]),
        )
    ]
    marks.append(key("failed", "+", color=INK, markersize=8))
    figure.legend(handles=marks, loc="outside lower center", ncols=3, title=title)


def _place(dimension: Dimension, name: str, trial: TrialRecord) -> float | None:
    """Where a trial stands on a setting's axis.

    That is its value, or its choice's place, a little aside so that trials do not cover each other.
    """
    value = trial.params.get(name)
    if dimension.choices is None:
        return None if value is None else float(value)
    place = dimension.place(value)
    return None if place is None else place + jitter(trial.number, 0.22)


def _share(dimension: Dimension, value: Any) -> float:
    """Where in its range a value lies: 0 is the lowest, 1 the highest."""
    if dimension.choices is not None:
        return (dimension.place(value) or 0) / max(1, len(dimension.choices) - 1)
    low, high = dimension.low, dimension.high
    if value is None or low is None or high is None:
        return 0.0
    if dimension.log:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def _axis(axes: Axes, which: str, dimension: Dimension) -> None:
    """An axis for a setting: logarithmic where its space is, and a place for each choice."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if dimension.choices is not None:
        labels = [plain(_clipped(show(label))) for label in dimension.labels]
        axes.set(**{f"{which}ticks": range(len(labels)), f"{which}lim": (-0.6, len(labels) - 0.4)})
        axes.set(**{f"{which}ticklabels": labels})
        if which == "x" and sum(map(len, labels)) > 26:
            for tick in axes.get_xticklabels():
                tick.set(rotation=30, ha="right", rotation_mode="anchor")
    elif dimension.log:
        axes.set(**{f"{which}scale": "log"})
        # Too few powers of ten to read by.
        if dimension.low and dimension.high and dimension.high / dimension.low <= 100:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
            axis.set_minor_formatter(NullFormatter())
    elif dimension.whole:
        axis.set_major_locator(MaxNLocator(5, integer=True))


def _clipped(text: str) -> str:
    return text if len(text) <= 18 else f"{text[:17]}…"
