"""The report on a search: text for the terminal, and figures.

    report_of(run, folder)   all of it: the output of `genkidama report RUN`
    text(snapshot)           the text alone

Laws of this file:
- Phases count from 0, as in the search file, the study and optuna-dashboard.
- A report never fails because a search has few results: each part says what is missing.
- Every abbreviation and mark is explained where it is used.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

import numpy as np
from msgspec import UNSET, UnsetType

from genkidama.config.allowlist import allowing, modules
from genkidama.config.formatting import bar, clock, percent, plural, short_names, show, toml_value
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.records import TITLES, Span, State, StudySnapshot, TrialRecord
from genkidama.plugins.hypertrick.rule import Mode, Verdict
from genkidama.plugins.hypertrick.settings import SearchSettings
from genkidama.plugins.hypertrick.study import (
    Importances,
    importances,
    open_study,
    read,
    storage_url,
)
from genkidama.runs.run import Run, trial_folder

#: Columns of a report: those of the smallest terminal.
WIDTH = 80

#: Nodes with a line of their own, at most.
_MOST_NODES = 24

#: Columns of a line beside the node's name and the chart.
_OTHERS = len("  123 ended")

#: A phase's sign; from the 37th on it is "+".
_SIGNS = "0123456789abcdefghijklmnopqrstuvwxyz"

_ENDINGS = {"completed": "●", "stopped": "×", "failed": "!"}

#: Improvements in the list, at most.
_MOST_STEPS = 10


def report_of(run: Run, figures: str | Path | None = None) -> str:
    """The report on a search, as `genkidama report` prints it; figures go to a folder, if given."""
    experiment = run.experiment
    settings = experiment.search
    if settings is None:
        raise ConfigurationError(
            f"{run.path}: is not a search; `genkidama plot {run.path}` draws it"
        )
    url = storage_url(settings.storage, run.path)
    study = open_study(url, run.path.absolute().name, only=not settings.storage)
    snapshot = read(study)
    shares = importances(snapshot)
    allow = allowing(modules(experiment.to_dict()))
    parts = [text(snapshot, str(run.path), shares, allow)]
    if figures is not None:
        from genkidama.plugins.hypertrick.figures import draw  # Matplotlib

        folder = Path(figures)
        paths = draw(snapshot, folder, shares)
        names = ", ".join(sorted({path.stem for path in paths}))
        parts.append(section("Figures", [f"{len(paths)} files in {folder}: {names}"]))
    return "\n\n".join(parts) + "\n"


def text(
    snapshot: StudySnapshot,
    directory: str = "RUN",
    shares: Importances | UnsetType | None = UNSET,
    allow: str = "",
) -> str:
    """The text of a report, of one to two screens. Its commands name the search's run directory,
    with `allow`, their options `--allow`. Importances that are not given are computed."""
    parts = [_overview(snapshot)]
    if not snapshot.ranking:
        parts.append("No trial has reported a score yet, so there is nothing to compare.")
    else:
        parts += [_best(snapshot, directory, allow), _top(snapshot), _over_time(snapshot)]
    if snapshot.timeline:
        parts.append(_timeline(snapshot))
    if snapshot.ranking:
        parts.append(_importances(importances(snapshot) if shares is UNSET else shares))
    if snapshot.timeline:
        parts.append(_phases(snapshot))
    return "\n\n".join(parts)


def _overview(snapshot: StudySnapshot) -> str:
    settings = snapshot.settings
    states: list[State] = ["completed", "stopped", "failed", "running"]
    states += ["paused"] if snapshot.of_state("paused") else []
    counts: dict[str, int] = {state: len(snapshot.of_state(state)) for state in states}
    begun = f"{sum(counts.values())} of {settings.trials} started"
    nodes = plural(len(snapshot.timeline), "node")
    lines = [
        f"Trials      {begun}: {', '.join(f'{count} {state}' for state, count in counts.items())}",
        f"Search time {clock(snapshot.search_time)} on {nodes}",
    ]
    if snapshot.timeline:
        lines += wrapped(
            f"Occupancy   {percent(snapshot.occupancy)} of the nodes' time, "
            "of each from its first phase to the newest report",
            indent=12,
        )
    lines += wrapped(
        f"Completion  {percent(snapshot.completion_rate)} of the phases "
        "that the ended trials would have run if none had been stopped",
        indent=12,
    )
    if settings.method not in ("random", "pbt"):
        lines.append(" " * 12 + _expectation(settings, snapshot.expected_completion_rate))
    length = f" of {settings.length:,g} {settings.unit}"
    return section(
        f"{snapshot.name}: {_headline(settings)}, {plural(settings.trials, 'trial')} "
        f"of at most {plural(settings.phases, 'phase')}{length}",
        lines,
    )


def _headline(settings: SearchSettings) -> str:
    """The method with its options, as `HyperTrick (eviction rate 0.25)`."""
    options = []
    if settings.method == "hypertrick":
        options.append(f"eviction rate {settings.eviction_rate:.4g}")
        if settings.cohort:
            options.append(f"a cohort of {settings.cohort} collects data")
        options += ["adaptive"] if settings.adaptive else []
    elif settings.method == "pbt":
        options.append(f"truncation {settings.truncation:g}")
    elif settings.eta:
        options.append(f"reduction factor {settings.eta}")
        if settings.least_phases > 1:
            options.append(f"at least {settings.least_phases} phases")
        options += ["each rung from scratch"] if settings.restart else []
    title = TITLES[settings.method]
    return f"{title} ({', '.join(options)})" if options else title


def _expectation(settings: SearchSettings, expected: float) -> str:
    """The expected completion rate, and its reason."""
    if settings.waits:
        return f"expected {percent(expected)}, as 1/{settings.eta} of each rung continue"
    if settings.eta:
        return f"expected {percent(expected)}, if about 1/{settings.eta} continue at each decision"
    root = math.sqrt(settings.eviction_rate)
    if settings.cohort and not settings.adaptive:
        return (
            f"expected {percent(expected)}: after the data collection of a cohort of "
            f"{settings.cohort}, √r = {percent(root, 0)} are stopped"
        )
    least = percent((1.0 - root) * expected)
    return f"expected {percent(expected)}, minimum {least} (eqs. 9 and 8 of HyperTrick's paper)"


def _best(snapshot: StudySnapshot, directory: str, allow: str) -> str:
    best, settings = snapshot.best, snapshot.settings
    assert best is not None
    every = "its only phase" if settings.phases == 1 else f"all {plural(settings.phases, 'phase')}"
    if settings.restart:  # each bracket has its own number
        every = "all its phases"
    if best.state == "completed":
        lines = [f"Trial {best.number} ran {every} and scored {show(best.score)} in the last one."]
    else:
        lines = [
            f"No trial has run {every} yet.",
            f"Trial {best.number} ({best.state}) has the best score so far, {show(best.score)}.",
        ]
    lines += ["", *(f"    {key} = {toml_value(value)}" for key, value in best.params.items()), ""]
    if snapshot.observed is not None and snapshot.observed[1].score > best.score:
        ahead, record = snapshot.observed
        lines += [
            *wrapped(
                f"The best observed is trial {ahead.number} ({ahead.state}) with "
                f"{show(record.score)} after phase {record.phase}."
            ),
            "",
        ]
    folder = shlex.quote(str(PurePath(directory) / trial_folder(best.number))) + allow
    lines += [
        f"Evaluate    genkidama evaluate {folder}",
        f"Train on    genkidama train --resume {folder} --children 1{_as_long_again(best)}",
    ]
    return section("The best configuration", lines)


def _as_long_again(best: TrialRecord) -> str:
    """A limit for more training of a trial, which has none of its own."""
    steps = best.phases[-1].steps if best.phases else 0
    return f" --set stop.steps={2 * steps}" if steps else ""


def _top(snapshot: StudySnapshot) -> str:
    names = short_names(snapshot.space)
    head = ["trial", "state", "score", "phases", *names.values()]
    rows = [
        [
            str(trial.number),
            trial.state,
            show(trial.score),
            str(trial.phases_done),
            *(show(trial.params.get(key, "–")) for key in names),
        ]
        for trial in snapshot.ranking[:5]
    ]
    return section("The top five trials, by their last score", table(head, rows, left=2))


def _over_time(snapshot: StudySnapshot) -> str:
    title, steps = "The best score over time", snapshot.improvements
    if not steps:
        return section(title, ["No trial has completed yet."])
    many = len(steps) > _MOST_STEPS
    chosen = np.linspace(0, len(steps) - 1, _MOST_STEPS).round() if many else range(len(steps))
    listed = [steps[int(index)] for index in chosen]
    rows = [[clock(step.phases[-1].end), show(step.score), str(step.number)] for step in listed]
    lines = table(["time", "score", "trial"], rows)
    if len(listed) < len(steps):
        lines.append(f"{len(listed)} of {len(steps)} improvements.")
    last = steps[-1].phases[-1].end
    if snapshot.search_time > 0:
        lines += wrapped(
            f"The best of the trials that completed did so after {clock(last)}, "
            f"{percent(last / snapshot.search_time)} of the search time."
        )
    return section(title, lines)


def _importances(result: Importances | None) -> str:
    title = "Which settings matter"
    if result is None:
        return section(title, ["Too few different trials have ended to tell."])
    rows = [[key, bar(share), f"{share:.0%}"] for key, share in result.shares.items()]
    lines = table(["setting", "", "share"], rows, left=2)
    if not any(result.shares.values()):
        lines.append("All scores are equal, so no setting can be said to matter.")
        return section(title, lines)
    lines += wrapped(
        f"Shares of the variance of the last scores of the {result.trials} ended trials, "
        "stopped and failed ones included (Optuna's fANOVA)."
    )
    if result.caution:
        lines += wrapped(f"These shares mean little: {result.caution}.")
    return section(title, lines)


def _phases(snapshot: StudySnapshot) -> str:
    rows = []
    copies = snapshot.settings.method == "pbt"
    for phase in range(snapshot.phases):
        reports = [report for _, report in snapshot.reports_of(phase)]
        scores = [report.score for report in reports if not math.isnan(report.score)]
        kinds = Counter((report.mode, report.verdict) for report in reports)
        numbers = [
            len(reports),
            kinds[Mode.COLLECTION, Verdict.CONTINUE],
            kinds[Mode.SELECTION, Verdict.CONTINUE],
            kinds[Mode.SELECTION, Verdict.COPY if copies else Verdict.STOP],
            kinds[Mode.FAILURE, Verdict.STOP],
            kinds[Mode.NONE, Verdict.CONTINUE] + kinds[Mode.SELECTION, Verdict.PAUSE],
        ]
        median, best = (show(float(f(scores))) if scores else "–" for f in (np.median, np.max))
        rows.append([str(phase), *map(str, numbers), median, best])
    ends = "copied" if copies else "stopped"
    head = f"phase reports early selected {ends} failed undecided median best"
    lines = table(head.split(), rows)
    if copies:
        lines += wrapped(
            "Copied: among the worst of the population; it went on with the weights of one of the "
            "best, and with its settings, perturbed."
        )
    elif snapshot.settings.method != "random":
        others = "all of its rung" if snapshot.settings.waits else "the reports before it"
        early = "Early: passed in data collection, whatever the score. "
        lines += wrapped(
            ("" if snapshot.settings.eta else early)
            + f"Selected: compared with {others}, and good enough. "
            "Undecided: nothing is decided after that phase, or not yet."
        )
    return section("Phase by phase", lines)


def _timeline(snapshot: StudySnapshot) -> str:
    timeline, end = snapshot.timeline, snapshot.search_time
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
    letters = " (a for 10, b for 11, …)" if snapshot.phases > 10 else ""
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


# Layout.


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
