"""Real Parents and Children, as processes over loopback: they train, are killed, come back."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import genkidama
from genkidama.__main__ import main
from genkidama.config.experiment import Experiment
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs.run import Run
from studies.scaling.links import Network
from studies.scaling.matrix import Link
from tests.helpers import (
    ROOT,
    Ended,
    Started,
    command,
    free_port,
    history,
    one_forkserver,
    shared_memory,
    small,
    until,
)

Start = Callable[..., Started]


def test_children_average_in_chunks(tmp_path: Path) -> None:
    experiment = Experiment.from_dict(
        {
            "environment": {"id": "CartPole-v1"},
            "network": {"hidden": [8]},
            "algorithm": {"name": "ppo", "batch_size": 3072},
            "parent": {"rule": "difference", "linger_seconds": 1},
            "child": {"exchange": "chunk"},
            "stop": {"updates": 20},
        }
    )
    (tmp_path / "cart.toml").write_text(experiment.to_toml())
    options = ("--children", 2, "--cores", 2, "--out", "run", "--episodes", 0)
    said = command(tmp_path, "genkidama", "train", "cart.toml", *options)
    assert said.code == 0, said
    exchanges = history(tmp_path / "run", "exchange")
    # The first push of the child that came second may have nothing to differ from.
    assert len(exchanges) - 1 <= exchanges[-1]["version"] <= len(exchanges)
    # The first child may have begun alone.
    assert exchanges[-1]["update"] >= 20 and len(exchanges) > 25
    # A push has a chunk of both cores, which is longer than a busy machine's CPU is waited for; and
    # θ_P was taken just before it was learned from.
    assert exchanges[-1]["steps"] >= 0.8 * len(exchanges) * 2 * 768
    assert sorted(line["staleness"] for line in exchanges)[len(exchanges) // 2] <= 2
    chosen = history(tmp_path / "run", "averaging")
    assert 1.0 <= chosen[0]["children"] <= 2.1 and chosen[-1]["lanes"] == 8


# A run from its beginning to its end.


@dataclass
class Trained:
    said: Ended
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "a run"

    @property
    def hints(self) -> dict[str, list[str]]:
        """The commands that it suggests at its end, each as its words."""
        found = re.findall(r"(?m)^  ([a-z ]+): +genkidama (.+)$", self.said.err)
        return {name: shlex.split(words) for name, words in found}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A3C on CartPole, two free children, by the command."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "cart.toml").write_text(small(parent={"alpha": 0.75}, child={"beta": 0.25}).to_toml())
    options = [
        "--children",
        2,
        "--cores",
        1,
        "--updates",
        8,
        "--seed",
        7,
        "--set",
        "child.exchange_seconds=0.04",
        "--set",
        "stop.window=5",  # on a busy machine eight updates are twenty episodes
        "--episodes",
        1,
    ]
    return Trained(
        command(folder, "genkidama", "train", "cart.toml", *options, "--out", "a run", "--json"),
        folder,
    )


def test_the_command_ends_with_one_object_on_standard_output(trained: Trained) -> None:
    assert trained.said.code == 0, trained.said.err
    assert "Traceback" not in trained.said.err
    found = json.loads(trained.said.out)
    assert list(found) == [
        "run",
        "updates",
        "episodes",
        "steps",
        "seconds",
        "steps_per_second",
        "evaluation",
    ]
    assert found["run"] == "a run"
    assert 4 < found["updates"] < 12  # a child's first push after the eighth update lowers the mean
    assert found["episodes"] > 5 and found["steps"] > 100
    assert found["steps_per_second"] == pytest.approx(found["steps"] / found["seconds"])
    evaluation = found["evaluation"]
    assert (
        evaluation["episodes"],
        evaluation["seed"],
        evaluation["greedy"],
        evaluation["threshold"],
    ) == (1, 7, False, 475.0)


def test_a_user_follows_it_on_standard_error(trained: Trained) -> None:
    lines = trained.said.err.splitlines()
    assert lines[0] == "training CartPole-v1 with a3c: run a run"
    assert any("mean return" in line and "exchange" in line for line in lines)
    assert "ended: 8 exchanges a child done" in lines
    assert lines[-5:] == [
        f"run: a run, saved: version {Run.open(trained.path).snapshot.version}",
        "  watch it:   genkidama play 'a run'",
        "  its page:   genkidama serve 'a run'",
        "  play again: genkidama evaluate 'a run'",
        "  go on:      genkidama train --resume 'a run' --set stop.updates=16",
    ]


def test_the_run_directory_holds_what_a_run_leaves(trained: Trained) -> None:
    run = Run.open(trained.path)
    assert (
        run.experiment.seed,
        run.experiment.stop.updates,
        run.experiment.child.exchange_seconds,
    ) == (7, 8, 0.04)
    assert run.experiment.name == "small"
    snapshot = run.snapshot
    assert (snapshot.alpha, snapshot.beta) == (0.75, 0.25)
    assert set(snapshot.children) <= {"child-1", "child-2"}
    assert (
        sum(counts["exchanges"] for counts in snapshot.children.values())
        == snapshot.version
        == snapshot.exchanges
    )
    vector = run.load(best=False).vector
    assert np.isfinite(vector).all() and vector.any()
    assert run.best is not None
    assert run.evaluation is not None and run.evaluation["episodes"] == 1
    assert sorted(path.name for path in run.path.iterdir()) == [
        "checkpoints",
        "children",
        "evaluation.json",
        "experiment.toml",
        "history.jsonl",
        "logs",
    ]


def test_the_history_tells_what_happened(trained: Trained) -> None:
    events = list(Run(trained.path).history())
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start" and kinds[-1] == "evaluation"
    assert {"join", "exchange", "stop", "leave", "checkpoint"} <= set(kinds)
    times = [event["time"] for event in events]
    assert times == sorted(times)
    exchanges = [event for event in events if event["event"] == "exchange"]
    assert [event["version"] for event in exchanges] == list(range(1, len(exchanges) + 1))
    for key in ("child", "update", "staleness", "episodes", "steps", "mean_return"):
        assert all(key in event for event in exchanges)
    assert {event["child"] for event in exchanges} <= {
        "child-1",
        "child-2",
    }  # on a busy machine one may come too late


def test_the_commands_that_it_suggests_work_as_they_stand(
    trained: Trained,
    tmp_path: Path,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All but the one that goes on, which the next test types."""
    shutil.copytree(trained.path, tmp_path / "a run")
    monkeypatch.chdir(tmp_path)
    hints = trained.hints
    assert list(hints) == ["watch it", "its page", "play again", "go on"]
    page = start("genkidama", *hints["its page"], "--listen", "127.0.0.1:0")
    with one_forkserver():
        assert main([*hints["play again"], "--episodes", "2"]) == 0
        assert capsys.readouterr().out.startswith("a run: ")
        assert main([*hints["watch it"], "--video", "cart.mp4", "--every", "8"]) == 0
    assert (tmp_path / "cart.mp4").stat().st_size > 1000
    until(lambda: "http://127.0.0.1:" in page.out, "an address")


def test_a_resumed_run_goes_on_where_it_was(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.path, tmp_path / "a run")
    before, old = Run(trained.path).load(best=False), list(Run(trained.path).history())
    options = ["--children", 1, "--cores", 1, "--episodes", 0, "--json"]
    said = command(tmp_path, "genkidama", *trained.hints["go on"], *options)
    assert said.code == 0, said.err
    assert f"resumes from version {before.snapshot.version}" in said.err
    found, after, events = (
        json.loads(said.out),
        Run(tmp_path / "a run").load(best=False),
        list(Run(tmp_path / "a run").history()),
    )
    assert events[: len(old)] == old
    assert (
        events[len(old)]["event"] == "resume"
        and events[len(old)]["version"] == before.snapshot.version
    )
    exchanges = [event["version"] for event in events[len(old) :] if event["event"] == "exchange"]
    assert exchanges[0] == before.snapshot.version + 1
    assert [event["reason"] for event in events if event["event"] == "stop"] == [
        "8 exchanges a child done",
        "16 exchanges a child done",
    ]
    assert after.snapshot.version > before.snapshot.version
    assert found["steps"] > before.snapshot.steps
    assert found["episodes"] >= before.snapshot.episodes  # eight batches need not end one
    assert after.snapshot.seconds > before.snapshot.seconds
    assert found["steps_per_second"] == pytest.approx(
        (after.snapshot.steps - before.snapshot.steps)
        / (after.snapshot.seconds - before.snapshot.seconds)
    )
    assert Run(tmp_path / "a run").experiment.stop.updates == 16


def test_ppo_with_episodes_trains_continuous_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own call, from a directory where the package can only be found by its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    experiment = genkidama.Experiment.from_dict(
        {
            "environment": {
                "id": "Pendulum-v1",
                "normalize_observations": True,
                "normalize_rewards": True,
            },
            "network": {"hidden": [8]},
            "algorithm": {
                "name": "ppo",
                "batch_size": 64,
                "minibatch_size": 32,
                "epochs": 2,
                "gae_lambda": 0.95,
            },
            "child": {"exchange": "episode"},
            "stop": {"updates": 3},
        }
    )
    run = genkidama.train(experiment, children=1, cores=2, out="pendulum", episodes=0)
    checkpoint = run.load(best=False)
    assert checkpoint.snapshot.updates >= 3
    assert checkpoint.snapshot.steps == 200 * checkpoint.snapshot.episodes
    assert np.isfinite(checkpoint.vector).all()
    assert checkpoint.snapshot.mean_return is not None and checkpoint.snapshot.mean_return < 0.0


# The end, early.

#: Children have three seconds to end, their parent two more, and a busy machine as much again.
ENDING = 10.0


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
    ids=["SIGTERM", "SIGINT"],
)
def test_interrupted_it_leaves_a_checkpoint_and_nothing_else(
    tmp_path: Path, start: Start, number: int
) -> None:
    (tmp_path / "cart.toml").write_text(small().to_toml())
    process = start("genkidama train cart.toml --children 2 --cores 1 --out run --json")
    run = tmp_path / "run"
    until(
        lambda: (
            len({event["child"] for event in history(run, "exchange")}) == 2
            or process.popen.poll() is not None
        ),
        "exchanges",
    )
    family = process.family()
    assert len(family) >= 7  # this one, parent, nursery, and a child and a core twice
    assert not shared_memory(*(member.pid for member in family))
    process.signal(number)
    process.vanish(ENDING)
    assert process.wait() == 128 + number
    assert "Traceback" not in process.err and process.out == ""
    for log in (run / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text()
    last = history(run)[-1]
    assert last["event"] == "checkpoint"
    assert Run(run).snapshot.version == last["version"] == history(run, "exchange")[-1]["version"]


@pytest.mark.parametrize("moment", ["with its directory", "with a child"])
def test_stopped_while_it_starts_it_leaves_no_process(
    tmp_path: Path, start: Start, moment: str
) -> None:
    (tmp_path / "cart.toml").write_text(small().to_toml())
    process = start("genkidama train cart.toml --children 2 --cores 1 --out run")
    if moment == "with its directory":
        until(lambda: (tmp_path / "run" / "logs").exists())
    else:
        until(lambda: any("genkidama.child" in member.cmdline() for member in process.family()))
    process.signal(signal.SIGTERM)
    process.vanish(ENDING)
    assert process.wait() in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert "Traceback" not in process.err


#: `python -m genkidama`, which gets a signal as soon as it has forked its first process.
AS_IT_FORKS = """
import os
import sys

number = int(sys.argv.pop(1))
fork = os.fork

def forked():
    os.fork = fork
    if pid := fork():
        os.kill(os.getpid(), number)
    return pid

os.fork = forked
from genkidama.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_nursery_that_has_just_been_forked_does_not_outlive_it(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "cart.toml").write_text(small().to_toml())
    (tmp_path / "as_it_forks.py").write_text(AS_IT_FORKS)
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)")  # only a nursery imports it
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    process = start("as_it_forks", int(number), "train", "cart.toml", "--children", 1, "--cores", 1)
    process.wait()
    process.vanish(ENDING)
    if number == signal.SIGTERM:
        assert (process.wait(), process.err) == (128 + number, "")
        assert list((tmp_path / "tmp").iterdir()) == []


# Machines that are lost.


class Machines:
    """A parent and its children, each a command of its own, as on a shelf of them."""

    def __init__(self, folder: Path, start: Start) -> None:
        self.folder, self._start = folder, start
        settings = small(
            environment={
                "id": "tests.environments:Endless",
                "options": {"limit": 10, "seconds": 0.001},
                "normalize_observations": True,
            },
            parent={"checkpoint_seconds": 0.2, "encoding": "int8"},
        )
        (folder / "shelf.toml").write_text(settings.to_toml())
        self.port = free_port()

    def parent(self, run: str) -> Started:
        return self._start(
            f"genkidama.parent shelf.toml --listen 127.0.0.1:{self.port} --out {run}"
        )

    def child(self, name: str) -> Started:
        return self._start(
            f"genkidama.child --parent ws://127.0.0.1:{self.port} --name {name} --cores 1"
            " --allow tests.environments"
        )

    def exchanges(self, run: str, child: str = "") -> list[dict[str, Any]]:
        return [
            event
            for event in history(self.folder / run, "exchange")
            if child in ("", event["child"])
        ]

    def await_exchanges(self, run: str, child: str, count: int = 3) -> None:
        goal = len(self.exchanges(run, child)) + count
        until(lambda: len(self.exchanges(run, child)) >= goal, f"{count} more exchanges of {child}")


def cpu_seconds(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes if process.is_running())


def test_any_machine_may_be_lost(tmp_path: Path, start: Start) -> None:
    shelf = Machines(tmp_path, start)
    parent, first, second = shelf.parent("run"), shelf.child("first"), shelf.child("second")
    shelf.await_exchanges("run", "first")
    shelf.await_exchanges("run", "second")

    # A child is killed: its cores go with it, the other one goes on, and a new one is welcome.
    second.signal(signal.SIGKILL)
    second.vanish(5.0)
    shelf.await_exchanges("run", "first")
    until(lambda: [event["child"] for event in history(tmp_path / "run", "leave")] == ["second"])
    third = shelf.child("third")
    shelf.await_exchanges("run", "third")
    assert [event["child"] for event in history(tmp_path / "run", "join")][-1] == "third"

    # The parent is killed: the children train on, and bring it back to where they are.
    until(lambda: len(history(tmp_path / "run", "checkpoint")) >= 2)
    parent.signal(signal.SIGKILL)
    parent.wait()
    cores = first.family()
    spent = cpu_seconds(cores)
    until(lambda: cpu_seconds(cores) > spent + 0.15, "a child that trains, a thousand steps")
    checkpoint = checkpoints.load(Run(tmp_path / "run").final).snapshot
    parent = shelf.parent("run")
    resumed = until(lambda: history(tmp_path / "run", "resume"))[0]
    assert resumed["version"] == checkpoint.version
    shelf.await_exchanges("run", "first")
    shelf.await_exchanges("run", "third")
    events = history(tmp_path / "run")
    since = [event for event in events[events.index(resumed) :] if event["event"] == "exchange"]
    assert [event["version"] for event in since[:3]] == [checkpoint.version + n for n in (1, 2, 3)]
    # Among them are the steps of the time without a parent. They are in a child's second push, if
    # its first one repeats a push that was lost.
    mine = [event for event in since if event["child"] == since[0]["child"]]
    assert mine[1]["steps"] - checkpoint.steps > 600

    # Parent and disk are lost: the children's weights are all that is left, and that is enough.
    parent.signal(signal.SIGKILL)
    parent.wait()
    shelf.parent("another")
    shelf.await_exchanges("another", "first")
    shelf.await_exchanges("another", "third")
    assert history(tmp_path / "another", "refused") == []
    trained = until(lambda: Run(tmp_path / "another").checkpoints)[-1]
    assert np.abs(checkpoints.load(trained).vector).max() > 0.0

    for child in (first, third):
        child.signal(signal.SIGTERM)
    for child in (first, third):
        child.vanish(5.0)
        assert child.wait() == 0
        assert "Traceback" not in child.err


COUNTED = """
import os
import gymnasium

class Counted(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.made = os.open("steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self.observation_space.sample(), {}

    def step(self, action):
        os.write(self.made, b".")
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces take root")
def test_packets_get_lost_and_the_line_is_cut_for_twenty_seconds(tmp_path: Path) -> None:
    """Round trips of 100 ms, and 5 % of the packets lost in each direction."""
    (tmp_path / "counted.py").write_text(COUNTED)
    settings = small(
        environment={"id": "counted:Counted"},
        parent={"open": True, "encoding": "int8", "silence_seconds": 5.0},
        stop={"updates": 60},
    )
    (tmp_path / "line.toml").write_text(settings.to_toml())
    link = Link(megabits=20.0, delay_ms=100.0, loss=0.05)
    with Network(2, link, seed=1) as network, ExitStack() as stack:

        def start(command: list[str], name: str) -> subprocess.Popen[bytes]:
            output = stack.enter_context((tmp_path / name).open("wb"))
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=output, stderr=output
            )
            stack.callback(process.kill)
            return process

        python = [sys.executable, "-m"]
        serve = [*python, "genkidama.parent", "line.toml", "--out", "run"]
        parent = start(network.at_parent([*serve, "--listen", "0.0.0.0:8765"]), "parent")
        until(lambda: (tmp_path / "run/history.jsonl").exists(), seconds=90)
        children = []
        for number in range(2):
            address = f"ws://{network.parents_address(number)}:8765"
            child = [*python, "genkidama.child", "--parent", address, "--name", f"pi-{number}"]
            child += ["--cores", "1", "--allow", "counted"]
            children.append(start(network.at(number, child), f"pi-{number}"))

        def exchanges(child: str) -> int:
            return sum(one["child"] == child for one in history(tmp_path / "run", "exchange"))

        until(lambda: min(exchanges("pi-0"), exchanges("pi-1")) >= 5, seconds=90)
        network.cut([0, 1])
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 1.0)  # what is in the line arrives
        before = history(tmp_path / "run", "exchange")
        until(lambda: time.monotonic() - began > 20.0)
        assert history(tmp_path / "run", "exchange") == before
        assert parent.poll() is None and not any(child.poll() for child in children)
        network.cut([])
        assert [process.wait(120) for process in (parent, *children)] == [0, 0, 0]
    said = "".join((tmp_path / name).read_text() for name in ("parent", "pi-0", "pi-1"))
    assert "Traceback" not in said
    counted = history(tmp_path / "run", "exchange")
    assert [one["version"] for one in counted] == list(range(1, len(counted) + 1))
    assert counted[-1]["update"] == pytest.approx(60, abs=1)
    # Nothing is counted twice, and what was done without a parent is not lost.
    made = (tmp_path / "steps").stat().st_size
    assert 0.9 * made < counted[-1]["steps"] <= made
    assert before[-1]["steps"] < 0.5 * made
