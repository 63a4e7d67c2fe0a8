"""Runs that begin with the weights of others: real clusters, and the rule of what is taken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.__main__ import main
from genkidama.child.child import Child
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hypertrick import local_search
from genkidama.protocol.vector import unflatten
from genkidama.runs import warm_start as module
from genkidama.runs.run import Run
from genkidama.runs.warm_start import warm_start
from tests.helpers import (
    Serving,
    command,
    eventually,
    history,
    one_forkserver,
    running,
    small,
    untrained,
    url,
)

#: Learning that moves nothing: the weights of the start are those of the end.
STILL = {"optimizer": {"learning_rate": 1e-12}, "stop": {"steps": 300}}

PPO = {"name": "ppo", "batch_size": 64, "minibatch_size": 16}
#: Settings of a run, and how many parts its parent has.
WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "plain": ({}, 1),
    "chunks, in parts": ({"algorithm": PPO, "child": {"exchange": "chunk"}}, 2),
    "experience": ({"algorithm": PPO, "parent": {"rule": "experience"}}, 1),
}


@pytest.fixture(scope="module", autouse=True)
def shared_forkserver() -> Iterator[None]:
    """One for all processes that tests of this file ask for, as a command has one."""
    with one_forkserver():
        yield


@pytest.fixture
def first(tmp_path: Path) -> Run:
    """A run whose weights are those of no seed."""
    return untrained(tmp_path / "first", small().with_settings({"seed": 5}), version=7)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_begins_with_the_weights_of_another(tmp_path: Path, first: Run, way: str) -> None:
    sections, parts = WAYS[way]
    file = tmp_path / "second.toml"
    file.write_text(small(**{**STILL, **sections}).to_toml())
    train = ("genkidama", "train", "--children", 1, "--episodes", 0)
    ended = command(tmp_path, *train, file, "--out", "second", "--from", "first", "--shards", parts)
    assert ended.code == 0, ended.err
    source = "first/checkpoints/version-0000000007.safetensors, version 7: "
    assert f"\nstarts from {source}" in ended.err
    (started,) = history(tmp_path / "second", "start")
    assert started["start"].endswith(": 8 of 8 arrays taken"), started
    assert all(line["version"] >= 1 for line in history(tmp_path / "second", "join"))
    found, expected = Run(tmp_path / "second").load(best=False), first.load()
    assert found.snapshot.version > 1 and found.snapshot.steps >= 300
    assert found.snapshot.steps < 10_000, "the start's counters do not count"
    np.testing.assert_allclose(found.vector, expected.vector, atol=1e-5)
    if way == "plain":  # resumed, it needs its start no more
        first.path.rename(tmp_path / "gone")
        ended = command(tmp_path, *train, "--resume", "second", "--set", "stop.steps=600")
        assert ended.code == 0, ended.err
        assert Run(tmp_path / "second").snapshot.steps >= 600


async def test_each_trial_of_a_search_begins_with_what_fits_its_network(
    tmp_path: Path, first: Run
) -> None:
    search = {
        "trials": 2,
        "phases": 1,
        "phase_steps": 100,
        "method": "random",
        "space": {"network.hidden": [[8, 8], [8, 8, 8]]},
    }
    start = {"start": str(first.path)}
    experiment = small(search=search, optimizer=STILL["optimizer"], parent=start)
    async with (
        running(experiment, tmp_path / "found") as parent,
        Serving(Child(url(parent.address), name="pi")),
    ):
        await eventually(lambda: parent.server.stop, "the end of all trials")
    (started,) = history(tmp_path / "found", "start")
    assert started["start"].endswith(": 8 of 8 arrays taken")
    source = first.load()
    theirs = unflatten(source.vector, source.signature)
    trials = [trial.load(best=False) for trial in Run(tmp_path / "found").trials]
    assert len(trials) == 2 and all(len(each.signature.entries) >= 12 for each in trials)
    for trial in trials:
        ours = unflatten(trial.vector, trial.signature)
        shapes = {name: array.shape for name, array in theirs.items()}
        fitting = {name for name, array in ours.items() if shapes.get(name) == array.shape}
        assert len(fitting) == 4
        for name in fitting:
            np.testing.assert_allclose(ours[name], theirs[name], atol=1e-5, err_msg=name)


def test_a_search_has_the_start_that_its_command_names(
    tmp_path: Path, first: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def search(experiment: Any, **_: object) -> Run:
        asked.append(experiment.parent.start)
        raise ConfigurationError("enough is known")

    monkeypatch.setattr(local_search, "search", search)
    (tmp_path / "search.toml").write_text(
        small(search={"phase_steps": 9, "space": {"algorithm.gamma": [0.9, 0.99]}}).to_toml()
    )
    assert main(["search", str(tmp_path / "search.toml"), "--from", str(first.path)]) == 2
    assert asked == [str(first.path)]


def test_only_what_fits_is_taken_and_the_rest_is_as_new(tmp_path: Path, first: Run) -> None:
    wider = small(environment={"id": "Acrobot-v1"}, parent={"start": str(first.path)})
    found = warm_start(wider)
    assert found is not None
    checkpoint, words = found
    source, new = first.load(), untrained(tmp_path / "new", wider).load()
    theirs, fresh = (unflatten(each.vector, each.signature) for each in (source, new))
    taken = []
    for name, array in unflatten(checkpoint.vector, checkpoint.signature).items():
        fits = name in theirs and theirs[name].shape == array.shape
        taken += [name] * fits
        np.testing.assert_array_equal(array, theirs[name] if fits else fresh[name])
    count = len(fresh)
    assert 0 < len(taken) < count
    assert f": {len(taken)} of {count} arrays taken; not taken: " in words
    assert "[8, 6], there [8, 4]; " in words
    assert checkpoint.signature == new.signature
    assert (checkpoint.snapshot.version, checkpoint.snapshot.steps) == (1, 0)


@pytest.mark.parametrize("rules", [("blend", "experience"), ("experience", "blend")])
def test_sac_goes_on_under_another_rule_whose_children_have_other_networks(
    tmp_path: Path, rules: tuple[str, str]
) -> None:
    source, new = (
        untrained(
            tmp_path / rule,
            small(
                environment={"id": "Pendulum-v1"},
                algorithm={"name": "sac", "start_steps": 10},
                replay={"steps": 100},
                parent={"rule": rule},
            ),
        )
        for rule in rules
    )
    begun = warm_start(new.experiment.with_settings({"parent.start": str(source.path)}))
    assert begun is not None
    theirs, expected = source.load(), new.load()
    assert begun[0].signature == expected.signature != theirs.signature
    ours = unflatten(begun[0].vector, expected.signature)
    for name, array in unflatten(theirs.vector, theirs.signature).items():
        assert name not in ours or np.array_equal(ours[name], array)


def test_ppo_goes_on_under_another_rule_and_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = untrained(tmp_path / "source", small(algorithm=PPO))
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    start = {"parent.start": str(source.path), "parent.rule": "experience"}
    assert warm_start(source.experiment.with_settings(start)) is not None


def test_a_network_of_which_nothing_fits_is_refused(first: Run) -> None:
    other = small(
        environment={"id": "Acrobot-v1"},
        network={"hidden": [5, 5]},
        parent={"start": str(first.path)},
    )
    with pytest.raises(ConfigurationError, match="none of its arrays fits this network: "):
        warm_start(other)


def test_a_parent_without_gymnasium_takes_the_same_network_and_no_other(
    first: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert warm_start(small(parent={"start": str(first.final)})) is not None
    other = small(network={"hidden": [9]}, parent={"start": str(first.path)})
    with pytest.raises(EnvironmentFailure, match="without Gymnasium this machine cannot see"):
        warm_start(other)


@pytest.mark.parametrize(
    ("verb", "name"), [("train", "cartpole"), ("search", "lunarlander/search")]
)
def test_a_missing_directory_is_one_line_and_leaves_nothing(
    verb: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([verb, name, "--from", "nope"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: nope: no such run directory or checkpoint file")
    assert list(tmp_path.iterdir()) == []
