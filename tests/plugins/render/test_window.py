"""A policy that is watched, from the run's directory to the film."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genkidama
from genkidama.errors import ConfigurationError
from genkidama.plugins.render.window import play
from genkidama.runs.evaluation_worker import play as evaluated
from genkidama.runs.run import Run, trial_folder
from tests.films import decoded
from tests.helpers import small, untrained

pytest.importorskip("imageio", reason="pip install 'genkidama[video]'")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(untrained(tmp_path_factory.mktemp("run"), small()).path)


def test_a_run_becomes_a_film_of_the_episodes_of_its_evaluation(run: Run, tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "cart.mp4"
    returns = play(run.path, episodes=2, seed=3, video=path, fps=20, say=said.append)
    steps = [round(value) for value in returns]  # CartPole pays 1 a step
    policy = run.policy()
    assert returns == evaluated(policy.model, policy.make_environment(), range(2), 3, False)
    frames, _ = decoded(path)
    assert frames.shape == (sum(steps) + 2 * 20, 400, 600 + 260, 3)
    assert said == [
        f"CartPole-v1: weights of version 1 ({run.final})",
        f"episode 1: return {returns[0]:.1f} in {steps[0]} steps",
        f"episode 2: return {returns[1]:.1f} in {steps[1]} steps",
        said[-1],
    ]
    assert said[-1].startswith(f"{path}: {len(frames)} frames, {len(frames) / 20:.1f} s, ")


def test_a_run_films_itself_at_the_environments_pace(run: Run, tmp_path: Path) -> None:
    path = run.video(tmp_path / "cart.gif", every=2)
    policy = run.policy()
    (steps,) = evaluated(policy.model, policy.make_environment(), range(1), 0, False)
    assert path == tmp_path / "cart.gif"
    _, seconds = decoded(path)
    assert seconds == pytest.approx((np.ceil(steps / 2) + 25) / 25)  # 50 steps a second


def test_a_window_that_is_closed_ends_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = iter([True, True, False])
    monkeypatch.setattr("genkidama.plugins.render.film.Window.show", lambda *_: next(shown))
    assert genkidama.play(run, episodes=3) == []
    assert next(shown, None) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"episodes": 0}, "episodes = 0: at least 1 is needed"),
        ({"seed": -1}, "seed = -1: 0 to 4294967295 is allowed"),
        ({"fps": 0.0}, "fps = 0: more than 0 and at most 1000 is allowed"),
        ({"every": 0}, "every = 0: at least 1 is needed"),
        (
            {"environment": "Acrobot-v1"},
            r"Acrobot-v1: its observation_space is a Box of shape \(6,\), but the policy was "
            r"trained with a Box of shape \(4,\); play CartPole-v1$",
        ),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_written(
    run: Run, tmp_path: Path, options: Any, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        play(run, video=tmp_path / "film.mp4", **options)
    assert not any(tmp_path.iterdir())


def test_a_wrong_run_is_named_before_a_missing_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"^nowhere: no such checkpoint; name a"):
        play("nowhere")


def test_a_search_is_played_by_its_best_trial(tmp_path: Path, run: Run) -> None:
    from genkidama.server.events import as_lines
    from tests.stories import PLAN, assigned, report

    untrained(tmp_path / "search", small(search=PLAN))
    untrained(tmp_path / "search" / trial_folder(0), small(), version=7)
    story = as_lines([assigned(0.0, 0), report(1.0, 0, 7.0)])
    (tmp_path / "search" / "history.jsonl").write_bytes(story)
    said: list[str] = []
    play(tmp_path / "search", video=tmp_path / "film.gif", every=50, say=said.append)
    assert said[0].startswith("CartPole-v1: weights of version 7 (")


@pytest.mark.slow
def test_a_lunar_lander_is_trained_and_filmed(tmp_path: Path) -> None:
    lander = genkidama.Experiment.load("examples/lunarlander/lunarlander.toml")
    experiment = lander.with_settings({"stop.seconds": 20})
    trained = genkidama.train(experiment, children=1, cores=1, out=tmp_path / "run")
    path = trained.video(tmp_path / "landing.mp4", deterministic=True)
    frames, _ = decoded(path)
    assert frames.shape[1:] == (400, 860, 3)
    assert len(frames) > 60
