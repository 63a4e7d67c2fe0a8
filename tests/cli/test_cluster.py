"""`train`: what it makes of a directory, and what it does about processes that die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from genkidama.cli import cluster
from genkidama.cli.cluster import search, train
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs.evaluation import Evaluation
from genkidama.runs.run import Run
from genkidama.runtime import process as process_module
from tests.helpers import ROOT, constant, history, small, until


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
    for process in psutil.Process().children():
        with suppress(psutil.Error):  # it has just ended
            if module in process.cmdline():
                found.append(process)
    return found


@pytest.fixture
def leftovers() -> Iterator[None]:
    yield
    assert not of("genkidama.parent") and not of("genkidama.child")


# Directories.


@pytest.mark.usefixtures("leftovers")
def test_a_run_without_a_directory_gets_one_under_runs(tmp_path: Path) -> None:
    watch = Watch()
    run = train(constant(stop={"updates": 3}), children=2, episodes=0, watch=watch)
    assert run.path.parent == Path("runs") and run.path.name.startswith("small-")
    assert [event["reason"] for event in run.history() if event["event"] == "stop"] == [
        "3 updates done"
    ]
    assert run.snapshot.version >= 3
    assert run.evaluation is None
    assert sorted(path.name for path in (run.path / "logs").glob("*.log")) == [
        "child-1.log",
        "child-2.log",
        "parent.log",
    ]
    assert [event["event"] for event in watch.events] == [event["event"] for event in run.history()]


def test_what_an_experiment_asks_of_machines_in_a_network_keeps_out_no_child_of_this_one() -> None:
    asked = {"tokens_file": "tokens", "certificate_file": "certificate.pem", "key_file": "key.pem"}
    run = train(constant(parent=asked, stop={"updates": 3}), children=1, episodes=0)
    assert list(history(run.path, "exchange"))
    with pytest.raises(ConfigurationError, match=r"nodes = 1: .* --nodes 0"):
        search(
            constant(
                parent=asked, search={"space": {"optimizer.learning_rate": [0.1]}, "phase_steps": 1}
            ),
            nodes=1,
            listen="127.0.0.1:1",
        )


def test_a_search_lets_other_machines_in_with_tokens_and_tls_or_not_at_all(tmp_path: Path) -> None:
    space = {"space": {"optimizer.learning_rate": [0.1]}, "phase_steps": 1}
    with pytest.raises(ConfigurationError, match=r"at 0\.0\.0\.0 without .*parent\.open = true"):
        search(constant(search=space), nodes=1, listen="0.0.0.0:0", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"children": 0}, "children = 0"),
        ({"cores": 0}, "cores = 0"),
        ({"episodes": -1}, "episodes = -1"),
        ({"resume": "nowhere"}, "holds no run"),
    ],
)
def test_options_are_checked_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        train(constant(), out=None if "resume" in options else "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_the_final_evaluation_is_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def evaluate(target: Run, *, episodes: int, seed: int, progress: bool) -> Evaluation | None:
        asked.append((target, episodes, seed, progress))
        return None

    monkeypatch.setattr(cluster, "evaluate", evaluate)
    run = train(
        constant(stop={"updates": 2}).with_settings({"seed": 5}), children=1, episodes=7, out="run"
    )
    assert asked == [(run, 7, 5, False)]


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
        "30 updates done",
    ]
    assert "child-2 is left out: the cable is loose" in said
    assert "the parent was stopped by SIGTERM, and is started again" in said


@pytest.mark.usefixtures("leftovers")
def test_who_is_killed_over_and_over_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MOST_LOSSES", 1)
    ended = threading.Event()

    def hunt() -> None:
        while not ended.wait(0.05):
            for process in of("genkidama.child"):
                process.kill()

    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        with pytest.raises(
            EnvironmentFailure,
            match=r"child-1 was killed 2 times within a minute; see run/logs/child-1.log",
        ):
            train(constant(stop={"seconds": 60.0}), children=1, out="run")
    finally:
        ended.set()
        hunter.join()


@pytest.mark.usefixtures("leftovers")
def test_a_child_that_cannot_go_on_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    settings = small(environment={"id": "tests.tiny:Faulty", "options": {"fault": "raise"}})
    with pytest.raises(EnvironmentFailure) as raised:
        train(settings, children=1, cores=1, out="run")
    place = f"{ROOT / 'tests' / 'tiny.py'}:60, in _meet"
    log = Path("run", "logs", "child-1.log")
    assert str(raised.value) == (
        "core 0 died 3 times without ending an episode: "
        f"ValueError: the cable is loose ({place}); the whole traceback is in {log}"
    )
    assert 'tiny.py", line 60, in _meet' in log.read_text()


@pytest.mark.usefixtures("leftovers")
def test_what_a_child_cannot_build_is_the_users_mistake() -> None:
    with pytest.raises(ConfigurationError, match=r"child.backend = 'tests.helpers:Nothing'"):
        train(constant(child={"backend": "tests.helpers:Nothing"}), children=1, out="run")


@pytest.mark.usefixtures("leftovers")
def test_interrupted_it_ends_all_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(constant(), children=2, out="run", watch=Watch("exchange", interrupt))
    last = history(tmp_path / "run", "checkpoint")[-1]["version"]
    assert Run(tmp_path / "run").snapshot.version == last
    until(lambda: [event["reason"] for event in history(tmp_path / "run", "stop")] == ["SIGTERM"])
