"""The learning curves: scores by phase with the decisions, and the curves of all trials."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from genkidama.figures.style import BLUE, GREEN, GREY, INK, ORANGE, RED, evenly, jitter
from genkidama.hypertrick.rule import Verdict
from genkidama.tuning.figures.scale import limit, scores
from genkidama.tuning.findings import Findings
from genkidama.tuning.records import PhaseRecord, TrialRecord
from genkidama.tuning.wording import show

__all__ = ["learning_curves"]

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


def learning_curves(findings: Findings) -> Figure | None:
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


def _decisions(axes: Axes, findings: Findings, size: float) -> None:
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


def _trials(axes: Axes, findings: Findings, size: float) -> None:
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


def _length(findings: Findings) -> str:
    settings = findings.settings
    return f" of {settings.phase_length:,g} {settings.phase_unit}" if settings.phase_length else ""
