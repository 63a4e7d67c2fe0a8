"""The files that are copied to machines, and the examples, are held to the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from docs.site.settings import texts
from genkidama.child.child import _FAREWELL_SECONDS, _LAST_REPLY_SECONDS
from genkidama.config.experiment import Experiment, read_toml
from genkidama.config.role import Role
from genkidama.config.sections import (
    Algorithm,
    ChildSettings,
    Environment,
    Network,
    Optimizer,
    ParentSettings,
    Stop,
)
from genkidama.parent.__main__ import main as parent_main
from genkidama.parent.connections import ConnectionManager
from genkidama.parent.parent import HOUSEKEEPING_SECONDS, LEAVE_SECONDS
from genkidama.plugins.actors.settings import LearnerSettings
from genkidama.plugins.ga3c.settings import GA3CSettings
from genkidama.plugins.gorila.settings import ReplaySettings
from genkidama.plugins.hypertrick.settings import SearchSettings
from genkidama.runtime.systemd import STATUS_SECONDS

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = {
    "environment": Environment,
    "network": Network,
    "algorithm": Algorithm,
    "replay": ReplaySettings,
    "optimizer": Optimizer,
    "parent": ParentSettings,
    "child": ChildSettings,
    "ga3c": GA3CSettings,
    "learner": LearnerSettings,
    "stop": Stop,
    "search": SearchSettings,
}


def settings_in(text: str) -> dict[str, list[tuple[str, str]]]:
    """The settings of each section in their order, the ones that are off included.

    Each is a key and its comment, the comment's lines joined. The top level has no name.
    """
    found: dict[str, list[tuple[str, str]]] = {"": []}
    section = ""
    for line in text.splitlines():
        if header := re.match(r"(?:# )?\[(\w+)\]$", line):
            section = header[1]
            found[section] = []
        elif setting := re.match(r"(?:# )?(\w+) = .*# (\S.*)", line):
            found[section].append((setting[1], setting[2]))
        elif more := re.match(r"#?\s+# (.+)", line):
            key, comment = found[section].pop()
            found[section].append((key, f"{comment} {more[1]}"))
    return found


def settings_of(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    """The settings of a section in their order: each is a key and its docstring."""
    written = texts(kind)
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return [(name, written.get(name, "")) for name in names]


def test_the_parents_file_shows_every_setting_with_its_docstring() -> None:
    found = settings_in((ROOT / "parent/parent.toml").read_text(encoding="utf-8"))
    top = [
        (name, text) for name, text in settings_of(Experiment) if name not in {*SECTIONS, "plugins"}
    ]
    assert found.pop("") == top
    assert found == {name: settings_of(kind) for name, kind in SECTIONS.items()}


def test_the_parents_file_is_the_example_of_averaging_for_a_parent_that_does_not_learn() -> None:
    deployed, example = (
        Experiment.load(ROOT / "parent/parent.toml"),
        Experiment.load(ROOT / "examples/lunarlander/averaging.toml"),
    )
    for section in ("environment", "network", "algorithm", "optimizer"):
        assert getattr(deployed, section) == getattr(example, section)
    assert (deployed.adapts, deployed.parent.rule) == (example.adapts, example.parent.rule)
    assert deployed.parent.listen == "0.0.0.0:8765" and not deployed.sends_experience


def test_the_childs_file_shows_every_setting_with_its_docstring_and_its_default() -> None:
    path = ROOT / "child/child.toml"
    assert settings_in(path.read_text(encoding="utf-8")) == {"": settings_of(Role)}
    assert Role.load(path) == Role()


@pytest.mark.parametrize("folder", ["parent", "child"])
def test_a_deployable_holds_no_code(folder: str) -> None:
    assert not list((ROOT / folder).rglob("*.py"))


# Units.

UNITS = {
    "parent": (
        "genkidama.parent",
        ConnectionManager.close_seconds + LEAVE_SECONDS,
        HOUSEKEEPING_SECONDS,
    ),
    "child": ("genkidama.child", _LAST_REPLY_SECONDS + _FAREWELL_SECONDS, STATUS_SECONDS),
}


def unit(role: str) -> dict[str, list[str]]:
    """All assignments of a unit, whatever their section."""
    found: dict[str, list[str]] = {}
    for line in (
        (ROOT / role / f"genkidama-{role}.service").read_text(encoding="utf-8").splitlines()
    ):
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("role", UNITS)
def test_a_unit_agrees_with_the_code(role: str) -> None:
    settings = unit(role)
    module, stop, beat = UNITS[role]
    (start,) = settings["ExecStart"]
    assert start.startswith(
        f"/opt/genkidama/{role}/bin/python -m {module} /etc/genkidama/{role}.toml"
    )
    assert find_spec(f"{module}.__main__") is not None
    assert float(settings["TimeoutStopSec"][0]) >= 2 * stop
    assert float(settings["WatchdogSec"][0]) >= 20 * beat
    if role == "parent":  # a child is ready at once; this is as long as the playbook waits
        assert settings["TimeoutStartSec"] == ["300"]
    assert (
        settings["Type"] == ["notify"]
        and settings["Restart"] == ["on-failure"]
        and settings["User"] == ["genkidama"]
    )
    # Torch compiles at run time. Threads and a learner are given other priorities.
    assert "MemoryDenyWriteExecute" not in settings
    assert "setpriority" in settings["SystemCallFilter"][-1].split()
    # A core or a learner that dies for want of memory is replaced.
    assert settings["OOMPolicy"] == ["continue"]


def test_what_the_parents_unit_says_is_what_the_command_understands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    variables = dict(line.strip('"').split("=", 1) for line in unit("parent")["Environment"])
    words = unit("parent")["ExecStart"][0].split(" -m genkidama.parent ")[1]
    for name, value in variables.items():
        words = words.replace(f"${{{name}}}", value).replace(f"${name}", value)
    assert "$" not in words
    assert parent_main(words.split()) == 2
    assert "/etc/genkidama/parent.toml: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("role", UNITS)
def test_a_unit_gives_nothing_away_that_it_does_not_need(role: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    command = [
        "systemd-analyze",
        "security",
        "--offline=yes",
        "--no-pager",
        "--threshold=20",
        str(ROOT / role / f"genkidama-{role}.service"),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in said.stderr:
        pytest.skip("this systemd-analyze examines no files")
    assert said.returncode == 0, said.stdout + said.stderr


# Examples.


EXAMPLES = [path for path in (ROOT / "examples").rglob("*.toml") if "zoo" not in path.parts]


@pytest.mark.parametrize("path", sorted(EXAMPLES), ids=lambda path: path.name)
def test_every_example_is_an_experiment(path: Path) -> None:
    assert Experiment.load(path).name == path.stem


def test_the_thesis_settings_are_exactly_the_thesis() -> None:
    assert read_toml(ROOT / "examples/lunarlander/thesis.toml") == {
        "seed": 0,
        "environment": {"id": "LunarLander-v3"},
        "network": {
            "hidden": [128],
            "activation": "tanh",
            "shared": False,
            "initialization": "normal",
            "initial_deviation": 0.1,
        },
        "algorithm": {
            "name": "a3c",
            "gamma": 0.999,
            "gae_lambda": 1.0,
            "batch_size": 120,
            "across_episodes": False,
            "pull_steps": 240,
            "epsilon": 0.01,
            "value_coefficient": 1.0,
            "entropy_coefficient": 0.0,
            "normalize_advantages": False,
            "max_gradient_norm": 0.0,
        },
        "optimizer": {
            "name": "sgd",
            "learning_rate": 1e-4,
            "momentum": 0.9,
            "weight_decay": 1e-3,
            "shared": False,
        },
        "parent": {
            "alpha": 0.9,
            "checkpoint_updates": 100,
            "checkpoint_seconds": 0,
            "checkpoint_keep": 20,
        },
        "child": {"beta": 0.0, "exchange": "episode", "cores": 4},
        "stop": {"updates": 2000},
    }
