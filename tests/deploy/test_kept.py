"""What is kept between two runs: made once, made anew when it is old or its recipe changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.fleet import FRESH_DAYS, kept

Make = Callable[[str], Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Asks for what is made by a recipe; `content` holds how many times anything has been made."""
    made = []

    def fill(folder: Path) -> None:
        made.append(folder)
        folder.mkdir()
        (folder / "content").write_text(str(len(made)))
        if len(made) == 1 and (tmp_path / "fail").exists():
            raise OSError("no space left")

    return lambda recipe: kept("image", recipe, fill, tmp_path / "cache")


def age(folder: Path, days: float) -> None:
    then = time.time() - 86400 * days
    os.utime(folder.with_name(f"{folder.name}.made"), (then, then))


def test_it_is_made_once_for_each_recipe_and_anew_when_it_is_old(make: Make) -> None:
    flour = make("flour")
    assert make("flour") == flour != make("rye")
    assert (flour / "content").read_text() == "1" and (make("rye") / "content").read_text() == "2"
    age(flour, FRESH_DAYS - 0.1)
    assert (make("flour") / "content").read_text() == "1"
    age(flour, FRESH_DAYS + 0.1)
    for _ in range(2):
        assert (make("flour") / "content").read_text() == "3"
    age(flour, 2 * FRESH_DAYS + 0.1)
    assert make("rye").exists() and not flour.exists()  # nobody asks for it any more


def test_what_failed_half_way_is_not_taken(make: Make, tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    with pytest.raises(OSError, match="no space left"):
        make("flour")
    assert (make("flour") / "content").read_text() == "2"
