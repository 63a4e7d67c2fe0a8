"""`train`: what it makes of a directory, and what it does about processes that die."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from genkidama.cli import cluster
from genkidama.cli.cluster import (
    Cluster,
    LogWatcher,
    SupervisedChild,
    cores_of_each,
    train,
)
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.hypertrick.local_search import search
from genkidama.runs.evaluation import Evaluation
from genkidama.runs.resume import prepare_directory, resumable
from genkidama.runs.run import Run
from tests.helpers import ROOT, constant, history, small, untrained


@pytest.fixture(autouse=True)
def _importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


class Watch:
    """Notes the history that `train` passes on, and acts once when an event of a kind comes."""

    def __init__(self, event: str = "", action: Any = None) -> None:
        self.events: list[dict[str, Any]] = []
        self._event, self._action = event, action

    def __call__(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        if event["event"] == self._event and self._action is not None:
            action, self._action = self._action, None
            action()


def of(module: str) -> list[psutil.Process]:
    """The processes of this one that run a module."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if module in process.cmdline():
                found.append(process)
    return found


@pytest.fixture
def leftovers() -> Iterator[None]:
    yield
    assert not of("genkidama.parent") and not of("genkidama.child")


# Directories.


#: What an experiment asks of machines in a network.
ASKED = {"tokens_file": "tokens", "certificate_file": "certificate.pem", "key_file": "key.pem"}


@pytest.mark.usefixtures("leftovers")
def test_a_run_of_this_machine_gets_a_directory_under_runs_and_an_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what its experiment asks of machines in a network keeps out no child of this one."""
    asked: list[Any] = []

    def evaluate(target: Run, episodes: int, seed: int, progress: bool) -> Evaluation | None:
        asked.append((target, episodes, seed, progress))
        return None

    monkeypatch.setattr(cluster, "evaluate_trained", evaluate)
    watch = Watch()
    settings = constant(parent=ASKED, stop={"updates": 3}).with_settings({"seed": 5})
    run = train(settings, children=2, episodes=7, watch=watch)
    assert run.path.parent == Path("runs") and run.path.name.startswith("small-")
    assert [event["reason"] for event in run.history() if event["event"] == "stop"] == [
        "3 exchanges a child done"
    ]
    assert run.snapshot.version >= 3
    assert sorted(path.name for path in (run.path / "logs").glob("*.log")) == [
        "child-1.log",
        "child-2.log",
        "forkserver.log",
        "parent.log",
    ]
    assert [event["event"] for event in watch.events] == [event["event"] for event in run.history()]
    assert asked == [(run, 7, 5, False)] and run.evaluation is None


def test_a_search_with_what_it_asks_of_machines_in_a_network_has_no_children_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match=r"children = 1: .* --children 0"):
        search(
            constant(
                parent=ASKED, search={"space": {"optimizer.learning_rate": [0.1]}, "phase_steps": 1}
            ),
            children=1,
            listen="127.0.0.1:1",
        )


def test_a_search_lets_other_machines_in_with_tokens_and_tls_or_not_at_all(tmp_path: Path) -> None:
    space = {"space": {"optimizer.learning_rate": [0.1]}, "phase_steps": 1}
    with pytest.raises(ConfigurationError, match=r"at 0\.0\.0\.0 without .*parent\.open = true"):
        search(constant(search=space), children=1, listen="0.0.0.0:0", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_finished_run_that_is_resumed_stays_as_it_is_and_may_be_used_afterwards() -> None:
    settings = small(stop={"updates": 3})
    untrained(Path("run"), settings, version=3)
    assert train(settings, resume="run", episodes=0).snapshot.version == 3
    with resumable(prepare_directory(settings, None, "run"), "train"):
        pass


# Processes that die.


@pytest.mark.usefixtures("leftovers")
def test_whoever_is_killed_is_started_again(tmp_path: Path) -> None:
    """Both parent and child, one after the other; the run reaches its end."""
    settings = constant(
        stop={"updates": 20},
        parent={"checkpoint_updates": 5},
        network={"options": {"seconds": 0.05}},
    )
    killed: list[int] = []

    def kill() -> None:
        for process in (of("genkidama.child")[0], of("genkidama.parent")[0]):
            killed.append(process.pid)
            process.kill()

    watch = Watch("checkpoint", kill)
    run = train(settings, children=1, out="run", episodes=0, watch=watch)
    assert len(killed) == 2
    assert run.snapshot.updates >= 20.0
    resumed = history(tmp_path / "run", "resume")
    assert len(resumed) == 1 and resumed[0]["version"] >= 5
    versions = [event["version"] for event in history(tmp_path / "run", "exchange")]
    assert versions[-1] >= 20
    assert {"join", "stop"} <= {event["event"] for event in history(tmp_path / "run")}


@pytest.mark.usefixtures("leftovers")
def test_a_parent_that_others_stop_and_a_child_that_fails_do_not_end_the_run(
    tmp_path: Path,
) -> None:
    settings = constant(
        stop={"updates": 30},
        child={"backend": "tests.cli.failing:FailsOnSecond"},
        network={"options": {"seconds": 0.02}},
    )
    said: list[str] = []
    watch = Watch("exchange", lambda: of("genkidama.parent")[0].terminate())
    run = train(settings, children=2, out="run", episodes=0, watch=watch, say=said.append)
    assert run.snapshot.updates >= 30.0
    assert [event["reason"] for event in history(tmp_path / "run", "stop")] == [
        "SIGTERM",
        "30 exchanges a child done",
    ]
    assert "the run goes on without child-2: the cable is loose" in said
    assert "the parent was stopped by SIGTERM, and is started again" in said


@pytest.mark.usefixtures("leftovers")
def test_a_child_that_cannot_go_on_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    settings = small(environment={"id": "tests.tiny:Faulty", "options": {"fault": "raise"}})
    with pytest.raises(EnvironmentFailure) as raised:
        train(settings, children=1, cores=1, out="run")
    place = f"{ROOT / 'studies/faults/faulty.py'}:61, in _meet"
    log = Path("run", "logs", "child-1.log")
    assert str(raised.value) == (
        "core 0 died 3 times without ending an episode: "
        f"ValueError: the cable is loose ({place}); the whole traceback is in {log}"
    )
    assert 'faulty.py", line 61, in _meet' in log.read_text()


# What becomes of a child that ends early.


class FakeProcess:
    """A process that ends when the test wants it to."""

    name = "child-1"
    log = Path("child-1.log")

    def __init__(self) -> None:
        self.code: int | None = None
        self.starts = 0
        self.restarts = 0

    def error(self) -> str:
        return "the cable is loose"

    def start_again(self) -> None:
        self.starts += 1
        self.code = None

    def restart(self) -> None:
        self.restarts += 1
        if self.restarts > 2:
            raise EnvironmentFailure("child-1 was killed too often")
        self.code = None


@pytest.fixture
def process() -> Any:
    return FakeProcess()


def supervised(process: Any) -> tuple[SupervisedChild, list[str]]:
    said: list[str] = []
    return SupervisedChild(process, said.append), said


def test_a_node_of_a_search_has_trained_when_its_own_trial_has(process: Any) -> None:
    child, _ = supervised(process)
    steps = [(1, 10_000, "other"), (2, 9_000, "child-1")]
    lines = [{"event": "exchange", "trial": n, "steps": m, "child": c} for n, m, c in steps]
    run: Any = SimpleNamespace(_steps={})
    Cluster._forward(run, SimpleNamespace(read=lambda: lines), None, [child])  # type: ignore[arg-type]
    assert child._has_trained and run._steps == {1: 10_000, 2: 9_000}


@pytest.mark.parametrize("stopping", [True, False])
def test_a_parent_that_has_said_the_run_is_over_may_write_for_as_long_as_it_takes(
    process: Any, monkeypatch: pytest.MonkeyPatch, stopping: bool
) -> None:
    monkeypatch.setattr(cluster, "_PARTING_SECONDS", 0.0)
    process.code, process.wait = 0, lambda _: True
    parent = SimpleNamespace(stopping=stopping, over=False, address="", poll=lambda _: None)
    polls = iter(range(3))

    def wait(_: float) -> None:
        time.sleep(0.001)
        parent.over = next(polls, None) is None

    parent.wait = wait
    run: Any = SimpleNamespace(
        _parents=[parent], _alone=True, _children=[process], _forward=lambda *_: False
    )
    if stopping:
        Cluster.wait(run, None)
    else:
        with pytest.raises(EnvironmentFailure, match="all children were stopped, though the run"):
            Cluster.wait(run, None)


def test_one_that_fails_before_it_has_trained_is_left_out_and_that_is_said(process: Any) -> None:
    child, said = supervised(process)
    child.poll(0.0)
    assert said == []
    process.code = 1
    child.poll(1.0)
    child.poll(100.0)
    assert isinstance(child.failure, EnvironmentFailure) and not process.starts
    assert said == ["the run goes on without child-1: the cable is loose"]


def test_one_whose_settings_are_wrong_is_left_out_although_it_has_trained(process: Any) -> None:
    child, _ = supervised(process)
    child.trained()
    process.code = 2
    child.poll(0.0)
    assert isinstance(child.failure, ConfigurationError)


def test_one_that_has_trained_rests_before_it_is_started_again(process: Any) -> None:
    child, said = supervised(process)
    child.trained()
    process.code = 1
    child.poll(0.0)
    assert said == ["child-1 failed, and is started again in 1 s: the cable is loose"]
    child.poll(0.9)
    assert not process.starts
    child.poll(1.0)
    assert process.starts == 1 and child.failure is None
    for number in range(8):
        process.code = 1
        child.poll(100.0 * number)
        child.poll(100.0 * number + 60.0)
    assert process.starts == 8 and str(child.failure) == "the cable is loose"


def test_one_that_is_killed_is_started_again_at_once_but_not_for_ever(process: Any) -> None:
    child, said = supervised(process)
    for _ in range(3):
        process.code = -9
        child.poll(0.0)
    assert said == ["child-1 was killed, and is started again"] * 2 + [
        "the run goes on without child-1: child-1 was killed too often"
    ]


def test_one_that_has_left_in_order_is_done(process: Any) -> None:
    child, said = supervised(process)
    process.code = 0
    child.poll(0.0)
    assert child.done and child.failure is None and said == []


@pytest.mark.parametrize(
    ("wanted", "given", "children", "expected"),
    [("auto", None, 2, 4), ("auto", None, 16, 1), ("auto", 3, 2, 3), (5, None, 2, None)],
)
def test_what_nobody_has_said_is_shared_out(
    monkeypatch: pytest.MonkeyPatch,
    wanted: int | str,
    given: int | None,
    children: int,
    expected: int | None,
) -> None:
    monkeypatch.setattr(cluster, "available_cores", lambda: 8)
    monkeypatch.setattr(cluster, "available_bytes", lambda: None)
    assert cores_of_each(small(child={"cores": wanted}), given, children) == expected


def write(log: Path, **line: object) -> None:
    with log.open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_warnings_and_errors_are_told_and_nothing_else(tmp_path: Path) -> None:
    log = tmp_path / "child-1.log"
    write(log, level="error", event="of yesterday")
    complaints = LogWatcher([log, tmp_path / "child-2.log"])
    write(log, level="info", event="connected")
    with log.open("a") as file:
        file.write("Traceback (most recent call last):\n[1, 2]\n\n")
    write(log, level="warning", event="core lost", core=3, reason="ValueError: two\nlines")
    write(log, level="warning", event="trial failed", reason="as the history says")
    write(tmp_path / "child-2.log", level="error", event="state not saved", reason="x" * 1000)
    told = complaints.read(0.0)
    assert told[0] == "child-1: lost core 3: ValueError: two lines"
    assert told[1].startswith("child-2: state not saved: xxx") and len(told[1]) < 320
    assert len(told) == 2 and complaints.read(1.0) == []


def test_the_same_is_told_again_after_a_minute_with_how_often_it_was(tmp_path: Path) -> None:
    log = tmp_path / "child-1.log"
    complaints = LogWatcher([log])
    told = []
    for second in range(0, 130, 10):
        write(log, level="warning", event="core lost", core=0, reason=f"it hung for {second} s")
        told += complaints.read(float(second))
    assert told == [
        "child-1: lost core 0: it hung for 0 s",
        "child-1: lost core 0: it hung for 60 s (and 5 times since)",
        "child-1: lost core 0: it hung for 120 s (and 5 times since)",
    ]


def test_what_is_no_experiment_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"^experiment = 'Pong': expected a genkidama.Exp"):
        train("Pong")  # type: ignore[arg-type]
