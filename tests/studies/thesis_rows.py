"""Rows of studies/thesis, as its tests make them up."""

from __future__ import annotations

from typing import Any

from studies.thesis.cells import CELLS, CHECKPOINTS, EPISODES, Row


def row(cell: str, seed: int, mean: float, deviation: float = 50.0, **more: Any) -> Row:
    """A run that climbs evenly from 0 to `mean`."""
    every = CELLS[cell].every
    children = CELLS[cell].children
    names = [f"child-{number}" for number in range(1, children + 1)]
    return {
        "cell": cell,
        "seed": seed,
        "date": "2026-11-22 12:00:00",
        "seconds": 200.0,
        "judging": 100.0,
        "machine_cores": 2,
        "episodes": EPISODES,
        "load": [8.0, 9.0],
        "curve": [
            [every * step, mean * step / CHECKPOINTS, deviation]
            for step in range(1, CHECKPOINTS + 1)
        ],
        "returns": [mean - deviation, mean + deviation],
        "exchanges": {name: {"exchanges": 9, "staleness": [1.0] * 20} for name in names},
        "disagreement": {
            "parent": dict.fromkeys(names, 0.5),
            "between": 0.7 if children > 1 else None,
        },
        **more,
    }
