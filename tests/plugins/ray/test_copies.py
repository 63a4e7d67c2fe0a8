"""The copy of a run that a driver keeps: its next requests, and a disk that fails. Without Ray."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.plugins.ray.copies import RunCopy

FIRST = "checkpoints/version-0000000001.safetensors"
SECOND = "checkpoints/version-0000000002.safetensors"
BEST = "trials/0000/checkpoints/best.safetensors"

HISTORY = (
    b'{"event":"warning","time":1.0,"reason":"old"}\n{"event":"stop","time":2.0,"reason":"done"}\n'
)


class Driver(RunCopy):
    """Keeps what it passes on."""

    def __init__(self, run: Path) -> None:
        self.seen: list[dict[str, Any]] = []
        self.said: list[str] = []
        super().__init__(run, self.seen.append, self.said.append)

    def poll(self, history: bytes = HISTORY, fallback: bytes = b"") -> str:
        """The parent is asked for its history from the copy's position on."""
        return self.add_history(history[self.position :], fallback)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_history_goes_on_behind_its_last_whole_line(run: Path) -> None:
    (run / "history.jsonl").write_bytes(b"{}\n{torn")
    copies = Driver(run)
    assert copies.position == 3
    copies.add_history(b"{} \n")
    assert copies.position == 7
    assert (run / "history.jsonl").read_bytes() == b"{}\n{} \n"
    with (run / "history.jsonl").open("ab") as file:
        file.write(b"{to")
    copies.mend()
    assert copies.position == 7 == (run / "history.jsonl").stat().st_size


def test_what_was_given_is_not_asked_for(run: Path) -> None:
    copies = Driver(run)
    copies.begin({FIRST: "a"})
    copies.list_files({FIRST: "a"})
    assert copies.wanted == [] and copies.complete
    copies.list_files({FIRST: "a", SECOND: "b"})
    assert copies.wanted == copies.missing == [SECOND] and not copies.complete
    copies.list_files({FIRST: "changed"})
    assert copies.wanted == [FIRST]


def test_a_checkpoint_that_the_parent_deletes_goes_here_when_another_has_come(run: Path) -> None:
    copies = Driver(run)
    copies.begin({})
    copies.list_files({FIRST: "a"})
    copies.add_files({FIRST: b"one"}, copies.marks)
    copies.list_files({SECOND: "b"})
    assert (run / FIRST).read_bytes() == b"one"
    copies.add_files({SECOND: b"two"}, copies.marks)
    assert (run / SECOND).read_bytes() == b"two" and not (run / FIRST).exists()
    assert copies.complete


def test_a_study_waits_for_the_weights_that_it_tells_of(run: Path) -> None:
    copies = Driver(run)
    copies.begin({})
    copies.list_files({"study.db": "s", BEST: "b"})
    assert copies.wanted == ["study.db"]  # alone, so that what it tells of can be seen behind it
    copies.add_files({"study.db": b"study"}, copies.marks)
    assert copies.wanted == [] and not copies.complete  # the next look says what it waits for
    copies.list_files({"study.db": "s", BEST: "newer", FIRST: "a"})
    assert copies.wanted == [BEST, FIRST]
    copies.add_files({BEST: b"best"}, copies.marks)
    assert not (run / "study.db").exists()
    copies.add_files({FIRST: b"one"}, copies.marks)
    assert (run / "study.db").read_bytes() == b"study" and copies.complete


def test_weights_that_are_gone_meanwhile_are_looked_for_again(run: Path) -> None:
    copies = Driver(run)
    copies.begin({})
    copies.list_files({"study.db": "s", FIRST: "a"})
    copies.add_files({"study.db": b"study"}, copies.marks)
    copies.list_files({"study.db": "s", FIRST: "a"})
    copies.add_files({FIRST: None}, copies.marks)
    assert not (run / "study.db").exists() and copies.wanted == []
    copies.list_files({"study.db": "s", SECOND: "b"})
    copies.add_files({SECOND: b"two"}, copies.marks)
    assert (run / "study.db").read_bytes() == b"study"


def test_a_new_parent_begins_with_what_it_was_given(run: Path) -> None:
    copies = Driver(run)
    copies.begin({})
    copies.list_files({"study.db": "s", FIRST: "a"})
    copies.add_files({"study.db": b"of the lost parent"}, copies.marks)
    copies.begin({FIRST: "other"})
    copies.list_files({FIRST: "other", "study.db": "t"})
    assert copies.wanted == ["study.db"] and not (run / "study.db").exists()


def test_each_event_is_told_once_whatever_way_it_comes(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    fallback = b'{"event":"warning","time":1.0,"reason":"old"}'
    assert driver.poll(b"", fallback) == ""
    assert driver.poll() == "done"
    assert driver.poll() == ""
    assert [line["reason"] for line in driver.seen] == ["old", "done"]
    assert (tmp_path / "history.jsonl").read_bytes() == HISTORY


def test_a_run_that_is_deleted_is_said_and_all_of_it_copied_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    driver = Driver(run)
    driver.begin({})
    driver.list_files({FIRST: "a"})
    driver.add_files({FIRST: b"one"}, driver.marks)
    assert driver.poll() == "done" and driver.complete
    shutil.rmtree(run)
    more = HISTORY + b'{"event":"warning","time":3.0,"reason":"new"}\n'
    assert driver.poll(more) == ""
    assert driver.said == [
        f"{run}: was deleted or moved while the run goes on; it is copied again; it is tried again"
    ]
    assert driver.poll(more) == ""
    assert (run / "history.jsonl").read_bytes() == more
    assert [line["reason"] for line in driver.seen] == ["old", "done", "new"]
    assert driver.missing == [FIRST]


def test_a_disk_that_fails_is_said_once_and_written_later_and_at_the_end_it_is_an_error(
    tmp_path: Path,
) -> None:
    driver = Driver(tmp_path)
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    (tmp_path / "logs").write_text("")
    for _ in range(2):
        assert driver.poll() == ""
        assert not driver.add_log("parent", b"words")
    words = "cannot be written: No space left on device; free space on its disk; it is tried again"
    assert driver.said[0] == f"{tmp_path}/history.jsonl: {words}"
    assert "move the file away that stands in a folder's place" in driver.said[1]
    assert driver.seen == []
    driver.last = True
    with pytest.raises(EnvironmentFailure, match="No space left on device"):
        driver.poll()
    driver.last = False
    os.unlink(tmp_path / "history.jsonl")
    assert driver.poll() == "done"
    assert (tmp_path / "history.jsonl").read_bytes() == HISTORY
