"""One fault of the study, its checker, and its table."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from studies.faults import __main__ as faults
from studies.faults.checks import check
from studies.faults.faults import killing
from studies.faults.shelf import Shelf
from tests.small_disk import possible


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not possible(), reason="nothing is mounted here")
def test_a_core_is_killed_and_what_breaks_a_law_is_seen(tmp_path: Path) -> None:
    with Shelf(tmp_path / "0", random.Random(1)) as shelf:
        assert killing("core")(shelf, "training") == "went on"
        assert shelf.broken == []
        log = shelf.run / "history.jsonl"
        whole = log.read_bytes()
        lines = whole.splitlines(keepends=True)
        places = [place for place, line in enumerate(lines) if b'"exchange"' in line]
        log.write_bytes(b"".join(lines[: places[9]] + lines[places[9] + 1 :]))
        assert any("version" in each for each in check(shelf))  # a push that the history lacks
        log.write_bytes(whole.replace(b'"event"', b'"ev\x01nt"', 1))
        assert check(shelf)
        log.write_bytes(whole)
        (shelf.shm / "left").touch()
        (shelf.run / "logs" / "child-1.log").write_text("Traceback (most recent call last):")
        assert check(shelf) == ["a traceback in child-1.log", "left in /dev/shm: left"]
        os.truncate(
            shelf.run / "checkpoints" / sorted(os.listdir(log.parent / "checkpoints"))[-1], 9
        )
        assert len(check(shelf)) > 2


def test_the_table_is_put_between_its_markers(tmp_path: Path) -> None:
    rows = [
        {"fault": "nothing", "stage": "–", "outcome": "went on", "broken": []},
        {"fault": "nothing", "stage": "–", "outcome": "went on", "broken": ["a law"]},
    ]
    page = tmp_path / "page.md"
    page.write_text(f"before\n{faults._BEGIN}old\n{faults._END}after\n")
    faults.write(page, faults.table(rows))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| nothing | 2 | 1 |  |  |  |  | 1 |" in text
