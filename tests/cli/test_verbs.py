"""What the verbs make of what they are told. `tests/test_main.py` tests the command itself."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.cli import verbs
from genkidama.cli.parser import make_parser
from genkidama.cli.verbs import summary
from genkidama.runs.evaluation import Evaluation
from genkidama.runs.warm_start import found_weights
from tests.helpers import small, untrained
from tests.stories import PLAN


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "cart.toml").write_text(small(stop={"updates": 5}).to_toml())
    options = Namespace(
        file=tmp_path / "cart.toml", resume=None, set=["seed=1", "child.beta=0.25"], seed=7
    )
    found = verbs.experiment_of(options, "which?")
    assert (found.seed, found.child.beta, found.stop.updates) == (7, 0.25, 5)
    options.updates = 9
    assert verbs.experiment_of(options, "which?").stop.updates == 9


def test_a_search_gives_train_the_settings_of_its_best_trial_and_search_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = untrained(tmp_path / "search", small(search=PLAN))
    monkeypatch.setattr(verbs, "best_trial_of", lambda _: untrained(tmp_path / "best", small()))
    for verb, searches in (("train", False), ("search", True)):
        options = make_parser().parse_args([verb, "--from", str(found.path)])
        options.weights = found_weights(options.weights)
        assert verbs.experiment_of(options, "which?").searches == searches


def test_a_summary_counts_what_this_command_has_added(tmp_path: Path) -> None:
    run = untrained(tmp_path, small(), version=4)  # 50 steps and 1.5 s each
    snapshot = run.snapshot
    assert summary(run) == {
        "run": str(tmp_path),
        "updates": 4.0,
        "episodes": 8,
        "steps": 200,
        "seconds": 6.0,
        "steps_per_second": pytest.approx(200 / 6),
        "evaluation": None,
    }
    assert summary(run, snapshot)["steps_per_second"] == 0.0
    snapshot.steps = 150
    snapshot.seconds = 5.0
    assert summary(run, snapshot)["steps_per_second"] == 50.0


def test_several_runs_are_evaluated_alike_and_their_mean_is_said_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def played(target: Path, **options: Any) -> Evaluation:
        asked.append({"target": target} | options)
        returns = np.array([float(target.name)])
        return Evaluation(
            returns,
            target / "checkpoints" / "best.safetensors",
            None,
            True,
            0,
            "Moon-v1",
            "Moon-v1",
        )

    monkeypatch.setattr(verbs, "evaluate", played)
    words = ["evaluate", "3", "5", "--starts", "noop:30", "--choose", "20", "--seed", "9"]
    assert verbs.run_evaluate(make_parser().parse_args(words)) == 0
    options = {"episodes": None, "deterministic": False, "seed": 9, "environment": None}
    options |= {"starts": "noop:30", "choose": 20, "best": True, "progress": True}
    options |= {"allow": []}
    assert asked == [{"target": Path(name)} | options for name in ("3", "5")]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("3: 3.0 ± 0.0 over 1 episode, greedy")
    assert said[-1] == "4.0 ± 1.0 over 2 runs, the least 3.0"
    assert verbs.run_evaluate(make_parser().parse_args([*words, "--json"])) == 0
    assert json.loads(capsys.readouterr().out)["mean"] == 4.0
    assert verbs.run_evaluate(make_parser().parse_args(["evaluate", "3", "--json"])) == 0
    assert json.loads(capsys.readouterr().out)["starts"] is None
