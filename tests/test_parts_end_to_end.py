"""A whole cluster whose parent is in parts, as processes: one is killed, and the run goes on."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.parent import Parent
from genkidama.parent.__main__ import main
from genkidama.protocol.shard import Shard
from genkidama.runs.run import Run
from tests.helpers import Started, command, constant, history, small, starting, until


def second_part(started: Started) -> psutil.Process:
    """Its process; pytest fails if there is none."""
    return next(process for process in started.family() if "2/2" in process.cmdline())


def survives(tmp_path: Path, experiment: Experiment, episodes: int) -> Run:
    """What `train` leaves if the second of two parts is killed, and the run is resumed later."""
    (tmp_path / "cart.toml").write_text(experiment.to_toml())
    run = tmp_path / "run"
    part = run / "parts" / "2-of-2"
    options = ("--children", 2, "--cores", 1, "--json", "--episodes", episodes)
    with starting(tmp_path) as start:
        told = ("genkidama", "train", "cart.toml", "--shards", 2, "--out", "run", *options)
        process = start(*told)
        until(lambda: history(part, "checkpoint"), "a checkpoint of the second part")
        before = len(history(run, "exchange"))
        second_part(process).send_signal(signal.SIGKILL)
        until(lambda: history(part, "resume"), "the second part again")
        until(lambda: len(history(run, "exchange")) > before + 1, "exchanges with the first part")
        process.signal(signal.SIGTERM)
        process.vanish(10.0)
        assert process.wait() == 128 + signal.SIGTERM
        assert "Traceback" not in process.err
    whole = Run(run).load(best=False)
    assert np.isfinite(whole.vector).all()
    assert whole.snapshot.part == "1/1" and Run(run).parts == 2
    goal = int(whole.snapshot.updates) + 3
    ended = command(
        tmp_path,
        "genkidama",
        "train",
        "--resume",
        "run",
        "--updates",
        goal,
        "--allow",
        "*",
        *options,
    )
    assert ended.code == 0, ended.err
    assert f"resumes from version {whole.snapshot.version}" in ended.err
    found = json.loads(ended.out)
    assert found["updates"] >= goal and bool(found["evaluation"]) == bool(episodes)
    stops = [line["reason"] for line in history(run, "stop")]
    assert stops == ["SIGTERM", f"{goal} exchanges a child done"]
    assert history(part, "stop")[-1]["reason"] in (stops[-1], "SIGTERM")
    assert Run(run).parts == 2 and len(history(part, "resume")) == 2
    return Run(run)


def test_a_cluster_survives_the_kill_of_a_part_and_its_run_goes_on(tmp_path: Path) -> None:
    experiment = constant(
        parent={"checkpoint_updates": 1},
        child={"exchange": "episode"},
        network={"options": {"seconds": 0.05, "size": 9}},
    )
    run = survives(tmp_path, experiment, episodes=0)
    assert run.load().signature.entries == (("constant", (9,)),)


@pytest.mark.slow
def test_real_children_survive_it_too_and_what_they_learn_is_evaluated(tmp_path: Path) -> None:
    run = survives(tmp_path, small(parent={"checkpoint_updates": 1}), episodes=2)
    assert run.evaluation is not None and run.evaluation["episodes"] == 2


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"parent": {"rule": "experience"}},
            "parent.rule = 'experience' in 2 parts: acting children send experience, and one",
        ),
        (
            {"search": {"phase_steps": 9, "space": {"algorithm.gamma": [0.9, 0.99]}}},
            "small: a [search] in 2 parts: each trial has one parent",
        ),
    ],
)
def test_what_cannot_be_in_parts_is_said_in_one_line(
    sections: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Parent(small(**sections), part=Shard(1, 2), out=tmp_path)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)
    assert "leave --shard and --shards out" in str(caught.value)


def test_a_wrong_number_of_parts_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment: Experiment = constant()
    for count in (0, 1000):
        with pytest.raises(ConfigurationError, match=f"^{count} parts: 1 to 999 are possible$"):
            train(experiment, shards=count, out=tmp_path / "run")
    (tmp_path / "cart.toml").write_text(experiment.to_toml())
    assert main([str(tmp_path / "cart.toml"), "--shard", "3/2"]) == 2
    assert capsys.readouterr() == (
        "",
        "error: --shard 3/2: expected I/K with I from 1 to K, and K at most 999; "
        "as 2/3 for the second of three parts\n",
    )
