"""Learning curves of histories, as columns, and many curves as one with a band. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError

Numbers = npt.NDArray[np.float64]

#: What a curve may be drawn over: column and label.
AXES = {
    "steps": "environment steps",
    "seconds": "seconds of training",
    "episodes": "episodes",
    "updates": "exchanges a child",
}

#: The key of an exchange's line by its axis.
_KEYS = {"steps": "steps", "episodes": "episodes", "updates": "update"}

#: Of a curve: one row an exchange.
COLUMNS = (*AXES, "mean_return", "staleness", "distance", "child")

#: Points of a band.
_POINTS = 200


class Band(NamedTuple):
    """Several curves as one."""

    #: (k,): where.
    x: Numbers
    #: (k,): their median there, and the quartiles.
    median: Numbers
    low: Numbers
    high: Numbers


def columns(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The exchanges of a plain run's history as columns, by the names of `COLUMNS`.

    `mean_return` is that of the last `stop.window` training episodes, and None before the first has
    ended; `distance` is None where none was judged. `seconds` are those of training: pauses before
    the run was resumed do not count.
    """
    result: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for line, place in _placed(lines):
        if line["event"] == "exchange":
            for name in COLUMNS:
                result[name].append(place[name] if name in AXES else line.get(name))
    return result


def _placed(
    lines: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], dict[str, float]]]:
    """Exchanges and measures of a plain run, each with its place on the axes: that of the newest
    exchange, but for its seconds."""
    place = dict.fromkeys(AXES, 0.0)
    began: float | None = None
    try:
        for line in lines:
            kind = line.get("event")
            if kind == "resume" and "seconds" in line:
                place["seconds"] = line["seconds"]
                began = None
            elif kind == "join" and began is None:
                began = line["time"] - place["seconds"]
            elif kind in ("exchange", "measures") and "trial" not in line:
                began = line["time"] - place["seconds"] if began is None else began
                place["seconds"] = line["time"] - began
                if kind == "exchange":
                    for axis, key in _KEYS.items():
                        if not isinstance(line[key], int | float):
                            raise KeyError(key)
                        place[axis] = line[key]
                    _ = line["mean_return"], line["staleness"]
                yield line, place
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            f"history.jsonl: is damaged: a line has no good {error}; take it out"
        ) from None


def measured(
    lines: Iterable[Mapping[str, Any]], names: Sequence[str], over: str
) -> dict[str, dict[str, tuple[Numbers, Numbers]]]:
    """The values of these figures in a plain run's history, by name and child, over one of `AXES`.

    A line of measures stands where the newest exchange before it does.
    """
    points: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in names}
    for line, place in _placed(lines):
        for name in names if line["event"] == "measures" else ():
            if isinstance(value := line.get(name), int | float):
                found = points[name].setdefault(str(line.get("child")), [])
                found.append((place[over], value))
    return {
        name: {child: _arrays(found) for child, found in of.items()}
        for name, of in points.items()
        if of
    }


def _arrays(points: Sequence[tuple[float, float]]) -> tuple[Numbers, Numbers]:
    x, y = np.array(points, np.float64).T
    return x, y


def band(curves: Sequence[tuple[Numbers, Numbers]]) -> Band:
    """Median and quartiles of several curves, as far as all of them reach.

    Each is x, which never falls, and y; both (n,), without NaN, n at least 1.
    """
    first = max(float(x[0]) for x, _ in curves)
    last = min(float(x[-1]) for x, _ in curves)
    grid = np.linspace(first, max(first, last), _POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    return Band(grid, median, low, high)
