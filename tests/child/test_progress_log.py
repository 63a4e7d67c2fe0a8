"""What a child says in its log while all goes well."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from genkidama.child import progress_log as module
from genkidama.child.progress_log import ExchangeLog


def test_now_and_then_a_child_says_that_it_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    pulse = ExchangeLog()
    with capture_logs() as lines:
        for version in range(1, 26):
            now += 1.0
            pulse.worked(50, [float(version)])
            pulse.exchanged("pi", version)
        pulse.ended("pi", "ws://parent:1", "25 updates done")
    assert lines == [
        {
            "event": "exchanging",
            "log_level": "info",
            "child": "pi",
            "version": version,
            "exchanges": version,
            "steps_per_second": 50,
            "mean_return": mean,
        }
        for version, mean in ((10, 5.5), (20, 15.5))
    ] + [
        {
            "event": "left",
            "log_level": "info",
            "child": "pi",
            "reason": "25 updates done",
            "exchanges": 25,
            "steps": 1250,
            "episodes": 25,
            "seconds": 25,
            "next": "python -m genkidama.child --parent ws://parent:1",
        }
    ]
