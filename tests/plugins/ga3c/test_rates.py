"""What an engine's counters say about the time since they were read last."""

from __future__ import annotations

import math

import numpy as np
import pytest

from genkidama.plugins.ga3c import rates
from genkidama.plugins.ga3c.rates import Rates
from genkidama.plugins.ga3c.slots import Count


def test_rates_are_those_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(rates.time, "monotonic", lambda: now)
    found = Rates()
    found.begin()
    counters = np.zeros(len(Count), np.int64)
    counters[:] = [60, 20, 8, 40, 4, 80]
    now = 12.0
    expected = {"tps": 4.0, "pps": 30.0, "updates": 2.0}
    means = {"prediction_batch": 3.0, "training_batch": 10.0, "lag": 2.0}
    assert found.figures(counters) == expected | means
    now = 13.0
    later = found.figures(counters.copy())
    assert later["tps"] == later["pps"] == later["updates"] == 0.0
    assert all(math.isnan(later[name]) for name in means)
