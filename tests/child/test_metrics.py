"""What a child says of its learning: means of its processes, and what the schedules say."""

from __future__ import annotations

import numpy as np
import pytest

from genkidama.child import metrics
from genkidama.child.metrics import DiagnosticsReader
from genkidama.protocol.diagnostics import SHAPE, Diagnostics
from tests.helpers import small


def test_means_of_all_cores_and_the_rates_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now)
    settings = small(
        optimizer={"learning_rate": 0.4, "schedule": "linear"},
        algorithm={"epsilon": 0.5, "epsilon_spread": 1.0},
    )
    sums = np.zeros((2, *SHAPE))
    told = DiagnosticsReader(settings, 2)
    assert told.figures(sums, 0.25) == {}
    cores = [Diagnostics(row) for row in sums]
    cores[1].ended(30)
    found = told.figures(sums, 0.25)
    assert found == {"episode_length": 30.0, "episodes_ended": 1.0, "epsilon": 0.375}
    cores[0].add(3, loss=1.0)
    cores[1].add(1, loss=5.0)
    for core in cores:
        core.close(2.0)
    now += 0.1
    assert told.figures(sums, 0.25) == {}  # too soon
    now += 0.2
    assert told.figures(sums, 0.25) == {
        "loss": 2.0,
        "gradient_norm": 2.0,
        "samples": 4.0,
        "learning_rate": pytest.approx(0.3),
        "epsilon": 0.375,  # 0.5 and 0.5²
    }
