"""Rows of studies/scaling, as its tests make them up."""

from __future__ import annotations

from typing import Any

from studies.scaling.matrix import Condition, Row


def of(n: int, seed: int = 1, contender: str = "blend", disturbance: str = "none") -> Condition:
    return Condition(contender, n, seed, disturbance)


def row(condition: Condition, seconds: float | None, steps: int = 1_000, **more: Any) -> Row:
    """A row that reached the goal when it ended; None: it never did, in 600 s."""
    return {
        **condition.as_row(),
        "seconds": seconds or 600.0,
        "steps": steps,
        "reached": None if seconds is None else {"seconds": seconds, "steps": steps},
        "use": [1.0] * condition.machines,
        "staleness": None,
        "wall": 700.0,
        **more,
    }
