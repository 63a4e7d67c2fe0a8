"""The history as a file: written, mended, followed."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs import history as module
from genkidama.runs.history import (
    PIECE_BYTES,
    FallbackReader,
    History,
    HistoryTail,
    last_time,
    read_lines,
    whole_length,
    whole_lines,
    write_fallback,
)
from genkidama.server.events import Left, Started, as_lines

EVENTS = [Started(time=1.0, run="r", software="0"), Left(time=2.0, child="pi", reason="tired")]
LINES = as_lines(EVENTS)


@given(st.binary())
def test_whole_lines_end_with_their_line_break(text: bytes) -> None:
    whole = whole_lines(text)
    assert text.startswith(whole)
    assert whole == b"" or whole.endswith(b"\n")
    assert b"\n" not in text[len(whole) :]


@pytest.mark.parametrize(
    ("content", "length"),
    [
        (None, 0),
        (b"", 0),
        (b"{torn", 0),
        (b"{}\n", 3),
        (b"{}\n{}\n{torn", 6),
        (b"x" * 100_000 + b"\n" + b"y" * 10, 100_001),
        (b"{}\n" + b"y" * 200_000, 3),
        (b"y" * 200_000, 0),
    ],
)
def test_what_a_crash_has_torn_is_not_counted(
    tmp_path: Path, content: bytes | None, length: int
) -> None:
    path = tmp_path / "history.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert whole_length(path) == length
    assert b"".join(read_lines(path)) == (content or b"")[:length]
    History(path).close()  # and is cut off before the next is written
    assert path.stat().st_size == length


@pytest.mark.parametrize(
    ("content", "time"),
    [
        (None, 0.0),
        (b"", 0.0),
        (LINES, 2.0),
        (LINES + b'{"time": 9, "event"', 2.0),
        (LINES + b"damage\n", 0.0),
    ],
)
def test_the_time_of_the_last_line_is_found(
    tmp_path: Path, content: bytes | None, time: float
) -> None:
    path = tmp_path / "history.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert last_time(path) == time


def test_lines_are_written_together(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.add(EVENTS)
    assert path.read_bytes() == b""
    history.flush()
    history.flush()
    assert path.read_bytes() == LINES
    history.close()
    history = History(path)
    history.add(EVENTS[:1])
    history.flush()
    history.close()
    assert path.read_bytes() == LINES + as_lines([EVENTS[0]])


@pytest.mark.parametrize("deleted", [False, True])
def test_what_cannot_be_written_stays_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    history.add(EVENTS)
    write = os.write
    with monkeypatch.context() as patch:
        written = iter([10])

        def little(descriptor: int, text: bytes) -> int:
            for count in written:
                return write(descriptor, text[:count])
            raise OSError(28, "No space left on device")

        patch.setattr(os, "write", little)
        with pytest.raises(EnvironmentFailure, match="No space left on device; the run goes on"):
            history.flush()
    assert path.read_bytes() == LINES[:10]
    if deleted:  # to make room
        path.unlink()
        history.reopen()
    history.flush()
    history.close()
    assert path.read_bytes() == LINES


def test_what_gathers_for_too_long_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKLOG", len(LINES))
    history = History(tmp_path / "history.jsonl")
    for _ in range(3):
        history.add(EVENTS)
    assert history.dropped == 4
    history.flush()
    history.close()
    assert (tmp_path / "history.jsonl").read_bytes() == LINES


def test_one_process_writes(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    with pytest.raises(EnvironmentFailure, match=r"another parent is writing this run; .* --out"):
        History(tmp_path / "history.jsonl")
    history.close()
    History(tmp_path / "history.jsonl").close()


def test_where_nothing_can_be_written_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="Is a directory; move the folder away"):
        History(tmp_path)


def test_a_follower_reads_what_is_added_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    follower = HistoryTail(path)
    assert follower.read() == []
    path.write_bytes(b"{}\n")
    follower = HistoryTail(path)  # what was there before is not its business
    assert follower.read() == []
    with path.open("ab") as file:
        file.write(LINES[:-5])
        file.flush()
        assert follower.read() == LINES.splitlines()[:1]
        file.write(LINES[-5:])
    assert follower.read() == LINES.splitlines()[1:]
    assert follower.position == path.stat().st_size == 3 + len(LINES)
    path.write_bytes(b"{}\n")  # a new one, which may have the number of the old one
    assert follower.read() == [b"{}"]


def test_a_follower_waits_for_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """As on a disk that has been pulled out; here a folder stands in its place."""
    follower = HistoryTail(tmp_path / "history.jsonl")
    follower.path.mkdir()
    assert follower.read() == []
    follower.path.rmdir()
    follower.path.write_bytes(LINES)
    assert follower.read() == LINES.splitlines()


def test_a_long_history_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(LINES * (3 * PIECE_BYTES // len(LINES)))
    follower = HistoryTail(path)
    follower.position, found = 0, 0
    while follower.behind or not found:
        lines = follower.read()
        assert sum(map(len, lines)) <= PIECE_BYTES
        found += len(lines)
    assert found == len(list(read_lines(path))) == path.read_bytes().count(b"\n")


def test_a_hole_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(LINES)
    os.truncate(path, 1 << 28)
    follower = HistoryTail(path)
    follower.position = 0
    tracemalloc.start()
    assert follower.read() == LINES.splitlines()
    assert follower.read() == [] and follower.skipped == 1 and follower.behind
    with pytest.raises(ConfigurationError, match="a line is longer than 1 MiB"):
        list(read_lines(path))
    assert tracemalloc.get_traced_memory()[1] < 10 * PIECE_BYTES
    tracemalloc.stop()


def test_lines_arrive_whole_and_nobody_waits() -> None:
    there = FallbackReader()
    write = write_fallback(there.descriptor)
    assert there.read() == []
    write(b'{"a": 1}\n{"b"')
    assert there.read() == [b'{"a": 1}']
    write(b": 2}\n")
    assert there.read() == [b'{"b": 2}']
    for _ in range(100):
        write(b"x" * 65_535 + b"\n")  # more than a pipe holds
    assert there.read()[0] == b"x" * 65_535
    there.close()
    write(b"nobody hears this\n")
