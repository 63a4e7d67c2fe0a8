"""The learner's process by itself, with this test for its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.plugins.actors.__main__ import main
from genkidama.plugins.actors.learner_process import LearnerLayout, LearnerMemory
from genkidama.plugins.actors.rule import Columns
from genkidama.protocol.vector import Signature
from tests.helpers import PATIENCE, ROOT
from tests.learning.blocks import GOES_ON, block


@contextmanager
def learner(log: Path) -> Iterator[tuple[subprocess.Popen[bytes], Connection]]:
    ours, theirs = Pipe()
    with theirs, log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "genkidama.plugins.actors", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=file,
            stderr=file,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        yield process, ours
    finally:
        ours.close()
        process.kill()
        process.wait()


def settings(**sections: dict[str, Any]) -> Experiment:
    return Experiment.from_dict(
        {
            "environment": {"id": "tests.tiny:Faulty"},
            "network": {"hidden": [4]},
            "parent": {"rule": "experience"},
            **sections,
        }
    )


def attached(
    process: subprocess.Popen[bytes], control: Connection, experiment: Experiment
) -> tuple[LearnerMemory, np.ndarray, Columns]:
    """The memory that it was given, its initial weights, and a row's columns."""
    control.send(experiment.to_dict())
    kind, entries, initial, shape, columns = control.recv()
    assert kind == "ok"
    size = Signature.of(entries).size
    memory = LearnerMemory(LearnerLayout(size, shape[1], shape[0], 1000, columns.count))
    memory.weights[:] = np.frombuffer(initial, np.float32)
    control.send(memory.layout)
    reduction.send_handle(control, memory.descriptor, process.pid)
    return memory, memory.weights.copy(), columns


def test_it_learns_from_batches_in_turns_and_ends_with_its_parent(tmp_path: Path) -> None:
    with learner(tmp_path / "log") as (process, control):
        memory, initial, columns = attached(process, control, settings())
        rows = block([[(number, GOES_ON) for number in range(100)]], columns)
        memory.rows[: len(rows)] = rows
        before = initial
        for _ in range(2):
            control.send((len(rows), 0.5))
            kind, figures = control.recv()
            assert kind == "learned"
            assert figures["steps"] == 100.0
            assert (memory.weights != before).any()
            before = memory.weights.copy()
        assert memory.clock[0] == 2 * figures["updates"]
        assert memory.state.any()
        # What reaches a whole terminal or group ends no learner: its parent does.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        control.send((len(rows), 0.5))
        assert control.recv()[0] == "learned"
        control.close()
        assert process.wait(PATIENCE) == 0
    assert (tmp_path / "log").read_text() == ""


def test_it_ends_in_the_middle_of_a_batch_too(tmp_path: Path) -> None:
    endless = settings(algorithm={"epochs": 10**9})
    with learner(tmp_path / "log") as (process, control):
        memory, initial, columns = attached(process, control, endless)
        rows = block([[(number, GOES_ON) for number in range(100)]], columns)
        memory.rows[: len(rows)] = rows
        control.send((len(rows), 0.5))
        control.close()
        assert process.wait(PATIENCE) == 0
        np.testing.assert_array_equal(memory.weights, initial)


def test_a_mistake_of_the_users_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # it is this process
    control, theirs = Pipe()
    with control, theirs:
        control.send(settings(network={"name": "tests.tiny:Nothing"}).to_dict())
        assert main(theirs) == 1
        assert control.recv() == (
            "error",
            "network.name = 'tests.tiny:Nothing': module 'tests.tiny' has no 'Nothing'",
        )
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_what_a_learner_of_the_users_raises_is_told(tmp_path: Path) -> None:
    with learner(tmp_path / "log") as (process, control):
        experiment = settings(algorithm={"name": "tests.plugins.actors.raising:Raising"})
        memory, _, columns = attached(process, control, experiment)
        memory.rows[:3] = block([[(0, GOES_ON), (1, GOES_ON)]], columns)
        control.send((3, 0.0))
        words = "ValueError: no idea (tests/plugins/actors/raising.py:16, in losses)"
        assert control.recv() == ("failed", words)
        assert process.wait(PATIENCE) == 1
    assert "Traceback" in (tmp_path / "log").read_text()
