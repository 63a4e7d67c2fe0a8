from __future__ import annotations

from pathlib import Path

import numpy as np

from studies.realtime.__main__ import WARM_UP, measured
from studies.realtime.plant import Plant


def test_cycles_are_measured_from_what_a_plant_notes(tmp_path: Path) -> None:
    plant = Plant(str(tmp_path / "times"))
    plant.reset(seed=0)
    for _ in range(3):
        plant.step(np.zeros(1, np.float32))
    plant.close()
    assert (np.diff(np.fromfile(tmp_path / "times", np.float64)) > 0.0).all()
    times = np.concatenate(([0.0, 4.0], WARM_UP + 1.0 + np.cumsum([0.02] * 99 + [0.5])))
    times.tofile(tmp_path / "known")
    assert measured(tmp_path / "known") == {
        "cycles": 99,
        "p50_ms": 20.0,
        "p99_ms": 29.6,
        "max_ms": 500.0,
        "late": 0.0101,
    }
