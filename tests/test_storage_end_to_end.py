"""A disk that fails is told where the person looks, and no run that is lost ends with success."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from genkidama.runs.run import Run
from studies.faults.shelf import fill
from tests.helpers import constant, history, starting, until
from tests.small_disk import disk_of, possible

needs_mount = pytest.mark.skipif(not possible(), reason="no disk can be mounted here")


@needs_mount
@pytest.mark.parametrize("ending", ["stopped", pytest.param("done", marks=pytest.mark.slow)])
def test_a_full_disk(tmp_path: Path, ending: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    seconds = 8 if ending == "done" else 600
    settings = constant(
        parent={"checkpoint_seconds": 0.5},
        stop={"seconds": seconds},
        network={"options": {"seconds": 0.02}},
    )
    (tmp_path / "e.toml").write_text(settings.to_toml())
    with starting(tmp_path) as start:
        train = ["genkidama", "train", "e.toml", "--children", "1", "--episodes", "0"]
        process = start("tests.small_disk", disk, *train, "--out", disk / "run", "--json")
        there = disk_of(process.pid, disk)
        until(lambda: history(there / "run", "checkpoint"), "a checkpoint")
        fill(there)
        until(lambda: "No space left on device" in process.err, "a warning", 10.0)
        assert "; free space on its disk" in process.err or "on, free space" in process.err
        assert "Traceback" not in process.err
        if ending == "stopped":
            process.signal(signal.SIGTERM)
        assert process.wait() == (143 if ending == "stopped" else 1)
        if ending == "stopped":
            assert "the parent has not written its last checkpoint: " in process.err
        else:
            last = process.err.splitlines()[-1]
            assert last.startswith("error: ") and "No space left on device" in last
        assert process.out == "" and "Traceback" not in process.err
        process.vanish(5.0)


@pytest.mark.slow
def test_a_run_directory_that_is_deleted_is_there_again_at_the_end(tmp_path: Path) -> None:
    settings = constant(
        parent={"checkpoint_seconds": 0.5},
        stop={"seconds": 5},
        network={"options": {"seconds": 0.02}},
    )
    (tmp_path / "e.toml").write_text(settings.to_toml())
    with starting(tmp_path) as start:
        process = start(
            *("genkidama", "train", "e.toml", "--children", "1", "--episodes", "0"),
            *("--out", "run", "--json"),
        )
        until(lambda: history(tmp_path / "run", "checkpoint"), "a checkpoint")
        os.rename(tmp_path / "run", tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone")
        until(lambda: "run: was deleted or moved while the run goes on" in process.err, "", 10.0)
        assert process.wait() == 0, process.err
        assert "Traceback" not in process.err
    run = Run(tmp_path / "run")
    assert run.snapshot.updates == json.loads(process.out)["updates"]
    assert history(run.path, "stop")
