"""Asynchronous search for hyperparameters: HyperTrick (Heinrich and Frosio, arXiv 1902.02725),
Hyperband and ASHA, with study and report.

`genkidama search FILE.toml` runs a search on real machines (`docs/hypertrick.md`).
`studies/hypertrick/` simulates it.
"""

from __future__ import annotations

import importlib
from typing import Any

from genkidama.config.plugin import Plugin

_RULE = "genkidama.plugins.hypertrick.rule"

#: Public names and their homes, imported when they are first used.
_HOMES = {
    "Decision": _RULE,
    "HyperTrick": _RULE,
    "HyperTrickPruner": "genkidama.plugins.hypertrick.pruner",
    "Mode": _RULE,
    "Verdict": _RULE,
    "completion_rate": _RULE,
    "eviction_rate_for": _RULE,
    "expected_workers": _RULE,
    "geometric_phases": _RULE,
    "minimum_completion_rate": _RULE,
    "workers_before_selection": _RULE,
}

PLUGIN = Plugin(
    sections={"search": "genkidama.plugins.hypertrick.settings:SearchSettings"},
    checks={"search": "genkidama.plugins.hypertrick.settings:check"},
    status_parts={"search": "genkidama.plugins.hypertrick.status:SearchStatus"},
    trials={"search": "genkidama.plugins.hypertrick.trial_store:TrialStore"},
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
