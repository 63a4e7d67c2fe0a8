"""What becomes of a child that ends early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.local.attendance import Attended


class FakeProcess:
    """A process that ends when the test wants it to."""

    name = "child-1"
    log = Path("child-1.log")

    def __init__(self) -> None:
        self.code: int | None = None
        self.starts = 0
        self.restarts = 0

    def error(self) -> str:
        return "the cable is loose"

    def start_again(self) -> None:
        self.starts += 1
        self.code = None

    def restart(self) -> None:
        self.restarts += 1
        if self.restarts > 2:
            raise EnvironmentFailure("child-1 was killed too often")
        self.code = None


@pytest.fixture
def process() -> Any:
    return FakeProcess()


def attended(process: Any) -> tuple[Attended, list[str]]:
    said: list[str] = []
    return Attended(process, said.append), said


def test_one_that_fails_before_it_has_trained_is_left_out_and_that_is_said(process: Any) -> None:
    child, said = attended(process)
    child.look(0.0)
    assert said == []
    process.code = 1
    child.look(1.0)
    child.look(100.0)
    assert isinstance(child.failure, EnvironmentFailure) and not process.starts
    assert said == ["child-1 is left out: the cable is loose"]


def test_one_whose_settings_are_wrong_is_left_out_although_it_has_trained(process: Any) -> None:
    child, _ = attended(process)
    child.trained()
    process.code = 2
    child.look(0.0)
    assert isinstance(child.failure, ConfigurationError)


def test_one_that_has_trained_is_started_again_the_more_often_the_later(process: Any) -> None:
    child, said = attended(process)
    child.trained()
    now = 0.0
    for rest in (1, 2, 4, 8, 16, 32, 60, 60):
        process.code = 1
        child.look(now)
        assert said[-1] == (f"child-1 failed, and is started again in {rest} s: the cable is loose")
        starts = process.starts
        child.look(now + rest - 0.1)
        assert process.starts == starts
        now += rest
        child.look(now)
        assert process.starts == starts + 1 and process.code is None
    process.code = 1
    child.look(now)
    assert str(child.failure) == "the cable is loose"


def test_who_trains_again_begins_anew(process: Any) -> None:
    child, said = attended(process)
    for _ in range(30):
        child.trained()
        process.code = 1
        child.look(0.0)
        child.look(1.0)
    assert child.failure is None and process.starts == 30 and len(set(said)) == 1


def test_one_that_is_killed_is_started_again_at_once_but_not_for_ever(process: Any) -> None:
    child, said = attended(process)
    for _ in range(3):
        process.code = -9
        child.look(0.0)
    assert said == ["child-1 was killed, and is started again"] * 2 + [
        "child-1 is left out: child-1 was killed too often"
    ]


def test_one_that_has_left_in_order_is_done(process: Any) -> None:
    child, said = attended(process)
    process.code = 0
    child.look(0.0)
    assert child.done and child.failure is None and said == []
