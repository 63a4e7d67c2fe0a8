"""Recording: steps of a program, of a person and of a policy, with real processes."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from genkidama.__main__ import main
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.demonstrations import load
from genkidama.learning.starts import starts_of
from genkidama.plugins.render import recording as module
from genkidama.plugins.render.film import PlaybackScreen
from genkidama.plugins.render.playback import play
from genkidama.plugins.render.recording import Gamepad, Keyboard
from genkidama.runs.evaluation_worker import play as evaluated
from genkidama.runs.policy import Policy
from tests.helpers import Started, small, starting, until, untrained

#: An experiment, and its controllers, in files of a user's own.
MINE = """
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, length=5, terminates=True, broken=-1):
        self._length, self._terminates, self._broken = length, terminates, broken

    def reset(self, *, seed=None, options=None):
        self._number, self._action = 0, 0.0
        return self._seen(), {}

    def step(self, action):
        self._number, self._action = self._number + 1, float(action[0])
        over = self._number == self._length
        ends = over and self._terminates, over and not self._terminates
        return self._seen(), self._action, *ends, {}

    def _seen(self):
        number = np.nan if self._number == self._broken else self._number
        return np.array([number, self._action], np.float32)


def rising(observation):
    return [min(1.0, observation[0] / 10.0)]


class Counting:
    def reset(self):
        self.count = 0

    def __call__(self, observation):
        self.count += 1
        return [self.count / 10.0]


def wild(observation):
    return [2.0]


class Leaving(Counting):
    def __call__(self, observation):
        if observation[0] == 4:
            raise KeyboardInterrupt
        return super().__call__(observation)


def failing(observation):
    raise KeyError("my bug")


NUMBER = 3
"""
SETTINGS = """
[environment]
id = "mine:Walk"

[algorithm]
name = "sac"
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(SETTINGS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["rising", "Counting"])
def test_a_controller_of_the_users_plays_and_its_steps_are_kept(
    mine: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = ["play", "mine.toml", "--controller", f"mine:{name}", "--record", "walk.steps"]
    assert main([*words, "--episodes", "2"]) == 0
    out = capsys.readouterr().out
    assert "episode 2: return " in out
    assert "walk.steps: 10 steps of 2 whole episodes; for genkidama train … --demonstr" in out
    file = load("walk.steps")
    assert (file.environment, file.source) == ("mine:Walk", f"mine:{name}")
    begin = 0.0 if name == "rising" else 0.1
    for block in file.blocks:
        taken = [begin + n / 10.0 for n in range(5)]
        assert block.actions[:, 0] == pytest.approx(taken)
        assert block.rewards == pytest.approx(taken)
        assert block.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert block.observations[1:, 1] == pytest.approx(taken), "what followed each"
        assert block.terminated.tolist() == [False] * 4 + [True]
    assert main([*words, "--set", "environment.options.terminates=false"]) == 0
    assert "walk.steps: has 2 blocks of steps, and gets more" in capsys.readouterr().out
    (*_, last) = load("walk.steps").blocks
    assert (last.terminated.any(), last.truncated.tolist()) == (False, [False] * 4 + [True])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--controller", "mine:wild"], 2, "mine:wild: gives [2.0], which is none of Box(-1.0"),
        (["--controller", "mine:failing"], 1, "mine:failing fails: KeyError: 'my bug' (mine.py:"),
        (["--controller", "mine:NUMBER"], 2, "mine:NUMBER: is a int; name a function"),
        (["--controller", "mine:nobody"], 2, "module 'mine' has no 'nobody'"),
        (["--controller", "nobody"], 2, "expected 'keyboard', 'gamepad', 'gamepad:/dev/input"),
        ([], 2, "is an experiment, without weights; say who plays: --controller"),
        (["--controller", "gamepad:/nowhere"], 1, "/nowhere: No such file or directory; connect"),
        (["--controller", "keyboard"], 1, "needs a window, and this machine has no screen"),
        (["--controller", "mine:rising", "--set", "environment.idd=1"], 2, "environment.idd"),
    ],
)
def test_what_cannot_play_is_said_in_one_line_and_nothing_is_written(
    mine: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["play", "mine.toml", "--record", "walk.steps", *words]) == code
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not Path("walk.steps").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_was_recorded_survives_whatever_ends_it(mine: Path, number: signal.Signals) -> None:
    slow = ["--set", "environment.options.length=300", "--set", "environment.period=0.001"]
    slow += ["--set", "child.cores=1", "--episodes", "1000"]
    path = mine / "walk.steps"
    with starting(mine) as start:
        words = ["play", "mine.toml", "--controller", "mine:rising", "--record", path.name]
        process: Started = start("genkidama", *words, *slow)
        until(lambda: path.exists() and path.stat().st_size > 20_000, "two episodes")
        process.popen.send_signal(number)
        assert process.wait() == {15: 143, 9: -9}[number]
    file = load(path)
    whole = [block for block in file.blocks if len(block.rewards) == 300]
    assert len(whole) >= 2 and all(block.terminated[-1] for block in whole)
    rest = file.blocks[len(whole) :]
    if number == signal.SIGKILL:
        assert not rest
    else:  # the episode that was under way is kept up to there
        assert all(block.truncated[-1] for block in rest) and len(rest) <= 1


def test_starts_of_an_evaluation_are_recorded_one_session_after_another(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["play", "mine.toml", "--controller", "mine:Counting", "--record", "human.json"]
    assert main([*words, "--episodes", "2"]) == 0
    assert "human.json: 2 starts for evaluate --starts human.json\n" in capsys.readouterr().out
    with pytest.raises(KeyboardInterrupt):  # the episode under way counts up to there
        play("mine.toml", record="human.json", controller="mine:Leaving", seed=7)
    assert main([*words, "--seed", "9"]) == 0
    words_of_both = "human.json: 4 starts, 1 of them new, for evaluate --starts human.json\n"
    assert words_of_both in capsys.readouterr().out
    starts = json.loads(Path("human.json").read_text())
    assert len(starts) == 4 and any(start["actions"] for start in starts)
    environment = sys.modules["mine"].Walk()
    for number, start in enumerate(starts):
        taken = len(start["actions"])
        assert taken < (4 if number == 2 else 5), "a policy has something left to do"
        assert np.float32(start["actions"]).ravel() == pytest.approx(np.arange(1, taken + 1) / 10)
        begun = starts_of("human.json", starts)(environment, number, np.random.SeedSequence(1))
        assert begun == pytest.approx([taken, taken / 10])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "human.json: cannot be read as JSON: "),
        ('{"mine": 1}', "human.json: expected a list of at least one start"),
        ('[{"mine": 1}]', "human.json: start 0: expected a list of actions, or an object"),
    ],
)
def test_a_file_of_something_else_gets_no_starts(
    mine: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    Path("human.json").write_text(content)
    words = ["play", "mine.toml", "--controller", "mine:Counting", "--record", "human.json"]
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert Path("human.json").read_text() == content


def test_a_start_that_could_not_be_written_is_written_once(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, tries = module.write_atomically, []

    def write(path: Path, content: bytes) -> None:
        tries.append(path)
        if len(tries) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really(path, content)

    monkeypatch.setattr(module, "write_atomically", write)
    with pytest.raises(EnvironmentFailure, match=r"human.json: .*No space left"):
        play("mine.toml", record="human.json", controller="mine:Counting")
    assert len(json.loads(Path("human.json").read_text())) == 1


def test_a_long_episode_is_written_in_blocks(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_STEPS", 2)
    play("mine.toml", record="walk.steps", controller="mine:rising")
    blocks = load("walk.steps").blocks
    seen = [block.observations[:, 0].tolist() for block in blocks]
    assert seen == [[0, 1, 2], [2, 3, 4], [4, 5]]
    assert [block.terminated[-1] for block in blocks] == [False, False, True]
    assert not any(block.truncated.any() for block in blocks)


def test_a_block_with_a_broken_number_is_left_out(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_BLOCK_STEPS", 2)
    words = ["play", "mine.toml", "--controller", "mine:Counting", "--record", "walk.steps"]
    assert main([*words, "--set", "environment.options.broken=1"]) == 0
    seen = [block.observations[:, 0].tolist() for block in load("walk.steps").blocks]
    assert seen == [[2, 3, 4], [4, 5]]
    said = "walk.steps: 2 steps left out, since they, or steps beside them, hold NaN or infinity"
    assert said in capsys.readouterr().out


def test_a_policy_is_recorded_as_it_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = untrained(tmp_path / "run", small())
    file = tmp_path / "cart.steps"
    words = ["play", str(run.path), "--record", str(file), "--episodes", "2", "--seed", "3"]
    assert main(words) == 0
    policy = Policy(run.load())
    expected = evaluated(policy.model, policy.make_environment(), range(2), 3, False)
    found = load(file)
    assert [float(block.rewards.sum()) for block in found.blocks] == expected
    assert found.source == "weights of version 1"
    assert found.blocks[0].actions.dtype == np.int64
    assert capsys.readouterr().out.count("\nepisode ") == 2


@pytest.mark.parametrize(
    ("held", "action"),
    [
        (set(), [0.0, 2.0]),
        ({"left"}, [-1.0, 2.0]),
        ({"right", "up"}, [4.0, 3.0]),
        ({"down", "left", "right"}, [0.0, 1.0]),
        ({"right", "left shift"}, [1.2, 2.0]),
    ],
)
def test_keys_move_the_numbers_of_an_action(held: set[str], action: list[float]) -> None:
    space = Box(np.float32([-1.0, 1.0]), np.float32([4.0, 3.0]))
    keyboard = Keyboard(space, ())
    keyboard.held = held
    taken = keyboard.act(None)
    assert taken == pytest.approx(action)
    assert space.contains(taken)
    assert keyboard.keys == ["left, right: number 0", "down, up: number 1", "with shift: gently"]


def test_keys_name_discrete_actions_and_what_has_none_is_refused() -> None:
    keyboard = Keyboard(Discrete(3, start=5), ("none", "left engine", "fire"))
    assert [keyboard.act(None)] == [5]
    for held, action in (({"left"}, 6), ({"return"}, 7), ({"2"}, 7), (set(), 5)):
        keyboard.held = held
        assert keyboard.act(None) == action
    assert keyboard.keys[:3] == ["key 0: none", "key 1: left engine", "key 2: fire"]
    with pytest.raises(ConfigurationError, match=r"has no keys for Box.*--controller module:func"):
        Keyboard(Box(-1.0, 1.0, (7,)), ())


def event(value: int, kind: int, number: int) -> bytes:
    return struct.pack("=IhBB", 0, value, kind, number)


@pytest.fixture
def pad(tmp_path: Path) -> Any:
    path = tmp_path / "js0"
    os.mkfifo(path)
    held = os.open(path, os.O_RDWR)
    yield path, lambda content: os.write(held, content)
    os.close(held)


def test_a_game_pad_moves_the_numbers_of_an_action(pad: Any) -> None:
    path, send = pad
    gamepad = Gamepad(Box(-2.0, 2.0, (2,), np.float32), (), path)
    assert gamepad.act(None).tolist() == [0.0, 0.0]
    send(event(32767, 0x82, 0) + event(32767, 0x82, 1))
    assert gamepad.act(None).tolist() == [2.0, -2.0], "up is negative there"
    whole = event(-16384, 2, 0)
    send(whole[:3])
    assert gamepad.act(None).tolist() == [2.0, -2.0], "half an event"
    send(whole[3:] + event(0, 2, 1))
    assert gamepad.act(None) == pytest.approx([-1.0, 0.0], abs=1e-4)
    gamepad.close()


def test_a_game_pad_chooses_discrete_actions(pad: Any) -> None:
    path, send = pad
    gamepad = Gamepad(Discrete(4), ("none", "left engine", "main engine", "right engine"), path)
    taken = []
    for content in (
        b"",
        event(-30000, 2, 0),
        event(0, 2, 0) + event(-30000, 2, 1),
        event(0, 2, 1) + event(1, 1, 3),
        event(0, 1, 3),
    ):
        send(content)
        taken.append(gamepad.act(None))
    assert taken == [0, 1, 2, 3, 0]
    gamepad.close()


def test_a_person_is_shown_the_keys_also_of_what_draws_nothing(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Any] = []
    is_open, show = PlaybackScreen._is_open, PlaybackScreen.show

    def pressing(screen: PlaybackScreen) -> bool:
        game = screen._pygame
        game.event.post(game.event.Event(game.KEYDOWN, key=game.K_RIGHT))
        return is_open(screen)

    def looking(screen: PlaybackScreen, moment: Any) -> bool:
        shown.append((list(screen._panel.lines), screen._panel.draw(moment).copy()))
        return show(screen, moment)

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(PlaybackScreen, "_is_open", pressing)
    monkeypatch.setattr(PlaybackScreen, "show", looking)
    monkeypatch.setattr("genkidama.plugins.render.film._PAUSE_SECONDS", 0.0)
    words = ["play", "mine.toml", "--controller", "keyboard", "--record", "walk.steps"]
    assert main([*words, "--fps", "1000"]) == 0
    assert "  left, right: number 0\n" in capsys.readouterr().out
    (block,) = load("walk.steps").blocks
    assert block.actions[:, 0].tolist() == [1.0] * 5
    lines, picture = shown[0]
    assert lines == ["left, right: number 0", "with shift: gently", "Space: pause", "Escape: end"]
    assert picture[166:250, 420:].max() > 200 and picture[:, :380].max() < 50


def test_a_screen_that_is_closed_keeps_the_steps_until_then(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    answers = iter([True, True, False])
    monkeypatch.setattr(PlaybackScreen, "show", lambda *_: next(answers))
    assert play("mine.toml", record="walk.steps", controller="keyboard") == []
    (block,) = load("walk.steps").blocks
    assert len(block.rewards) == 2 and block.truncated.tolist() == [False, True]


def test_a_full_disk_is_said_and_what_was_written_stays(
    mine: Path,
) -> None:
    play("mine.toml", record="walk.steps", controller="mine:rising")
    content = Path("walk.steps").read_bytes()

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) + 100, before[1]))
    try:
        with pytest.raises(EnvironmentFailure, match=r"walk.steps: cannot be written: File too l"):
            play("mine.toml", record="walk.steps", controller="mine:rising")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert Path("walk.steps").read_bytes() == content
