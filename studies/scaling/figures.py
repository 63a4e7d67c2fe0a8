"""From raw rows to speed-up, efficiency, and where the rest went. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from studies.scaling.matrix import CONTENDERS, DISTURBANCES, Condition, Row


def staleness(values: Sequence[int]) -> Row | None:
    """Mean, median and largest of the staleness of all pushes; None without a push."""
    if not values:
        return None
    return {"mean": round(fmean(values), 2), "median": median(values), "most": max(values)}


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


def scaling(rows: Iterable[Row]) -> list[Scaling]:
    """What every measured condition came to, in the order of contenders and machines."""
    groups: dict[tuple[str, str, str, int, float], list[Row]] = {}
    for row in rows:
        groups.setdefault(_key(Condition.of(row)), []).append(row)
    alone = {
        (key[0], key[4]): group for key, group in groups.items() if key[1:4] == ("none", "none", 1)
    }
    best: dict[float, float] = {}
    for (_, share), group in alone.items():
        seconds = _median_passage(group, "seconds")
        if seconds is not None:
            best[share] = min(seconds, best.get(share, seconds))
    order = list(CONTENDERS)
    return [
        _one(group, alone.get((key[0], key[4]), []), best.get(key[4]))
        for key, group in sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item))
    ]


def _key(condition: Condition) -> tuple[str, str, str, int, float]:
    link = condition.link
    return condition.contender, link, condition.disturbance, condition.machines, condition.share


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
    return Scaling(
        row["contender"],
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
    )


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
    found = [row["reached"][name] if row["reached"] else float("inf") for row in group]
    # Of an even number the later of the middle two: an infinite one must not be averaged away.
    value = sorted(found)[len(found) // 2] if len(found) % 2 == 0 else median(found)
    return None if value == float("inf") else float(value)


def remaining(left: Sequence[Condition], done: Iterable[Row], limit: float) -> float:
    """Seconds that the rest of a plan will probably take.

    A run takes as long as those like it did; as those with as many machines; or else the limit.

    Args:
        left: what is still to be measured.
        done: rows with `wall`, the seconds that each took in all.
        limit: seconds of learning at most.
    """
    alike: dict[Any, list[float]] = {}
    for row in done:
        for key in ((row["contender"], row["machines"], row["disturbance"]), row["machines"]):
            alike.setdefault(key, []).append(row["wall"])
    total = 0.0
    for condition in left:
        key = (condition.contender, condition.machines, condition.disturbance)
        walls = alike.get(key) or alike.get(condition.machines)
        total += fmean(walls) if walls else limit
    return total
