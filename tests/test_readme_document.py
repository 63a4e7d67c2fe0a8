"""README.md: what one may paste from it works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import genkidama
from genkidama.cli.parser import make_parser
from tests.helpers import ROOT
from tests.texts import code_block, code_blocks

PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
MAKE, TRAIN, JOIN = code_blocks("README.md", "bash")
PYTHON = code_block("README.md", "python")


def test_it_is_short_and_names_the_commands() -> None:
    assert len(PAGE.splitlines()) <= 110
    assert len(PYTHON.strip().splitlines()) <= 7
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", PAGE))
    assert {"train", "test", "lint", "docs", "test-deploy"} <= named & targets


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
