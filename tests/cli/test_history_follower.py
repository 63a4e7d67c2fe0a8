"""What a parent says is told once, whether by its history or past it."""

from __future__ import annotations

import json
from pathlib import Path

from genkidama.cli.history_follower import HistoryReader
from genkidama.runs.fallback_log import write_fallback


def line(reason: str) -> bytes:
    return json.dumps({"event": "warning", "reason": reason}).encode() + b"\n"


def test_what_was_told_aside_is_not_told_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    tidings = HistoryReader(path)
    write = write_fallback(tidings.descriptor)
    assert tidings.read() == [] and tidings.said() == ""
    write(line("full"))
    assert tidings.said() == "full"
    assert [event["reason"] for event in tidings.read()] == ["full"]
    path.write_bytes(line("full") + line("another"))
    assert [event["reason"] for event in tidings.read()] == ["another"]
    assert tidings.read() == [] and tidings.said() == "full"
    tidings.close()
