"""A curve stays short, and whoever joins what it sends has what it holds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from genkidama.page.series import Series, short

STEPS = st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 3)), max_size=200)


@given(steps=STEPS, most=st.integers(2, 12))
def test_joining_what_was_sent_gives_all_that_is_held(
    steps: list[tuple[float, int]], most: int
) -> None:
    series = Series(("seconds", "value"), most)
    joined: list[Any] = []
    time = 0.0
    for gap, sends in steps:
        time += gap
        series.add(time, time * 2)
        assert len(series.rows) <= most
        for _ in range(sends):
            sent = series.send()
            joined = sent["rows"] if sent.get("replace") else joined + sent["rows"]
            assert joined == series.rows == series.whole()["rows"]
    assert all(row[1] == row[0] * 2 for row in series.rows)
    assert [row[0] for row in series.rows] == sorted(row[0] for row in series.rows)


def test_a_million_rows_are_few_and_the_last_one_counts_in_the_end() -> None:
    series = Series(("seconds", "value"), 400)
    for number in range(100_001):
        series.add(number / 10, number)
    assert 100 < len(series.rows) <= 400
    assert series.rows[0] == (0.0, 0)
    series.add(10_000.2, 7)
    series.finish()
    assert series.rows[-1] == (10_000.2, 7)


def test_six_digits_are_kept() -> None:
    assert short(1234567.891) == 1234570.0 and short(-0.000123456789) == -0.000123457
