"""Which directory a run gets, and what lies in it before its parent comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from genkidama.config.decoding import parse_setting
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs import resume
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.history import History
from genkidama.runs.resume import (
    default_threshold,
    finished,
    go_on,
    prepare_directory,
    resumable,
    with_default_stop,
)
from genkidama.runs.run import Run
from tests.helpers import small, untrained
from tests.stories import PLAN


def test_a_new_run_gets_a_directory_and_its_parent_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = (prepare_directory(small(), None, None) for _ in range(2))
    assert first.path != second.path
    for run in (first, second):
        assert run.path.parent == Path("runs") and run.path.name.startswith("small-")
        assert Experiment.load(run.path / "logs" / "experiment.toml") == small()
        assert not (run.path / "experiment.toml").exists()  # that is for the parent to write


def test_a_directory_without_a_run_may_hold_other_things(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "notes").write_text("mine")
    assert prepare_directory(small(), tmp_path, None).path == tmp_path


@pytest.mark.parametrize("folder", ["checkpoints", "trials"])
def test_a_run_or_a_search_is_not_written_over(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "a run"
    (path / folder / "something").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=f"holds a run already; .* --resume '{path}'"):
        prepare_directory(small(), path, None)
    assert not (path / "logs").exists()


def test_a_run_that_goes_on_keeps_its_own_settings_until_the_parent_has_seen_the_new(
    tmp_path: Path,
) -> None:
    run = untrained(tmp_path, small())
    changed = small(stop={"updates": 5})
    (tmp_path / "owner").write_text("of a parent that was killed, whose link was opened")
    assert prepare_directory(changed, tmp_path, tmp_path).path == run.path
    assert run.experiment == small() and not (tmp_path / "owner").exists()
    assert Experiment.load(tmp_path / "logs" / "experiment.toml") == changed


@pytest.mark.parametrize("user", ["train", "parent"])
def test_a_run_in_use_keeps_its_settings_and_may_be_used_afterwards(
    tmp_path: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "_PARTING_SECONDS", 0.2)
    untrained(tmp_path, small())
    history = None
    if user == "train":
        run = prepare_directory(small(), tmp_path, tmp_path)
    else:
        run = Run(tmp_path)
        history = History(tmp_path / "history.jsonl")
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "experiment.toml").write_text(small().to_toml())
    changed = small(stop={"updates": 5})
    with pytest.raises(ConfigurationError, match=f"{tmp_path}: is in use: .*; end that first"):
        prepare_directory(changed, None, tmp_path)
    assert Experiment.load(tmp_path / "logs" / "experiment.toml") == small()
    with resumable(run, "train"):
        pass
    if history is not None:
        history.close()
    with resumable(prepare_directory(changed, None, tmp_path), "train"):
        assert Experiment.load(tmp_path / "logs" / "experiment.toml") == changed


def test_a_directory_that_cannot_be_prepared_is_not_kept(tmp_path: Path) -> None:
    (settings := tmp_path / "logs" / "experiment.toml").mkdir(parents=True)
    with pytest.raises(EnvironmentFailure, match="cannot be written: Is a directory"):
        prepare_directory(small(), tmp_path, None)
    settings.rmdir()
    prepare_directory(small(), tmp_path, None)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_says_how_to_go_on(tmp_path: Path, kind: type[BaseException]) -> None:
    empty = prepare_directory(small(), tmp_path / "empty", None)
    with pytest.raises(kind) as raised, resumable(empty, "train"):
        raise kind
    assert not hasattr(raised.value, "__notes__")
    run = untrained(tmp_path / "run", small())
    with pytest.raises(kind) as raised, resumable(run, "search"):
        raise kind
    (note,) = raised.value.__notes__
    assert note.splitlines() == [
        f"run: {run.path}, saved: version 1",
        f"  watch it:   genkidama play {run.path}",
        f"  its page:   genkidama serve {run.path}",
        f"  play again: genkidama evaluate {run.path}",
        f"  go on:      genkidama search --resume {run.path}",
    ]


@pytest.mark.parametrize(
    ("stop", "reason", "options"),
    [
        ({"updates": 3}, "3 exchanges a child done", " --set stop.updates=6"),
        ({"episodes": 5}, "5 episodes done", " --set stop.episodes=10"),
        ({"steps": 150}, "150 steps done", " --set stop.steps=300"),
        ({"steps": 10}, "10 steps done", " --set stop.steps=300"),
        ({"seconds": 1}, "1 seconds are over", " --set stop.seconds=10"),
        ({"seconds": 4.5}, "4.5 seconds are over", " --set stop.seconds=9"),
        ({"seconds": 4.0, "steps": 1_000_000}, "4 seconds are over", " --set stop.seconds=8"),
    ],
)
def test_a_finished_run_says_why_and_how_to_go_on(
    tmp_path: Path, stop: dict[str, Any], reason: str, options: str
) -> None:
    run = untrained(tmp_path / "a run", small(stop=stop), version=3)
    command = f"genkidama train --resume '{run.path}'{options}"
    assert finished(run, run.experiment) == f"{run.path} is finished: {reason}; go on: {command}"
    changes = dict(parse_setting(word) for word in options.split() if "=" in word)
    assert finished(run, run.experiment.with_settings(changes)) == ""  # as printed, it goes on


def test_a_run_that_is_not_finished_goes_on_as_it_is(tmp_path: Path) -> None:
    run = untrained(tmp_path / "run", small(stop={"updates": 4, "mean_return": 10.0}), version=3)
    assert finished(run, run.experiment) == ""
    assert go_on(run, run.experiment) == f"genkidama train --resume {run.path}"


def test_a_run_that_this_program_trains_may_import_what_it_names(tmp_path: Path) -> None:
    settings = {"environment": {"id": "mine.games:Mine"}, "parent": {"rule": "rules:Mine"}}
    run = prepare_directory(Experiment.from_dict(settings), tmp_path / "run", None)
    with resumable(run, "train"):
        assert run.allow == ("mine.games", "rules")
    on = go_on(run, Experiment.from_dict(settings))
    assert on == f"genkidama train --resume {run.path} --allow mine.games --allow rules"
    assert finished(Run(tmp_path / "new"), small(stop={"updates": 1})) == ""


@pytest.mark.parametrize(
    ("returns", "options"),
    [
        ([20.0, 25.0], "stop.mean_return=23"),  # as far as some episode was
        ([20.0, 200.0], "stop.mean_return=121"),  # a tenth more
        ([480.0, 500.0], "stop.mean_return=495"),
        ([499.0, 500.0], "stop.mean_return=499.8"),
        ([500.0, 500.0], "stop.mean_return=550 --set stop.steps=100"),  # nothing is above, perhaps
    ],
)
def test_a_goal_that_is_reached_is_raised_within_reach(
    tmp_path: Path, returns: list[float], options: str
) -> None:
    experiment = small(stop={"mean_return": 20.0, "window": 2})
    run = untrained(tmp_path / "run", experiment)
    checkpoint = run.load()
    mean = sum(returns) / 2
    snapshot = msgspec.structs.replace(checkpoint.snapshot, returns=returns, mean_return=mean)
    folder = CheckpointFolder(run.path / "checkpoints")
    folder.save_latest(checkpoint.signature, checkpoint.vector, snapshot)
    assert finished(run, experiment) == (
        f"{run.path} is finished: mean return {mean:.1f} over 2 episodes reached 20; "
        f"go on: genkidama train --resume {run.path} --set {options}"
    )


def test_gymnasium_says_from_when_on_a_task_is_solved() -> None:
    assert default_threshold(Environment(id="LunarLander-v3")) == 200.0
    assert default_threshold(Environment(id="envpool:LunarLander-v3")) == 200.0
    assert default_threshold(Environment(id="Pendulum-v1")) is None
    assert default_threshold(Environment(id="tests.environments:Bandit")) is None
    assert default_threshold(Environment(id="MoonLander-v3")) is None
    assert default_threshold(Environment(id="ALE/Pong-v5")) is None


def test_without_a_stop_a_run_ends_when_the_task_is_solved() -> None:
    experiment, words = with_default_stop(small())
    assert experiment.stop.mean_return == 475.0
    assert words == (
        "without a [stop] this run ends when the mean return over 100 episodes reaches 475, "
        "where CartPole-v1 counts as solved"
    )
    assert with_default_stop(experiment) == (experiment, "")  # it is said once
    own = Experiment.from_dict(small().to_dict() | {"solved": 30.0, "stop": {"window": 7}})
    assert with_default_stop(own)[0].stop.mean_return == 30.0
    assert "over 7 episodes reaches 30," in with_default_stop(own)[1]


@pytest.mark.parametrize(
    "sections",
    [{"stop": {limit: 9}} for limit in ("mean_return", "updates", "episodes", "steps", "seconds")]
    + [{"search": PLAN}],
    ids=str,
)
def test_a_stop_of_ones_own_and_a_search_stay(sections: dict[str, Any]) -> None:
    assert with_default_stop(small(**sections)) == (small(**sections), "")


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"optimizer": {"schedule": "linear"}}, ["optimizer.schedule"]),
        ({"algorithm": {"epsilon_schedule": "linear"}}, ["algorithm.epsilon_schedule"]),
        ({"algorithm": {"epsilon_schedule": "linear", "epsilon_versions": 9}}, []),
        ({"algorithm": {"entropy_schedule": "linear"}}, ["algorithm.entropy_schedule"]),
    ],
)
def test_schedules_that_stand_still_are_spoken_of(
    sections: dict[str, Any], keys: list[str]
) -> None:
    said = [f"{key} stands still without a limit in [stop]" for key in keys]
    words = "; ".join([*said, *["give --set stop.seconds=600"] * bool(keys)])
    goal = small(**sections, stop={"mean_return": 9})
    assert with_default_stop(goal) == (goal, words)
    assert with_default_stop(small(**sections))[1].endswith(words)
    limited = small(**sections, stop={"mean_return": 9, "seconds": 9})
    assert with_default_stop(limited) == (limited, "")


def test_where_nobody_knows_a_run_says_that_it_never_ends() -> None:
    endless = small(environment={"id": "Pendulum-v1"})
    experiment, words = with_default_stop(endless)
    assert experiment == endless
    assert words == (
        "without a [stop] this run never ends, since nobody says when Pendulum-v1 counts as "
        "solved; end it with Ctrl-C, or give --set stop.seconds=600"
    )
