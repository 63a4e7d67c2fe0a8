"""Learning curves of histories, as columns, and many curves as one with a band. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError

__all__ = ["AXES", "COLUMNS", "Band", "band", "columns", "measured"]

Numbers = npt.NDArray[np.float64]

#: What a curve may be drawn over: column and label.
AXES = {
    "steps": "environment steps",
    "seconds": "seconds since the first child joined",
    "episodes": "episodes",
    "updates": "updates (exchanges a child)",
}

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
    ended; `distance` is None where none was judged. `seconds` count from the first join, over all
    resumptions of the run.
    """
    result: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    began: float | None = None
    for line in lines:
        kind = line.get("event")
        if kind == "join" and began is None:
            began = line.get("time")
        if kind != "exchange" or "trial" in line:
            continue
        try:
            row = _row(line, began)
        except (KeyError, TypeError) as error:
            raise _damaged(error) from None
        for name, value in row.items():
            result[name].append(value)
    return result


def _damaged(error: Exception) -> ConfigurationError:
    return ConfigurationError(f"history.jsonl: is damaged: a line has no good {error}; take it out")


def _row(line: Mapping[str, Any], began: float | None) -> dict[str, Any]:
    return {
        "steps": line["steps"],
        "seconds": line["time"] - (line["time"] if began is None else began),
        "episodes": line["episodes"],
        "updates": line["update"],
        "mean_return": line["mean_return"],
        "staleness": line["staleness"],
        "distance": line.get("distance"),
        "child": line["child"],
    }


def measured(
    lines: Iterable[Mapping[str, Any]], names: Sequence[str], over: str
) -> dict[str, dict[str, tuple[Numbers, Numbers]]]:
    """The values of these figures in a plain run's history, by name and child.

    A line of measures stands where the newest exchange before it does.

    Args:
        lines: of the history.
        names: of figures, as `genkidama.protocol.diagnostics.DIAGNOSTICS`.
        over: one of `AXES`.
    """
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    place = dict.fromkeys(AXES, 0.0)
    began: float | None = None
    for line in lines:
        if began is None and line.get("event") == "join":
            began = line.get("time")
        if "trial" in line or line.get("event") not in ("exchange", "measures"):
            continue
        try:
            place["seconds"] = line["time"] - (line["time"] if began is None else began)
            if line["event"] == "exchange":
                place |= {"steps": line["steps"], "episodes": line["episodes"]}
                place["updates"] = line["update"]
                continue
            child = line["child"]
        except (KeyError, TypeError) as error:
            raise _damaged(error) from None
        for name in names:
            if isinstance(line.get(name), int | float):
                of_child = points.setdefault(name, {}).setdefault(child, [])
                of_child.append((place[over], line[name]))
    return {
        name: {child: _arrays(found) for child, found in points[name].items()}
        for name in names
        if name in points
    }


def _arrays(points: Sequence[tuple[float, float]]) -> tuple[Numbers, Numbers]:
    x, y = np.array(points, np.float64).T
    return x, y


def band(curves: Sequence[tuple[Numbers, Numbers]]) -> Band:
    """Median and quartiles of several curves, as far as all of them reach.

    Args:
        curves: of each x, which never falls, and y; both (n,), without NaN, n at least 1.
    """
    first = max(float(x[0]) for x, _ in curves)
    last = min(float(x[-1]) for x, _ in curves)
    grid = np.linspace(first, max(first, last), _POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    return Band(grid, median, low, high)
