"""Sharing a run and training on from it, through the real library and a server of the Hub's API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml

from genkidama.__main__ import main
from genkidama.cli.cluster import train
from genkidama.cli.parser import make_parser
from genkidama.cli.verbs import experiment_of
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hub.repository import share
from genkidama.runs.checkpoint import CheckpointFolder, load
from genkidama.runs.run import Run
from genkidama.runs.warm_start import found_weights, warm_start
from tests.helpers import small, untrained
from tests.plugins.hub.local_hub import TOKEN, LocalHub, serving

pytest.importorskip("huggingface_hub", reason="pip install 'genkidama-rl[hub]'")

#: The library's own, of each large file.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")

NAME = "ada/cart"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """The server, for this process and those that it starts; it has no Xet."""
    from huggingface_hub import constants

    with serving() as hub:
        cache = tmp_path / "hugging"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        files = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(cache))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def better(run: Run, version: int) -> Path:
    """Makes the run's weights its best, as those of this version."""
    weights = load(run.final)
    snapshot = msgspec.structs.replace(weights.snapshot, version=version)
    folder = CheckpointFolder(run.path / "checkpoints")
    return folder.save_best(weights.signature, weights.vector, snapshot)


def made(path: Path, **parent: str) -> Run:
    run = untrained(path, small(parent={"listen": "10.1.2.3:9000", "tokens_file": "/home/ada/t"}))
    run.record_evaluation(
        {
            "mean": 21.5,
            "std": 3.25,
            "minimum": 9.0,
            "quantiles": {"50%": 21.0},
            "solved": False,
            "threshold": 475.0,
            "episodes": 2,
            "greedy": False,
            "seed": 0,
            "checkpoint": str(better(run, 1)),
            "version": 1,
            "environment": "CartPole-v1",
            "starts": "/home/ada/people.json",
        },
        [18.25, 24.75],
        0.0,
    )
    return run


def test_a_run_is_shared_and_another_one_begins_with_it(
    tmp_path: Path,
    hub: LocalHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = made(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert main(["share", "mine", NAME, "--allow", "my_env"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-2:] == [
        f"{hub.url}/{NAME}",
        f"  train on:   genkidama train --from {NAME} --allow my_env",
    ]
    files = hub.repositories[NAME]
    film = {"replay.mp4"} if "without a film" not in out else set()
    assert set(files) == {
        *(".gitattributes", "README.md", "experiment.toml", "evaluation.json"),
        "checkpoints/best.safetensors",
        *film,
    }
    assert not any(secret in data for data in files.values() for secret in (b"10.1.2.3", b"/home"))

    _, metadata, page = files["README.md"].decode().split("---\n", 2)
    card = yaml.safe_load(metadata)
    (result,) = card["model-index"][0]["results"]
    assert result["dataset"] == {"name": "CartPole-v1", "type": "CartPole-v1"}
    assert result["metrics"] == [
        {"type": "mean_reward", "name": "mean_reward", "value": "21.50 +/- 3.25", "verified": False}
    ]
    assert {"reinforcement-learning", "genkidama", "CartPole-v1"} <= set(card["tags"])
    assert "**21.5 ± 3.2**" in page
    assert "of 2 episodes, sampled actions, seed 0, from people.json" in page
    settings = page.split("```toml\n")[1].split("```")[0]
    (tmp_path / "card.toml").write_text(settings)
    assert Experiment.load(tmp_path / "card.toml").network == run.experiment.network

    # tests/runs/test_warm_start.py has such runs.
    options = make_parser().parse_args(["train", "--from", NAME])
    options.weights = found_weights(options.weights)
    experiment = experiment_of(options, "?")
    assert experiment.network == run.experiment.network
    begun = warm_start(experiment.with_settings({"parent.start": NAME}))
    assert begun is not None and begun[1].endswith(": 8 of 8 arrays taken")
    assert np.array_equal(begun[0].vector, load(run.final).vector)


def test_the_repository_is_a_run_for_whatever_reads_runs(tmp_path: Path, hub: LocalHub) -> None:
    run = made(tmp_path / "mine")
    share(run, NAME, private=True, film=False)
    assert hub.private == {NAME}
    folder = found_weights(NAME)
    theirs = Run.open(folder).load()
    assert np.array_equal(theirs.vector, load(run.final).vector)
    assert (theirs.snapshot.children, theirs.snapshot.sessions) == ({}, {})
    evaluation = Run.open(folder).evaluation
    assert evaluation is not None and evaluation["checkpoint"] == "checkpoints/best.safetensors"


def test_figures_of_weights_that_were_the_best_before_are_not_shared(
    tmp_path: Path, hub: LocalHub
) -> None:
    run = made(tmp_path / "mine")
    better(run, 2)
    said: list[str] = []
    share(run, NAME, film=False, say=said.append)
    assert said[0].startswith("without figures: these weights were not evaluated")
    assert b"These weights were not evaluated." in hub.repositories[NAME]["README.md"]


def test_what_an_older_run_left_in_the_repository_goes(tmp_path: Path, hub: LocalHub) -> None:
    share(made(tmp_path / "mine"), NAME, film=False)
    hub.repositories[NAME]["replay.mp4"] = b"of other weights"
    said: list[str] = []
    other = untrained(tmp_path / "the other", small())
    share(Run(other.path, ("my_env",)), NAME, film=False, say=said.append)
    words = f"not evaluated: genkidama evaluate '{other.path}' --allow my_env"
    assert said[0].endswith(words)
    assert set(hub.repositories[NAME]) == {
        *(".gitattributes", "README.md", "experiment.toml", "checkpoints/best.safetensors"),
    }
    assert b"These weights were not evaluated." in hub.repositories[NAME]["README.md"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ada/none", r"^ada/none: no such run here, and the Hub shows no such repository; [^\n]+$"),
        ("ada/plain", r"^ada/plain: .* has no experiment.toml and checkpoints/best[^\n]+$"),
        ("nothing", r"^nothing: no such run directory or checkpoint file$"),
        ("a/b..c", r"^a/b..c: [^\n]+; expected NAME/REPO$"),
    ],
)
def test_weights_that_are_nowhere_are_one_line(hub: LocalHub, name: str, said: str) -> None:
    hub.repositories["ada/plain"] = {"README.md": b"another library's"}
    with pytest.raises(ConfigurationError, match=said):
        found_weights(name)


def test_who_may_not_write_there_reads_what_to_do(
    tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = untrained(tmp_path / "mine", small())
    with pytest.raises(ConfigurationError, match=r"^a b: [^\n]+; expected NAME/REPO$"):
        share(run, "a b", film=False)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ConfigurationError, match=r"^ada/cart: the Hub refuses: [^\n]+HF_TOKEN$"):
        share(run, NAME, film=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.full = True
    with pytest.raises(EnvironmentFailure, match=r"^ada/cart: Error while uploading [^\n]+507"):
        share(run, NAME, film=False)


def test_a_hub_that_is_away_is_one_line(
    tmp_path: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    run = untrained(tmp_path / "mine", small())
    for act in (lambda: share(run, NAME, film=False), lambda: found_weights(NAME)):
        with pytest.raises(EnvironmentFailure, match=r"^ada/cart: the Hub cannot be [^\n]+$"):
            act()


def test_a_run_or_a_file_on_this_disk_needs_no_hub(tmp_path: Path) -> None:
    run = untrained(tmp_path / "mine", small(), version=7)
    vector = load(run.final).vector
    for origin in (run.path, run.final):
        begun = warm_start(small(parent={"start": str(origin)}))
        assert begun is not None
        assert np.array_equal(begun[0].vector, vector)
        options = make_parser().parse_args(["train", "--from", str(origin), "--seed", "5"])
        options.weights = found_weights(options.weights)
        assert experiment_of(options, "?").to_dict() == {**run.experiment.to_dict(), "seed": 5}


def test_a_run_is_resumed_or_begins_with_weights(tmp_path: Path) -> None:
    run = untrained(tmp_path / "mine", small())
    with pytest.raises(ConfigurationError, match=r"give one of the two$"):
        train(small(), weights=run.path, resume=run.path)
