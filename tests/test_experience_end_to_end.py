"""Children that act for a learner beside the parent, all of them real: they learn, and recover."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from genkidama.config.experiment import Experiment
from tests.helpers import Started, history, starting, until


def corridor(**sections: dict[str, Any]) -> Experiment:
    """Always right is the best; at random a fifth of the episodes reach the goal in time."""
    return Experiment.from_dict(
        {
            "name": "corridor",
            "environment": {"id": "tests.environments:Corridor", "lanes": 4},
            "network": {"hidden": [16]},
            "algorithm": {"gamma": 0.8, "batch_size": 128, "minibatch_size": 64},
            "optimizer": {"learning_rate": 0.01},
            "stop": {"window": 200, "seconds": 600.0},
            "parent": {"rule": "experience", "rule_options": {"batch": 512}},
            **sections,
        }
    )


def test_two_children_learn_through_one_learner(tmp_path: Path) -> None:
    (tmp_path / "corridor.toml").write_text(corridor().to_toml())
    run = tmp_path / "run"

    def reached() -> bool:
        exchanges = history(run, "exchange")
        both = {line["child"] for line in exchanges} == {"child-1", "child-2"}
        return both and exchanges[-1]["mean_return"] >= 0.99

    with starting(tmp_path) as start:
        cluster = start(
            *("genkidama", "train", "corridor.toml", "--children", 2, "--cores", 1),
            *("--episodes", 0, "--out", "run"),
        )
        until(reached, "both take part, and nearly all episodes reach the goal", 100)
        cluster.signal(signal.SIGINT)
        cluster.vanish(15)
        assert "Traceback" not in cluster.err
    learned = [line for line in history(run, "measures") if line["backend"] == "learner"]
    assert all(line["child"] == "parent" for line in learned)
    assert learned[-1]["batches"] == len(learned)
    noted = {name for line in learned for name in line}
    assert {"loss", "entropy", "gradient_norm", "learning_rate", "approximate_kl"} <= noted
    assert not history(run, "refused")


def learners(cluster: Started, run: Path) -> list[psutil.Process]:
    """What was forked from the nursery and writes into the parent's log."""
    log = str(run / "logs" / "parent.log")
    found = []
    for process in cluster.family():
        with suppress(psutil.Error):  # it has just ended
            if "genkidama.plugins.actors" in " ".join(process.cmdline()):
                found += [process] if log in [file.path for file in process.open_files()] else []
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_survives_its_learner_and_its_parent(tmp_path: Path) -> None:
    endless = corridor(parent=corridor_parent())
    (tmp_path / "corridor.toml").write_text(endless.to_toml())
    run = tmp_path / "run"
    with starting(tmp_path) as start:
        cluster = start(
            *("genkidama", "train", "corridor.toml", "--children", 2, "--cores", 1),
            *("--episodes", 0, "--out", "run"),
        )

        def batches() -> int:
            return sum(line["backend"] == "learner" for line in history(run, "measures"))

        until(lambda: batches() >= 3, "it learns", 100)
        (learner,) = learners(cluster, run)
        learner.kill()
        before = batches()
        until(lambda: [each.pid for each in learners(cluster, run)] not in ([], [learner.pid]))
        until(lambda: batches() >= before + 3, "it learns again", 100)
        parent = next(p for p in cluster.family() if "genkidama.parent" in p.cmdline())
        os.kill(parent.pid, signal.SIGKILL)
        until(lambda: history(run, "resume"), "the parent is there again", 100)
        before = batches()
        until(lambda: batches() >= before + 3, "it learns once more", 100)
        cluster.signal(signal.SIGINT)
        cluster.vanish(15)


def corridor_parent() -> dict[str, Any]:
    return {
        "rule": "experience",
        "rule_options": {"batch": 512},
        "checkpoint_seconds": 1.0,
        "encoding": "int4",
    }
