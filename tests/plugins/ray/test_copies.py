"""What of a run on a cluster is here, and what the driver asks for next. Without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.plugins.ray.copies import Copies

FIRST = "checkpoints/version-0000000001.safetensors"
SECOND = "checkpoints/version-0000000002.safetensors"
BEST = "trials/0000/checkpoints/best.safetensors"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def test_history_goes_on_behind_its_last_whole_line(run: Path) -> None:
    (run / "history.jsonl").write_bytes(b"{}\n{torn")
    copies = Copies(run)
    assert copies.position == 3
    copies.append_history(b"{1}\n")
    assert copies.position == 7
    assert (run / "history.jsonl").read_bytes() == b"{}\n{1}\n"
    with (run / "history.jsonl").open("ab") as file:
        file.write(b"{to")
    copies.mend()
    assert copies.position == 7 == (run / "history.jsonl").stat().st_size


def test_what_was_given_is_not_asked_for(run: Path) -> None:
    copies = Copies(run)
    copies.begin({FIRST: "a"})
    copies.look({FIRST: "a"})
    assert copies.wanted == [] and copies.complete
    copies.look({FIRST: "a", SECOND: "b"})
    assert copies.wanted == copies.missing == [SECOND] and not copies.complete
    copies.look({FIRST: "changed"})
    assert copies.wanted == [FIRST]


def test_a_checkpoint_that_the_parent_deletes_goes_here_when_another_has_come(run: Path) -> None:
    copies = Copies(run)
    copies.begin({})
    copies.look({FIRST: "a"})
    copies.arrived({FIRST: b"one"}, copies.marks)
    copies.look({SECOND: "b"})
    assert (run / FIRST).read_bytes() == b"one"
    copies.arrived({SECOND: b"two"}, copies.marks)
    assert (run / SECOND).read_bytes() == b"two" and not (run / FIRST).exists()
    assert copies.complete


def test_a_study_waits_for_the_weights_that_it_tells_of(run: Path) -> None:
    copies = Copies(run)
    copies.begin({})
    copies.look({"study.db": "s", BEST: "b"})
    assert copies.wanted == ["study.db"]  # alone, so that what it tells of can be seen behind it
    copies.arrived({"study.db": b"study"}, copies.marks)
    assert copies.wanted == [] and not copies.complete  # the next look says what it waits for
    copies.look({"study.db": "s", BEST: "newer", FIRST: "a"})
    assert copies.wanted == [BEST, FIRST]
    copies.arrived({BEST: b"best"}, copies.marks)
    assert not (run / "study.db").exists()
    copies.arrived({FIRST: b"one"}, copies.marks)
    assert (run / "study.db").read_bytes() == b"study" and copies.complete


def test_weights_that_are_gone_meanwhile_are_looked_for_again(run: Path) -> None:
    copies = Copies(run)
    copies.begin({})
    copies.look({"study.db": "s", FIRST: "a"})
    copies.arrived({"study.db": b"study"}, copies.marks)
    copies.look({"study.db": "s", FIRST: "a"})
    copies.arrived({FIRST: None}, copies.marks)
    assert not (run / "study.db").exists() and copies.wanted == []
    copies.look({"study.db": "s", SECOND: "b"})
    copies.arrived({SECOND: b"two"}, copies.marks)
    assert (run / "study.db").read_bytes() == b"study"


def test_a_new_parent_begins_with_what_it_was_given(run: Path) -> None:
    copies = Copies(run)
    copies.begin({})
    copies.look({"study.db": "s", FIRST: "a"})
    copies.arrived({"study.db": b"of the lost parent"}, copies.marks)
    copies.begin({FIRST: "other"})
    copies.look({FIRST: "other", "study.db": "t"})
    assert copies.wanted == ["study.db"] and not (run / "study.db").exists()


def test_what_cannot_be_written_is_told(run: Path) -> None:
    copies = Copies(run)
    (run / "history.jsonl").mkdir()
    with pytest.raises(EnvironmentFailure, match="Is a directory; move the folder away that"):
        copies.append_history(b"{}\n")
    copies.append_log("parent", b"up\n")
    assert (run / "logs" / "parent.log").read_bytes() == b"up\n"
