"""What one wants to know after a search, as a text for the terminal; `figures` draws it.

    report(url, name, folder, directory)   all of it: what `genkidama report RUN` prints
    text(findings)                         the text alone

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

from genkidama.config.allowlist import allowing, modules
from genkidama.config.formatting import bar, clock, percent, plural, short_names, show
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.findings import Span, StudySnapshot, read
from genkidama.plugins.hypertrick.importance import Importances, importances
from genkidama.plugins.hypertrick.methods import METHODS
from genkidama.plugins.hypertrick.records import SearchRecord, State, TrialRecord
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.storage import open_study, storage_url
from genkidama.runs.directory import Run, trial_folder

__all__ = ["report", "report_of", "text"]

#: Columns of a report: those of the smallest terminal.
WIDTH = 80

#: So many nodes get a line.
_MOST_NODES = 24

#: Columns of a line beside the node's name and the chart.
_OTHERS = len("  123 ended")

#: A phase's sign; from the 37th on it is "+".
_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"

_ENDINGS = {"completed": "●", "stopped": "×", "failed": "!"}

#: How many improvements are listed at most.
_MOST_STEPS = 10


def report_of(run: Run, figures: str | Path | None = None) -> str:
    """The report on a search, as `genkidama report` prints it.

    Args:
        run: a search, running or ended.
        figures: the folder that figures are written to; none are drawn if absent.

    Raises:
        ConfigurationError: it is no search, or a package is missing.
        EnvironmentFailure: the storage cannot be read, or the figures cannot be written.
    """
    experiment = run.experiment
    settings = experiment.search
    if settings is None:
        raise ConfigurationError(f"{run.path}: is no search; `genkidama plot {run.path}` draws it")
    url = storage_url(settings.storage, run.path)
    folder = None if figures is None else Path(figures)
    allow = allowing(modules(experiment.to_dict()))
    return report(url, run.path.absolute().name, folder, str(run.path), allow)


def report(url: str, name: str, folder: Path | None, directory: str, allow: str = "") -> str:
    """The report on the study `name` in the storage `url`.

    Args:
        url: for example `sqlite:///runs/search/study.db`.
        name: of the study.
        folder: where figures are written to, as PNG and SVG; none are drawn if absent.
        directory: the search's run directory, for the commands that go on with the best trial.
        allow: their options `--allow`.

    Raises:
        ConfigurationError: no such study, one that is not from a search, or a package that is
            missing.
        EnvironmentFailure: the storage cannot be read, or the figures cannot be written.
    """
    findings = read(open_study(url, name))
    known = importances(findings)
    parts = [text(findings, directory, known, allow)]
    if folder is not None:
        from genkidama.plugins.hypertrick.figures import draw  # Matplotlib

        paths = draw(findings, folder, known)
        names = ", ".join(sorted({path.stem for path in paths}))
        parts.append(section("Figures", [f"{len(paths)} files in {folder}: {names}"]))
    return "\n\n".join(parts) + "\n"


def text(
    findings: StudySnapshot,
    directory: str = "RUN",
    known: Importances | None = None,
    allow: str = "",
) -> str:
    """All that a search has found, in one to two screens of plain text.

    Args:
        findings: of the search.
        directory: its run directory, for the commands that go on with the best trial.
        allow: their options `--allow`.
        known: the importances, if they are computed already.
    """
    parts = [_overview(findings)]
    if not findings.ranking:
        parts.append("No trial has reported a score yet, so there is nothing to compare.")
    else:
        parts += [_best(findings, directory, allow), _top(findings), _over_time(findings)]
    if findings.timeline:
        parts.append(_timeline(findings))
    if findings.ranking:
        parts.append(_importances(known if known is not None else importances(findings)))
    if findings.timeline:
        parts.append(_phases(findings))
    return "\n\n".join(parts)


def _overview(findings: StudySnapshot) -> str:
    settings = findings.settings
    states: tuple[State, ...] = ("completed", "stopped", "failed", "running")
    counts: dict[str, int] = {state: len(findings.of_state(state)) for state in states}
    begun = f"{sum(counts.values())} of {settings.workers} started"
    nodes = plural(len(findings.timeline), "node")
    lines = [
        f"Trials      {begun}: {', '.join(f'{count} {state}' for state, count in counts.items())}",
        f"Search time {clock(findings.search_time)} on {nodes}",
    ]
    if findings.timeline:
        lines += wrapped(
            f"Occupancy   {percent(findings.occupancy)} of the nodes' time, "
            "of each from its first phase to the newest report",
            indent=12,
        )
    lines += wrapped(
        f"Completion  {percent(findings.completion_rate)} of the phases "
        "that the ended trials would have run if nobody had been stopped",
        indent=12,
    )
    method = METHODS[settings.method]
    expectation = method.expectation(settings, findings.expected_completion_rate)
    if expectation:
        lines.append(f"            {expectation}")
    length = (
        f" of {settings.phase_length:,g} {settings.phase_unit}" if settings.phase_length else ""
    )
    return section(
        f"{findings.name}: {_headline(settings)}, {plural(settings.workers, 'trial')} "
        f"of at most {plural(settings.phases, 'phase')}{length}",
        lines,
    )


def _headline(settings: SearchRecord) -> str:
    """The method with its options, as `HyperTrick (eviction rate 0.25)`."""
    method = METHODS[settings.method]
    options = method.options(settings)
    return f"{method.title} ({', '.join(options)})" if options else method.title


def _best(findings: StudySnapshot, directory: str, allow: str) -> str:
    best, phases = findings.best, findings.settings.phases
    assert best is not None
    every = "its only phase" if phases == 1 else f"all {plural(phases, 'phase')}"
    if best.state == "completed":
        lines = [f"Trial {best.number} ran {every} and scored {show(best.score)} in the last one."]
    else:
        lines = [
            f"No trial has run {every} yet.",
            f"Trial {best.number} ({best.state}) has the best score so far, {show(best.score)}.",
        ]
    lines += [
        "",
        *(f"    {key} = {_toml(value)}" for key, value in best.params.items()),
        "",
    ]
    ahead = findings.ranking[0]
    if ahead.score > best.score:
        lines += [
            *wrapped(
                f"Trial {ahead.number} ({ahead.state}) scored more, {show(ahead.score)}, "
                "and has not run all phases."
            ),
            "",
        ]
    folder = shlex.quote(str(PurePath(directory) / trial_folder(best.number))) + allow
    written = PurePath(directory) / best.checkpoint if best.checkpoint else "none was written"
    lines += [
        f"Checkpoint  {written}",
        f"Evaluate    genkidama evaluate {folder}",
        f"Train on    genkidama train --resume {folder} --children 1{_as_long_again(best)}",
    ]
    return section("The best configuration", lines)


def _as_long_again(best: TrialRecord) -> str:
    """A limit for going on with a trial, which has none of its own."""
    steps = best.phases[-1].steps if best.phases else 0
    return f" --set stop.steps={2 * steps}" if steps else ""


def _toml(value: Any) -> str:
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _top(findings: StudySnapshot) -> str:
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
    return section("The top five trials, by their last score", table(head, rows, left=2))


def _over_time(findings: StudySnapshot) -> str:
    title, steps = "The best score over time", findings.improvements
    if not steps:
        return section(title, ["No trial has completed yet."])
    listed = steps
    if len(steps) > _MOST_STEPS:
        listed = [
            steps[round(index * (len(steps) - 1) / (_MOST_STEPS - 1))]
            for index in range(_MOST_STEPS)
        ]
    rows = [[clock(step.time), show(step.score), str(step.trial)] for step in listed]
    lines = table(["time", "score", "trial"], rows)
    if len(listed) < len(steps):
        lines.append(f"{len(listed)} of {len(steps)} improvements.")
    last = steps[-1].time
    if findings.search_time > 0:
        lines += wrapped(
            f"The best of the trials that completed did so after {clock(last)}, "
            f"{percent(last / findings.search_time)} of the search time."
        )
    return section(title, lines)


def _importances(found: Importances | None) -> str:
    title = "Which settings matter"
    if found is None:
        return section(title, ["Too few trials have ended to tell."])
    rows = [[key, bar(share), f"{share:.0%}"] for key, share in found.shares.items()]
    lines = table(["setting", "", "share"], rows, left=2)
    if not any(found.shares.values()):
        lines.append("All scores are equal, so no setting can be said to matter.")
        return section(title, lines)
    lines += wrapped(
        f"Shares of the variance of the last scores of the {found.trials} ended trials, stopped "
        "and failed ones included (Optuna's fANOVA)."
    )
    if found.caution:
        lines += wrapped(f"These shares mean little: {found.caution}.")
    return section(title, lines)


def _phases(findings: StudySnapshot) -> str:
    rows = []
    for phase in range(findings.settings.phases):
        reports = [report for _, report in findings.reports_of(phase)]
        scores = [report.score for report in reports if not math.isnan(report.score)]
        stopped = sum(
            report.mode is Mode.SELECTION and report.verdict is Verdict.STOP for report in reports
        )
        numbers = [
            len(reports),
            sum(report.mode is Mode.COLLECTION for report in reports),
            sum(report.mode is Mode.SELECTION for report in reports) - stopped,
            stopped,
            sum(report.mode is Mode.FAILURE for report in reports),
            sum(report.mode is Mode.NONE for report in reports),
        ]
        median, best = (show(float(f(scores))) if scores else "–" for f in (np.median, np.max))
        rows.append([str(phase), *map(str, numbers), median, best])
    lines = table(
        [
            "phase",
            "reports",
            "early",
            "selected",
            "stopped",
            "failed",
            "undecided",
            "median",
            "best",
        ],
        rows,
    )
    lines += wrapped(METHODS[findings.settings.method].columns)
    return section("Phase by phase", lines)


def _timeline(findings: StudySnapshot) -> str:
    """The part of the report that shows what each node ran when."""
    timeline, end = findings.timeline, findings.search_time
    width = min(16, max(map(len, timeline)))
    columns = WIDTH - width - _OTHERS
    lines = []
    for node, spans in list(timeline.items())[:_MOST_NODES]:
        ended = sum(bool(span.ending) for span in spans)
        lines.append(f"{node[:width]:<{width}} {gantt(spans, end, columns)} {ended:>3} ended")
    if len(timeline) > _MOST_NODES:
        lines.append(f"… and {len(timeline) - _MOST_NODES} more nodes")
    last = clock(end)
    lines.append(f"{'':<{width}} 0{last:>{columns - 1}}")
    letters = " (a for 10, b for 11, …)" if findings.settings.phases > 10 else ""
    lines += wrapped(
        f"A digit is the phase that the node's trial runs{letters}. "
        "● completed, × stopped, ! failed, · idle or not yet reported."
    )
    return section("What the nodes did", lines)


def gantt(spans: Sequence[Span], end: float, columns: int) -> str:
    """A node's timeline from 0 to `end` seconds: the phase under way at each column's middle."""
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


# How it is written.


def section(title: str, lines: Iterable[str]) -> str:
    """A part of a report: its title, underlined, and its lines."""
    titles = wrapped(title)
    return "\n".join([*titles, "─" * max(map(len, titles)), *lines])


def wrapped(sentence: str, indent: int = 0) -> list[str]:
    """A paragraph's lines, all but the first one indented."""
    return textwrap.wrap(sentence, WIDTH, subsequent_indent=" " * indent)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> list[str]:
    """Columns as wide as their widest entry, to the right but for the first `left` of them."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
