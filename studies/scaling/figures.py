"""From raw rows to speed-up, efficiency, and where the rest went. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from studies.scaling.matrix import CONTENDERS, DISTURBANCES, TASKS, Condition, Row


def staleness(values: Sequence[int]) -> Row | None:
    """Mean, median and largest of the staleness of all pushes; None without a push."""
    if not values:
        return None
    return {"mean": round(fmean(values), 2), "median": median(values), "most": max(values)}


def traffic(counts: Sequence[tuple[float, int, int]]) -> Row:
    """Bytes a second that the parent has sent and received; nothing without two counts.

    Args:
        counts: a time in seconds, and the bytes sent and received until then.
    """
    (begin, *before), (end, *after) = counts[0], counts[-1]
    if end <= begin:
        return {}
    sent, received = (
        round((new - old) / (end - begin)) for new, old in zip(after, before, strict=True)
    )
    return {"sent": sent, "received": received}


def returns_of(children: Iterable[str], exchanges: Iterable[Row]) -> list[tuple[float, float]]:
    """When these children have pushed an episode, and its return, or the mean of those of a push.

    Args:
        children: their names.
        exchanges: lines of a history, whose mean return is of all episodes from the beginning on.
    """
    children = set(children)
    found: list[tuple[float, float]] = []
    count, total = 0, 0.0
    for line in exchanges:
        new, sum_of_all = line["episodes"], line["episodes"] * (line["mean_return"] or 0.0)
        if line["child"] in children and new > count:
            found += [(line["time"], (sum_of_all - total) / (new - count))] * (new - count)
        count, total = new, sum_of_all
    return found


def longest_fall(means: Iterable[tuple[float, float]], since: float, by: float = 20.0) -> float:
    """The longest time for which the mean return was lower by more than `by` than at one moment.

    Args:
        means: seconds and the mean return in each, ascending.
        since: that moment.
        by: points.
    """
    before, longest = float("-inf"), 0.0
    begin: float | None = None
    for second, mean in means:
        if second <= since:
            before = mean
        elif mean >= before - by:
            begin = None
        else:
            begin = second if begin is None else begin
            longest = max(longest, second - begin + 1.0)
    return longest


def training_means(
    episodes: Sequence[tuple[float, float]], moments: Sequence[float], window: int = 100
) -> list[float | None]:
    """The mean of the last `window` returns at each moment; None before there are so many.

    Args:
        episodes: when each ended, and its return; in the order of their ends.
        moments: ascending.
        window: how many episodes.
    """
    ends = [end for end, _ in episodes]
    sums = np.concatenate(([0.0], np.cumsum([value for _, value in episodes])))
    found: list[float | None] = []
    for count in np.searchsorted(ends, moments, side="right"):
        found.append(
            float(sums[count] - sums[count - window]) / window if count >= window else None
        )
    return found


@dataclass(frozen=True)
class Scaling:
    """What n machines are worth, by medians over seeds.

    Time to the goal is steps to the goal by steps a second. So the efficiency, which is the
    speed-up by n, is the product of two parts: `pace` by `learning`.
    """

    contender: str
    task: str
    machines: int
    disturbance: str
    link: str
    #: How many seeds were measured, and how many of them reached the goal in time.
    seeds: int
    reached: int
    #: To the goal. A seed that did not reach it counts as later than all others; None if the
    #: median seed is such a one.
    seconds: float | None
    steps: float | None
    #: Against the same contender's single machine with nothing in its way.
    speed_up: float | None
    #: Each seed's, of those that reached the goal.
    speed_ups: tuple[float, ...]
    efficiency: float | None
    #: Steps a second against n times one machine's: what is lost to waiting and exchanging is
    #: missing here.
    pace: float | None
    #: One machine's steps to the goal by these: what is lost to staleness and averaging is missing
    #: here.
    learning: float | None
    #: Against the best single machine of all contenders.
    against_best: float | None
    #: Mean staleness of a push.
    staleness: float | None
    #: The least part of its share that a machine used, one that is slowed on purpose apart.
    use: float
    #: The least and the most seconds to the goal; None is later than all.
    least: float | None
    most: float | None
    #: Bytes a second that the parent sent and received, and its CPU seconds in one; None in rows
    #: that do not say it. The learner of `experience` counts as the parent.
    sent: float | None
    received: float | None
    parent_cpu: float | None


def scaling(rows: Iterable[Row]) -> list[Scaling]:
    """What every measured condition came to, in the order of contenders and machines."""
    groups: dict[_Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(_Key.of(Condition.of(row)), []).append(row)
    alone = {
        (key.contender, key.task, key.share): group
        for key, group in groups.items()
        if (key.link, key.disturbance, key.machines) == ("none", "none", 1)
    }
    best: dict[tuple[str, float], float] = {}
    for (_, task, share), group in alone.items():
        seconds = _median_passage(group, "seconds")
        if seconds is not None:
            best[task, share] = min(seconds, best.get((task, share), seconds))
    order = list(CONTENDERS)
    return [
        _one(
            group,
            alone.get((key.contender, key.task, key.share), []),
            best.get((key.task, key.share)),
        )
        for key, group in sorted(groups.items(), key=lambda one: (order.index(one[0][0]), one[0]))
    ]


class _Key(NamedTuple):
    """Conditions that differ in nothing but their seed."""

    contender: str
    task: str
    link: str
    disturbance: str
    machines: int
    share: float

    @classmethod
    def of(cls, condition: Condition) -> _Key:
        return cls(*(getattr(condition, name) for name in cls._fields))


def _one(group: list[Row], alone: list[Row], best: float | None) -> Scaling:
    row = group[0]
    n: int = row["machines"]
    seconds, steps = (_median_passage(group, name) for name in ("seconds", "steps"))
    seconds_alone, steps_alone = (_median_passage(alone, name) for name in ("seconds", "steps"))
    speed_up = _ratio(seconds_alone, seconds)
    rate, rate_alone = _rate(group), _rate(alone)
    pace = _ratio(rate, None if rate_alone is None else n * rate_alone)
    slowed = DISTURBANCES[row["disturbance"]].slow < 1.0
    stale = [row["staleness"]["mean"] for row in group if row.get("staleness")]
    passages = sorted(_passages(group, "seconds"))
    return Scaling(
        row["contender"],
        Condition.of(row).task,
        n,
        row["disturbance"],
        row["link"],
        seeds=len(group),
        reached=sum(row["reached"] is not None for row in group),
        seconds=seconds,
        steps=steps,
        speed_up=speed_up,
        speed_ups=tuple(
            seconds_alone / row["reached"]["seconds"]
            for row in group
            if row["reached"] and seconds_alone is not None
        ),
        efficiency=None if speed_up is None else speed_up / n,
        pace=pace,
        learning=_ratio(steps_alone, steps),
        against_best=_ratio(best, seconds),
        staleness=fmean(stale) if stale else None,
        use=min(min(row["use"][1:] if slowed else row["use"]) for row in group),
        least=_finite(passages[0]),
        most=_finite(passages[-1]),
        sent=_median_of(group, "sent"),
        received=_median_of(group, "received"),
        parent_cpu=_median_of(
            [{"cpu": one["parent_cpu"] / one["seconds"]} for one in group if "parent_cpu" in one],
            "cpu",
        ),
    )


def _median_of(group: list[Row], name: str) -> float | None:
    found = [row[name] for row in group if name in row]
    return median(found) if found else None


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _passages(group: list[Row], name: str) -> list[float]:
    """Seconds or steps to the goal; infinite if a run did not reach it."""
    return [row["reached"][name] if row["reached"] else float("inf") for row in group]


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _rate(group: list[Row]) -> float | None:
    """Steps a second, the median over seeds."""
    rates = [row["steps"] / row["seconds"] for row in group if row.get("steps")]
    return median(rates) if rates else None


def _median_passage(group: list[Row], name: str) -> float | None:
    """The median over seeds of seconds or steps to the goal."""
    if not group:
        return None
    return _finite(float(median(_passages(group, name))))


def tasks(found: Iterable[Scaling]) -> str:
    """A Markdown table of what was measured with the parent's bytes counted; "" without any."""
    lines = [
        f"| {TASKS[one.task].environment}, {TASKS[one.task].goal:g} | {one.contender} "
        f"| {one.machines} | {_words(one)} | {one.reached} of {one.seeds} | {_number(one.seconds)} "
        f"| {_number(one.least)}–{_number(one.most)} | {_number(one.steps, ',.0f')} "
        f"| {_number(one.received, ',.0f', 1e-3)} | {_number(one.sent, ',.0f', 1e-3)} "
        f"| {_number(one.parent_cpu, '.3f')} | {one.use:.2f} |"
        for one in sorted(found, key=lambda one: list(TASKS).index(one.task))
        if one.sent is not None
    ]
    head = (
        "| task, goal | | machines | | solved | seconds, median | least–most | steps "
        "| kB/s to the parent | kB/s from it | parent's cores | use |"
    )
    return _markdown(head, lines)


def falls(rows: Iterable[Row]) -> str:
    """A Markdown table of the runs in which half of the machines were alone; "" without any."""
    lines = [
        f"| {row['contender']}, {Condition.of(row).task} | {row['machines']} | {row['seed']} "
        f"| {[mean for second, mean in row['means'] if second <= row['alone'][1]][-1]:.0f} "
        f"| {min(mean for second, mean in row['means'] if second > row['alone'][1]):.0f} "
        f"| {longest_fall(row['means'], row['alone'][1]):g} |"
        for row in rows
        if row.get("means")
    ]
    head = (
        "| half alone for a minute | machines | seed | mean of the others at the return "
        "| least after it | seconds more than 20 below |"
    )
    return _markdown(head, lines)


def _markdown(head: str, lines: list[str]) -> str:
    """A table after an empty line; "" without any lines."""
    rule = "|" + "---|" * (head.count("|") - 1)
    return "\n".join(["", head, rule, *lines, ""]) if lines else ""


def _words(one: Scaling) -> str:
    return ", ".join(word for word in (one.disturbance, one.link) if word != "none")


def _number(value: float | None, form: str = ".1f", unit: float = 1.0) -> str:
    return "–" if value is None else format(value * unit, form)


def remaining(left: Sequence[Condition], done: Iterable[Row]) -> float:
    """Seconds that the rest of a plan will probably take.

    A run takes as long as those like it did; as those with as many machines; or else its task's
    limit.

    Args:
        left: what is still to be measured.
        done: rows with `wall`, the seconds that each took in all.
    """
    alike: dict[Any, list[float]] = {}
    for row in done:
        for key in _likes(Condition.of(row)):
            alike.setdefault(key, []).append(row["wall"])
    total = 0.0
    for condition in left:
        first, second = _likes(condition)
        walls = alike.get(first) or alike.get(second)
        total += fmean(walls) if walls else TASKS[condition.task].limit
    return total


def _likes(one: Condition) -> tuple[Any, Any]:
    """What runs have in common that take about as long; the second is the weaker."""
    return (one.contender, one.task, one.machines, one.disturbance), (one.task, one.machines)
