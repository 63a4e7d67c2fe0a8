"""HyperTrick: the asynchronous search for hyperparameters (Heinrich and Frosio, arXiv 1902.02725).

    rule.py        who may go on after a phase; pure
    space.py       what is searched, as TOML says it; pure
    simulator.py   searches in virtual time: methods.py are the rule and its rivals, problems.py what they search; pure
    gantt.py       what the simulator has found, as charts
    pruner.py      HyperTrickPruner: the rule for every user of Optuna
    ray.py         HyperTrickScheduler: the rule for Ray Tune
    findings.py    what a study says about its search: report.py as text, figures.py as figures, importance.py which settings matter

`genkidama search FILE.toml` runs one on real machines (`docs/hypertrick.md`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from genkidama.hypertrick.rule import (
    Bracket,
    Decision,
    HyperTrick,
    Mode,
    Verdict,
    completion_rate,
    eviction_rate_for,
    expected_workers,
    geometric_phases,
    hyperband_brackets,
    minimum_completion_rate,
    workers_before_selection,
)

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
