"""README.md and three more pages: their code works as it stands there, and their names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import genkidama
from genkidama.cli.parser import make_parser
from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.settings import SearchSettings
from tests.helpers import ROOT
from tests.texts import code_block, code_blocks

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKE, TRAIN, JOIN = code_blocks("README.md", "bash")
PYTHON = code_block("README.md", "python")


def test_it_is_short_and_names_the_commands() -> None:
    assert len(README.splitlines()) <= 90
    assert len(PYTHON.strip().splitlines()) <= 7
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert {"train", "test", "lint", "docs", "test-deploy"} <= named & targets


def test_what_make_tests_is_there() -> None:
    named = set(re.findall(r"\btests/[\w/]+(?:\.\w+)?", (ROOT / "Makefile").read_text()))
    assert len(named) > 5 and [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_its_commands_are_some() -> None:
    parser = make_parser()
    typed = (TRAIN + JOIN).splitlines()
    assert [line.split()[1] for line in typed] == ["train", "evaluate", "parent", "join"]
    for line in typed:
        parser.parse_args(line.replace("'", "").split()[1:])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the sources, whose virtual environment is the one that runs these tests."""
    for name in ("genkidama", "examples", "constraints.txt", "pyproject.toml", "Makefile"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    command = programs / "genkidama"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m genkidama "$@"\n')
    command.chmod(0o755)
    (tmp_path / ".venv/.installed").touch()
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", [MAKE, TRAIN])
def test_a_block_of_the_quickstart_works_as_it_stands(checkout: Path, block: str) -> None:
    environment = {
        **os.environ,
        "PATH": f"{checkout / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-e"],
        input=block,
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (run,) = (checkout / "runs").iterdir()
    mean = genkidama.Run.open(run).evaluation["mean"]
    assert mean > 150.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_python_works_as_it_stands(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    names: dict[str, Any] = {}
    exec(compile(PYTHON, "README.md", "exec"), names)
    assert names["run"].experiment.algorithm.gamma == 0.99
    policy = names["policy"]
    action, _ = policy.predict(policy.make_environment().reset()[0])
    assert policy.action_space.contains(action)


@pytest.mark.slow
def test_what_the_page_shows_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks("docs/python.md", "python")
    assert len(blocks) == 4
    (tmp_path / "mine.py").write_text(blocks.pop(1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "mine.py"], check=True, env=environment)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["policy"].action_space.contains(names["action"])
    names["watch"](next(line for line in names["run"].history() if line["event"] == "exchange"))
    assert genkidama.Run.open("runs/cart").evaluation is not None


COMING_FROM = (ROOT / "docs/notes/coming-from.md").read_text(encoding="utf-8")
OURS = [line.split(" | ", 1)[1] for line in COMING_FROM.splitlines() if line.startswith("| `")]


def test_each_setting_exists() -> None:
    experiment = Experiment()
    sections = {name: getattr(experiment, name) for name in experiment.__struct_fields__}
    sections["search"] = SearchSettings
    known = {
        f"{name}.{key}"
        for name, section in sections.items()
        if isinstance(section, msgspec.Struct) or section is SearchSettings
        for key in section.__struct_fields__
    }
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)(?: = [^`]*)?`", " ".join(OURS)))
    named -= {"search.space", "genkidama.train", "genkidama.evaluate"}
    assert len(named) > 30 and named <= known, named - known


def test_each_command_and_each_name_of_python_exists() -> None:
    lines = re.findall(r"`genkidama ([a-z][^`]*)`", COMING_FROM)
    parser = make_parser()
    for line in lines:
        if line != "launch":
            parser.parse_args(re.sub(r"=…", "=1", line).split() + ["x"] * (line == "search"))
    for name in set(re.findall(r"genkidama\.(\w+)", COMING_FROM)):
        assert hasattr(genkidama, name), name


GUIDE = (ROOT / "docs/notes/raspberry-pi.md").read_text(encoding="utf-8")
PLAYBOOKS = ROOT / "deploy/ansible"


def test_what_the_shelf_trains_is_what_readme_trains_and_its_parent_learns() -> None:
    defaults = (PLAYBOOKS / "group_vars/all.yml").read_text(encoding="utf-8")
    (named,) = re.findall(r'(?m)^genkidama_experiment: "\{\{ playbook_dir \}\}/(.+)"', defaults)
    file = PLAYBOOKS / named
    assert Experiment.load(file) == Experiment.load("lunarlander")
    # The playbooks see by this that the parent needs a child's packages.
    (pattern,) = re.findall(r"is search\('(.+)'\)", defaults)
    examples = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("examples/*/*.toml")}
    for path, text in examples.items():
        assert bool(re.search(pattern, text)) == Experiment.load(path).sends_experience


def test_playbooks_and_variables_of_the_guide_exist() -> None:
    named = set(re.findall(r"ansible-playbook (\w+\.yml)", GUIDE))
    assert named == {path.name for path in PLAYBOOKS.glob("*.yml")} - {"prepare.yml"}
    defaults = (PLAYBOOKS / "group_vars/all.yml").read_text(encoding="utf-8")
    known = set(re.findall(r"(?m)^(genkidama_\w+):", defaults))
    assert set(re.findall(r"genkidama_\w+", GUIDE)) <= known


def test_the_inventory_of_the_guide_is_the_example() -> None:
    example = (PLAYBOOKS / "inventory.example.ini").read_text(encoding="utf-8")
    lines = [line for line in example.splitlines() if line and not line.startswith("#")]
    assert [
        line.strip()
        for line in GUIDE.split("from 1 to 4.")[1].split("Does Ansible")[0].splitlines()
        if line
    ] == lines
