"""Rules of a search that know no experiment stand here, and what brings them to other libraries.

Heinrich and Frosio, arXiv 1902.02725. `genkidama search FILE.toml` runs a search on real machines
(`docs/hypertrick.md`). `genkidama.tuning` does that, and `studies/hypertrick/` simulates it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from genkidama.hypertrick.equations import (
    Bracket,
    completion_rate,
    eviction_rate_for,
    expected_workers,
    geometric_phases,
    hyperband_brackets,
    minimum_completion_rate,
    workers_before_selection,
)
from genkidama.hypertrick.rule import Decision, HyperTrick, Mode, Verdict

if TYPE_CHECKING:
    from genkidama.hypertrick.pruner import HyperTrickPruner

__all__ = [
    "Bracket",
    "Decision",
    "HyperTrick",
    "HyperTrickPruner",
    "Mode",
    "Verdict",
    "completion_rate",
    "eviction_rate_for",
    "expected_workers",
    "geometric_phases",
    "hyperband_brackets",
    "minimum_completion_rate",
    "workers_before_selection",
]


def __getattr__(name: str) -> Any:
    if name == "HyperTrickPruner":  # the only one that needs Optuna
        return importlib.import_module("genkidama.hypertrick.pruner").HyperTrickPruner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
