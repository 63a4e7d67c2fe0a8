"""Asynchronous search for hyperparameters: HyperTrick (Heinrich and Frosio, arXiv 1902.02725),
Hyperband and ASHA, with study and report.

`genkidama search FILE.toml` runs a search on real machines (`docs/hypertrick.md`).
`studies/hypertrick/` simulates it.
"""

from __future__ import annotations

import importlib
from typing import Any

from genkidama.config.plugin import Plugin

_EQUATIONS = "genkidama.plugins.hypertrick.equations"
_RULE = "genkidama.plugins.hypertrick.rule"

#: Public names and their homes, imported when they are first used.
_HOMES = {
    "Bracket": _EQUATIONS,
    "Decision": _RULE,
    "HyperTrick": _RULE,
    "HyperTrickPruner": "genkidama.plugins.hypertrick.pruner",
    "Mode": _RULE,
    "Verdict": _RULE,
    "completion_rate": _EQUATIONS,
    "eviction_rate_for": _EQUATIONS,
    "expected_workers": _EQUATIONS,
    "geometric_phases": _EQUATIONS,
    "hyperband_brackets": _EQUATIONS,
    "minimum_completion_rate": _EQUATIONS,
    "workers_before_selection": _EQUATIONS,
}

PLUGIN = Plugin(
    sections={"search": "genkidama.plugins.hypertrick.settings:SearchSettings"},
    checks={"search": "genkidama.plugins.hypertrick.settings:check"},
    verbs={
        "search": "genkidama.plugins.hypertrick.verbs:SEARCH",
        "report": "genkidama.plugins.hypertrick.verbs:REPORT",
    },
    run_methods={"report": "genkidama.plugins.hypertrick.report:report_of"},
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
