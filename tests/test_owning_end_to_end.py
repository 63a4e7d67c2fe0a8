"""Environments that own something, in every verb: all end on time, and nothing outlives them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from genkidama.config.experiment import Experiment
from genkidama.runs.checkpoint import SPACES
from genkidama.runs.run import LOGS, Run
from genkidama.runtime.descendants import ENDED
from tests.helpers import Started, free_port, history, small, starting, until

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux knows orphans")

#: All that an environment may own, and two things whose end is slow.
EVERYTHING = "thread pool fork program daemon signals"


def owning(kind: str = "Owning", environment: Any = (), **options: Any) -> Experiment:
    settings = {"id": f"tests.owning:{kind}", "options": options, **dict(environment)}
    return small(environment=settings, stop={"steps": 200, "updates": None})


ENDLESS = small(stop={"steps": 10**9}).stop


def written(folder: Path, experiment: Experiment) -> Path:
    path = folder / "experiment.toml"
    path.write_text(experiment.to_toml())
    return path


@pytest.fixture
def left(tmp_path: Path) -> Iterator[None]:
    """Fails if a process lives at the end that was started from the test's folder."""
    yield
    mine = str(tmp_path)

    def is_mine(process: psutil.Process) -> bool:
        try:
            return mine in process.cwd() or mine in " ".join(process.cmdline())
        except psutil.Error:
            return False

    until(lambda: not [each for each in psutil.process_iter() if is_mine(each)], "their end", 3.0)


def trained(folder: Path, experiment: Experiment, *more: str, episodes: int = 3) -> Started:
    command = f"genkidama train {written(folder, experiment)} --children 1 --cores 1 --out run"
    with starting(folder) as start:
        process = start(*command.split(), "--episodes", episodes, *more)
        assert process.wait(60.0) == 0, process.err
    return process


def test_a_run_ends_by_itself_whatever_its_environment_has_started(
    tmp_path: Path, left: None
) -> None:
    train = trained(tmp_path, owning(owns=EVERYTHING))
    train.vanish(0.0)
    assert time.time() - history(tmp_path / "run", "evaluation")[0]["time"] < 5.0
    logs = {path.stem: path.read_text() for path in (tmp_path / "run" / LOGS).iterdir()}
    said = {name: text[text.find(ENDED) - 500 :] for name, text in logs.items() if ENDED in text}
    for name in ("run_prepared", "import signal"):
        assert name in said["child-1"]
    assert "perform" in said["evaluation"] and "import signal" in said["evaluation"]
    assert any("sleep 3600" in words for words in said.values())
    assert train.out == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=str)
def test_one_signal_ends_a_run(number: int, tmp_path: Path, left: None) -> None:
    experiment = msgspec.structs.replace(owning(owns=EVERYTHING), stop=ENDLESS)
    with starting(tmp_path) as start:
        few = ("--children", 1, "--cores", 1)
        train = start("genkidama", "train", written(tmp_path, experiment), "--out", "run", *few)
        until(lambda: (tmp_path / "run").exists() and history(tmp_path / "run", "exchange"))
        train.signal(number)
        assert train.wait(5.0) == (143 if number == signal.SIGTERM else -9)
        train.vanish(5.0)
    last = history(tmp_path / "run")[-1]
    assert last["event"] == "checkpoint"
    assert Run(tmp_path / "run").snapshot.version == last["version"]


@pytest.mark.parametrize(("by", "reason"), [("sys", "SystemExit: 3 ("), ("os", "exit code 3")])
def test_an_environment_that_exits_is_lost_as_one_that_raises(
    by: str, reason: str, tmp_path: Path, left: None
) -> None:
    path = written(tmp_path, owning("Exiting", by=by))
    with starting(tmp_path) as start:
        train = start("genkidama", "train", path, "--children", 1, "--cores", 1, "--out", "run")
        assert train.wait(60.0) == 1
    assert f"child-1: lost core 0: {reason}" in train.err
    assert f"error: core 0 died 3 times without ending an episode: {reason}" in train.err
    assert "Traceback" not in train.err


def builds(notes: Path) -> int:
    return len(notes.read_text().split())


@pytest.mark.parametrize("rule", ["blend", "experience"])
def test_one_device_is_opened_once_to_train_and_once_to_evaluate(
    rule: str, tmp_path: Path, left: None
) -> None:
    notes = tmp_path / "notes"
    settings = owning(environment={"exclusive": True}, owns="device", notes=str(notes))
    trained(tmp_path, settings, "--set", f"parent.rule={rule}", episodes=100)
    assert builds(notes) == 2
    # The policy knows its spaces by now.
    assert json.loads((tmp_path / "run" / SPACES).read_bytes())[1] == {"discrete": 2, "start": 0}
    policy = Run(tmp_path / "run", ("tests",)).policy()
    assert policy.predict([0.0, 0.0, 0.0])[0] in (0, 1) and builds(notes) == 2


def test_the_clock_of_a_run_begins_with_its_first_step(tmp_path: Path, left: None) -> None:
    notes = tmp_path / "notes"
    settings = owning(environment={"lanes": 2}, notes=str(notes), seconds=1.0)
    stop = small(stop={"seconds": 0.5}).stop
    said = trained(tmp_path, msgspec.structs.replace(settings, stop=stop), episodes=0)
    assert builds(notes) == 2  # both lanes, at the same time
    assert history(tmp_path / "run", "stop")[0]["reason"] == "0.5 seconds are over"
    assert Run(tmp_path / "run").snapshot.steps > 200
    assert "its page: " in said.err


def test_a_parent_and_a_child_end_with_what_an_environment_has_started(
    tmp_path: Path, left: None
) -> None:
    path = written(tmp_path, msgspec.structs.replace(owning(owns=EVERYTHING), stop=ENDLESS))
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}", "--out", "run", "--set", "parent.rule=experience")
    with starting(tmp_path) as start:
        parent = start("genkidama.parent", path, *listen)
        child = start("genkidama.child", "--parent", f"ws://127.0.0.1:{port}", "--allow", "tests")
        until(lambda: (tmp_path / "run").exists() and history(tmp_path / "run", "exchange"))
        for process in (child, parent):
            process.signal(signal.SIGTERM)
            assert process.wait(5.0) == 0
            process.vanish(1.0)
    assert ENDED in child.err
