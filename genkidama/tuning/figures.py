"""A search's findings as figures, PNG and SVG, after Figs. 2 and 4 to 7 of HyperTrick's paper.

    timeline          what each node ran when, and how many of them were busy (Figs. 2 and 6)
    learning_curves   scores by phase and what was decided on them; the curves of all trials (Fig. 4)
    settings          score against each searched setting (Fig. 7)
    active_trials     who is still running in the space of the settings, phase by phase (Fig. 5)
    best_score        the best score over search time (Fig. 6)
    importances       how much each setting matters

Laws of this file:
- Nothing is told by colour alone: what colours say, marks or heights say too. The colours are those of Okabe and Ito, which
  colour-blind readers can tell apart.
- A figure for which there is nothing to draw is left out.
- No state outside the figures: pyplot is not used and no setting of Matplotlib is left changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.hypertrick.space import Dimension
from genkidama.tuning.findings import Findings, Phase, Trial
from genkidama.tuning.importance import Importances, importances
from genkidama.tuning.report import percent, short_names, show

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
except ImportError:
    raise ConfigurationError("figures need Matplotlib: pip install 'genkidama[search]'") from None

__all__ = ["draw"]

BLUE, SKY, GREEN, ORANGE, RED = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"
INK, GREY, PALE = "#262626", "#8C8C8C", "#D9D9D9"

#: From a trial's first phase to its last.
_PHASES = LinearSegmentedColormap.from_list("phases", ["#DCEAF4", "#7FB4D6", "#1F6FA8", "#0B3C66"])
#: From a low score to a high one.
_SCORES = LinearSegmentedColormap.from_list("scores", ["#F2E2B8", "#E69F00", "#B0413E", "#3B1C4A"])

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlepad": 8,
    "figure.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": "#ECECEC",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "genkidama",
    "text.color": INK,
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 9,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 9,
}

#: Panels of the settings' space, and settings that get one.
_MOST_PANELS, _MOST_SETTINGS = 6, 12


def draw(findings: Findings, folder: Path, known: Importances | None = None) -> list[Path]:
    """Writes the figures into `folder`, which is made if needed, each as PNG and SVG.

    Args:
        findings: of the search.
        folder: where to; files of an earlier report are replaced.
        known: the importances, if they are computed already.

    Returns:
        The files that were written.

    Raises:
        EnvironmentFailure: they cannot be written.
    """
    if known is None:
        known = importances(findings)
    makers: dict[str, Callable[[], Figure | None]] = {
        "timeline": lambda: _timeline(findings),
        "learning_curves": lambda: _learning_curves(findings),
        "settings": lambda: _settings(findings),
        "active_trials": lambda: _active_trials(findings, known),
        "best_score": lambda: _best_score(findings),
        "importances": lambda: _importances(known),
    }
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(_STYLE):
            for name, make in makers.items():
                figure = make()
                if figure is None:
                    continue
                figure.draw_without_rendering()
                figure.set_layout_engine("none")  # is laid out: once, for both files
                for path, metadata in (
                    (folder / f"{name}.png", {}),
                    (folder / f"{name}.svg", {"Date": None}),
                ):
                    figure.savefig(path, dpi=150, metadata=metadata)
                    paths.append(path)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot write figures into {folder}: {error.strerror or error}; give another folder"
        ) from None
    return paths


def _timeline(findings: Findings) -> Figure | None:
    timeline, end = findings.timeline, findings.search_time
    if not timeline or end <= 0:
        return None
    scale, unit = _unit(end)
    phases = max(2, findings.settings.phases)
    height = min(0.42, 9.0 / len(timeline)) * len(timeline)
    figure = Figure(figsize=(10, 2.9 + height), layout="constrained")
    nodes, busy = figure.subplots(2, 1, sharex=True, height_ratios=[max(1.0, height), 1.1])
    for row, spans in enumerate(timeline.values()):
        nodes.broken_barh(
            [(span.start / scale, (span.end - span.start) / scale) for span in spans],
            (row - 0.4, 0.8),
            facecolors=[_PHASES(span.phase / (phases - 1)) for span in spans],
            edgecolor="white",
            linewidth=0.6,
        )
        for span in spans:
            if span.ending:
                colour, marker, _ = _ENDINGS[span.ending]
                nodes.plot(
                    span.end / scale,
                    row,
                    marker,
                    color=colour,
                    markersize=6,
                    markeredgewidth=1.6,
                    clip_on=False,
                    zorder=4,
                )
        first: dict[int, float] = {}
        for span in spans:
            first.setdefault(span.trial, span.start)
        if len(timeline) <= 24:
            for trial, start in first.items():
                until = max(span.end for span in spans if span.trial == trial)
                if (until - start) / end > 0.032:
                    nodes.text(
                        start / scale + 0.004 * end / scale,
                        row - 0.18,
                        str(trial),
                        fontsize=7,
                        color=INK,
                        va="center",
                        in_layout=False,
                    )
    nodes.set_yticks(
        range(len(timeline)),
        [_plain(name) for name in timeline] if len(timeline) <= 40 else [""] * len(timeline),
    )
    nodes.set_ylim(len(timeline) - 0.4, -0.6)
    nodes.grid(visible=False)
    nodes.tick_params(axis="y", length=0)
    nodes.spines["left"].set_visible(False)
    nodes.set_title(f"What the nodes did ({len(findings.trials)} trials; the numbers are theirs)")
    shown = _evenly(findings.settings.phases, 6)
    keys = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="s",
            markersize=8,
            color=_PHASES(p / (phases - 1)),
            label=f"phase {p}",
        )
        for p in shown
    ]
    keys += [
        Line2D(
            [],
            [],
            linestyle="",
            marker=marker,
            color=colour,
            markersize=6,
            markeredgewidth=1.6,
            label=label,
        )
        for colour, marker, label in _ENDINGS.values()
    ]
    figure.legend(
        handles=keys,
        loc="outside lower center",
        ncols=len(keys),
        handletextpad=0.2,
        columnspacing=1.2,
    )

    times, share = _busy(findings)
    busy.fill_between(
        [time / scale for time in times], share, step="post", color=SKY, alpha=0.35, linewidth=0
    )
    busy.step([time / scale for time in times], share, where="post", color=BLUE, linewidth=1.2)
    busy.axhline(findings.occupancy, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    busy.set_title(
        f"Occupancy: the share of the nodes that run a phase; {percent(findings.occupancy, 0)} on average (dashed)"
    )
    busy.set_ylim(0, 1.04)
    busy.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    busy.set_xlim(0, end / scale * 1.005)
    busy.set_xlabel(f"search time ({unit})")
    return figure


_ENDINGS = {
    "complete": (GREEN, "o", "complete"),
    "stopped": (RED, "x", "stopped"),
    "failed": (INK, "+", "failed"),
}


def _busy(findings: Findings) -> tuple[list[float], list[float]]:
    """Times, and from each on the share of the nodes that have joined which run a phase."""
    joined = sorted(spans[0].start for spans in findings.timeline.values())
    all_spans = [span for spans in findings.timeline.values() for span in spans]
    times = sorted({0.0, *joined, *(time for span in all_spans for time in (span.start, span.end))})
    starts, ends = sorted(span.start for span in all_spans), sorted(span.end for span in all_spans)
    running = np.searchsorted(starts, times, "right") - np.searchsorted(ends, times, "right")
    there = np.maximum(1, np.searchsorted(joined, times, "right"))
    return times, [float(share) for share in np.minimum(1.0, running / there)]


def _learning_curves(findings: Findings) -> Figure | None:
    if not findings.improvements:
        return None
    phases = findings.settings.phases
    figure = Figure(figsize=(10, 8.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.25])
    ticks = _evenly(phases, 12)
    size = 5.0 if phases <= 10 else 3.5

    counts = []
    decided: dict[str, list[tuple[float, float]]] = {kind: [] for kind in _DECISIONS}
    for phase in range(phases):
        everything = findings.reports_of(phase)
        counts.append(len(everything))
        reports = [(trial, report) for trial, report in everything if not math.isnan(report.score)]
        scores = [report.score for _, report in reports]
        if len(scores) > 1:
            upper.boxplot(
                [scores],
                positions=[phase],
                widths=0.62,
                manage_ticks=False,
                showfliers=False,
                boxprops={"color": GREY, "linewidth": 0.9},
                whiskerprops={"color": GREY, "linewidth": 0.9},
                capprops={"color": GREY, "linewidth": 0.9},
                medianprops={"color": INK, "linewidth": 1.6},
            )
        for trial, report in reports:
            decided[_decision(report)].append((phase + _jitter(trial.number, 0.2), report.score))
    decided = {kind: points for kind, points in decided.items() if points}
    for kind, points in decided.items():
        colour, marker, filled, label = _DECISIONS[kind]
        upper.plot(
            *zip(*points, strict=True),
            marker,
            linestyle="",
            markersize=size,
            color=colour,
            markerfacecolor=colour if filled else "white",
            markeredgewidth=1.3,
            label=label,
        )
    upper.set_title(
        "Scores by phase, and what was decided on them (boxes: the middle half and the median)"
    )
    upper.set_ylabel("score")
    upper.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.3)

    best = findings.best
    for trial in sorted(findings.trials, key=lambda trial: _CURVES[trial.state][3]):
        points = [
            (report.phase, report.score) for report in trial.phases if not math.isnan(report.score)
        ]
        if points:
            colour, marker, style, order, _ = _CURVES[trial.state]
            lower.plot(
                *zip(*points, strict=True),
                color=colour,
                linestyle=style,
                linewidth=1,
                alpha=0.75,
                zorder=order,
            )
            lower.plot(
                *points[-1],
                marker,
                color=colour,
                markersize=size,
                markeredgewidth=1.5,
                zorder=order + 0.5,
            )
    if best is not None:
        points = [
            (report.phase, report.score) for report in best.phases if not math.isnan(report.score)
        ]
        lower.plot(
            *zip(*points, strict=True),
            color=ORANGE,
            linewidth=2.5,
            marker="o",
            markersize=size,
            zorder=9,
        )
    keys = [
        Line2D(
            [],
            [],
            color=colour,
            linestyle=style,
            marker=marker,
            markersize=5,
            markeredgewidth=1.5,
            label=f"{label} ({len(found)})",
        )
        for state, (colour, marker, style, _, label) in _CURVES.items()
        if (found := [trial for trial in findings.trials if trial.state == state and trial.phases])
    ]
    if best is not None:
        keys.append(
            Line2D(
                [],
                [],
                color=ORANGE,
                linewidth=2.5,
                marker="o",
                markersize=5,
                label=f"best: trial {best.number} ({show(best.score)})",
            )
        )
    lower.legend(handles=keys, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.3)
    lower.set_title("Learning curves of all trials")
    lower.set_ylabel("score")
    lower.set_xlabel(f"phase{_length(findings)}, and how many trials reported after it")
    lower.set_xticks(ticks, [f"{tick}\n{counts[tick]}" for tick in ticks])
    lower.set_xlim(-0.6, phases - 0.4)
    for axes in (upper, lower):
        _limit(axes, _scores(findings))
        axes.grid(visible=False, axis="x")
    return figure


#: How a report is marked: colour, mark, whether it is filled, and its name.
_DECISIONS = {
    "collection": (BLUE, "o", False, "passed early"),
    "selection": (BLUE, "o", True, "selected"),
    "stopped": (RED, "x", True, "stopped"),
    "none": (GREY, "o", True, "no decision"),
}


def _decision(report: Phase) -> str:
    return "stopped" if report.verdict == "stop" else report.mode


#: How a curve is drawn: colour, mark at its end, line, its place above others, and its name.
_CURVES: dict[str, tuple[str, str, Any, int, str]] = {
    "stopped": (GREY, "x", "-", 2, "stopped"),
    "running": (GREEN, ">", "-", 4, "running"),
    "waiting": (GREEN, ">", "-", 4, "waiting"),
    "failed": (RED, "+", (0, (3, 2)), 5, "failed"),
    "complete": (BLUE, "o", "-", 3, "complete"),
}


def _settings(findings: Findings) -> Figure | None:
    if not findings.improvements:
        return None
    keys = list(findings.space)[:_MOST_SETTINGS]
    columns = min(3 if len(keys) != 4 else 2, len(keys))
    rows = math.ceil(len(keys) / columns)
    figure = Figure(figsize=(max(6.0, 3.9 * columns), 0.7 + 3.3 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    best = findings.best
    hollow: dict[str, Any] = {
        "color": RED,
        "markerfacecolor": "white",
        "markersize": 5,
        "zorder": 3,
    }
    full: dict[str, Any] = {"color": RED, "markersize": 8, "zorder": 4}
    failed: dict[str, Any] = {"color": INK, "markersize": 7, "zorder": 3}
    for axes, key in zip(grid.flat, keys, strict=False):
        dimension = findings.space[key]
        curves = [
            (place, trial, found)
            for trial in findings.trials
            if (found := _reported(trial)) and (place := _place(dimension, key, trial)) is not None
        ]
        axes.vlines(
            [at for at, _, _ in curves],
            [min(y) for _, _, y in curves],
            [max(y) for _, _, y in curves],
            color=SKY,
            linewidth=1,
            zorder=2,
        )
        last = [(at, trial.score) for at, trial, _ in curves if not math.isnan(trial.score)]
        lost = [(at, found[-1]) for at, trial, found in curves if math.isnan(trial.score)]
        top = [(at, trial.score) for at, trial, _ in curves if trial is best]
        for points, marker, style in ((last, "o", hollow), (lost, "+", failed), (top, "o", full)):
            if points:
                axes.plot(*zip(*points, strict=True), marker, linestyle="", **style)
        _axis(axes, "x", dimension)
        axes.set_xlabel(_plain(key))
        _limit(axes, _scores(findings))
    for row in grid:
        row[0].set_ylabel("score")
    for axes in list(grid.flat)[len(keys) :]:
        axes.set_visible(False)
    marks = [
        Line2D([], [], linestyle="", marker="o", label="last score of a trial", **hollow),
        Line2D([], [], linestyle="", marker="o", label="best trial", **full),
        Line2D([], [], color=SKY, linewidth=1, label="scores on the way"),
    ]
    if any(trial.state == "failed" for trial in findings.trials):
        marks.append(
            Line2D(
                [], [], linestyle="", marker="+", label="failed: the last score before", **failed
            )
        )
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks))
    figure.suptitle("Score against each setting", x=0.01, ha="left", fontsize=11)
    return figure


def _active_trials(findings: Findings, known: Importances | None) -> Figure | None:
    reported = (
        max((phase.phase for trial in findings.trials for phase in trial.phases), default=-1) + 1
    )
    if not findings.improvements or reported < 1:
        return None
    ranked = (
        list(known.shares)
        if known is not None and any(known.shares.values())
        else list(findings.space)
    )
    keys = ranked[:3]
    names = {key: _plain(name) for key, name in short_names(findings.space).items()}
    phases = _evenly(reported, _MOST_PANELS)
    columns = min(3, len(phases))
    rows = math.ceil(len(phases) / columns)
    figure = Figure(figsize=(max(5.0, 1.2 + 3.5 * columns), 1.1 + 3.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    scores = _scores(findings)
    low, high = max(min(scores), _floor(scores)), max(scores)
    across, up = keys[0], keys[1] if len(keys) > 1 else None
    points = None
    for axes, phase in zip(grid.flat, phases, strict=False):
        there = [
            (
                x,
                y,
                _size(findings.space[keys[2]], trial.params.get(keys[2]))
                if len(keys) > 2
                else 55.0,
                report,
            )
            for trial, report in findings.reports_of(phase)
            if (x := _place(findings.space[across], across, trial)) is not None
            and (y := report.score if up is None else _place(findings.space[up], up, trial))
            is not None
        ]
        for stays in (False, True):
            chosen = [
                item
                for item in there
                if (item[3].verdict == "continue") == stays and not math.isnan(item[3].score)
            ]
            if chosen:
                points = axes.scatter(
                    [item[0] for item in chosen],
                    [item[1] for item in chosen],
                    s=[item[2] for item in chosen],
                    c=[item[3].score for item in chosen],
                    marker="^" if stays else "v",
                    cmap=_SCORES,
                    vmin=low,
                    vmax=high if high > low else low + 1.0,
                    edgecolors=INK if stays else RED,
                    linewidths=0.6 if stays else 1.4,
                    zorder=3 + stays,
                )
        failed = [item for item in there if math.isnan(item[3].score)]
        axes.plot(
            [item[0] for item in failed], [item[1] for item in failed], "+", color=INK, markersize=8
        )
        _axis(axes, "x", findings.space[across])
        if up is not None:
            _axis(axes, "y", findings.space[up])
        axes.set_title(f"phase {phase}: {len(there)} {'trial' if len(there) == 1 else 'trials'}")
    for axes in list(grid.flat)[len(phases) :]:
        axes.set_visible(False)
    for index, axes in enumerate(list(grid.flat)[: len(phases)]):
        if index + columns >= len(phases):
            axes.set_xlabel(names[across])
            axes.tick_params(axis="x", labelbottom=True)
        if index % columns == 0:
            axes.set_ylabel("score" if up is None else names[up])
    if points is not None:
        bar = figure.colorbar(
            points,
            ax=grid,
            label="score after the phase",
            shrink=0.8,
            aspect=30,
            extend="min" if low > min(scores) else "neither",
        )
        bar.outline.set_visible(False)
    marks = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="^",
            color="white",
            markeredgecolor=INK,
            markersize=8,
            label="goes on",
        ),
        Line2D(
            [],
            [],
            linestyle="",
            marker="v",
            color="white",
            markeredgecolor=RED,
            markeredgewidth=1.4,
            markersize=8,
            label="stopped after it",
        ),
        Line2D([], [], linestyle="", marker="+", color=INK, markersize=8, label="failed"),
    ]
    sized = f"size: {names[keys[2]]}" if len(keys) > 2 else ""
    figure.legend(handles=marks, loc="outside lower center", ncols=3, title=sized or None)
    figure.suptitle("Active trials in the space of the settings", x=0.01, ha="left", fontsize=11)
    return figure


def _best_score(findings: Findings) -> Figure | None:
    steps, end = findings.improvements, findings.search_time
    if not steps or end <= 0:
        return None
    scale, unit = _unit(end)
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots()
    reports = [phase for trial in findings.trials for phase in trial.phases]
    axes.plot(
        [report.end / scale for report in reports],
        [report.score for report in reports],
        "o",
        color=PALE,
        markersize=4,
        label="every report",
    )
    times = [step.time / scale for step in steps]
    axes.step(
        [*times, end / scale],
        [*(step.score for step in steps), steps[-1].score],
        where="post",
        color=BLUE,
        linewidth=2,
        label="best so far",
    )
    axes.plot(times, [step.score for step in steps], "o", color=BLUE, markersize=5)
    axes.annotate(
        f"{show(steps[-1].score)} (trial {steps[-1].trial})",
        (times[-1], steps[-1].score),
        (0, 8),
        textcoords="offset points",
        ha="right" if times[-1] > 0.15 * end / scale else "left",
        weight="bold",
    )
    axes.margins(y=0.12)
    _limit(axes, _scores(findings))
    axes.set_xlim(0, end / scale * 1.01)
    axes.set_xlabel(f"search time ({unit})")
    axes.set_ylabel("score")
    axes.set_title("The best score over time")
    axes.legend(loc="lower right")
    return figure


def _importances(known: Importances | None) -> Figure | None:
    if known is None or not any(known.shares.values()):
        return None
    keys = list(known.shares)[:_MOST_SETTINGS]
    figure = Figure(figsize=(8, 1.7 + 0.42 * len(keys)), layout="constrained")
    axes = figure.subplots()
    axes.barh(
        range(len(keys)),
        [known.shares[key] for key in keys],
        height=0.6,
        color=BLUE,
        label=f"forest over all {known.trials} ended trials",
    )
    if known.optuna:
        found = [(known.optuna[key], row) for row, key in enumerate(keys) if key in known.optuna]
        axes.plot(
            *zip(*found, strict=True),
            "D",
            color=ORANGE,
            markeredgecolor=INK,
            markeredgewidth=0.8,
            linestyle="",
            clip_on=False,
            zorder=3,
            label="Optuna's, completed trials only",
        )
    for row, key in enumerate(keys):
        axes.annotate(
            percent(known.shares[key], 0),
            (max(known.shares[key], known.optuna.get(key, 0.0)), row),
            (9, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_yticks(range(len(keys)), [_plain(key) for key in keys])
    axes.set_ylim(len(keys) - 0.4, -0.6)
    axes.set_xlim(0, 1.08)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    caution = "" if not known.caution else "; too uncertain to rely on"
    axes.set_title(f"How much each setting matters (cross-validated R² = {known.r2:.2f}{caution})")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


# What several figures need.


def _scores(findings: Findings) -> list[float]:
    return [score for trial in findings.trials for score in _reported(trial)]


def _floor(scores: Sequence[float]) -> float:
    """Below this a score is so much lower than most that to show it would hide them: five interquartile ranges below the middle half."""
    low, high = np.quantile(scores, [0.25, 0.75])
    return float(low - 5.0 * (high - low)) if high > low else min(scores)


def _limit(axes: Axes, scores: Sequence[float]) -> None:
    """Leaves scores below the floor out of sight, and says so: one that diverged would hide the rest."""
    floor, top = _floor(scores), max(scores)
    below = sum(score < floor for score in scores)
    if below:
        axes.set_ylim(floor, top + 0.08 * (top - floor))
        note = f"↓ {below} {'report' if below == 1 else 'reports'} below"
        axes.annotate(
            note, (0.005, 0.02), xycoords="axes fraction", fontsize=8, color=GREY, va="bottom"
        )


def _reported(trial: Trial) -> list[float]:
    """The trial's scores after each phase, without NaN."""
    return [phase.score for phase in trial.phases if not math.isnan(phase.score)]


def _place(dimension: Dimension, key: str, trial: Trial) -> float | None:
    """Where a trial stands on a setting's axis: its value, or its choice's place, a little aside so that trials do not cover each other."""
    label = trial.params.get(key)
    if dimension.choices is None:
        return None if label is None else float(label)
    return (
        dimension.labels.index(label) + _jitter(trial.number, 0.22)
        if label in dimension.labels
        else None
    )


def _evenly(phases: int, most: int) -> list[int]:
    """At most so many of the phases, the first and the last among them."""
    return sorted({round(index * (phases - 1) / (most - 1)) for index in range(most)})


def _jitter(number: int, width: float) -> float:
    """Between −width and width; neighbours far apart, the same for the same trial."""
    return width * (2.0 * (number * 0.6180339887 % 1.0) - 1.0)


def _size(dimension: Dimension, label: Any) -> float:
    """The area of a mark, larger for larger values."""
    if dimension.choices is not None:
        share = (
            dimension.labels.index(label) / max(1, len(dimension.choices) - 1)
            if label in dimension.labels
            else 0.0
        )
    elif label is None or dimension.low is None or dimension.high is None:
        share = 0.0
    elif dimension.log:
        share = math.log(label / dimension.low) / math.log(dimension.high / dimension.low)
    else:
        share = (label - dimension.low) / (dimension.high - dimension.low)
    return 25.0 + 130.0 * share


def _axis(axes: Axes, which: str, dimension: Dimension) -> None:
    """An axis for a setting: logarithmic where its space is, and a place for each choice."""
    if dimension.choices is not None:
        labels = [_plain(_clipped(show(label))) for label in dimension.labels]
        turned = which == "x" and sum(map(len, labels)) > 26
        axes.set(**{f"{which}ticks": range(len(labels)), f"{which}lim": (-0.6, len(labels) - 0.4)})
        axes.set(**{f"{which}ticklabels": labels})
        if turned:
            for tick in axes.get_xticklabels():
                tick.set(rotation=30, ha="right", rotation_mode="anchor")
    elif dimension.log:
        axes.set(**{f"{which}scale": "log"})
        if (
            dimension.low and dimension.high and dimension.high / dimension.low <= 100
        ):  # too few powers of ten to read by
            axis = axes.xaxis if which == "x" else axes.yaxis
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
            axis.set_minor_formatter(NullFormatter())
    elif dimension.whole:
        (axes.xaxis if which == "x" else axes.yaxis).set_major_locator(MaxNLocator(5, integer=True))


def _unit(end: float) -> tuple[float, str]:
    """What to divide seconds by, and what that is then."""
    return (1.0, "s") if end < 300 else (60.0, "min") if end < 3 * 3600 else (3600.0, "h")


def _length(findings: Findings) -> str:
    settings = findings.settings
    return f" of {settings.phase_length:,g} {settings.phase_unit}" if settings.phase_length else ""


def _clipped(text: str) -> str:
    return text if len(text) <= 18 else f"{text[:17]}…"


def _plain(text: str) -> str:
    """Text that Matplotlib does not take for a formula."""
    return text.replace("$", r"\$")
