"""Figures of a search, written as files, after Figs. 2, 4 and 7 of HyperTrick's paper.

Laws of this file:
- Nothing is told by colour alone: what colours say, marks or heights say too. Our colours are those
  of Okabe and Ito, which colour-blind readers can tell apart.
- A figure for which there is nothing to draw is left out.
- No setting of Matplotlib is left changed, and no figure open.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from genkidama.config.formatting import percent, show
from genkidama.plugins.hypertrick.findings import Span, StudySnapshot
from genkidama.plugins.hypertrick.importance import Importances, ended_study
from genkidama.plugins.hypertrick.records import PhaseRecord, TrialRecord
from genkidama.plugins.hypertrick.rule import Verdict
from genkidama.runs.figure_style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RED,
    SKY,
    evenly,
    jitter,
    key,
    plain,
    write_all,
)

__all__ = ["draw"]


def draw(findings: StudySnapshot, folder: Path, known: Importances | None) -> list[Path]:
    """Writes the figures into `folder`, which is made if needed, each as PNG and SVG.

    Args:
        findings: of the search.
        folder: where to; files of an earlier report are replaced.
        known: the importances; None if they cannot be told.

    Returns:
        The files that were written.

    Raises:
        EnvironmentFailure: they cannot be written.
    """
    makers: dict[str, Callable[[], Figure | None]] = {
        "timeline": lambda: timeline(findings),
        "learning_curves": lambda: learning_curves(findings),
        "settings": lambda: settings(findings),
        "best_score": lambda: best_score(findings),
        "importances": lambda: importances(known),
    }
    return write_all(makers, folder)


# The axis of scores.


def scores(findings: StudySnapshot) -> list[float]:
    """All scores that were reported, without NaN."""
    return [
        phase.score
        for trial in findings.trials
        for phase in trial.phases
        if not math.isnan(phase.score)
    ]


def floor(values: Sequence[float]) -> float:
    """Below this a score is so low that to show it would hide the others.

    It lies five interquartile ranges below the middle half.
    """
    low, high = np.quantile(values, [0.25, 0.75])
    return float(low - 5.0 * (high - low)) if high > low else min(values)


def limit(axes: Axes, values: Sequence[float]) -> None:
    """Leaves scores below the floor out of sight, and says so: one alone would hide the rest."""
    bottom, top = floor(values), max(values)
    below = sum(value < bottom for value in values)
    if below:
        axes.set_ylim(bottom, top + 0.08 * (top - bottom))
        axes.annotate(
            f"↓ {below} {'report' if below == 1 else 'reports'} below",
            (0.005, 0.02),
            xycoords="axes fraction",
            fontsize=8,
            color=GREY,
            va="bottom",
        )


# Scores by phase with the decisions, and the curves of all trials.

#: How a report is marked: colour, mark, whether it is filled, and its name.
_DECISIONS = {
    "collection": (BLUE, "o", False, "passed early"),
    "selection": (BLUE, "o", True, "selected"),
    "stopped": (RED, "x", True, "stopped"),
    "none": (GREY, "o", True, "no decision"),
}

#: How a curve is drawn: colour, mark at its end, line, and its place above others.
_CURVES: dict[str, tuple[str, str, Any, int]] = {
    "stopped": (GREY, "x", "-", 2),
    "running": (GREEN, ">", "-", 4),
    "failed": (RED, "+", (0, (3, 2)), 5),
    "completed": (BLUE, "o", "-", 3),
}

#: Of boxes in the upper panel.
_LINES: dict[str, Any] = {
    part: {"color": GREY, "linewidth": 0.9} for part in ("boxprops", "whiskerprops", "capprops")
} | {"medianprops": {"color": INK, "linewidth": 1.6}}

_BESIDE: dict[str, Any] = {
    "loc": "upper left",
    "bbox_to_anchor": (1.0, 1.0),
    "borderaxespad": 0.3,
}


def learning_curves(findings: StudySnapshot) -> Figure | None:
    """Two panels above each other, with the phases from left to right."""
    everything = scores(findings)
    if not everything:
        return None
    phases = findings.settings.phases
    size = 5.0 if phases <= 10 else 3.5
    figure = Figure(figsize=(10, 8.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.25])
    _decisions(upper, findings, size)
    _trials(lower, findings, size)
    ticks = evenly(phases, 12)
    counts = [len(findings.reports_of(tick)) for tick in ticks]
    lower.set_xlabel(f"phase{_length(findings)}, and how many trials reported after it")
    lower.set_xticks(ticks, [f"{tick}\n{count}" for tick, count in zip(ticks, counts, strict=True)])
    lower.set_xlim(-0.6, phases - 0.4)
    for axes in (upper, lower):
        axes.set_ylabel("score")
        limit(axes, everything)
        axes.grid(visible=False, axis="x")
    return figure


def _decisions(axes: Axes, findings: StudySnapshot, size: float) -> None:
    """A box a phase, and over it a mark for each report."""
    decided: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _DECISIONS}
    for phase in range(findings.settings.phases):
        reports = [
            (trial, report)
            for trial, report in findings.reports_of(phase)
            if not math.isnan(report.score)
        ]
        if len(reports) > 1:
            axes.boxplot(
                [[report.score for _, report in reports]],
                positions=[phase],
                widths=0.62,
                manage_ticks=False,
                showfliers=False,
                **_LINES,
            )
        for trial, report in reports:
            decided[_decision(report)].append((phase + jitter(trial.number, 0.2), report.score))
    for kind, points in decided.items():
        colour, marker, filled, label = _DECISIONS[kind]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                marker,
                linestyle="",
                markersize=size,
                color=colour,
                markerfacecolor=colour if filled else "white",
                markeredgewidth=1.3,
                label=label,
            )
    axes.set_title(
        "Scores by phase, and what was decided on them (boxes: the middle half and the median)"
    )
    axes.legend(**_BESIDE)


def _decision(report: PhaseRecord) -> str:
    return "stopped" if report.verdict is Verdict.STOP else report.mode.value


def _trials(axes: Axes, findings: StudySnapshot, size: float) -> None:
    """A curve a trial, the best above all."""
    keys = []
    for state, (colour, marker, style, order) in _CURVES.items():
        drawn = [trial for trial in findings.trials if trial.state == state and trial.phases]
        for trial in drawn:
            points = _points(trial)
            if points:
                axes.plot(
                    *zip(*points, strict=True),
                    color=colour,
                    linestyle=style,
                    linewidth=1,
                    alpha=0.75,
                    zorder=order,
                )
                axes.plot(
                    *points[-1],
                    marker,
                    color=colour,
                    markersize=size,
                    markeredgewidth=1.5,
                    zorder=order + 0.5,
                )
        if drawn:
            line: dict[str, Any] = {"color": colour, "linestyle": style, "marker": marker}
            keys.append(
                Line2D(
                    [],
                    [],
                    markersize=5,
                    markeredgewidth=1.5,
                    label=f"{state} ({len(drawn)})",
                    **line,
                )
            )
    if findings.best is not None:
        thick: dict[str, Any] = {"color": ORANGE, "linewidth": 2.5, "marker": "o"}
        axes.plot(*zip(*_points(findings.best), strict=True), markersize=size, zorder=9, **thick)
        label = f"best: trial {findings.best.number} ({show(findings.best.score)})"
        keys.append(Line2D([], [], markersize=5, label=label, **thick))
    axes.legend(handles=keys, **_BESIDE)
    axes.set_title("Learning curves of all trials")


def _points(trial: TrialRecord) -> list[tuple[int, float]]:
    return [(phase.phase, phase.score) for phase in trial.phases if not math.isnan(phase.score)]


def _length(findings: StudySnapshot) -> str:
    settings = findings.settings
    return f" of {settings.phase_length:,g} {settings.phase_unit}" if settings.phase_length else ""


# What each node ran when, and the share of them that was busy.

#: From a trial's first phase to its last.
_PHASES = LinearSegmentedColormap.from_list("phases", ["#DCEAF4", "#7FB4D6", "#1F6FA8", "#0B3C66"])

#: Colour and mark of a trial's end.
_ENDS = {"completed": (GREEN, "o"), "stopped": (RED, "x"), "failed": (INK, "+")}

#: With more nodes than this, trials have no numbers; with more than that, nodes have no names.
_MOST_NUMBERED, _MOST_NAMED = 24, 40


def timeline(findings: StudySnapshot) -> Figure | None:
    """A row a node: phases from left to right, darker towards the last.

    Below, the share that was busy.
    """
    rows, end = findings.timeline, findings.search_time
    if not rows or end <= 0:
        return None
    scale, unit = _unit(end)
    phases = max(2, findings.settings.phases)
    height = min(0.42, 9.0 / len(rows)) * len(rows)
    figure = Figure(figsize=(10, 2.9 + height), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[max(1.0, height), 1.1])
    for row, spans in enumerate(rows.values()):
        _row(upper, row, spans, scale, phases)
        if len(rows) <= _MOST_NUMBERED:
            _numbers(upper, row, spans, scale, end)
    names = [plain(name) if len(rows) <= _MOST_NAMED else "" for name in rows]
    upper.set_yticks(range(len(rows)), names)
    upper.set_ylim(len(rows) - 0.4, -0.6)
    upper.grid(visible=False)
    upper.tick_params(axis="y", length=0)
    upper.spines["left"].set_visible(False)
    upper.set_title(f"What the nodes did ({len(findings.trials)} trials; the numbers are theirs)")
    keys = [
        key(f"phase {phase}", "s", markersize=8, color=_PHASES(phase / (phases - 1)))
        for phase in evenly(findings.settings.phases, 6)
    ]
    keys += [
        key(label, marker, color=colour, markersize=6, markeredgewidth=1.6)
        for label, (colour, marker) in _ENDS.items()
    ]
    figure.legend(
        handles=keys,
        loc="outside lower center",
        ncols=len(keys),
        handletextpad=0.2,
        columnspacing=1.2,
    )
    _occupancy(lower, findings, scale)
    lower.set_xlim(0, end / scale * 1.005)
    lower.set_xlabel(f"search time ({unit})")
    return figure


def _row(axes: Axes, row: int, spans: Sequence[Span], scale: float, phases: int) -> None:
    axes.broken_barh(
        [(span.start / scale, (span.end - span.start) / scale) for span in spans],
        (row - 0.4, 0.8),
        facecolors=[_PHASES(span.phase / (phases - 1)) for span in spans],
        edgecolor="white",
        linewidth=0.6,
    )
    for span in spans:
        if span.ending:
            colour, marker = _ENDS[span.ending]
            axes.plot(
                span.end / scale,
                row,
                marker,
                color=colour,
                markersize=6,
                markeredgewidth=1.6,
                clip_on=False,
                zorder=4,
            )


def _numbers(axes: Axes, row: int, spans: Sequence[Span], scale: float, end: float) -> None:
    """The number of each trial that takes room enough, at its start."""
    bounds: dict[int, tuple[float, float]] = {}
    for span in spans:
        start, until = bounds.get(span.trial, (span.start, span.end))
        bounds[span.trial] = start, max(until, span.end)
    for trial, (start, until) in bounds.items():
        if (until - start) / end > 0.032:
            axes.text(
                (start + 0.004 * end) / scale,
                row - 0.18,
                str(trial),
                fontsize=7,
                color=INK,
                va="center",
                in_layout=False,
            )


def _occupancy(axes: Axes, findings: StudySnapshot, scale: float) -> None:
    times, share = busy(findings)
    at = [time / scale for time in times]
    axes.fill_between(at, share, step="post", color=SKY, alpha=0.35, linewidth=0)
    axes.step(at, share, where="post", color=BLUE, linewidth=1.2)
    axes.axhline(findings.occupancy, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_title(
        "Occupancy: the share of the nodes that run a phase; "
        f"{percent(findings.occupancy, 0)} on average (dashed)"
    )
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])


def busy(findings: StudySnapshot) -> tuple[list[float], list[float]]:
    """Times, and from each on the share of the nodes that have joined which run a phase."""
    joined = sorted(spans[0].start for spans in findings.timeline.values())
    spans = [span for found in findings.timeline.values() for span in found]
    starts = sorted(span.start for span in spans)
    ends = sorted(span.end for span in spans)
    times = sorted({0.0, *joined, *starts, *ends})
    running = np.searchsorted(starts, times, "right") - np.searchsorted(ends, times, "right")
    there = np.maximum(1, np.searchsorted(joined, times, "right"))
    return times, [float(share) for share in np.minimum(1.0, running / there)]


def _unit(end: float) -> tuple[float, str]:
    """What to divide seconds by, and what that is then."""
    return (1.0, "s") if end < 300 else (60.0, "min") if end < 3 * 3600 else (3600.0, "h")


# By Optuna, whose own figures see completed trials only.


def settings(findings: StudySnapshot) -> Figure | None:
    """The last score of each trial against each of its settings."""
    study = ended_study(findings, failed=False)
    known = [trial.score for trial in findings.ranking]
    if not study.trials:
        return None
    plots = _drawn(lambda plot: plot.plot_slice(study, target_name="last score"))
    figure = _titled(plots[0], "Last scores of all trials against each setting")
    figure.set_size_inches(max(6.4, 3.6 * len(plots)), 4.8)
    for axes in plots:
        axes.xaxis.set_minor_formatter(NullFormatter())  # they would cover each other
        limit(axes, known)
    return figure


def _drawn(draw: Callable[[Any], Any]) -> list[Axes]:
    """The panels that a function of Optuna's draws. It uses pyplot, which forgets them here."""
    if "matplotlib.pyplot" not in sys.modules:
        matplotlib.use("agg")  # otherwise pyplot opens a way to the screen
    import matplotlib.pyplot as pyplot  # after the choice above, as Optuna's figures
    import optuna.visualization.matplotlib as plot

    with warnings.catch_warnings():  # the functions are called experimental since Optuna 2
        warnings.simplefilter("ignore")
        found = draw(plot)
    panels = list(np.atleast_1d(found))
    pyplot.close(panels[0].figure)
    return panels


def _titled(axes: Axes, title: str) -> Figure:
    """The figure of this panel, with a title and without a layout: Optuna's cannot be laid out."""
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.suptitle("")
    figure.set_layout_engine(None)
    axes.set_title(title, fontsize=11)
    return figure


# The best score, and the importances.


def best_score(findings: StudySnapshot) -> Figure | None:
    """The scores of the completed trials, and the best so far, by trial."""
    completed = [trial for trial in findings.of_state("completed") if not math.isnan(trial.score)]
    if not completed:
        return None
    numbers, known = [trial.number for trial in completed], [trial.score for trial in completed]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(numbers, known, "o", color=BLUE, markersize=5, label="score")
    axes.step(numbers, np.maximum.accumulate(known), where="post", color=RED, label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel("score")
    axes.set_title("The best score so far, of the trials that completed")
    axes.legend()
    limit(axes, known)
    return figure


def importances(known: Importances | None) -> Figure | None:
    """How much each setting matters."""
    if known is None or not any(known.shares.values()):
        return None
    shares = dict(reversed(known.shares.items()))
    figure = Figure(figsize=(8, 1.6 + 0.4 * len(shares)), layout="constrained")
    axes = figure.subplots()
    axes.barh([plain(name) for name in shares], list(shares.values()), color=BLUE)
    axes.set_xlabel("share of the variance of the score")
    caution = "; too uncertain to rely on" if known.caution else ""
    axes.set_title(f"How much each setting matters, by {known.trials} ended trials{caution}")
    return figure
