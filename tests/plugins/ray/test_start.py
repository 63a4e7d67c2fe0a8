"""A launch before anything runs: mistakes of the user, cores of the children, their options."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genkidama.__main__ import main
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.ray import launch, layout
from genkidama.plugins.ray.start import actor_options
from tests.helpers import constant, small


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"children": 0}, "children = 0: at least 1 is needed"),
        ({"cores": 0}, "cores = 0: at least 1 is needed"),
        ({"gpus": -0.5}, "gpus = -0.5: at least 0 is needed"),
        ({"episodes": -1}, "episodes = -1: at least 0 is needed"),
    ],
)
def test_options_are_checked_before_anything_is_made(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        launch(constant(), out=tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'genkidama-rl\[ray\]'"):
        launch(constant())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["search.toml", "--json"],
            "error: --json: small has a [search], which ends with a report; leave --json out",
        ),
        (
            ["cart.toml", "--resume", "nowhere"],
            "error: nowhere: holds no run (no experiment.toml); "
            "give a run's directory, as runs/NAME",
        ),
    ],
)
def test_a_wrong_command_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = {"space": {"optimizer.learning_rate": [0.1, 0.2]}, "phase_steps": 10}
    (tmp_path / "cart.toml").write_text(small().to_toml())
    (tmp_path / "search.toml").write_text(small(search=plan).to_toml())
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["launch", "--ray", *arguments]) == 2
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert capsys.readouterr().err == f"{words}\n"
    assert not (tmp_path / "runs").exists()


def test_nodes_that_are_dead_or_have_no_cpu_get_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray tells of them: a head without CPUs has no such resource."""
    head = {"Alive": True, "NodeID": "ab", "Resources": {"node:__internal_head__": 1.0}}
    dead = {"Alive": False, "NodeID": "cd", "Resources": {"CPU": 4.0}}
    ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: [head, dead])
    monkeypatch.setattr("genkidama.plugins.ray.start.find_ray", lambda: ray)
    with pytest.raises(EnvironmentFailure, match="has 1 CPUs, the largest 0"):
        launch(constant(), out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_child_with_a_place_stays_there_while_the_node_lives() -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    options = actor_options(4, 0.5, "ab" * 28)
    strategy = options.pop("scheduling_strategy")
    assert options == {"num_cpus": 4, "num_gpus": 0.5, "max_restarts": 0}
    assert (strategy.node_id, strategy.soft) == ("ab" * 28, True)
    assert actor_options(4, 0.5, None)["scheduling_strategy"] == "SPREAD"


@pytest.mark.parametrize(
    ("nodes", "children", "cores", "expected"),
    [
        ({"a": 4, "b": 8}, None, None, [(4, "a"), (8, "b")]),
        ({"head": 0, "a": 4}, None, None, [(4, "a")]),
        ({"a": 4, "b": 8}, None, 6, [(6, "b")]),
        ({"a": 4, "b": 4}, 2, None, [(4, None)] * 2),
        ({"a": 4, "b": 4}, 3, None, [(2, None)] * 3),
        ({"a": 4, "b": 4}, 5, None, [(1, None)] * 5),
        ({"a": 4, "b": 8}, 2, None, [(4, None)] * 2),
        ({"a": 4, "b": 8}, 1, None, [(8, None)]),
        ({"a": 4, "b": 8}, 20, None, [(4, None)] * 20),
        ({"head": 0}, 2, 16, [(16, None)] * 2),
    ],
)
def test_the_layout(
    nodes: dict[str, int],
    children: int | None,
    cores: int | None,
    expected: list[tuple[int, str | None]],
) -> None:
    assert layout(nodes, children, cores) == expected


@pytest.mark.parametrize(
    ("nodes", "children", "cores", "words"),
    [
        (
            {"a": 4},
            None,
            6,
            "no node of the Ray cluster has 6 CPUs, the largest 4; lower --cores, or ",
        ),
        ({"head": 0}, None, None, "no node of the Ray cluster has 1 CPUs, the largest 0"),
        ({"head": 0}, 3, None, "say how many cores each child is to have: --cores N"),
    ],
)
def test_a_layout_that_nobody_can_make(
    nodes: dict[str, int], children: int | None, cores: int | None, words: str
) -> None:
    with pytest.raises(EnvironmentFailure, match=words):
        layout(nodes, children, cores)
