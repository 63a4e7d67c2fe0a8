"""The timeline: what each node ran when, and the share of the nodes that were busy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from genkidama.figures.style import BLUE, GREEN, INK, RED, SKY, evenly, key, plain
from genkidama.tuning.findings import Findings, Span
from genkidama.tuning.wording import percent

__all__ = ["busy", "timeline"]

#: From a trial's first phase to its last.
_PHASES = LinearSegmentedColormap.from_list("phases", ["#DCEAF4", "#7FB4D6", "#1F6FA8", "#0B3C66"])

#: Colour and mark of a trial's end.
_ENDINGS = {"completed": (GREEN, "o"), "stopped": (RED, "x"), "failed": (INK, "+")}

#: With more nodes than this, trials have no numbers; with more than that, nodes have no names.
_MOST_NUMBERED, _MOST_NAMED = 24, 40


def timeline(findings: Findings) -> Figure | None:
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
        for label, (colour, marker) in _ENDINGS.items()
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
            colour, marker = _ENDINGS[span.ending]
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


def _occupancy(axes: Axes, findings: Findings, scale: float) -> None:
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


def busy(findings: Findings) -> tuple[list[float], list[float]]:
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
