"""Words for sizes and times: values at both sides of every border."""

from __future__ import annotations

import pytest

from genkidama.doctor.judgements.check import DAY, duration, size

GIB = 1 << 30


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 MiB"), (300 << 20, "300 MiB"), (GIB, "1.0 GiB"), (1600 << 20, "1.6 GiB")],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "5 seconds"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7200, "2 hours"),
        (2 * DAY, "2 days"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
