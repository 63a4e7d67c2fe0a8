"""deploy/optunahub: the package for OptunaHub's registry loads, prunes and says what it needs."""

from __future__ import annotations

import importlib.util
import inspect
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
import pytest
import yaml

from genkidama.plugins.hypertrick.pruner import HyperTrickPruner
from tests.helpers import ROOT

REGISTRY = ROOT / "deploy/optunahub"
PACKAGE = REGISTRY / "pruners/hypertrick"


def loaded(package: str, registry: Path = REGISTRY) -> ModuleType:
    """The package, by OptunaHub's own loader where that is installed."""
    try:
        import optunahub
    except ImportError:
        place = registry / package / "__init__.py"
        spec = importlib.util.spec_from_file_location("hypertrick_of_the_hub", place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    found: ModuleType = optunahub.load_local_module(package, registry_root=str(registry))
    return found


def test_it_has_what_the_registry_wants() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_file()} == {
        "README.md",
        "LICENSE",
        "__init__.py",
        "example.py",
    }
    assert (PACKAGE / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    text = (PACKAGE / "README.md").read_text(encoding="utf-8")
    _, front, page = text.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert set(fields) == {"author", "title", "description", "tags", "optuna_versions", "license"}
    headings = [line for line in page.splitlines() if line.startswith("## ")]
    assert headings == ["## Abstract", "## APIs", "## Installation", "## Example", "## Others"]
    listed = page.split("HyperTrickPruner(*, ")[1].split(")")[0]
    arguments = [word.split("=")[0].strip() for word in listed.split(", ")]
    assert arguments == list(inspect.signature(HyperTrickPruner).parameters)


def test_it_loads_and_is_the_pruner() -> None:
    assert loaded("pruners/hypertrick").HyperTrickPruner is HyperTrickPruner


def test_its_example_prunes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = loaded("pruners/hypertrick")
    hub: Any = ModuleType("optunahub")
    hub.load_module = lambda package: module
    monkeypatch.setitem(sys.modules, "optunahub", hub)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    runpy.run_path(str(PACKAGE / "example.py"), run_name="__main__")
    said = capsys.readouterr().out
    pruned = int(said.split(" of ")[0])
    assert 15 <= pruned <= 35 and "best rate 0.0" in said, said
