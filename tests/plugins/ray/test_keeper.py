"""What a driver keeps and tells, on a disk that fails. Without Ray."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.plugins.ray.copies import Copies, Keeper

HISTORY = (
    b'{"event":"warning","time":1.0,"reason":"old"}\n{"event":"stop","time":2.0,"reason":"done"}\n'
)
FILE = "checkpoints/version-0000000001.safetensors"


class Driver:
    def __init__(self, run: Path) -> None:
        self.seen: list[dict[str, Any]] = []
        self.said: list[str] = []
        self.copies = Copies(run)
        self.keeper = Keeper(self.copies, self.seen.append, self.said.append)

    def look(self, history: bytes = HISTORY, aside: bytes = b"") -> str:
        """The parent is asked for its history from the copy's position on."""
        return self.keeper.take(history[self.copies.position :], aside)


def test_each_event_is_told_once_whatever_way_it_comes(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    aside = b'{"event":"warning","time":1.0,"reason":"old"}'
    assert driver.look(b"", aside) == ""
    assert driver.look() == "done"
    assert driver.look() == ""
    assert [line["reason"] for line in driver.seen] == ["old", "done"]
    assert (tmp_path / "history.jsonl").read_bytes() == HISTORY


def test_a_run_that_is_deleted_is_said_and_all_of_it_copied_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    driver = Driver(run)
    driver.copies.begin({})
    driver.copies.look({FILE: "a"})
    driver.copies.arrived({FILE: b"one"}, driver.copies.marks)
    assert driver.look() == "done" and driver.copies.complete
    shutil.rmtree(run)
    more = HISTORY + b'{"event":"warning","time":3.0,"reason":"new"}\n'
    assert driver.look(more) == ""
    assert driver.said == [
        f"{run}: was deleted or moved while the run goes on; it is copied again; it is tried again"
    ]
    assert driver.look(more) == ""
    assert (run / "history.jsonl").read_bytes() == more
    assert [line["reason"] for line in driver.seen] == ["old", "done", "new"]
    assert driver.copies.missing == [FILE]


def test_a_disk_that_fails_is_said_once_and_written_later_and_at_the_end_it_is_an_error(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path)
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    (tmp_path / "logs").write_text("")
    for _ in range(2):
        assert driver.look() == ""
        assert not driver.keeper.keep(lambda: driver.copies.append_log("parent", b"words"))
    words = "cannot be written: No space left on device; free space on its disk; it is tried again"
    assert driver.said[0] == f"{tmp_path}/history.jsonl: {words}"
    assert "move the file away that stands in a folder's place" in driver.said[1]
    assert driver.seen == []
    driver.keeper.last = True
    with pytest.raises(EnvironmentFailure, match="No space left on device"):
        driver.look()
    driver.keeper.last = False
    os.unlink(tmp_path / "history.jsonl")
    assert driver.look() == "done"
    assert (tmp_path / "history.jsonl").read_bytes() == HISTORY
