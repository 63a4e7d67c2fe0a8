from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import genkidama
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.plugins.ray.start import launch
from genkidama.runtime import script
from genkidama.runtime.import_strings import load_object
from genkidama.runtime.script import MARK, source_of
from tests.helpers import python
from tests.runtime.bounded import run_bounded

SCRIPT = """
import argparse, gymnasium, genkidama
from genkidama.config.experiment import *

parser = argparse.ArgumentParser()
parser.add_argument("--episodes", type=int, required=True)
options = parser.parse_args()

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}

stop = Stop(episodes=options.episodes)
experiment = Experiment(environment=Mine, parent=ParentSettings(rule="experience"), stop=stop)
run = genkidama.train(experiment, children=1, cores=1, out="run", episodes=2)
print(run.evaluation["mean"])
"""


def test_a_script_with_an_environment_and_no_guard_trains_once(tmp_path: Path) -> None:
    """Its processes have its class, its folder and its arguments, and none trains again.

    Here they are cores and a learner; `tests/test_ga3c_end_to_end.py` has agents and an engine.
    """
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/mine.py").write_text(SCRIPT)
    command = [sys.executable, "folder/mine.py", "--episodes", "20"]
    assert run_bounded(command, tmp_path) == (0, "1.0\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "output", "run"]
    assert Experiment.load(tmp_path / "run/experiment.toml").environment.id == "mine:Mine"


@pytest.mark.parametrize(
    ("what", "begin"),
    [
        ("train", lambda: genkidama.train(Experiment())),
        ("search", lambda: genkidama.search(Experiment())),
        ("launch", lambda: launch(Experiment())),
        ("evaluate", lambda: genkidama.evaluate("runs/x")),
        ("Parent", lambda: genkidama.Parent(Experiment())),
        ("Child", lambda: genkidama.Child("ws://localhost:1")),
    ],
)
def test_nothing_begins_in_a_process_of_a_run(
    what: str, begin: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "_inherited", '["", []]')
    with pytest.raises(ConfigurationError) as raised:
        begin()
    assert str(raised.value) == (
        f"{what}: would begin within a process of another run; if a module does that when it is "
        'imported, put it under `if __name__ == "__main__":`'
    )


def test_a_command_of_such_a_process_does_not_begin_either(tmp_path: Path) -> None:
    words = ("-m", "genkidama", "train", "cartpole")
    done = python(*words, folder=tmp_path, **{MARK: '["", []]'})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: train: would begin within a process of another run; ")


def test_a_module_is_imported_up_to_where_it_would_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever names it: an experiment of another program, too, as in `genkidama train FILE`."""
    (tmp_path / "script_package").mkdir()
    (tmp_path / "script_package/__init__.py").touch()
    (tmp_path / "script_package/trains.py").write_text(
        "import genkidama\n"
        "above = 1\n"
        "try:\n"
        "    genkidama.train(genkidama.Experiment(), out='never')\n"
        "except Exception:\n"
        "    pass\n"
        "below = 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load_object("script_package.trains:above", "network.name") == 1
    package = sys.modules.pop("script_package")
    assert package.trains is sys.modules.pop("script_package.trains")
    with pytest.raises(ConfigurationError, match=r"^network.name = .* has no 'below'.*__main__"):
        load_object("script_package.trains:below", "network.name")
    (tmp_path / "script_package/__init__.py").write_text("import genkidama\ngenkidama.Parent(0)\n")
    for name in ("script_package", "script_package.trains"):
        sys.modules.pop(name, None)
    with pytest.raises(ConfigurationError, match="trains while it is imported; put that under"):
        load_object("script_package.trains:above", "network.name")
    assert not (tmp_path / "never").exists()


def test_of_a_notebook_that_source_is_taken_which_a_class_needs() -> None:
    cells = [
        "import os, json\nimport xml.dom\nimport xml.sax as sax\nx = 1",
        "get_ipython().run_line_magic('matplotlib', 'inline')\nprint(x)",
        "no python, which did not run either",
        "class Mine: old = json",
        "try:\n    import fast\nexcept ImportError:\n    fast = None\nunused = 2\nx += 1",
        "action = train()",
        "@sax\nclass Mine(Base):\n    def f(self, action): return helper(fast)",
        "def helper(y): return x",
        "a, Base = object, xml.dom",
        "from math import *",
        'x_table = {}\nunused["a"] = helper.used = [x for x in "ab"]\nsax.token = "secret"',
        'x_table["a"][0].b, y = 1, x_table\nif fast:\n    x_table["b"] = 2',
        "def helper(y): return helper and x",
        "helper = sax(helper)\nMine.metadata = x_table",
    ]
    assert [line for line in source_of(["Mine"], cells).splitlines() if line] == [
        "import xml.dom",
        "import xml.sax as sax",
        "x = 1",
        *("try:", "    import fast", "except ImportError:", "    fast = None"),
        "x += 1",
        *("@sax", "class Mine(Base):", "    def f(self, action):", "        return helper(fast)"),
        "a, Base = (object, xml.dom)",
        "from math import *",
        "x_table = {}",
        *("x_table['a'][0].b, y = (1, x_table)", "if fast:", "    x_table['b'] = 2"),
        *("def helper(y):", "    return helper and x"),
        *("helper = sax(helper)", "Mine.metadata = x_table"),
    ]


def test_a_definition_that_was_run_again_below_its_user_is_also_taken_above_it() -> None:
    cells = [
        "LIMIT = 1.0\nwith open('n') as file:\n    DATA = file.read()",
        "from __future__ import annotations\nclass Guess(object):\n    most, all = LIMIT, DATA",
        "LIMIT = 2.0",
    ]
    assert source_of(["Guess"], cells) == (
        "from __future__ import annotations\n\nLIMIT = 1.0\n\n"
        "with open('n') as file:\n    DATA = file.read()\n\n"
        "class Guess(object):\n    most, all = (LIMIT, DATA)\n\nLIMIT = 2.0\n"
    )


def test_a_statement_that_changes_two_names_needs_what_both_had() -> None:
    cells = [
        "data = load()[0]\nlabels = load()[1]\ndef load(): return [1], [2]",
        "data, labels = shuffle(data, labels)",
        "def shuffle(a, b): return a, b\nclass Env: table = labels",
    ]
    assert "data = load()[0]" in source_of(["Env"], cells)


def test_two_directories_of_one_name_have_modules_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "_notebooks", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    experiment = Experiment(environment=Environment(id="__main__:Guess"))
    found = []
    for version in ("v1", "v2", "v2"):
        (folder := tmp_path / version / "seed0").mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(script, "cells", lambda version=version: [f"Guess = '{version}'"])
        name, _, _ = script.with_notebook(experiment, folder).environment.id.partition(":")
        found.append(import_module(name).Guess)
    assert found == ["v1", "v2", "v2"]


def test_a_script_may_train_in_processes_of_multiprocessing(tmp_path: Path) -> None:
    begin, _, end = SCRIPT.partition("stop = Stop")
    begin = begin.replace("parser.parse_args()", "parser.parse_args(['--episodes', '40'])")
    work = "".join(f"    {line}\n" for line in ("stop = Stop" + end).splitlines()[:-1])
    guarded = (
        f"{begin}\ndef work(_):\n{work}    return run.evaluation['mean']\n"
        "if __name__ == '__main__':\n"
        "    import multiprocessing\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work, [0]))\n"
    )
    (tmp_path / "mine.py").write_text(guarded)
    assert run_bounded([sys.executable, "mine.py"], tmp_path) == (0, "[1.0]\n")
