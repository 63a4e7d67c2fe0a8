"""Figures of a search, written as files, after Figs. 2, 4 and 7 of HyperTrick's paper.

Laws of this file:
- No meaning rests on colour alone: marks or heights say it too. The colours are those of Okabe and
  Ito, which colour-blind readers can tell apart.
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

from genkidama.config.formatting import percent, plural, show
from genkidama.plugins.hypertrick.records import PhaseRecord, Span, StudySnapshot, TrialRecord
from genkidama.plugins.hypertrick.rule import Verdict
from genkidama.plugins.hypertrick.study import Importances, ended_study
from genkidama.runs.figure_style import BLUE, GREEN, GREY, INK, ORANGE, RED, SKY, plain, write_all


def draw(snapshot: StudySnapshot, folder: Path, shares: Importances | None) -> list[Path]:
    """Writes the figures into `folder`, each as PNG and SVG, over those of an earlier report."""
    makers: dict[str, Callable[[], Figure | None]] = {
        "timeline": lambda: timeline(snapshot),
        "learning_curves": lambda: learning_curves(snapshot),
        "settings": lambda: settings(snapshot),
        "best_score": lambda: best_score(snapshot),
        "importances": lambda: importances(shares),
    }
    return write_all(makers, folder)


# The axes of scores and of phases.


def scores(snapshot: StudySnapshot) -> list[float]:
    """All scores that were reported, without NaN."""
    reported = (phase.score for trial in snapshot.trials for phase in trial.phases)
    return [score for score in reported if not math.isnan(score)]


def floor(values: Sequence[float]) -> float:
    """The bottom of the axis: five interquartile ranges below the middle half of the scores. A
    lower score would hide the differences between the others."""
    low, high = np.quantile(values, [0.25, 0.75])
    return float(low - 5.0 * (high - low)) if high > low else min(values)


def limit(axes: Axes, values: Sequence[float]) -> None:
    """Cuts the axis at the floor, and counts the scores below it."""
    bottom, top = floor(values), max(values)
    below = sum(value < bottom for value in values)
    if below:
        axes.set_ylim(bottom, top + 0.08 * (top - bottom))
        text = f"↓ {plural(below, 'report')} below"
        style: dict[str, Any] = {"fontsize": 8, "color": GREY, "va": "bottom"}
        axes.annotate(text, (0.005, 0.02), xycoords="axes fraction", **style)


def evenly(phases: int, most: int) -> list[int]:
    """Phases to label: at most this many, the first and the last among them."""
    return sorted({round(index * (phases - 1) / (most - 1)) for index in range(most)})


def jitter(number: int, width: float) -> float:
    """A shift between −width and width, the same for the same trial, unlike its neighbour's."""
    return width * (2.0 * (number * 0.6180339887 % 1.0) - 1.0)


# Learning curves: scores by phase with the decisions, and the curves of all trials.

_HOLLOW = {"markerfacecolor": "white"}

#: The marks of reports.
_REPORTS: dict[str, dict[str, Any]] = {
    "collection": {"color": BLUE, "marker": "o", "label": "passed early", **_HOLLOW},
    "selection": {"color": BLUE, "marker": "o", "label": "selected"},
    "stopped": {"color": RED, "marker": "x", "label": "stopped"},
    "copied": {"color": ORANGE, "marker": "s", "label": "copied another"},
    "none": {"color": GREY, "marker": "o", "label": "no decision"},
}

#: The curves of trials, by their states: line and mark at the end.
_CURVES: dict[str, dict[str, Any]] = {
    "stopped": {"color": GREY, "marker": "x", "linestyle": "-", "zorder": 2},
    "running": {"color": GREEN, "marker": ">", "linestyle": "-", "zorder": 4},
    "paused": {"color": SKY, "marker": "|", "linestyle": "-", "zorder": 4},
    "failed": {"color": RED, "marker": "+", "linestyle": (0, (3, 2)), "zorder": 5},
    "completed": {"color": BLUE, "marker": "o", "linestyle": "-", "zorder": 3},
}

#: The boxes behind the reports.
_BOX: dict[str, Any] = {
    part: {"color": GREY, "linewidth": 0.9} for part in ("boxprops", "whiskerprops", "capprops")
} | {"medianprops": {"color": INK, "linewidth": 1.6}, "manage_ticks": False, "showfliers": False}

_BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.3}


def learning_curves(snapshot: StudySnapshot) -> Figure | None:
    """Two panels above each other, with the phases from left to right."""
    reported = scores(snapshot)
    if not reported:
        return None
    record = snapshot.settings
    size = 5.0 if snapshot.phases <= 10 else 3.5
    figure = Figure(figsize=(10, 8.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.25])
    _draw_reports(upper, snapshot, size)
    _draw_trials(lower, snapshot, size)
    ticks = evenly(snapshot.phases, 12)
    length = f" of {record.length:,g} {record.unit}"
    lower.set_xlabel(f"phase{length}, and how many trials reported after it")
    lower.set_xticks(ticks, [f"{tick}\n{len(snapshot.reports_of(tick))}" for tick in ticks])
    lower.set_xlim(-0.6, snapshot.phases - 0.4)
    for axes in (upper, lower):
        axes.set_ylabel("score")
        limit(axes, reported)
        axes.grid(visible=False, axis="x")
    return figure


def _draw_reports(axes: Axes, snapshot: StudySnapshot, size: float) -> None:
    """A box a phase, and over it a mark for each report."""
    points: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _REPORTS}
    for phase in range(snapshot.phases):
        reports = [
            (trial, report)
            for trial, report in snapshot.reports_of(phase)
            if not math.isnan(report.score)
        ]
        if len(reports) > 1:
            axes.boxplot([[r.score for _, r in reports]], positions=[phase], widths=0.62, **_BOX)
        for trial, report in reports:
            points[_kind(report)].append((phase + jitter(trial.number, 0.2), report.score))
    for kind, style in _REPORTS.items():
        if points[kind]:
            x, y = zip(*points[kind], strict=True)
            axes.plot(x, y, linestyle="", markersize=size, markeredgewidth=1.3, **style)
    axes.set_title(
        "Scores by phase, and what was decided on them (boxes: the middle half and the median)"
    )
    axes.legend(**_BESIDE)


def _kind(report: PhaseRecord) -> str:
    kinds = {Verdict.STOP: "stopped", Verdict.COPY: "copied", Verdict.PAUSE: "none"}
    return kinds.get(report.verdict, report.mode.value)


def _draw_trials(axes: Axes, snapshot: StudySnapshot, size: float) -> None:
    """A curve a trial, the best above all."""
    keys = []
    for state, style in _CURVES.items():
        drawn = [trial for trial in snapshot.trials if trial.state == state and trial.phases]
        for points in filter(None, map(_points, drawn)):
            thin = {"linewidth": 1, "alpha": 0.75, "markersize": size, "markeredgewidth": 1.5}
            axes.plot(*zip(*points, strict=True), markevery=[-1], **thin | style)
        if drawn:
            label = f"{state} ({len(drawn)})"
            keys.append(Line2D([], [], markersize=5, markeredgewidth=1.5, label=label, **style))
    if snapshot.best is not None:
        thick: dict[str, Any] = {"color": ORANGE, "linewidth": 2.5, "marker": "o"}
        axes.plot(*zip(*_points(snapshot.best), strict=True), markersize=size, zorder=9, **thick)
        label = f"best: trial {snapshot.best.number} ({show(snapshot.best.score)})"
        keys.append(Line2D([], [], markersize=5, label=label, **thick))
    axes.legend(handles=keys, **_BESIDE)
    axes.set_title("Learning curves of all trials")


def _points(trial: TrialRecord) -> list[tuple[int, float]]:
    return [(phase.phase, phase.score) for phase in trial.phases if not math.isnan(phase.score)]


# The timeline of the nodes, and the share of them that was busy.

#: From a trial's first phase to its last.
_PHASES = LinearSegmentedColormap.from_list("phases", ["#DCEAF4", "#7FB4D6", "#1F6FA8", "#0B3C66"])

#: The marks of the ends of trials.
_ENDS: dict[str, dict[str, Any]] = {
    state: {"color": color, "marker": marker, "markersize": 6, "markeredgewidth": 1.6}
    for state, color, marker in (
        ("completed", GREEN, "o"),
        ("stopped", RED, "x"),
        ("failed", INK, "+"),
    )
}

#: With more nodes than this, trials have no numbers; with more than that, nodes have no names.
_MOST_NUMBERED, _MOST_NAMED = 24, 40


def timeline(snapshot: StudySnapshot) -> Figure | None:
    """A row a node: phases from left to right, darker towards the last. Below, the share that was
    busy."""
    rows, end = snapshot.timeline, snapshot.search_time
    if not rows or end <= 0:
        return None
    scale, unit = (1.0, "s") if end < 300 else (60.0, "min") if end < 10800 else (3600.0, "h")
    last = max(2, snapshot.phases) - 1
    height = min(0.42, 9.0 / len(rows)) * len(rows)
    figure = Figure(figsize=(10, 2.9 + height), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[max(1.0, height), 1.1])
    for row, spans in enumerate(rows.values()):
        upper.broken_barh(
            [(span.start / scale, (span.end - span.start) / scale) for span in spans],
            (row - 0.4, 0.8),
            facecolors=[_PHASES(span.phase / last) for span in spans],
            edgecolor="white",
            linewidth=0.6,
        )
        for span in spans:
            if span.ending:
                upper.plot(span.end / scale, row, clip_on=False, zorder=4, **_ENDS[span.ending])
        if len(rows) <= _MOST_NUMBERED:
            _write_numbers(upper, row, spans, scale, end)
    names = [plain(name) if len(rows) <= _MOST_NAMED else "" for name in rows]
    upper.set_yticks(range(len(rows)), names)
    upper.set_ylim(len(rows) - 0.4, -0.6)
    upper.grid(visible=False)
    upper.tick_params(axis="y", length=0)
    upper.spines["left"].set_visible(False)
    upper.set_title(f"What the nodes did ({len(snapshot.trials)} trials; the numbers are theirs)")
    marks: dict[str, dict[str, Any]] = {
        f"phase {phase}": {"marker": "s", "markersize": 8, "color": _PHASES(phase / last)}
        for phase in evenly(snapshot.phases, 6)
    } | _ENDS
    keys = [Line2D([], [], linestyle="", label=name, **mark) for name, mark in marks.items()]
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": len(keys)}
    figure.legend(handles=keys, handletextpad=0.2, columnspacing=1.2, **place)
    _draw_occupancy(lower, snapshot, scale)
    lower.set_xlim(0, end / scale * 1.005)
    lower.set_xlabel(f"search time ({unit})")
    return figure


def _write_numbers(axes: Axes, row: int, spans: Sequence[Span], scale: float, end: float) -> None:
    """The number of each trial at its start, if there is room."""
    bounds: dict[int, tuple[float, float]] = {}
    for span in spans:
        start, until = bounds.get(span.trial, (span.start, span.end))
        bounds[span.trial] = start, max(until, span.end)
    style: dict[str, Any] = {"fontsize": 7, "color": INK, "va": "center", "in_layout": False}
    for trial, (start, until) in bounds.items():
        if (until - start) / end > 0.032:
            axes.text((start + 0.004 * end) / scale, row - 0.18, str(trial), **style)


def _draw_occupancy(axes: Axes, snapshot: StudySnapshot, scale: float) -> None:
    times, share = busy(snapshot)
    at = [time / scale for time in times]
    axes.fill_between(at, share, step="post", color=SKY, alpha=0.35, linewidth=0)
    axes.step(at, share, where="post", color=BLUE, linewidth=1.2)
    axes.axhline(snapshot.occupancy, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_title(
        "Occupancy: the share of the nodes that run a phase; "
        f"{percent(snapshot.occupancy, 0)} on average (dashed)"
    )
    axes.set_ylim(0, 1.04)
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])


def busy(snapshot: StudySnapshot) -> tuple[list[float], list[float]]:
    """Times, and from each on the share of the nodes that have joined which run a phase."""
    joined = sorted(spans[0].start for spans in snapshot.timeline.values())
    spans = [span for row in snapshot.timeline.values() for span in row]
    starts, ends = sorted(span.start for span in spans), sorted(span.end for span in spans)
    times = sorted({0.0, *joined, *starts, *ends})
    running = np.searchsorted(starts, times, "right") - np.searchsorted(ends, times, "right")
    nodes = np.maximum(1, np.searchsorted(joined, times, "right"))
    return times, [float(share) for share in np.minimum(1.0, running / nodes)]


# Settings, the best score, importances.


def settings(snapshot: StudySnapshot) -> Figure | None:
    """The last score of each trial against each of its settings, by Optuna."""
    study = ended_study(snapshot, failed=False)
    if not study.trials:
        return None
    if "matplotlib.pyplot" not in sys.modules:
        matplotlib.use("agg")  # otherwise pyplot opens a way to the screen
    import matplotlib.pyplot as pyplot  # after the choice above, as Optuna's figures
    from optuna.visualization.matplotlib import plot_slice

    with warnings.catch_warnings():  # the functions are called experimental since Optuna 2
        warnings.simplefilter("ignore")
        drawn: Any = plot_slice(study, target_name="last score")
    panels: list[Axes] = list(np.atleast_1d(drawn))
    figure = panels[0].figure
    assert isinstance(figure, Figure)
    pyplot.close(figure)
    figure.suptitle("")
    figure.set_layout_engine(None)  # Optuna's cannot be laid out
    panels[0].set_title("Last scores of all trials against each setting", fontsize=11)
    figure.set_size_inches(max(6.4, 3.6 * len(panels)), 4.8)
    for axes in panels:
        axes.xaxis.set_minor_formatter(NullFormatter())  # they would cover each other
        limit(axes, [trial.score for trial in snapshot.ranking])
    return figure


def best_score(snapshot: StudySnapshot) -> Figure | None:
    """The scores of the completed trials, and the best so far, by trial."""
    completed = [trial for trial in snapshot.of_state("completed") if not math.isnan(trial.score)]
    if not completed:
        return None
    numbers, values = [trial.number for trial in completed], [trial.score for trial in completed]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(numbers, values, "o", color=BLUE, markersize=5, label="score")
    axes.step(numbers, np.maximum.accumulate(values), where="post", color=RED, label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel("score")
    axes.set_title("The best score so far, of the trials that completed")
    axes.legend()
    limit(axes, values)
    return figure


def importances(shares: Importances | None) -> Figure | None:
    """The importance of each setting."""
    if shares is None or not any(shares.shares.values()):
        return None
    bars = dict(reversed(shares.shares.items()))
    figure = Figure(figsize=(8, 1.6 + 0.4 * len(bars)), layout="constrained")
    axes = figure.subplots()
    axes.barh([plain(name) for name in bars], list(bars.values()), color=BLUE)
    axes.set_xlabel("share of the variance of the score")
    caution = "; too uncertain to rely on" if shares.caution else ""
    axes.set_title(f"How much each setting matters, by {shares.trials} ended trials{caution}")
    return figure
