"""Which sink has which name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks.registry import SINKS, RunInfo, sink_maker
from genkidama.runs.directory import Run
from tests.helpers import ROOT, small
from tests.plugins.sinks.test_feeds import Noting


def test_each_name_has_an_extra_that_installs_its_package() -> None:
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, (package, _) in SINKS.items():
        (line,) = [one for one in extras.splitlines() if one.startswith(f"{name} = ")]
        assert f'"{package}>=' in line


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, (package, _) in SINKS.items():
        with pytest.raises(ConfigurationError) as caught:
            sink_maker(name)
        assert str(caught.value) == (
            f"sink {name!r}: needs {package}, which is not installed: "
            f"pip install 'genkidama[{name}]'"
        )


def test_ones_own_is_named_by_an_import_string_or_given_itself() -> None:
    name = f"{Noting.__module__}:Noting"
    assert sink_maker(name) == (name, Noting)
    assert sink_maker(Noting) == ("Noting", Noting)
    with pytest.raises(ConfigurationError, match="expected one of tensorboard, wandb, mlflow, t"):
        sink_maker("weights")


def test_a_sink_is_told_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(small(optimizer={"learning_rate": 0.5}).to_toml())
    about = RunInfo(Run(tmp_path))
    assert (about.name, about.folder) == (tmp_path.name, tmp_path)
    settings = about.settings
    assert (settings["name"], settings["optimizer.learning_rate"]) == ("small", 0.5)
    assert not any(isinstance(value, dict) for value in settings.values())
    options = small(algorithm={"options": {"a": {"b": 1}}})
    (tmp_path / "experiment.toml").write_text(options.to_toml())
    assert RunInfo(Run(tmp_path)).settings["algorithm.options.a.b"] == 1
