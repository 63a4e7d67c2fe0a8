"""Which directory a run gets, and what lies in it before its parent comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError
from genkidama.experiment import Experiment
from genkidama.local import directory
from genkidama.local.directory import prepare_directory, resumable
from genkidama.system.history import History
from genkidama.system.run import Run
from tests.helpers import small, untrained


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
    (tmp_path / folder / "something").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="holds a run already"):
        prepare_directory(small(), tmp_path, None)
    assert not (tmp_path / "logs").exists()


def test_a_run_that_goes_on_keeps_its_own_settings_until_the_parent_has_seen_the_new(
    tmp_path: Path,
) -> None:
    run = untrained(tmp_path, small())
    changed = small(stop={"updates": 5})
    assert prepare_directory(changed, tmp_path, tmp_path) == run
    assert run.experiment == small()
    assert Experiment.load(tmp_path / "logs" / "experiment.toml") == changed


@pytest.mark.parametrize("user", ["train", "parent"])
def test_a_run_in_use_keeps_its_settings_and_may_be_used_afterwards(
    tmp_path: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_PARTING_SECONDS", 0.2)
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


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_says_how_to_go_on(tmp_path: Path, kind: type[BaseException]) -> None:
    empty = prepare_directory(small(), tmp_path / "empty", None)
    with pytest.raises(kind) as raised, resumable(empty, "train"):
        raise kind
    assert not hasattr(raised.value, "__notes__")
    run = untrained(tmp_path / "run", small())
    with pytest.raises(kind) as raised, resumable(run, "search"):
        raise kind
    assert raised.value.__notes__ == [f"go on with it: genkidama search --resume {run.path}"]
