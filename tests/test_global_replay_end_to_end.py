"""Children that only act and children that only learn, all of them real, with an engine between."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from genkidama.config.experiment import Experiment
from genkidama.runs.run import Run
from tests.helpers import command, history, merged, starting, until

SETTINGS: dict[str, Any] = {
    "name": "corridor",
    "seed": 2,  # whose first weights do not walk through it already
    "environment": {"id": "tests.environments:Corridor"},
    "network": {"hidden": [16]},
    "algorithm": {
        "name": "dqn",
        "gamma": 0.8,
        "batch_size": 16,
        "minibatch_size": 32,
        "start_steps": 200,
        "n_steps": 3,
        "epsilon": 0.3,
        "target_updates": 20,
    },
    "replay": {"steps": 2000, "url": "embedded"},
    "optimizer": {"learning_rate": 0.01},
    "child": {
        "roles": ["act", "learn", "act"],
        "exchange": "free",
        "exchange_seconds": 0.1,
    },
    "stop": {"window": 100, "seconds": 300.0},
}


def corridor(**sections: dict[str, Any]) -> Experiment:
    return merged(SETTINGS, **sections)


def train(children: int, *more: object) -> tuple[object, ...]:
    given = ("--children", children, "--cores", 1, "--episodes", 0, "--out", "run")
    return ("genkidama", "train", "corridor.toml", *given, *more)


def joined(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The exchanges of each child."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in history(run, "exchange"):
        found.setdefault(line["child"], []).append(line)
    return found


def gradients(roles: list[str], **sections: dict[str, Any]) -> Experiment:
    """Children whose gradients make the steps, until they walk through the corridor."""
    return corridor(
        parent={"rule": "gradient"},
        child={"exchange": "update", "roles": roles},
        stop={"mean_return": 0.7},
        **{"algorithm": {"outlier_sigmas": 6.0}, **sections},
    )


def test_children_that_act_and_learn_have_one_replay_whose_password_and_engine_stay_inside(
    tmp_path: Path,
) -> None:
    (tmp_path / "corridor.toml").write_text(gradients(["bundle"]).to_toml())
    ended = command(tmp_path, *train(2), seconds=90)
    assert ended.code == 0, ended.err
    run = tmp_path / "run"
    last = history(run, "exchange")[-1]
    assert last["mean_return"] >= 0.7
    assert last["steps"] > 200
    # The engine's password stands in its own file alone.
    password = re.findall(r"^requirepass (\S+)$", (run / "replay/valkey.conf").read_text(), re.M)
    others = [path for path in run.rglob("*") if path.is_file() and path.name != "valkey.conf"]
    assert not [path for path in others if password[0].encode() in path.read_bytes()]
    assert not [process for process in psutil.process_iter() if _is_engine_of(process, run)]


def test_one_acts_one_learns_and_a_parent_in_two_parts_has_their_replay(tmp_path: Path) -> None:
    """Gorila's whole architecture: gradients to a sharded parameter server, and one replay."""
    experiment = gradients(
        ["act", "learn"],
        optimizer={"name": "adagrad"},
        algorithm={"target_versions": 20, "target_updates": 0, "outlier_sigmas": 6.0},
    )
    (tmp_path / "corridor.toml").write_text(experiment.to_toml())
    ended = command(tmp_path, *train(2, "--shards", 2), seconds=90)
    assert ended.code == 0, ended.err
    run = tmp_path / "run"
    parts = run, run / "parts" / "2-of-2"
    assert history(run, "exchange")[-1]["mean_return"] >= 0.7
    for part in parts:
        # Each part applies its slice of every gradient, and hears of the work of both. Who learns
        # makes every version, and all updates are its own. Who acts makes none.
        last = history(part, "exchange")[-1]
        every = list(range(1, last["version"] + 1))
        versions = [[line["version"] for line in lines] for lines in joined(part).values()]
        assert len(versions) == 2
        assert every in versions
        assert last["update"] == last["version"]
        assert not history(part, "refused")
    assert [(part / "replay/valkey.conf").exists() for part in parts] == [True, False]
    assert np.isfinite(Run(run).load(best=False).vector).all()


def _is_engine_of(process: psutil.Process, run: Path) -> bool:
    try:
        return process.cwd() == str(run / "replay")
    except psutil.Error:
        return False


@pytest.mark.slow
def test_they_learn_though_engine_and_children_are_killed(tmp_path: Path) -> None:
    """Weights are blended; the parent is killed too, and its engine with it."""
    (tmp_path / "corridor.toml").write_text(corridor().to_toml())
    run = tmp_path / "run"

    def steps() -> int:
        lines = history(run, "exchange")
        return int(lines[-1]["steps"]) if lines else 0

    with starting(tmp_path) as start:
        cluster = start(*train(3))
        until(lambda: len(joined(run)) == 3 and steps() > 500, "all three take part", 60)

        def named(words: str) -> psutil.Process:
            (found,) = [
                process
                for process in cluster.family()
                if words in " ".join(process.cmdline()) and process.name() != "sh"
            ]
            return found

        for words in ("valkey-server", "--name child-1", "valkey-server", "genkidama.parent"):
            os.kill(named(words).pid, signal.SIGKILL)
            now = steps()
            until(lambda now=now: steps() > now + 300, f"they go on after {words} was killed", 60)
        until(lambda: history(run, "exchange")[-1]["mean_return"] >= 0.7, "they learn", 90)
        cluster.signal(signal.SIGINT)
        cluster.vanish(15)
        assert "Traceback" not in cluster.err
    assert not history(run, "refused")
