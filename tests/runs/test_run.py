"""A run directory, its weights and its results, as scripts and notebooks see them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import genkidama
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs import run as run_module
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.evaluation import Evaluation, Players
from genkidama.runs.history import History
from genkidama.runs.run import Run, best_trial_of, new_directory, trial_folder, weights_of
from genkidama.server.events import Evaluated, TrialEnded, as_lines, from_line
from tests.helpers import small, untrained
from tests.plugins.figures.test_plots import run
from tests.stories import PLAN, assigned, report


def test_its_curve_and_its_history_are_frames(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    one = Run(run(tmp_path / "one").path)
    curve = one.curve()
    assert isinstance(curve, pandas.DataFrame)
    assert list(curve["steps"]) == [10 * i for i in range(1, 50)]
    assert curve["mean_return"].isna().sum() == 2
    assert list(one.frame()["event"]) == ["join"] + ["exchange"] * 49


def test_a_notebook_shows_where_it_is_and_how_far_it_came(tmp_path: Path) -> None:
    shown = Run(run(tmp_path / "a<b").path)._repr_html_()
    assert "a&lt;b" in shown and "490" in shown and "73.5" in shown
    assert "evaluated" not in shown


def test_a_run_tells_what_it_holds(tmp_path: Path) -> None:
    untrained(tmp_path, small(), version=12)
    untrained(tmp_path, small(), version=9)
    run = Run.open(tmp_path)
    assert run.experiment == small()
    assert [path.name for path in run.checkpoints] == [
        "version-0000000009.safetensors",
        "version-0000000012.safetensors",
    ]
    assert run.final == run.checkpoints[-1]
    assert run.load().snapshot.version == 12
    assert run.best is None
    assert run.evaluation is None
    assert list(run.history()) == []


def test_the_newest_good_one_is_found_by_all(tmp_path: Path) -> None:
    for version in (9, 12):
        untrained(tmp_path, small(), version=version)
    run = Run(tmp_path)
    run.checkpoints[-1].write_bytes(run.checkpoints[-1].read_bytes()[:500])
    problems: list[str] = []
    assert run.load(unreadable=problems.append).snapshot.version == 9
    assert run.final == run.checkpoints[0] and "version-0000000012" in problems[0]
    run.checkpoints[0].rename(tmp_path / "checkpoints" / "best.safetensors")
    assert run.load(best=True).path == run.best and run.load().path == run.best
    run.checkpoints[0].rename(tmp_path / "checkpoints" / "best.safetensors")
    with pytest.raises(ConfigurationError, match=r"holds no good checkpoint: .*best.safetensors"):
        run.load(best=True)


def evaluation(mean: float) -> dict[str, Any]:
    returns = np.array([mean, mean])
    return Evaluation(returns, Path("best.safetensors"), 3.0, False, 7, "Moon", "Moon").to_dict()


@pytest.mark.parametrize("broken", [b"", b"{", b"[1]", b"\xff"])
def test_a_broken_evaluation_is_told_with_the_way_out(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "evaluation.json").write_bytes(broken)
    way_out = f"; evaluate again: genkidama evaluate {tmp_path} --allow mine"
    with pytest.raises(ConfigurationError, match=f"evaluation.json: is broken: .*{way_out}$"):
        _ = Run(tmp_path, ("mine",)).evaluation


@pytest.mark.parametrize("mean", [21.5, float("nan")])
def test_an_evaluation_is_written_twice(tmp_path: Path, mean: float) -> None:
    run = Run(tmp_path)
    (tmp_path / "history.jsonl").write_bytes(b'{"time": 1.0, "ev')  # torn by a crash
    run.record_evaluation(evaluation(mean), [mean, 1 / 3], now=5.0)
    plain = json.loads(msgspec.json.encode(evaluation(mean)))  # a NaN as null
    shown = {**plain, "returns": [plain["mean"], 0.333]}
    assert run.evaluation == shown
    assert json.loads((tmp_path / "evaluation.json").read_text()) == shown
    (line,) = run.history()
    assert line == {"time": 5.0, "event": "evaluation", **plain, "mean_return": plain["mean"]}
    assert list(line) == ["time", "event", *plain, "mean_return"]
    assert isinstance(from_line(line), Evaluated)
    with closing(History(tmp_path / "history.jsonl")):  # a parent writes it
        run.record_evaluation(evaluation(mean), [mean, 1 / 3], now=6.0)
    assert [line["time"] for line in run.history()] == [5.0, 6.0]


def test_a_second_has_room_for_a_hundred_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module.time, "strftime", lambda _: "20260101-000000")
    found = [new_directory("small", tmp_path) for _ in range(100)]
    assert [path.name for path in found[:2]] == ["small-20260101-000000", "small-20260101-000000-2"]
    with pytest.raises(EnvironmentFailure, match=r"100 runs began .* with --out"):
        new_directory("small", tmp_path)


def test_where_nothing_is_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"holds no run \(no experiment.toml\)"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="holds no checkpoint yet"):
        Run(tmp_path).load()


def test_what_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").mkdir()
    with pytest.raises(
        EnvironmentFailure, match=r"history.jsonl: cannot be written: Is a directory"
    ):
        Run(tmp_path).record_evaluation(evaluation(1.0), [], now=0.0)
    with pytest.raises(EnvironmentFailure, match=r"evaluation.json: cannot be written"):
        Run(tmp_path / "nowhere").record_evaluation(evaluation(1.0), [], now=0.0)


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

    def play(self: Players, jobs: Any, *_: Any) -> list[dict[str, Any]]:
        found.append(jobs[0][0].path)
        return [{"returns": [1.0], "threshold": None, "greedy": False, "environment": "C"}]

    monkeypatch.setattr(Players, "play", play)
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
    assert "best 8.0 (trial 2)" in run._repr_html_()
