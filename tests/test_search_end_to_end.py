"""`genkidama search` and `genkidama report` as real processes: killed, they go on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from optuna.trial import FrozenTrial, TrialState

from genkidama.__main__ import main
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.runs.run import Run
from studies.faults.searches import check, trials_of
from tests.helpers import ROOT, Ended, Started, command, free_port, gone, history, small, until

Start = Callable[..., Started]

#: A search may take so long on a machine that does much else.
LONG = 110.0

SPACE: dict[str, Any] = {
    "optimizer": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
    "algorithm": {"gamma": [0.9, 0.99]},
}


def cart(folder: Path, **search: Any) -> Experiment:
    """A search on CartPole as `cart.toml`: 6 trials of 3 phases, a second or so each."""
    plan = {
        "trials": 6,
        "phases": 3,
        "phase_steps": 1500,
        "eviction_rate": 0.5,
        "space": SPACE,
        **search,
    }
    experiment = small(search=plan)
    (folder / "cart.toml").write_text(experiment.to_toml())
    return experiment


def part(process: Started, name: str) -> psutil.Process:
    """The parent, or one node, of a search that runs."""

    def found() -> psutil.Process | None:
        for member in process.family():
            line = member.cmdline()
            if (name == "parent" and "genkidama.parent" in line) or (
                name != "parent" and name in line and "genkidama.child" in line
            ):
                return member
        return None

    return until(found, name)  # type: ignore[no-any-return]


def prefixes(before: list[FrozenTrial], after: list[FrozenTrial]) -> None:
    """That what the study knew before is what it knows after, and more has come."""
    for old, new in zip(before, after, strict=False):
        assert new.number == old.number
        assert {key: new.params[key] for key in old.params} == old.params
        known = old.user_attrs.get("phases", [])
        assert new.user_attrs["phases"][: len(known)] == known
        if old.state.is_finished():
            assert (new.state, new.value, new.datetime_complete) == (
                old.state,
                old.value,
                old.datetime_complete,
            )


def repeated(run: Path) -> int:
    """How many phases were reported more than once, by the history."""
    return sum(
        count - 1
        for count in Counter(
            (line["trial"], line["phase"]) for line in history(run, "report")
        ).values()
    )


# A search from its beginning to its end.


@dataclass
class Searched:
    said: Ended
    folder: Path
    experiment: Experiment

    @property
    def path(self) -> Path:
        return self.folder / "run"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """With too few trials for forests, which `tests/plugins/hypertrick/test_report.py` has."""
    folder = tmp_path_factory.mktemp("searched")
    experiment = cart(folder, trials=3, phases=2, phase_steps=300)
    said = command(
        folder,
        "genkidama search cart.toml --children 2 --cores 1 --out run --no-figures",
        seconds=LONG,
    )
    return Searched(said, folder, experiment)


def test_a_search_ends_with_its_report(searched: Searched) -> None:
    assert searched.said.code == 0, searched.said.err
    assert "Traceback" not in searched.said.err
    assert "Trials      3 of 3 started" in searched.said.out
    assert "genkidama evaluate run/trials/" in searched.said.out
    lines = searched.said.err.splitlines()
    assert lines[0] == "searching CartPole-v1 with hypertrick: run run"
    assert "3 of 3 trials" in lines[-2] and "best" in lines[-2]
    assert lines[-1].startswith("ended: all trials are done: ")
    for log in (searched.path / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text()


def test_the_study_and_the_directory_hold_all_of_it(searched: Searched) -> None:
    trials = trials_of(searched.path)
    check(searched.path, trials, searched.experiment)
    assert len(Run.open(searched.path).trials) == 3
    assert {record["node"] for trial in trials for record in trial.user_attrs["phases"]} <= {
        "node-1",
        "node-2",
    }
    assert repeated(searched.path) == 0
    names = {path.name for path in searched.path.iterdir()} - {"study.db-wal", "study.db-shm"}
    assert names == {"children", "experiment.toml", "history.jsonl", "logs", "study.db", "trials"}


@pytest.fixture
def genkidama(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """Runs the command in this process and in a folder; what it has printed."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    handler = signal.getsignal(signal.SIGTERM)

    def run(folder: Path, *arguments: str) -> str:
        monkeypatch.chdir(folder)
        code = main(arguments)
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    yield run
    signal.signal(signal.SIGTERM, handler)


def test_the_report_can_be_had_again(searched: Searched, genkidama: Callable[..., str]) -> None:
    assert genkidama(searched.folder, "report", "run").strip() == searched.said.out.strip()


@pytest.mark.slow  # tests/runs/test_run.py has which weights are meant
def test_a_trial_can_be_evaluated_and_trained_on(
    searched: Searched, tmp_path: Path, genkidama: Callable[..., str]
) -> None:
    shutil.copytree(searched.path, tmp_path / "run")
    best = max(
        (trial for trial in trials_of(searched.path) if trial.state is TrialState.COMPLETE),
        key=lambda trial: trial.value or 0.0,
    )
    trial = f"run/trials/{best.number:04d}"
    said = json.loads(genkidama(tmp_path, "evaluate", "run", "--episodes", "1", "--json"))
    assert said["episodes"] == 1 and said["checkpoint"].startswith(f"{trial}/checkpoints/")
    before = Run(tmp_path / trial).snapshot
    goal = f"stop.updates={before.exchanges + 3}"
    options = ["--children", "1", "--cores", "1", "--set", goal, "--episodes", "0"]
    genkidama(tmp_path, "train", "--resume", trial, *options)
    after = Run(tmp_path / trial).snapshot
    assert after.exchanges >= before.exchanges + 3 and after.steps > before.steps
    rate = Run(tmp_path / trial).experiment.optimizer.learning_rate
    assert rate == best.params["optimizer.learning_rate"]
    genkidama(tmp_path, "report", "run")  # what was trained on is none of the study's business


# Ends that nobody wished for.


@pytest.mark.slow
def test_whatever_is_killed_the_search_goes_on_and_repeats_only_what_was_not_written(
    tmp_path: Path, start: Start
) -> None:
    """A node, then the parent, then everything at once, and the search is resumed."""
    experiment = cart(tmp_path)
    run = tmp_path / "run"
    options = ["--children", 2, "--cores", 1, "--no-figures"]
    process = start("genkidama", "search", "cart.toml", *options, "--out", "run")
    lost = 0

    def reported(count: int) -> None:
        until(
            lambda: len(history(run, "report")) >= count or process.popen.poll() is not None,
            "reports",
            LONG,
        )
        assert process.popen.poll() is None

    def unwritten(killed: float) -> int:
        """Phases of the history that the study lacks, which is written behind it."""
        known = {
            (t.number, p["phase"]) for t in trials_of(run) for p in t.user_attrs.get("phases", [])
        }
        missing = [
            line for line in history(run, "report") if (line["trial"], line["phase"]) not in known
        ]
        assert all(line["time"] > killed - 10.0 for line in missing)
        return len(missing)

    until(
        lambda: {line["child"] for line in history(run, "join")} == {"node-1", "node-2"},
        "nodes",
        LONG,
    )
    part(process, "node-1").kill()

    reported(2)
    parent = part(process, "parent")
    parent.kill()
    killed = time.time()
    until(lambda: gone(parent.pid))
    lost += unwritten(killed)
    until(lambda: history(run, "resume"), "the next parent", LONG)

    reported(6)
    for member in process.family():
        member.kill()
    killed = time.time()
    process.vanish(10.0)
    assert "Traceback" not in process.err
    before = trials_of(run)
    lost += unwritten(killed)

    said = command(tmp_path, "genkidama", "search", "--resume", "run", *options, seconds=LONG)
    assert said.code == 0, said.err
    assert "resumes after" in said.err and "Traceback" not in said.err
    assert "Trials      6 of 6 started" in said.out
    assert "6 of 6 trials" in said.err, "those before the restart count, too"
    after = trials_of(run)
    check(run, after, experiment)
    prefixes(before, after)
    assert repeated(run) <= lost
    resume = history(run, "resume")[-1]
    finished = {trial.number for trial in before if trial.state.is_finished()}
    again = {line["trial"] for line in history(run, "trial") if line["time"] >= resume["time"]}
    assert not finished & again


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
    ids=["SIGTERM", "SIGINT"],
)
def test_interrupted_it_says_how_to_go_on(tmp_path: Path, start: Start, number: int) -> None:
    cart(tmp_path, phase_steps=1_000_000, phases=100)
    run = tmp_path / "run"
    process = start(
        "genkidama search cart.toml --children 2 --cores 1 --out run --set"
        " parent.checkpoint_seconds=0.2"
    )

    def learning() -> bool:
        found = Run(run).trials
        try:
            return len(found) == 2 and all(trial.snapshot.steps > 0 for trial in found)
        except ConfigurationError:  # one has no checkpoint yet
            return False

    until(
        lambda: learning() or process.popen.poll() is not None,
        "two trials with weights that have made steps",
        LONG,
    )
    process.signal(number)
    began = time.monotonic()
    process.vanish(10.0)
    assert time.monotonic() - began < 10.0
    assert process.wait() == 128 + number
    assert process.out == "" and "Traceback" not in process.err
    assert "  go on:      genkidama search --resume run" in process.err
    for log in (run / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text()
    trials = trials_of(run)
    assert {trial.state for trial in trials} == {TrialState.RUNNING}
    for trial in trials[:2]:  # their weights as they were at the end
        assert Run(run / "trials" / f"{trial.number:04d}").snapshot.steps > 0


@pytest.mark.slow
def test_nodes_on_the_network(tmp_path: Path, start: Start) -> None:
    experiment = cart(tmp_path, trials=3, phases=2, phase_steps=300)
    address = f"127.0.0.1:{free_port()}"
    process = start(
        f"genkidama search cart.toml --children 0 --listen {address} --out run --no-figures"
    )
    nodes = [
        start("genkidama.child", "--parent", f"ws://{address}", "--name", name, "--cores", 1)
        for name in ("pi", "desk")
    ]
    assert process.wait(LONG) == 0, process.err
    for each in nodes:
        assert each.wait(LONG) == 0, each.err
        assert "Traceback" not in each.err
    trials = trials_of(tmp_path / "run")
    check(tmp_path / "run", trials, experiment)
    assert {record["node"] for trial in trials for record in trial.user_attrs["phases"]} <= {
        "pi",
        "desk",
    }


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address of the machine"
)
def test_local_nodes_find_a_parent_on_any_address_of_the_machine(
    tmp_path: Path, start: Start
) -> None:
    cart(tmp_path, trials=1, phases=1, phase_steps=300)
    process = start(
        "genkidama search cart.toml --children 1 --listen 127.0.0.2:0 --out run --no-figures"
    )
    assert process.wait(LONG) == 0, process.err
    assert len(trials_of(tmp_path / "run")) == 1


# Several searches.


def test_a_second_search_at_an_address_is_refused_by_the_name_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cart(tmp_path)
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as first:
        address = f"127.0.0.1:{first.getsockname()[1]}"
        words = ["search", "cart.toml", "--children", "0", "--listen", address, "--out", "run"]
        assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: cannot listen on {address}: Address already in use; choose ")
    assert said.count("\n") == 1 and f": process {os.getpid()}, '" in said


@pytest.mark.slow
def test_searches_share_a_machine_and_a_node_that_stays_serves_one_after_another(
    tmp_path: Path, start: Start
) -> None:
    experiment = cart(tmp_path, trials=2, phases=2, phase_steps=300)
    address = f"127.0.0.1:{free_port()}"
    shared = ["genkidama", "search", "cart.toml", "--children", 0, "--listen", address]
    first = start(*shared, "--no-figures", "--out", "first")
    node = start(
        *("genkidama.child", "--parent", f"ws://{address}", "--name", "pi", "--cores", 1),
        *("--stay", "--state", "state"),
    )
    # The other one has a port and nodes of its own, of the same machine.
    beside = start("genkidama search cart.toml --children 1 --cores 1 --no-figures --out beside")
    assert first.wait(LONG) == 0, first.err
    second = start(*shared, "--no-figures", "--out", "second")
    assert second.wait(LONG) == 0, second.err
    assert beside.wait(LONG) == 0, beside.err
    assert node.popen.poll() is None
    node.signal(signal.SIGTERM)
    assert node.wait(LONG) == 0 and "Traceback" not in node.err
    for name, who in (("first", "pi"), ("second", "pi"), ("beside", "node-1")):
        trials = trials_of(tmp_path / name)
        check(tmp_path / name, trials, experiment)
        assert [trial.number for trial in trials] == [0, 1]
        assert {each["node"] for one in trials for each in one.user_attrs["phases"]} == {who}
        assert repeated(tmp_path / name) == 0
