"""How numbers and errors read in a line for people."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.formatting import (
    bar,
    clock,
    curve,
    duration,
    energy,
    megabytes,
    one_line,
    percent,
    plural,
    rate,
    remaining,
    short_names,
    shortened,
    show,
    toml_value,
    without_password,
)


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [
        (0, "episode", "0 episodes"),
        (1, "child", "1 child"),
        (2, "child", "2 children"),
        (1234, "episode", "1,234 episodes"),
    ],
)
def test_a_count_has_its_noun(count: int, noun: str, expected: str) -> None:
    assert plural(count, noun) == expected


@pytest.mark.parametrize(
    ("watt_hours", "expected"),
    [
        (1.934, "1.93 Wh"),
        (99.9, "99.9 Wh"),
        (100.0, "100 Wh"),
        (100.6, "101 Wh"),
        (1234.4, "1,234 Wh"),
    ],
)
def test_small_energies_have_three_digits(watt_hours: float, expected: str) -> None:
    assert energy(watt_hours) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "true"),
        (3, "3"),
        (1e-3, "0.001"),
        ('größe "1"', '"größe \\"1\\""'),
        ([1, [2, "x"]], '[1, [2, "x"]]'),
        ({"a": 1, "b": {"c": []}}, "{ a = 1, b = { c = [] } }"),
    ],
)
def test_a_value_in_one_line_of_toml(value: Any, expected: str) -> None:
    assert toml_value(value) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://ada:se@cret@host:1", "redis://…@host:1"),
        ("redis://host:1", "redis://host:1"),
        ("ada@host", "ada@host"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, expected: str) -> None:
    assert without_password(url) == expected


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, "░░░░"), (0.5, "██░░"), (1.0, "████"), (-1.0, "░░░░"), (7.0, "████")],
)
def test_a_bar_has_its_width(share: float, expected: str) -> None:
    assert bar(share, 4) == expected
    assert len(bar(share)) == 20


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.0, "0:00"), (42.4, "0:42"), (59.6, "1:00"), (725.0, "12:05"), (11220.0, "3:07:00")],
)
def test_durations_read_like_a_clock(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0.0"), (4.25, "4.2"), (9.9, "9.9"), (10.0, "10"), (2950.4, "2,950")],
)
def test_a_small_rate_has_a_decimal(value: float, expected: str) -> None:
    assert rate(value) == expected


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 MB"), (31_499_999, "31 MB"), (31_500_001, "32 MB"), (2_000_000_000, "2000 MB")],
)
def test_sizes_are_said_in_megabytes(size: int, words: str) -> None:
    assert megabytes(size) == words


def test_an_error_that_says_nothing_is_named_by_its_kind() -> None:
    assert one_line(TimeoutError()) == "TimeoutError"
    assert one_line(ValueError("the cable\n  is loose")) == "the cable is loose"
    assert one_line(ValueError("x" * 300)) == "x" * 300
    assert one_line(ValueError("x" * 301)) == "x" * 300 + " …"


@given(st.text(min_size=1, max_size=100), st.integers(1, 50))
def test_an_error_is_one_line_of_bounded_length(text: str, length: int) -> None:
    found = one_line(ValueError(text), length)
    assert len(found.splitlines()) == 1 and len(found) <= max(length, len("ValueError")) + 2


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert (shortened("short"), shortened("12345", 5)) == ("short", "12345")
    assert shortened("123456", 4) == "12 … 56"
    long = shortened("begin" + "x" * 100_000 + "end")
    assert long.startswith("begin") and long.endswith("end")
    assert len(long) == 403
    assert shortened("x" * 400) == "x" * 400 != shortened("x" * 401)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (8521.4, "8,521"),
        (231.44, "231.4"),
        (0.00033, "0.00033"),
        (-231.46, "-231.5"),
        (999.9, "999.9"),
        (1000, "1,000"),
        (-1000.4, "-1,000"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (3, "3"),
        (12345, "12,345"),
        (True, "True"),
        ("sgd", "sgd"),
        (math.nan, "–"),
        (0.99994, "0.9999"),
        (0.999996, "0.999996"),
        (1 + 2**-52, "1.0000000000000002"),
        (1.0, "1"),
        (1, "1"),
    ],
)
def test_numbers_for_people(value: Any, expected: str) -> None:
    assert show(value) == expected


def test_names_are_as_short_as_they_can_be() -> None:
    assert short_names(["a.rate", "b.rate", "c.gamma", "optimizer.name", "environment.id"]) == {
        "a.rate": "a.rate",
        "b.rate": "b.rate",
        "c.gamma": "gamma",
        "optimizer.name": "optimizer.name",
        "environment.id": "environment.id",
    }


@pytest.mark.parametrize(
    ("points", "width", "expected"),
    [
        ([], 3, ""),
        ([(0, 1)], 0, ""),
        ([(3, 2)], 5, "▁"),
        ([(0, 1), (5, 3)], 1, "▁"),
        ([(0, 1), (5, 1)], 3, "▁▁▁"),
        ([(0, 0), (1, 1), (2, 2), (3, 3)], 4, "▁▃▆█"),
        ([(2, -1), (4, 7), (6, 3)], 3, "▁█▅"),
        ([(10, 5), (14, 1), (20, 9)], 10, "▅▅▅▅▁▁▁▁▁█"),
    ],
)
def test_a_curve_has_the_newest_value_of_each_column(
    points: list[tuple[float, float]], width: int, expected: str
) -> None:
    assert curve(points, width) == expected


def test_what_remains_is_estimated_from_what_was_done_since() -> None:
    assert remaining(10.0, 0.0, 0.25) == 30.0
    assert remaining(30.0, 0.5, 0.75) == 30.0
    assert remaining(5.0, 0.0, 0.03) == pytest.approx(5.0 * 0.97 / 0.03)
    assert remaining(5.0, 0.0, 0.02) is None
    assert remaining(5.0, 0.5, 0.4) is None


def test_a_share_in_percent() -> None:
    assert (percent(0.5671), percent(0.0549, 0), percent(math.nan)) == ("56.7 %", "5 %", "–")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (42.54, "42.5 s"),
        (59.99, "60 s"),
        (60, "1:00"),
    ],
)
def test_times_read_like_a_clock(seconds: float, expected: str) -> None:
    assert clock(seconds) == expected
