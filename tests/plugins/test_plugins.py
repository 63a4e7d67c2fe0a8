"""Plug-ins: each can be deleted, and one of somebody else's comes in by the same door."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from genkidama.config import plugin
from tests.helpers import ROOT, python
from tests.texts import code_blocks

PLUGINS = sorted(path.parent.name for path in (ROOT / "genkidama/plugins").glob("*/__init__.py"))

#: A run that needs no plug-in: A3C.
PLAIN = (
    *("train", "examples/lunarlander/a3c.toml", "--children", "1", "--cores", "1"),
    *("--set", "environment.id=CartPole-v1", "--set", "stop.steps=500", "--episodes", "0"),
)

#: A setting or a verb of each plug-in, and words of its refusal where the plug-in is deleted.
OWN = {
    "actors": (("train", "examples/lunarlander/lunarlander.toml"), "parent.rule = 'experience'"),
    "dashboard": (("serve", "runs"), "serve"),
    "doctor": (("doctor",), "doctor"),
    "envpool": ((*PLAIN, "--set", "environment.id=envpool:LunarLander-v3"), "environment.id"),
    "export": (("export", "runs", "--as", "c"), "export"),
    "figures": (("plot", "runs"), "plot"),
    "ga3c": ((*PLAIN, "--set", "child.backend=ga3c"), "child.backend = 'ga3c'"),
    "gorila": ((*PLAIN, "--set", "algorithm.name=dqn"), "algorithm.name = 'dqn'"),
    "hypertrick": (("search", "examples/lunarlander/search.toml"), "search"),
    "notify": ((*PLAIN, "--notify", "https://ntfy.sh/topic"), "--notify"),
    "hub": (("share", "runs", "ada/lander"), "share"),
    "pettingzoo": (
        (*PLAIN, "--set", "environment.id=pettingzoo:butterfly/pistonball_v6"),
        "environment.id",
    ),
    "ray": (("launch", "examples/lunarlander/lunarlander.toml"), "launch"),
    "render": (("play", "runs"), "play"),
    "robust": ((*PLAIN, "--set", "parent.push_limit=3"), "parent.push_limit"),
    "sinks": ((*PLAIN, "--log", "mlflow"), "--log"),
}


def copy_without(folder: Path, *names: str) -> Path:
    """A copy of the package and its examples that lacks these plug-ins."""
    for part in ("genkidama", "examples"):
        shutil.copytree(ROOT / part, folder / part)  # with the bytecode, as far as there is some
    for name in names:
        shutil.rmtree(folder / "genkidama/plugins" / name)
    return folder


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "genkidama", *arguments, folder=folder, PYTHONPATH=str(folder))


#: Runs the commands that it is given, one after the other, and prints each one's code and words.
RUNS = """
import contextlib, io, json, sys
from genkidama.__main__ import main
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, said.getvalue()]))
"""


def refused(folder: Path, *names: str) -> None:
    """Each plug-in's own setting or verb is one line that names it, and no traceback."""
    commands = json.dumps([OWN[name][0] for name in names])
    result = python("-c", RUNS, commands, folder=folder, PYTHONPATH=str(folder))
    assert result.returncode == 0, result.stderr
    for name, line in zip(names, result.stdout.splitlines(), strict=True):
        code, said = json.loads(line)
        assert code == 2 and OWN[name][1] in said and "Traceback" not in said, (name, code, said)


def test_the_core_trains_without_any_plug_in_and_refuses_the_settings_of_each(
    tmp_path: Path,
) -> None:
    assert sorted(OWN) == PLUGINS
    folder = copy_without(tmp_path / "core", *PLUGINS)
    result = command(folder, *PLAIN, "--out", "runs/plain")
    assert result.returncode == 0, result.stderr
    refused(folder, *PLUGINS)


def test_a_public_name_goes_with_its_plug_in(tmp_path: Path) -> None:
    folder = copy_without(tmp_path / "copy", "render")
    code = "import genkidama; print(hasattr(genkidama, 'play')); genkidama.play"
    words = python("-c", code, folder=folder, PYTHONPATH=str(folder))
    assert words.stdout == "False\n"
    last = words.stderr.splitlines()[-1]
    assert last == "AttributeError: module 'genkidama' has no attribute 'play'"


@pytest.mark.slow
@pytest.mark.parametrize("name", PLUGINS)
def test_each_plug_in_can_be_deleted(name: str, tmp_path: Path) -> None:
    folder = copy_without(tmp_path / "copy", name)
    result = command(folder, *PLAIN, "--out", "runs/plain")
    assert result.returncode == 0, result.stderr
    refused(folder, name)


def test_names_of_a_hook_are_found_and_others_are_not() -> None:
    for hook in plugin.Plugin._fields:
        for name in plugin.names(hook):
            assert plugin.find(hook, name) is not None
    assert plugin.find("rules", "no such rule") is None


def test_the_plug_in_of_the_page_is_installed_and_used(tmp_path: Path) -> None:
    page = "docs/notes/plugins.md"
    (project, experiment), (module,) = code_blocks(page, "toml"), code_blocks(page, "python")
    source, target = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    (source / "pyproject.toml").write_text(project)
    (source / "genkidama_halfway.py").write_text(module)
    (tmp_path / "halfway.toml").write_text(experiment)
    # As `pip install --target` does, without its second.
    backend = tomllib.loads(project)["build-system"]["build-backend"]
    build = f"import sys, {backend} as backend; backend.build_wheel(sys.argv[1])"
    built = python("-c", build, str(tmp_path), folder=source)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    ZipFile(wheel).extractall(target)
    words = ("-m", "genkidama", "train", "halfway.toml", "--children", "1", "--episodes", "0")
    paths = os.pathsep.join((str(target), str(ROOT)))
    result = python(*words, folder=tmp_path, PYTHONPATH=paths)
    assert result.returncode == 0, result.stderr
