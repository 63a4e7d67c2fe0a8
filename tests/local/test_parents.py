"""The process of one part of a parent, as a cluster looks after it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError
from genkidama.local.directory import prepare_directory
from genkidama.local.parents import ParentProcess, end_all, finish
from genkidama.parts import Part
from tests.helpers import constant, history, until


def test_a_part_that_is_killed_or_told_to_stop_returns_to_its_address(tmp_path: Path) -> None:
    prepare_directory(constant(), tmp_path / "run", None)
    own = tmp_path / "run" / "parts" / "2-of-2"
    part = ParentProcess(tmp_path / "run", Part(2, 2), "127.0.0.1:0")
    address = part.address
    said: list[str] = []

    def looked(count: int) -> bool:
        part.read()
        assert not part.over
        part.look(said.append)
        return len(said) == count

    try:
        part.start([])
        for count, number in enumerate((signal.SIGTERM, signal.SIGKILL), start=1):
            until(lambda wanted=count: len(history(own, "start")) == wanted, "a part that listens")
            os.kill(part.process.pid, number)
            until(lambda wanted=count: looked(wanted), "what is said of it")
        until(lambda: len(history(own, "start")) == 3, "a part that listens")
        assert said == [
            "the parent, part 2/2, was stopped by SIGTERM, and is started again",
            "the parent, part 2/2, was killed, and is started again",
        ]
        assert part.address == address
        finish([part], 10.0)
        assert part.process.code == 0
        assert [line["reason"] for line in history(own, "stop")] == ["SIGTERM", "SIGTERM"]
    finally:
        end_all([part], 2.0, None)


def test_a_part_that_ends_with_an_error_ends_the_cluster(tmp_path: Path) -> None:
    prepare_directory(constant(), tmp_path / "run", None)
    part = ParentProcess(tmp_path / "run", Part(2, 2), "127.0.0.1:0")
    try:
        part.start(["--tokens-file", str(tmp_path / "none")])
        part.wait(20.0)
        part.read()
        with pytest.raises(ConfigurationError, match="none"):
            part.look(lambda line: None)
    finally:
        end_all([part], 2.0, None)
