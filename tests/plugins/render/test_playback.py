"""Policies that play as in an evaluation, and from a run's directory to the film."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import genkidama
from genkidama.__main__ import main
from genkidama.cli.parser import make_parser
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.learning.starts import starts_of
from genkidama.plugins.render.film import PlaybackScreen
from genkidama.plugins.render.playback import (
    Playback,
    Scene,
    make_pictured,
    pace,
    play,
)
from genkidama.plugins.render.recording import action_names, key_action
from genkidama.runs.evaluation_worker import play as evaluated
from genkidama.runs.policy import Policy
from genkidama.runs.run import Run
from tests.films import decoded
from tests.helpers import ROOT, small, untrained

pytest.importorskip("imageio_ffmpeg", reason="pip install 'genkidama-rl[video]'")


class Blind(gymnasium.Env[Any, Any]):
    """It takes no render_mode."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)


class Wrong(Blind):
    """It draws numbers that are no picture."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def render(self) -> Any:
        return np.zeros((4, 4))


class Failing(Wrong):
    """It draws, and then its step fails."""

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)

    def step(self, action: Any) -> Any:
        raise KeyError("my bug")


@pytest.mark.parametrize("deterministic", [False, True])
def test_its_episodes_are_those_of_an_evaluation(tmp_path: Path, deterministic: bool) -> None:
    policy = Policy(untrained(tmp_path, small()).load())
    environment = make_pictured(policy.experiment.environment)
    scene = Scene(environment, policy.experiment.environment, policy)
    seen = list(scene.moments(Playback(episodes=2, seed=7, deterministic=deterministic)))
    expected = evaluated(policy.model, policy.make_environment(), range(2), 7, deterministic)
    ends = [moment for moment in seen if moment.action is None]
    assert [moment.total for moment in ends] == expected
    assert [moment.step for moment in ends] == expected  # CartPole pays 1 a step
    assert len(seen) == sum(expected) + 2
    assert seen[0].picture.shape == (400, 600, 3)
    assert (seen[0].picture != seen[3].picture).any()
    assert seen[-1].explanation is seen[-2].explanation
    environment.close()


def test_some_steps_alone_are_looked_at_and_all_are_made(tmp_path: Path) -> None:
    policy = Policy(untrained(tmp_path, small()).load())
    environment = make_pictured(policy.experiment.environment)
    scene = Scene(environment, policy.experiment.environment, policy)
    every = list(scene.moments(Playback()))
    fourth = list(scene.moments(Playback(every=4)))
    assert [moment.step for moment in fourth] == [*range(0, len(every) - 1, 4), len(every) - 1]
    assert fourth[-1].total == every[-1].total
    environment.close()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"id": f"{__name__}:Blind"}, "it does not take render_mode='rgb_array'"),
        ({"id": "envpool:Unheard-v1"}, "Gymnasium does not know it"),
    ],
)
def test_what_draws_nothing_is_an_error_of_one_line(settings: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"draws no pictures: {re.escape(why)}; `genki"):
        make_pictured(Environment(**settings))


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("Wrong", ConfigurationError, r"render\(\) gives float64 of shape \(4, 4\)"),
        ("Failing", EnvironmentFailure, r"Failing fails while it plays: KeyError: 'my b"),
    ],
)
def test_what_draws_no_picture_or_fails_is_an_error_of_one_line(
    tmp_path: Path, name: str, kind: type[Exception], said: str
) -> None:
    run = untrained(tmp_path, small(environment={"id": f"{__name__}:{name}"}))
    policy = Policy(run.load(), allow=run.allow)
    settings = policy.experiment.environment
    with pytest.raises(kind, match=said):
        list(Scene(make_pictured(settings), settings, policy).moments(Playback()))


def test_a_vectorized_form_is_looked_at_in_the_plain_one() -> None:
    environment = make_pictured(Environment(id="CartPole-v1", vectorized=True))
    assert environment.spec is not None and environment.spec.id == "CartPole-v1"
    assert environment.render_mode == "rgb_array"
    assert (action_names(environment), pace(environment)) == (["left", "right"], 50.0)
    lander = make_pictured(Environment(id="LunarLander-v3", options={"continuous": True}))
    assert action_names(lander) == [], "the names are those of discrete actions"


@pytest.mark.parametrize("kind", ["wrappers", "vectorized", "envpool"])
def test_an_atari_game_shows_its_own_colours(kind: str) -> None:
    pytest.importorskip("ale_py", reason="pip install 'genkidama-rl[atari]'")
    if kind == "wrappers":
        settings = Experiment.load(ROOT / "examples/atari/breakout.toml").environment
    else:
        name = "envpool:Breakout-v5" if kind == "envpool" else "ALE/Breakout-v5"
        settings = Environment(id=name, vectorized=kind == "vectorized")
    environment = make_pictured(settings)
    if kind == "vectorized":  # what the policy knows
        trained = make_environment(settings)
        assert trained.observation_space.shape == environment.observation_space.shape
        assert trained.action_space == environment.action_space
        inside: Any = environment.unwrapped
        assert inside.ale.getFloat("repeat_action_probability") == pytest.approx(0.25)
    observation, _ = environment.reset(seed=0)
    assert observation.shape == (4, 84, 84)
    picture: Any = environment.render()
    assert picture.shape == (210, 160, 3)
    assert (picture.max(2) > picture.min(2)).any()  # neither black nor white nor grey
    assert action_names(environment) == ["NOOP", "FIRE", "RIGHT", "LEFT"]
    assert pace(environment) == 15.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(untrained(tmp_path_factory.mktemp("run"), small()).path)


def test_a_run_becomes_a_film_of_the_episodes_of_its_evaluation(run: Run, tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "cart.mp4"
    returns = play(run.path, episodes=2, seed=3, video=path, fps=5, say=said.append)
    steps = [round(value) for value in returns]  # CartPole pays 1 a step
    policy = run.policy()
    assert returns == evaluated(policy.model, policy.make_environment(), range(2), 3, False)
    frames, _ = decoded(path)
    assert frames.shape == (sum(steps) + 2 * 5, 400, 600 + 260, 3)
    assert said == [
        f"CartPole-v1: weights of version 1 ({run.final})",
        f"episode 1: return {returns[0]:.1f} in {steps[0]} steps",
        f"episode 2: return {returns[1]:.1f} in {steps[1]} steps",
        said[-1],
    ]
    assert said[-1].startswith(f"{path}: {len(frames)} frames, {len(frames) / 5:.1f} s, ")


def test_a_run_films_itself_at_the_environments_pace(run: Run, tmp_path: Path) -> None:
    path = run.video(tmp_path / "cart.gif", every=5)
    policy = run.policy()
    (steps,) = evaluated(policy.model, policy.make_environment(), range(1), 0, False)
    assert path == tmp_path / "cart.gif"
    _, seconds = decoded(path)
    assert seconds == pytest.approx((np.ceil(steps / 5) + 10) / 10)  # 50 steps a second


def test_a_window_that_is_closed_ends_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = iter([True, True, False])
    monkeypatch.setattr("genkidama.plugins.render.film.PlaybackScreen.show", lambda *_: next(shown))
    assert genkidama.play(run, episodes=3) == []
    assert next(shown, None) is None


LANDER = ("none", "left engine", "main engine", "right engine")


@pytest.mark.parametrize(
    ("held", "names", "action"),
    [
        (set(), LANDER, 0),
        ({"up"}, LANDER, 2),
        ({"right", "a"}, LANDER, 3),
        ({"up", "left"}, LANDER, 1),  # it has no such action: the one before
        (set(), ("left", "right"), 1),
        ({"right", "up", "return"}, ("NOOP", "UP", "UPRIGHTFIRE"), 2),
        ({"3"}, (), 3),
        ({"9"}, (), 1),
    ],
)
def test_keys_mean_actions(held: set[str], names: tuple[str, ...], action: int) -> None:
    assert key_action(held, names, 4, before=1) == action


def test_a_persons_episodes_become_starts_of_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run", small())
    file = tmp_path / "human.json"
    with pytest.raises(ConfigurationError, match="--record: a person sees each step in a window"):
        play(run, record=file, video=tmp_path / "film.mp4")
    is_open = PlaybackScreen._is_open

    def pressing(screen: PlaybackScreen) -> bool:
        game = screen._pygame
        kind = game.KEYUP if "right" in screen.held else game.KEYDOWN
        game.event.post(game.event.Event(kind, key=game.K_RIGHT))
        return is_open(screen)

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(PlaybackScreen, "_is_open", pressing)
    monkeypatch.setattr("genkidama.plugins.render.film._PAUSE_SECONDS", 0.0)
    words = ["play", str(run.path), "--record", str(file), "--episodes", "2", "--fps", "1000"]
    assert main([*words, "--seed", "3"]) == 0
    assert f"{file}: 2 starts for evaluate --starts {file}\n" in capsys.readouterr().out
    starts = json.loads(file.read_text())
    # Right is pressed now and then, and goes on meanwhile: the cart has no action without a key.
    assert all(set(start["actions"][1:]) <= {1} for start in starts)
    assert starts[0]["actions"][:1] in ([], [1])
    assert len({start["seed"] for start in starts}) == 2
    assert any(start["actions"] for start in starts)
    cart = gymnasium.make("CartPole-v1")
    for number, start in enumerate(starts):
        begun = starts_of(str(file), starts)(cart, number, np.random.SeedSequence(9))
        expected, _ = cart.reset(seed=start["seed"])
        for action in start["actions"]:
            expected = cart.step(action)[0]
        assert begun.tobytes() == expected.tobytes()
    cart.close()


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


def test_its_words_are_those_of_evaluate(tmp_path: Path) -> None:
    for verb in ("play", "evaluate"):
        for words, best in (([], True), (["--best"], True), (["--newest"], False)):
            options = make_parser().parse_args([verb, "run", *words])
            assert (options.best, options.seed) == (best, 0)
    parse = make_parser().parse_args
    assert not parse(["play", "run"]).deterministic
    assert parse(["play", "run", "--deterministic"]).deterministic
