"""What the terminal hears of what stands in the logs."""

from __future__ import annotations

import json
from pathlib import Path

from genkidama.cli.log_watcher import LogWatcher


def write(log: Path, **line: object) -> None:
    with log.open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_warnings_and_errors_are_told_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "child-1.log"
    write(log, level="error", event="of yesterday")
    complaints = LogWatcher([log, tmp_path / "child-2.log"])
    write(log, level="info", event="connected")
    with log.open("a") as file:
        file.write("Traceback (most recent call last):\n[1, 2]\n\n")
    write(log, level="warning", event="core lost", core=3, reason="ValueError: two\nlines")
    write(log, level="warning", event="trial failed", reason="as the history says")
    write(tmp_path / "child-2.log", level="error", event="state not saved", reason="x" * 1000)
    told = complaints.read(0.0)
    assert told[0] == "child-1: core lost 3: ValueError: two lines"
    assert told[1].startswith("child-2: state not saved: xxx") and len(told[1]) < 320
    assert len(told) == 2 and complaints.read(1.0) == []


def test_the_same_is_told_again_after_a_minute_with_how_often_it_was(tmp_path: Path) -> None:
    log = tmp_path / "child-1.log"
    complaints = LogWatcher([log])
    told = []
    for second in range(0, 130, 10):
        write(log, level="warning", event="core lost", core=0, reason=f"it hung for {second} s")
        told += complaints.read(float(second))
    assert told == [
        "child-1: core lost 0: it hung for 0 s",
        "child-1: core lost 0: it hung for 60 s (5 times more since)",
        "child-1: core lost 0: it hung for 120 s (5 times more since)",
    ]
