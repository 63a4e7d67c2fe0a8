"""A run as scripts and notebooks see it."""

from __future__ import annotations

from pathlib import Path

import pytest

import genkidama
from genkidama.runs.run import Run
from tests.helpers import small, untrained
from tests.plugins.figures.test_plots import run


def test_its_curve_and_its_history_are_frames(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    one = Run(run(tmp_path / "one").path)
    curve = one.curve()
    assert isinstance(curve, pandas.DataFrame)
    assert list(curve["steps"]) == [10 * i for i in range(1, 50)]
    assert curve["mean_return"].isna().sum() == 2
    assert list(one.frame()["event"]) == ["join"] + ["exchange"] * 49


def test_it_draws_itself_beside_its_weights(tmp_path: Path) -> None:
    one = Run(run(tmp_path / "one").path)
    assert all(path.parent == one.path / "figures" for path in one.plot())
    assert (one.path / "figures" / "learning.png").is_file()


def test_a_notebook_shows_where_it_is_and_how_far_it_came(tmp_path: Path) -> None:
    shown = Run(run(tmp_path / "a<b").path)._repr_html_()
    assert "a&lt;b" in shown and "490" in shown and "73.5" in shown
    assert "evaluated" not in shown


def test_its_policy_acts(tmp_path: Path) -> None:
    found = genkidama.Run.open(untrained(tmp_path, small()).path)
    assert isinstance(found, Run)
    policy = found.policy()
    action, _ = policy.predict(policy.observation_space.sample())
    assert policy.action_space.contains(action)


def test_a_wrong_value_fails_where_it_is_written() -> None:
    from genkidama.config.experiment import Algorithm, Experiment, Network, Stop

    for make, said in (
        (lambda: Algorithm(gamma=7.0), r"^Algorithm: gamma = 7.0: expected float <= 1.0$"),
        (lambda: Network(hidden=[64, 0]), r"^Network: hidden\[1\] = 0: expected int >= 1$"),
        (lambda: Algorithm(name="x"), r"^Algorithm: name = 'x': expected one of 'a3c', 'ppo'"),
        (lambda: Experiment(stop=3), r"^Experiment: stop = 3: expected"),  # type: ignore[arg-type]
        (lambda: Stop(steps=0), r"^Stop: steps = 0: expected int >= 1$"),
    ):
        with pytest.raises(genkidama.ConfigurationError, match=said):
            make()
    assert Network(hidden=[64, 64]).hidden == (64, 64)  # type: ignore[arg-type]
    assert isinstance(Algorithm(gamma=1).gamma, float)
