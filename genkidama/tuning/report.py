"""What one wants to know after a search, as a text for the terminal; `figures.py` draws it.

    report(url, name, folder, directory)   all of it: what `genkidama report RUN` prints
    text(findings)                         the text alone
    summary_line(findings)                 one line, for logs while a search runs

Laws of this file:
- Phases count from 0, as in the search file, the study and optuna-dashboard.
- A report never fails because a search has found little: every part says what is missing.
- Every abbreviation and mark is explained where it is used.
"""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from genkidama.system.run import trial_folder
from genkidama.tuning.findings import Findings, Settings, Span, open_study, order_bias, read
from genkidama.tuning.importance import Importances, importances

__all__ = [
    "Findings",
    "clock",
    "percent",
    "read",
    "report",
    "short_names",
    "show",
    "summary_line",
    "text",
]

_WIDTH = 100

#: Columns of the text timeline, and how many nodes and improvements are listed at most.
_COLUMNS, _MOST_NODES, _MOST_STEPS = 72, 24, 10

#: A phase's sign in the text timeline; from the 37th on it is "+".
_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"

_ENDINGS = {"complete": "●", "stopped": "×", "failed": "!"}


def report(url: str, name: str, folder: Path | None, directory: str) -> str:
    """The report on the study `name` in the storage `url`.

    Args:
        url: for example `sqlite:///runs/search/study.db`.
        name: of the study.
        folder: where figures are written to, as PNG and SVG; none are drawn if absent.
        directory: the search's run directory, for the commands that go on with the best trial.

    Raises:
        ConfigurationError: no such study, one that is not from a search, or a package that is missing.
        EnvironmentFailure: the storage cannot be read, or the figures cannot be written.
    """
    study = open_study(url, name)
    findings = read(study)
    known = importances(findings, study=study)
    parts = [text(findings, directory, known)]
    if folder is not None:
        from genkidama.tuning.figures import draw

        paths = draw(findings, folder, known)
        parts.append(
            _section(
                "Figures",
                [
                    f"{len(paths)} files in {folder}: {', '.join(sorted({path.stem for path in paths}))}"
                ],
            )
        )
    return "\n\n".join(parts) + "\n"


def summary_line(findings: Findings) -> str:
    """How a search stands, in one line."""
    counts = {state: len(findings.of_state(state)) for state in ("complete", "stopped", "failed")}
    done, running = sum(counts.values()), len(findings.of_state("running"))
    left = max(0, findings.settings.workers - done - running)
    best = findings.best
    return " · ".join(
        [
            f"{findings.name}: {done} of {findings.settings.workers} trials done ({_counted(counts)})",
            f"{running} running",
            f"{left} left",
            f"best {show(best.score)} (trial {best.number})"
            if best is not None
            else "no score yet",
            f"completion rate {percent(findings.completion_rate)}",
        ]
    )


def text(findings: Findings, directory: str = "RUN", known: Importances | None = None) -> str:
    """All that a search has found, in one to two screens of plain text.

    Args:
        findings: of the search.
        directory: its run directory, for the commands that go on with the best trial.
        known: the importances, if they are computed already.
    """
    parts = [_overview(findings)]
    if not findings.ranking:
        parts.append("No trial has reported a score yet, so there is nothing to compare.")
    else:
        parts += [_best(findings, directory), _top(findings), _over_time(findings)]
    if findings.timeline:
        parts.append(_timeline(findings))
    if findings.ranking:
        parts.append(_importances(known if known is not None else importances(findings)))
    if findings.timeline:
        parts += [_phases(findings), _order_bias(findings)]
    return "\n\n".join(parts)


# How numbers are written, here and in the figures.


def show(value: Any) -> str:
    """A number for people: `8,521`, `231.4`, `0.00033`; a dash for NaN. Other values as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def clock(seconds: float) -> str:
    """`42.5 s`, `12:05` (minutes) or `3:07:00`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, "─" * len(title), *lines])


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, _WIDTH)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Columns as wide as their widest entry, numbers to the right; the first `left` columns and no others to the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


# The parts of the text.


def _overview(findings: Findings) -> str:
    settings = findings.settings
    states = {
        "complete": "complete",
        "stopped": "stopped",
        "failed": "failed",
        "running": "running",
    }
    counts = {word: len(findings.of_state(state)) for state, word in states.items()}  # type: ignore[arg-type]
    nodes = findings.timeline
    lines = [
        f"Trials      {sum(counts.values())} of {settings.workers} started: {_counted(counts)}",
        f"Search time {clock(findings.search_time)} on {_plural(len(nodes), 'node')}",
    ]
    if nodes:
        lines.append(
            f"Occupancy   {percent(findings.occupancy)} of the nodes' time, of each from its first phase to the newest report"
        )
    lines.append(
        f"Completion  {percent(findings.completion_rate)} of the phases that the ended trials would have run if nobody had been stopped"
    )
    if settings.method == "hypertrick":
        expected, least = (
            percent(findings.expected_completion_rate),
            percent(findings.minimum_completion_rate),
        )
        lines.append(
            f"            expected {expected}, minimum {least} (eqs. 9 and 8 of HyperTrick's paper)"
        )
    title = f"{findings.name}: {_method(settings)}, {_plural(settings.workers, 'trial')} of at most {_plural(settings.phases, 'phase')}"
    if settings.phase_length:
        title += f" of {settings.phase_length:,g} {settings.phase_unit}"
    return _section(title, lines)


def _method(settings: Settings) -> str:
    if settings.method == "random":
        return "random search"
    cohorts = f" in cohorts of {settings.cohort}" if settings.cohort is not None else ""
    return f"HyperTrick (eviction rate {settings.eviction_rate:.4g}){cohorts}"


def _best(findings: Findings, directory: str) -> str:
    best, phases = findings.best, findings.settings.phases
    assert best is not None
    if best.state == "complete":
        lines = [
            f"Trial {best.number} ran all {_plural(phases, 'phase')} and scored {show(best.score)} in the last one."
        ]
    else:
        lines = [
            f"No trial has run all {_plural(phases, 'phase')} yet.",
            f"Trial {best.number} ({best.state}) has the best score so far, {show(best.score)}.",
        ]
    lines += [
        "",
        *(f"    {key} = {_toml(findings.value(key, label))}" for key, label in best.params.items()),
        "",
    ]
    ahead = findings.ranking[0]
    if ahead.score > best.score:
        lines += [
            *_wrapped(
                f"Trial {ahead.number} ({ahead.state}) scored more, {show(ahead.score)}, and has not run all phases."
            ),
            "",
        ]
    folder = str(PurePath(directory) / trial_folder(best.number))
    lines.append(
        f"Checkpoint  {PurePath(directory) / best.checkpoint if best.checkpoint else 'none was written'}"
    )
    lines.append(f"Evaluate    genkidama evaluate {shlex.quote(folder)}")
    lines.append(f"Train on    genkidama train --resume {shlex.quote(folder)}")
    return _section("The best configuration", lines)


def _toml(value: Any) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _top(findings: Findings) -> str:
    names = short_names(findings.space)
    head = ["trial", "state", "score", "phases", *names.values()]
    rows = [
        [
            str(trial.number),
            trial.state,
            show(trial.score),
            str(trial.phases_done),
            *(show(trial.params.get(key, "–")) for key in names),
        ]
        for trial in findings.ranking[:5]
    ]
    return _section("The top five trials, by their last score", _table(head, rows, left=2))


def _over_time(findings: Findings) -> str:
    steps = findings.improvements
    listed = steps
    if len(steps) > _MOST_STEPS:
        listed = [
            steps[round(index * (len(steps) - 1) / (_MOST_STEPS - 1))]
            for index in range(_MOST_STEPS)
        ]
    rows = [
        [clock(step.time), show(step.score), str(step.trial), str(step.phase)] for step in listed
    ]
    lines = _table(["time", "score", "trial", "phase"], rows)
    if len(listed) < len(steps):
        lines.append(f"{len(listed)} of {len(steps)} improvements.")
    last = steps[-1].time
    if findings.search_time > 0:
        lines.append(
            f"The best score of all was reported after {clock(last)}, {percent(last / findings.search_time)} of the search time."
        )
    return _section("The best score over time", lines)


def _timeline(findings: Findings) -> str:
    timeline, end = findings.timeline, findings.search_time
    width = min(16, max(map(len, timeline)))
    lines = []
    for node, spans in list(timeline.items())[:_MOST_NODES]:
        lines.append(
            f"{node[:width]:<{width}} {gantt(spans, end, _COLUMNS)} {sum(bool(span.ending) for span in spans):>3} ended"
        )
    if len(timeline) > _MOST_NODES:
        lines.append(f"… and {len(timeline) - _MOST_NODES} more nodes")
    last = clock(end)
    lines.append(f"{'':<{width}} 0{last:>{_COLUMNS - 1}}")
    letters = " (a for 10, b for 11, …)" if findings.settings.phases > 10 else ""
    lines += _wrapped(
        f"A digit is the phase that the node's trial runs{letters}. ● complete, × stopped, ! failed, · idle or not yet reported."
    )
    return _section("What the nodes did", lines)


def gantt(spans: Sequence[Span], end: float, columns: int) -> str:
    """A node's timeline from 0 to `end` seconds in so many characters: the phase under way at each column's middle."""
    line = ["·"] * columns
    scale = columns / end if end > 0 else 0.0
    for span in spans:
        sign = _SIGNS[span.phase] if span.phase < len(_SIGNS) else "+"
        for column in range(
            max(0, math.ceil(span.start * scale - 0.5)),
            min(columns, math.ceil(span.end * scale - 0.5)),
        ):
            line[column] = sign
    for span in spans:
        if span.ending:
            line[min(columns - 1, max(0, math.ceil(span.end * scale - 0.5) - 1))] = _ENDINGS[
                span.ending
            ]
    return "".join(line)


def _importances(found: Importances | None) -> str:
    title = "Which settings matter"
    if found is None:
        return _section(title, ["Too few trials have ended to tell."])
    rows = [
        [
            key,
            "█" * round(20 * share) + "░" * (20 - round(20 * share)),
            f"{share:.0%}",
            f"{found.optuna[key]:.0%}" if key in found.optuna else "–",
        ]
        for key, share in found.shares.items()
    ]
    lines = _table(["setting", "", "share", "Optuna's"], rows, left=2)
    if math.isnan(found.r2):
        return _section(
            title, [*lines, "All scores are equal, so no setting can be said to matter."]
        )
    lines += _wrapped(
        f"A random forest learned the last scores of the {found.trials} ended trials, stopped and failed ones included. "
        f"On trials it had not seen its R² is {found.r2:.2f} (1: perfect, 0: no better than the mean)."
    )
    if found.caution:
        lines += _wrapped(f"These shares mean little: {found.caution}.")
    if found.optuna:
        lines += _wrapped(
            "Optuna's shares see completed trials only, and say what sets the best tenth of them apart."
        )
    return _section(title, lines)


def _phases(findings: Findings) -> str:
    rows = []
    for phase in range(findings.settings.phases):
        reports = [report for _, report in findings.reports_of(phase)]
        scores = [report.score for report in reports if not math.isnan(report.score)]
        stopped = sum(report.mode == "selection" and report.verdict == "stop" for report in reports)
        numbers = [
            len(reports),
            sum(report.mode == "collection" for report in reports),
            sum(report.mode == "selection" for report in reports) - stopped,
            stopped,
            sum(report.mode == "failure" for report in reports),
            sum(report.mode == "none" for report in reports),
        ]
        median, best = (show(float(f(scores))) if scores else "–" for f in (np.median, np.max))
        rows.append([str(phase), *map(str, numbers), median, best])
    lines = _table(
        [
            "phase",
            "reports",
            "passed early",
            "selected",
            "stopped",
            "failed",
            "undecided",
            "median",
            "best",
        ],
        rows,
    )
    if findings.settings.method == "hypertrick":
        lines += _wrapped(
            "Passed early: in data collection, whatever the score. Selected: compared with the reports before it, and good enough. "
            "Undecided: nothing is decided after that phase."
        )
    return _section("Phase by phase", lines)


def _order_bias(findings: Findings) -> str:
    title = "What the order of the reports did"
    if findings.settings.method == "random":
        return _section(title, ["Nothing: random search stops nobody."])
    bias = order_bias(findings)
    states = {trial.number: trial.state for trial in findings.trials}
    completed = [item for item in bias.lucky if states[item[0]] == "complete"]
    lines = _wrapped(
        "The first reports of each phase pass whatever they say, and later ones are compared only with those before them. "
        "So trials that start early or run fast have an advantage. Judged again with all reports of each phase so far:"
    )
    lines += _wrapped(
        f"Completed, but passed at least one phase only because they were early: {_listed(completed)}."
        + (
            f" Others passed that way {_plural(len(bias.lucky) - len(completed), 'time')} and did not complete."
            if len(bias.lucky) > len(completed)
            else ""
        )
    )
    lines += _wrapped(
        f"Stopped, but would pass against all reports of the phase: {_listed(bias.unlucky)}."
    )
    if math.isnan(bias.correlation):
        lines.append("Whether trials that started early came further cannot be told yet.")
    else:
        chance = 1 / math.sqrt(bias.trials - 1)
        lines += _wrapped(
            f"Rank correlation between start order and phases completed: {bias.correlation:+.2f} over {bias.trials} trials "
            f"(below 0: those who started early came further; by chance alone about ±{chance:.2f})."
        )
    return _section(title, lines)


def _listed(pairs: Sequence[tuple[int, int]]) -> str:
    """`trial 3 (phases 0, 2–4), trial 8 (phase 2)`, or `none`."""
    phases: dict[int, list[int]] = {}
    for trial, phase in pairs:
        phases.setdefault(trial, []).append(phase)
    return (
        ", ".join(
            f"trial {trial} (phase{'s' * (len(found) > 1)} {_ranges(found)})"
            for trial, found in sorted(phases.items())
        )
        or "none"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """`0, 2–4` for 0, 2, 3, 4."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join("–".join(map(str, dict.fromkeys((run[0], run[-1])))) for run in runs)
