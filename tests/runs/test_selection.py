"""Which weights are meant: `load`, `policy`, `evaluate` and `play` agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genkidama
from genkidama.errors import ConfigurationError
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.directory import trial_folder
from genkidama.runs.run import Run
from genkidama.runs.selection import best_trial_of, weights_of
from genkidama.server.events import TrialEnded, as_lines
from tests.helpers import small, untrained
from tests.stories import PLAN, assigned, report


def with_best(path: Path) -> Run:
    """A run whose second version is the best, and whose newest is the fifth; all weights differ."""
    newest = Run(untrained(path, small(), version=5).path)
    folder = CheckpointFolder(newest.path / "checkpoints")
    found = newest.load()
    found.snapshot.version = 2
    folder.save_best(found.signature, np.zeros_like(found.vector), found.snapshot)
    return newest


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The checkpoints of which evaluations asked their processes to play; nothing is played."""
    found: list[Path] = []

    def play(request: Any, shares: Any, *_: Any) -> list[dict[str, Any]]:
        found.append(Path(request["checkpoint"]))
        return [{"returns": [1.0], "threshold": None, "greedy": False, "environment": "C"}]

    monkeypatch.setattr("genkidama.runs.evaluation.play", play)
    return found


def test_all_mean_the_best_weights_and_say_so(tmp_path: Path, asked: list[Path]) -> None:
    run = with_best(tmp_path)
    path = run.best
    evaluation = genkidama.evaluate(run, episodes=1, cores=1)
    assert run.load().path == path == weights_of(tmp_path).path == evaluation.checkpoint
    assert asked == [path]
    assert not run.load().vector.any()
    assert run.policy().checkpoint == path
    assert repr(run.policy()) == f"<Policy for CartPole-v1: {path}, version 2>"
    assert str(evaluation).endswith("\n  best weights, version 2")


def test_all_mean_the_newest_weights_if_they_are_asked_for_or_no_others_are_known(
    tmp_path: Path, asked: list[Path]
) -> None:
    run = with_best(tmp_path)
    assert run.load(best=False).path == run.final == run.policy(best=False).checkpoint
    assert str(weights_of(run, best=False)) == "weights of version 5"
    evaluation = genkidama.evaluate(run, episodes=1, cores=1, best=False)
    assert asked == [evaluation.checkpoint] == [run.final]
    (tmp_path / "checkpoints" / "best.safetensors").unlink()
    assert run.load().path == weights_of(run).path == run.policy().checkpoint == run.final


def test_choosing_by_evaluation_and_taking_the_newest_are_two_things(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"choose = 3 and best = False: give one of"):
        genkidama.evaluate(tmp_path, choose=3, best=False)


def test_a_search_is_played_by_its_best_trial(tmp_path: Path) -> None:
    run = Run(tmp_path / "search")
    untrained(run.path, small(search=PLAN))
    assert best_trial_of(untrained(tmp_path / "plain", small())).path == tmp_path / "plain"
    with pytest.raises(ConfigurationError, match=r"no trial of this search has a score yet"):
        best_trial_of(run)
    for number in range(3):
        untrained(run.path / trial_folder(number), small())
    (run.path / trial_folder(3)).mkdir()
    story = [
        *(assigned(0.0, number) for number in range(4)),
        report(1.0, 0, 7.0),
        report(2.0, 1, 9.0),
        report(3.0, 2, 8.0),
        report(4.0, 3, 99.0),  # which has no weights yet
    ]
    (run.path / "history.jsonl").write_bytes(as_lines(story))
    assert best_trial_of(run).path == run.path / "trials" / "0001"
    completed = TrialEnded(time=5.0, trial=2, state="completed", reason="all phases are done")
    (run.path / "history.jsonl").write_bytes(as_lines([*story, completed]))
    assert best_trial_of(run).path == run.path / "trials" / "0002"
    file = run.load().path
    assert file is not None and file.is_relative_to(run.path / "trials" / "0002")
    assert file == run.policy().checkpoint == weights_of(run).path
    assert "<th style='text-align:left'>best trial</th><td>0002</td>" in run._repr_html_()
