from __future__ import annotations

import pytest

from genkidama.tuning.figures.timeline import busy
from genkidama.tuning.findings import read
from tests.tuning.studies import make_study


def test_the_curve_of_the_occupancy_has_the_occupancys_area() -> None:
    findings = read(make_study(trials=12, phases=3, nodes=3))
    times, shares = busy(findings)
    joined = sorted(spans[0].start for spans in findings.timeline.values())
    offered = filled = 0.0
    for left, right, share in zip(times, times[1:], shares, strict=False):
        nodes = sum(start <= left for start in joined)
        offered += nodes * (right - left)
        filled += share * nodes * (right - left)
    assert filled / offered == pytest.approx(findings.occupancy)
