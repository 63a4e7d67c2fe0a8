"""A release: what is built is whole, and works where nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from genkidama import __version__
from tests.helpers import ROOT


def run(*command: object, cwd: Path) -> str:
    """What a command prints, without this checkout on its path."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_wheel_trains_an_example_in_an_empty_folder(tmp_path: Path) -> None:
    """pip builds it, as `make release` does, and takes the versions that are tested."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    wheel = tmp_path / f"genkidama_rl-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "genkidama/examples/lunarlander/lunarlander.toml" in names
    assert "genkidama/py.typed" in names
    assert not any(name.startswith(("tests/", "parent/", "child/")) for name in names)
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=True)
    pip = (bare / "bin/python", "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    command = bare / "bin/genkidama"
    said = run(command, "train", "lunarlander", "--set", "stop.seconds=20", cwd=empty)
    assert "ended: " in said
    (trained,) = (empty / "runs").iterdir()
    assert (trained / "evaluation.json").is_file()
    played = run(command, "evaluate", trained, "--episodes", 4, cwd=empty)
    assert " over 4 episodes, sampled: " in played
