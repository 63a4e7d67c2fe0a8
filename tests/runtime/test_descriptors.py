"""How many connections the limits of descriptors allow."""

from __future__ import annotations

import resource

import pytest

from genkidama.runtime import machine
from genkidama.runtime.machine import RESERVED, descriptors_left


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "room", "raised"),
    [
        (1024, 4096, 100, 100, None),
        (1024, 4096, 2000, 2000, 2000 + 10 + RESERVED),
        (1024, 1024, 2000, 1024 - 10 - RESERVED, None),
        (256, 1024, 2000, 1024 - 10 - RESERVED, 1024),
        (100, 100, 5, 100 - 10 - RESERVED, None),  # not even for one
        (1024, resource.RLIM_INFINITY, 2000, 2000, 2000 + 10 + RESERVED),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 2000, 2000, None),
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(
    monkeypatch: pytest.MonkeyPatch,
    soft: int,
    hard: int,
    wanted: int,
    room: int,
    raised: int | None,
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: told.append(limits))
    monkeypatch.setattr(machine, "_open", lambda: 10)
    assert descriptors_left(wanted) == room
    assert told == ([] if raised is None else [(raised, hard)])
