"""A short soak: machines, a parent, and what it keeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import store
from studies.soak.__main__ import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not Path("/dev/net/tun").exists(), reason="takes root and TUN devices"
    ),
]


def test_a_parent_keeps_nothing_of_its_children(tmp_path: Path) -> None:
    run(1.2, 0, tmp_path / "soak.jsonl")
    alone, *_, left, end = store.read(tmp_path / "soak.jsonl")[1:]
    assert (alone["phase"], left["phase"]) == ("alone", "left")
    assert (left["sockets"], left["files"]) == (alone["sockets"], alone["files"])
    assert left["join"] > 64  # all came, and some came again
    assert (end["phase"], end["code"], end["checkpoint_is_history"]) == ("end", 0, True)
