"""Environments of packages that people use: `genkidama init`, and eight seconds of `train`.

`make test-packages` runs them in an environment of their own, which has the packages
(tests/packages.txt). Each must train as `init` wrote it, without an edit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

pytestmark = [
    pytest.mark.skipif("PACKAGES" not in os.environ, reason="make test-packages runs it"),
    pytest.mark.timeout(900),
]

#: Ids by the package that one installs for them.
IDS = {
    "gymnasium": (
        "CartPole-v1",
        "Acrobot-v1",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
        "Pendulum-v1",
        "Taxi-v4",
        "FrozenLake-v1",
        "CliffWalking-v1",
        "Blackjack-v1",
    ),
    "gymnasium[box2d]": ("LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3"),
    "gymnasium[mujoco]": ("Hopper-v5", "HalfCheetah-v5"),
    "minigrid": ("MiniGrid-Empty-5x5-v0", "minigrid:BabyAI-GoToRedBallGrey-v0"),
    "highway-env": ("highway-v0", "parking-v0"),
    "gymnasium-robotics": ("FetchReach-v4", "PointMaze_UMaze-v3"),
    "flappy-bird-gymnasium": ("FlappyBird-v0",),
    "minatar": ("MinAtar/Breakout-v1",),
    "ale-py": ("ALE/Pong-v5",),
    "pettingzoo": (
        "pettingzoo:butterfly/pistonball_v6",
        "pettingzoo:butterfly/knights_archers_zombies_v11",
        "pettingzoo:sisl/pursuit_v5",
        "pettingzoo.sisl.multiwalker_v9:parallel_env",
    ),
    "VectorEnv": ("tests.vectorized:corridors", "tests.vectorized:late_corridors"),
}


@pytest.mark.parametrize("environment", [each for ids in IDS.values() for each in ids])
def test_what_init_writes_trains_without_an_edit(environment: str, tmp_path: Path) -> None:
    def genkidama(*arguments: str) -> str:
        command = [sys.executable, "-m", "genkidama", *arguments]
        paths = {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | paths, capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0 and "Traceback" not in said, said
        return said

    genkidama("init", "x.toml", "--environment", environment)
    options = ("--children", "1", "--cores", "1", "--episodes", "2", "--set", "stop.seconds=8")
    said = genkidama("train", "x.toml", "--out", "run", *options)
    assert "over 2 episodes" in said
