"""From raw rows to speed-up, and where the rest went. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from studies.differences import interval, medians
from studies.scaling.matrix import CONTENDERS, TASKS, Condition, Row

#: Stands for a run that did not reach the goal where a ratio of two is drawn.
_NEVER = 1e9


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

    Time to the goal is steps to the goal by steps a second. So the speed-up by n is the product of
    two parts: `pace` by `learning`.
    """

    contender: str
    task: str
    machines: int
    share: float
    disturbance: str
    link: str
    #: How many seeds were measured, and how many of them reached the goal in time.
    seeds: int
    reached: int
    #: To the goal. A seed that did not reach it counts as later than all others; None if the
    #: median seed is such a one.
    seconds: float | None
    steps: float | None
    #: Against the same contender's single machine with nothing in its way; where there is none,
    #: against the best one of all contenders.
    speed_up: float | None
    #: Each seed's, of those that reached the goal.
    speed_ups: tuple[float, ...]
    #: Steps a second against n times one machine's: what is lost to waiting and exchanging is
    #: missing here.
    pace: float | None
    #: One machine's steps to the goal by these: what is lost to staleness and averaging is missing
    #: here.
    learning: float | None
    #: Against the best single machine of all contenders, and the lower end of a bootstrap interval
    #: of 95 %.
    against_best: float | None
    at_least: float | None
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
    best: dict[tuple[str, float], list[Row]] = {}
    for (_, task, share), group in sorted(alone.items(), key=lambda one: _typical(one[1])):
        best.setdefault((task, share), group)
    order = list(CONTENDERS)
    found = []
    for key, group in groups.items():
        fastest = best.get((key.task, key.share), [])
        own = alone.get((key.contender, key.task, key.share), fastest)
        found.append((key, _one(group, own, fastest)))
    found.sort(key=lambda one: (*map(_place, (list(TASKS), order), one[0][1::-1]), one[0]))
    return [one for _, one in found]


def _place(order: list[str], name: str) -> int:
    """Where a name stands; what is measured no longer comes last."""
    return order.index(name) if name in order else len(order)


def _typical(group: list[Row]) -> float:
    """The median seconds to the goal; infinite if most runs did not reach it."""
    return float(median(_passages(group, "seconds")))


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


def _one(group: list[Row], alone: list[Row], best: list[Row]) -> Scaling:
    row = group[0]
    n: int = row["machines"]
    seconds, steps = (_median_passage(group, name) for name in ("seconds", "steps"))
    seconds_alone, steps_alone = (_median_passage(alone, name) for name in ("seconds", "steps"))
    speed_up = _ratio(seconds_alone, seconds)
    rate, rate_alone = _rate(group), _rate(alone)
    pace = _ratio(rate, None if rate_alone is None else n * rate_alone)
    slowed = row["disturbance"].startswith("slow")
    stale = [row["staleness"]["mean"] for row in group if row.get("staleness")]
    passages = sorted(_passages(group, "seconds"))
    return Scaling(
        row["contender"],
        Condition.of(row).task,
        n,
        row["share"],
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
        pace=pace,
        learning=_ratio(steps_alone, steps),
        against_best=_ratio(_median_passage(best, "seconds"), seconds),
        at_least=_at_least(best, group),
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


def _at_least(best: list[Row], group: list[Row]) -> float | None:
    """The lower end of the interval of how many times as soon; None with less than three seeds."""
    samples = [np.minimum(_passages(one, "seconds"), _NEVER) for one in (best, group)]
    ends = interval(samples, lambda slow, fast: medians(slow) / medians(fast))
    return None if ends is None else ends[0]


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


def table(found: Iterable[Scaling]) -> str:
    """A Markdown table of all conditions."""
    head = (
        "| task, goal | | machines | | solved | seconds, median | least–most | steps | pace "
        "| learning | over the best one (from) | kB/s to the parent | kB/s from it "
        "| parent's cores | stale | use |"
    )
    lines = [
        f"| {TASKS[one.task].environment}, {TASKS[one.task].goal:g} | {one.contender} "
        f"| {one.machines}{'' if one.share == 0.1 else f' × {one.share:g} cores'} "
        f"| {', '.join(word for word in (one.disturbance, one.link) if word != 'none')} "
        f"| {one.reached} of {one.seeds} | {_number(one.seconds)} "
        f"| {_number(one.least)}–{_number(one.most)} | {_number(one.steps, ',.0f')} "
        f"| {_number(one.pace, '.2f')} | {_number(one.learning, '.2f')} "
        f"| {_number(one.against_best)} ({_number(one.at_least)}) "
        f"| {_number(one.received, ',.0f', 1e-3)} | {_number(one.sent, ',.0f', 1e-3)} "
        f"| {_number(one.parent_cpu, '.3f')} | {_number(one.staleness)} | {one.use:.2f} |"
        for one in found
    ]
    return "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines, ""])


def _number(value: float | None, form: str = ".1f", unit: float = 1.0) -> str:
    return "–" if value is None else format(value * unit, form)


def remaining(left: Sequence[Condition], done: Iterable[Row]) -> float:
    """Seconds that the rest of a plan will probably take.

    A run takes as long as those like it did; as those with as many machines; or else a minute and
    its task's limit by the machines.

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
        limit = TASKS[condition.task].limit / condition.machines
        seconds = fmean(walls) if walls else 60.0 + limit
        total += seconds / condition.side_by_side
    return total


def _likes(one: Condition) -> tuple[Any, Any]:
    """What runs have in common that take about as long; the second is the weaker."""
    return (one.contender, one.task, one.machines, one.disturbance), (one.task, one.machines)
