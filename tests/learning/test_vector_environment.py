"""What an agent steps, against plain environments that are stepped and reset by hand."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import psutil
import pytest
from gymnasium.vector import AutoresetMode

from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.learning.vector_environment import _first_seed, make_lanes
from tests.helpers import ROOT
from tests.vectorized import CORRIDORS

Array = npt.NDArray[Any]

#: An observation to go on from, reward, terminated, truncated, and the episode's last observation
#: if it ended.
Expected = tuple[Array, float, bool, bool, Array | None]

CORRIDOR = Environment(id="tests.environments:Corridor")
BREAKOUT = {"max_num_frames_per_episode": 240, "episodic_life": True, "reward_clipping": False}


def by_hand(
    environment: gymnasium.Env[Any, Any], seed: int, actions: list[Any]
) -> tuple[Array, list[Expected]]:
    """What a lane must show: its first observation, and its steps."""
    first, _ = environment.reset(seed=seed)
    steps: list[Expected] = []
    for action in actions:
        observation, reward, terminated, truncated, _ = environment.step(action)
        final = None
        if terminated or truncated:
            final = observation
            observation, _ = environment.reset()
        steps.append((observation, float(reward), terminated, truncated, final))
    return first, steps


def breakout_by_hand(seed: int, actions: list[int]) -> tuple[Array, list[Expected]]:
    """The same from ALE's vectorized form in another mode.

    That mode shows an episode's last observation as any other, and resets after it.
    """
    environment = gymnasium.make_vec(
        "ALE/Breakout-v5",
        num_envs=1,
        vectorization_mode="vector_entry_point",
        autoreset_mode=AutoresetMode.NEXT_STEP,
        **BREAKOUT,
    )
    first = environment.reset(seed=seed)[0][0]
    steps: list[Expected] = []
    for action in actions:
        observations, rewards, terminated, truncated, _ = environment.step(np.array([action]))
        final = None
        if terminated[0] or truncated[0]:
            final = observations[0]
            observations = environment.step(np.array([0]))[0]
        steps.append(
            (observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), final)
        )
    return first, steps


def assert_lanes_show(
    settings: Environment, seed: int, actions: Array, expected: list[tuple[Array, list[Expected]]]
) -> None:
    """`actions` has the shape (steps, lanes)."""
    lanes = make_lanes(settings, len(expected))
    try:
        assert lanes.count == len(expected)
        observations = lanes.reset(seed)
        assert len(observations) == lanes.count
        for observation, (first, _) in zip(observations, expected, strict=True):
            assert lanes.observation_space.contains(observation)
            np.testing.assert_array_equal(observation, first)
        for t, row in enumerate(actions):
            observations, rewards, terminated, truncated, finals = lanes.step(list(row))
            for lane, (_, steps) in enumerate(expected):
                observation, reward, terminates, truncates, final = steps[t]
                np.testing.assert_array_equal(observations[lane], observation)
                assert (float(rewards[lane]), terminated[lane], truncated[lane]) == (
                    reward,
                    terminates,
                    truncates,
                )
                assert (lane in finals) == (final is not None)
                if final is not None:
                    np.testing.assert_array_equal(finals[lane], final)
    finally:
        lanes.close()


def assert_both_ends(expected: list[tuple[Array, list[Expected]]]) -> None:
    """Otherwise the test shows less than it says."""
    assert any(step[2] for _, steps in expected for step in steps) and any(
        step[3] for _, steps in expected for step in steps
    )


@pytest.mark.parametrize(
    "settings",
    [CORRIDOR, Environment(id=CORRIDORS, vectorized=True)],
    ids=["in turn", "vectorized"],
)
@pytest.mark.parametrize("count", [1, 3])
def test_lanes_show_what_plain_environments_show(settings: Environment, count: int) -> None:
    actions = np.random.default_rng(1).integers(2, size=(200, count))
    first = _first_seed(7, count)
    expected = [
        by_hand(gymnasium.make(CORRIDORS), first + lane, list(actions[:, lane]))
        for lane in range(count)
    ]
    assert_both_ends(expected)
    assert_lanes_show(settings, 7, actions, expected)


def test_ales_own_vectorized_form_shows_what_each_of_its_games_shows_alone() -> None:
    actions = np.random.default_rng(1).integers(4, size=(150, 3))
    first = _first_seed(7, 3)
    settings = Environment(id="ALE/Breakout-v5", vectorized=True, options=BREAKOUT)
    lanes = make_lanes(settings, 1)  # registers ALE's environments
    assert lanes.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert lanes.action_space == gymnasium.spaces.Discrete(4)
    lanes.close()
    expected = [breakout_by_hand(first + lane, actions[:, lane].tolist()) for lane in range(3)]
    assert_both_ends(expected)
    assert_lanes_show(settings, 7, actions, expected)


def test_continuous_actions_reach_their_lanes() -> None:
    settings = Environment(id="Pendulum-v1", options={"max_episode_steps": 9})
    actions = np.random.default_rng(1).uniform(-2.0, 2.0, size=(20, 2, 1)).astype(np.float32)
    first = _first_seed(3, 2)
    expected = [
        by_hand(
            gymnasium.make("Pendulum-v1", max_episode_steps=9), first + lane, list(actions[:, lane])
        )
        for lane in range(2)
    ]
    assert_lanes_show(settings, 3, actions, expected)


@pytest.mark.parametrize(
    "settings",
    [Environment(id="CartPole-v1"), Environment(id="ALE/Breakout-v5", vectorized=True)],
    ids=["in turn", "vectorized"],
)
def test_lanes_differ_and_follow_from_one_seed(settings: Environment) -> None:
    lanes = make_lanes(settings, 3)

    def begin(seed: int) -> list[bytes]:
        observations = lanes.reset(seed)
        for _ in range(5):
            observations = lanes.step([1, 1, 1])[0]
        return [observation.tobytes() for observation in observations]

    try:
        begun = begin(4)
        assert len(set(begun)) == 3
        assert begin(5) != begun
        assert begin(4) == begun
    finally:
        lanes.close()


@pytest.mark.parametrize("count", [1, 16])
def test_seeds_fit_31_bits_and_those_of_neighbours_do_not_overlap(count: int) -> None:
    firsts = sorted(_first_seed(seed, count) for seed in range(200))
    assert firsts[0] >= 0 and firsts[-1] + count <= 2**31
    assert min(b - a for a, b in pairwise(firsts)) >= count


def test_what_cannot_be_built_is_told_as_for_a_single_environment() -> None:
    for settings in (
        Environment(id="MoonLander-v3"),
        Environment(id="ALE/MoonLander-v5", vectorized=True),
    ):
        with pytest.raises(
            ConfigurationError,
            match=f"^environment.id = '{settings.id}': Gymnasium does not know it: ",
        ):
            make_lanes(settings, 2)


def test_ales_vectorized_form_has_one_thread_unless_it_is_given_more() -> None:
    process = psutil.Process()

    def threads(**options: int) -> int:
        before = process.num_threads()
        lanes = make_lanes(Environment(id="ALE/Pong-v5", vectorized=True, options=options), 4)
        during = process.num_threads()
        lanes.close()
        del lanes
        assert (
            process.num_threads() == before
        )  # a nursery that has tried an environment can be forked
        return during - before

    assert threads() == 1
    assert threads(num_threads=2) == min(2, psutil.cpu_count())


def test_an_agents_environments_need_no_torch_and_say_nothing() -> None:
    code = """
import sys
from genkidama.config.sections import Environment, Wrapper
from genkidama.learning.vector_environment import make_lanes
stacking = Wrapper(name="FrameStackObservation", options={"stack_size": 4})
wrappers = (Wrapper(name="AtariPreprocessing"), stacking)
single = Environment(id="ALE/Pong-v5", options={"frameskip": 1}, wrappers=wrappers)
for settings in (single, Environment(id="ALE/Pong-v5", vectorized=True)):
    lanes = make_lanes(settings, 2)
    lanes.reset(0)
    lanes.step([0, 1])
    lanes.close()
assert "torch" not in sys.modules
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")
