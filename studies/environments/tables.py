"""The tables of the page, from rows. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from benchmarks.peer_settings import published
from benchmarks.store import Row
from studies.differences import NONE, medians
from studies.differences import interval as seed_interval
from studies.environments.scores import (
    OURS,
    Rows,
    at_equal_steps,
    grouped,
    means,
    normalized,
    outcome,
    standing,
    together,
)
from studies.environments.tasks import PROGRAMS, RANDOM, SEEDS, TASKS, Condition, Task

OTHERS = PROGRAMS[1:]
ENVIRONMENTS = [task.environment for task in TASKS]


def document(rows: Sequence[Row]) -> str:
    """All of it, as it stands in the page; empty without rows."""
    if not rows:
        return ""
    found = grouped(rows)
    return "\n".join([_returns(found), _equal(found), _standings(found), _together(found)])


def _lines(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head_and_rule = [head, ["---"] * len(head)]
    return "".join(f"| {' | '.join(line)} |\n" for line in [*head_and_rule, *lines])


def number(value: float) -> str:
    """With a real minus sign, and two places where numbers are small."""
    return f"{value:.{2 if abs(value) < 10.0 else 0 if abs(value) >= 1000.0 else 1}f}".replace(
        "-", "−"
    )


def cell(values: Sequence[float]) -> str:
    """A median, with its interval if there are three seeds."""
    if not values:
        return NONE
    ends = seed_interval([values], medians)
    span = f" [{number(ends[0])}, {number(ends[1])}]" if ends else ""
    return number(median(values)) + span


def _returns(rows: Rows) -> str:
    lines = []
    for task in TASKS:
        of = {each: rows.get((task.environment, each), {}) for each in (*PROGRAMS, RANDOM)}
        if not any(of[each] for each in PROGRAMS):
            continue
        zoo = published(task.environment)
        told = NONE
        if zoo is not None:
            told = number(zoo[0])
            told += "" if zoo[1] == task.environment else f" (`{zoo[1]}`)"
        seeds = {len(of[each]) for each in task.programs}
        count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        cells = [cell(means(of[each])) for each in (*PROGRAMS, RANDOM)]
        lines.append([f"`{task.environment}`", f"{task.seconds:g}", *cells, told, count])
    head = ["environment", "s", OURS, *OTHERS, RANDOM, "published by the zoo", "seeds"]
    return _lines(head, lines)


def _equal(rows: Rows) -> str:
    """Outcomes, and the training means at equal steps."""
    lines = []
    for environment in ENVIRONMENTS:
        ours = rows.get((environment, OURS), {})
        cells = []
        for program in OTHERS:
            theirs = rows.get((environment, program), {})
            mine, other = at_equal_steps(ours, theirs)
            clock = outcome(means(ours), means(theirs)) or NONE
            steps = outcome(mine, other) or NONE
            pair = f"{number(median(mine))} : {number(median(other))}" if mine else NONE
            cells += [clock, f"{steps}, {pair}" if mine else NONE]
        if any(one != NONE for one in cells):
            lines.append([f"`{environment}`", *cells])
    head = ["ours beside"]
    for program in OTHERS:
        head += [f"{program}, clock", "steps"]
    return _lines(head, lines)


def _counts(counts: Counter[str]) -> str:
    return " / ".join(str(counts[word]) for word in ("win", "tie", "loss"))


def _standings(rows: Rows) -> str:
    lines = []
    for program in OTHERS:
        found = standing(rows, ENVIRONMENTS, program)
        lines.append([program, _counts(found.clock), _counts(found.steps)])
    head = ["wins / ties / losses of ours", "at equal wall clock", "at equal steps"]
    return _lines(head, lines)


def reference(task: Task) -> float | None:
    """The return that counts as 1."""
    zoo = published(task.environment)
    return task.threshold if zoo is None else zoo[0]


def samples(rows: Rows, program: str) -> list[list[float]]:
    """Normalized returns of the environments with a reference, random actions and this program, of
    the seeds that it has in all of them: else those with more would count more."""
    found = []
    for task in TASKS:
        chance = rows.get((task.environment, RANDOM), {})
        played = rows.get((task.environment, program), {})
        one = reference(task)
        if chance and played and one is not None:
            found.append((median(means(chance)), one, played))
    shared = [seed for seed in SEEDS if all(seed in played for *_, played in found)]
    return [
        normalized([played[seed]["mean"] for seed in shared], zero, one)
        for zero, one, played in found
        if shared
    ]


def _together(rows: Rows) -> str:
    lines = []
    for program in PROGRAMS:
        scores = samples(rows, program)
        if not scores:
            continue
        value, ends = together(scores)
        span = f"{number(ends[0])} to {number(ends[1])}" if ends else NONE
        lines.append([program, number(value), span, str(len(scores))])
    return _lines(["interquartile mean", "score", "95 % interval", "environments"], lines)


def timetable(wanted: Sequence[Condition], missing: Sequence[Condition]) -> str:
    """What is left of each environment, and the sum."""
    lines = []
    for task in TASKS:
        mine = [one for one in missing if one.environment == task.environment]
        total = [one for one in wanted if one.environment == task.environment]
        if total:
            hours = sum(one.seconds for one in mine) / 3600.0
            lines.append(
                f"{task.environment:26} {task.seconds:5g} s  {len(mine):3} of {len(total):3} runs "
                f"left  {hours:5.2f} h"
            )
    hours = sum(one.seconds for one in missing) / 3600.0
    lines.append(f"{len(missing)} of {len(wanted)} runs left, about {hours:.1f} h")
    return "\n".join(lines) + "\n"
