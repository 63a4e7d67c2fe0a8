"""A first experiment of one's own, the examples, completion in a shell."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genkidama.__main__ import main
from genkidama.cli.parser import all_verbs
from genkidama.config.experiment import Experiment
from genkidama.learning import first_look
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from tests.helpers import ROOT


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at an environment takes no second, and no process of its own."""
    monkeypatch.setattr(first_look, "_SECONDS", (0.05, 1.0))

    def call(_: Experiment, entry: str, args: tuple[Any, ...], what: str) -> Any:
        said: list[Any] = []
        first_look.look(said.pop, said.append, *args)
        return said.pop()

    monkeypatch.setattr("genkidama.runtime.task.call", call)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("way", "rule", "exchange"),
    [
        ("act", "experience", "episode"),
        ("average", "difference", "chunk"),
        ("thesis", "blend", "episode"),
    ],
)
def test_init_writes_an_experiment_that_can_be_trained(
    way: str, rule: str, exchange: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--environment", "Acrobot-v1", "--way", way]) == 0
    building, written, chosen = capsys.readouterr().out.split("\n", 2)
    assert building.startswith("Acrobot-v1: building one, and playing random actions")
    assert written == "experiment.toml: written; train it: genkidama train experiment.toml"
    assert chosen.startswith("First choice: PPO: a step takes ")
    assert f"  {way} (this file): " in chosen and " ".join(chosen.split()).count(": take it") == 3
    text = Path("experiment.toml").read_text()
    assert "#   genkidama train experiment.toml" in text
    assert re.search(r"(?m)^# time +a step takes [\d.]+ .s, a reset", text)
    assert "# Second choice, at the end: DQN: " in text
    experiment = Experiment.load("experiment.toml")
    assert experiment.environment.id == "Acrobot-v1"
    assert (experiment.parent.rule, experiment.child.exchange) == (rule, exchange)
    assert len(experiment.adapts) == (4 if way == "average" else 0)
    assert (experiment.stop.mean_return, experiment.stop.seconds) == (-100.0, 600.0)


@pytest.mark.usefixtures("at_once")
def test_init_writes_the_example_of_an_environment_that_has_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["init", "my own.toml"]) == 0
    said = capsys.readouterr().out
    assert "train it: genkidama train 'my own.toml'\n" in said
    assert "It is the example 'lunarlander', whose settings were tuned" in said
    assert "Others for it (--example): lunarlander/a3c, lunarlander/averaging," in said
    told = Path("my own.toml").read_text()
    assert "\n#   genkidama train 'my own.toml'\n" in told
    example = (ROOT / "examples/lunarlander/lunarlander.toml").read_text()
    assert told == example.replace("train lunarlander", "train 'my own.toml'")
    assert main(["init", "other.toml", "--way", "average"]) == 0  # after a look at it
    assert Experiment.load("other.toml").child.exchange == "chunk"


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("environment", ["pictures:Small", "pictures:Large", "pictures:Flat"])
def test_init_looks_at_the_environment(
    environment: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "pictures", raising=False)
    assert main(["init", "early.toml", "--environment", environment]) == 0
    assert "There is no 'pictures' here yet" in capsys.readouterr().out
    Path("pictures.py").write_text(PICTURES)
    monkeypatch.syspath_prepend(Path.cwd())
    assert main(["init", "mine.toml", "--environment", environment]) == 0
    images = environment != "pictures:Flat"
    assert (" --children 1\n" in capsys.readouterr().out) == images
    experiment = Experiment.load("mine.toml")
    assert (experiment.network.name == "convolutional") == images
    made = make_environment(experiment.environment)
    assert Model(experiment, made).signature.size < 3_000_000  # it can be trained
    made.close()


PICTURES = """
import gymnasium
import numpy as np


class Small(gymnasium.Env):  # it cannot be played
    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)


class Large(Small):
    observation_space = gymnasium.spaces.Box(0, 255, (4, 36, 36), np.uint8)


class Flat(Small):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (7,), np.float32)
"""


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("name", "numbers"), [("Small", 100), ("Large", 4 * 36 * 36)])
def test_init_writes_for_images_without_torch_what_works_without(
    name: str, numbers: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pictures.py").write_text(PICTURES)
    monkeypatch.delitem(sys.modules, "pictures", raising=False)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setattr("genkidama.cli.init.find_spec", lambda name: name != "torch" or None)
    assert main(["init", "mine.toml", "--environment", f"pictures:{name}"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "First choice: PPO on a perceptron: torch is not installed" in said
    assert "With torch, init writes a file with convolutions" in said
    experiment = Experiment.load("mine.toml")
    made = make_environment(experiment.environment)
    assert made.observation_space.shape == (numbers,)
    assert type(Model(experiment, made)) is Model  # which needs no torch


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("name", "way", "lanes"),
    [
        ("tests.learning.test_environments:three_at_once", "act", 3),
        ("tests.learning.test_environments:three_at_once", "average", 3),
        ("tests.plugins.pettingzoo.test_agents:Race", "act", 6),
    ],
)
def test_init_takes_as_many_lanes_as_an_object_has(name: str, way: str, lanes: int) -> None:
    assert main(["init", "mine.toml", "--environment", name, "--way", way]) == 0
    mine = Experiment.load("mine.toml")
    assert mine.environment.lanes == lanes
    if lanes == 6:
        assert mine.algorithm.batch_size == 768


@pytest.mark.usefixtures("at_once")
def test_init_gives_a_memory_to_what_sees_a_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rooms.py").write_text(ROOM)
    monkeypatch.syspath_prepend(Path.cwd())
    assert main(["init", "mine.toml", "--environment", "rooms:Room", "--way", "act"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "First choice: PPO with a memory: it shows 3 × 3 cells of its world, so it must" in said
    lines = Path("mine.toml").read_text().splitlines()
    assert lines[lines.index("memory = 64") - 1] == (
        "# it shows 3 × 3 cells of its world; 0 (none) is faster, if what is seen suffices:"
    )
    experiment = Experiment.load("mine.toml")
    made = make_environment(experiment.environment)
    assert Model(experiment, made).memory == 64  # it can be trained
    made.close()
    none = experiment.with_settings({"network.memory": 0})
    assert Model(none, made).memory == 0


ROOM = """
import gymnasium
import numpy as np


class Room(gymnasium.Env):
    agent_view_size = 3
    observation_space = gymnasium.spaces.Dict(
        image=gymnasium.spaces.Box(0, 255, (3, 3, 3), np.uint8),
        direction=gymnasium.spaces.Discrete(4),
    )
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), float(action == 1), self.steps == 9, False, {}
"""


@pytest.mark.usefixtures("at_once")
def test_init_moves_no_robot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("robots.py").write_text(ROBOT)
    monkeypatch.syspath_prepend(Path.cwd())
    assert main(["init", "mine.toml", "--environment", "robots:Arm", "--period", "0.05"]) == 0
    assert "robots:Arm: building one and not playing it …" in capsys.readouterr().out
    assert not Path("moved").exists()
    experiment = Experiment.load("mine.toml")
    assert (experiment.environment.period, experiment.child.cores) == (0.05, 1)
    assert (experiment.algorithm.name, experiment.parent.rule) == ("sac", "experience")
    assert main(["init", "other.toml", "--environment", "robots:Arm"]) == 0
    assert Path("moved").exists()
    assert Experiment.load("other.toml").environment.period == 0.0
    assert main(["init", "bad.toml", "--environment", "robots:Arm", "--period", "-1"]) == 2


ROBOT = """
from pathlib import Path

import gymnasium
import numpy as np


class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        Path(__file__).with_name("moved").touch()
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}
"""


@pytest.mark.usefixtures("at_once")
def test_init_offers_no_way_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("gripping.py").write_text(
        ROBOT + "\n\nclass Gripper(Arm):\n    action_space = gymnasium.spaces.Discrete(3)\n"
    )
    monkeypatch.syspath_prepend(Path.cwd())
    robot = ["--environment", "gripping:Gripper", "--period", "0.05", "--way", "average"]
    assert main(["init", *robot]) == 0
    said = capsys.readouterr().out
    assert "First choice: PPO: it has a clock" in said and "--way" not in said
    assert Experiment.load("experiment.toml").parent.rule == "experience"


def test_init_refuses_an_environment_that_does_not_exist(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["init", "mine.toml", "--environment", "CartPool-v1"]) == 2
    assert "Did you mean: `CartPole`?" in capsys.readouterr().err
    assert not Path("mine.toml").exists()


def test_init_never_writes_over_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text("mine")
    assert main(["init", "mine.toml"]) == 2
    assert Path("mine.toml").read_text() == "mine"
    assert capsys.readouterr().err == "error: mine.toml: is there already; name another file\n"
    assert main(["init", "nowhere/mine.toml"]) == 1


def test_a_full_disk_leaves_no_file_that_could_be_taken_for_an_experiment() -> None:
    words = f"ulimit -f 0; exec {sys.executable} -m genkidama init mine.toml --example cartpole"
    said = subprocess.run(["sh", "-c", words], capture_output=True, text=True)
    assert (said.returncode, said.stderr) == (
        1,
        "error: mine.toml: cannot be written: File too large\n",
    )
    assert not Path("mine.toml").exists()


def test_init_copies_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name, before, command in (
        ("lunarlander/search", "genkidama search lunarlander/search", "genkidama search mine.toml"),
        (
            "lunarlander/ga3c",
            "genkidama train lunarlander/ga3c --children 1",
            "genkidama train mine.toml --children 1",
        ),
        (
            "memory/tmaze",
            "cd examples/memory && genkidama train tmaze.toml",
            "genkidama train mine.toml",
        ),
    ):
        assert main(["init", "mine.toml", "--example", name]) == 0
        assert capsys.readouterr().out == f"mine.toml: written; train it: {command}\n"
        example = (ROOT / "examples" / f"{name}.toml").read_text()
        assert example.count(before) == 1
        assert Path("mine.toml").read_text() == example.replace(before, command)
        Path("mine.toml").unlink()


def test_examples_are_listed_and_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["examples"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=1) == [
        "cartpole",
        "CartPole-v1: the smallest example, solved in seconds",
    ]
    assert max(map(len, lines)) <= 100
    assert main(["examples", "cartpole"]) == 0
    example = ROOT / "examples" / "cartpole" / "cartpole.toml"
    assert capsys.readouterr().out == example.read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_takes_the_script_that_completes(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in all_verbs()) and "--children" in script
    if shutil.which(shell) is not None:
        checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")
    if shell == "bash":
        ask = "COMP_WORDS=(genkidama ev); COMP_CWORD=1; _shtab_genkidama; echo $COMPREPLY"
        told = subprocess.run(["bash", "-c", f"{script}\n{ask}"], text=True, capture_output=True)
        assert told.stdout.strip() == "evaluate", told.stderr
