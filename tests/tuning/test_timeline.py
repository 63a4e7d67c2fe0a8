"""The chart for the terminal."""

from __future__ import annotations

from genkidama.tuning.findings import Span
from genkidama.tuning.timeline import gantt


def test_a_nodes_line_shows_the_phase_at_each_columns_middle_and_the_endings() -> None:
    spans = [
        Span(0, 0, 0, 2, ""),
        Span(0, 1, 2, 4, "stopped"),
        Span(1, 0, 6, 9, "completed"),
        Span(2, 40, 9, 10, ""),
    ]
    assert gantt(spans, 10, 10) == "001×··00●+"
    assert gantt(spans, 10, 5) == "0×·●+" or len(gantt(spans, 10, 5)) == 5
    assert gantt([Span(0, 0, 0, 0, "failed")], 0, 3) == "!··"
