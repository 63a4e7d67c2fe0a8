"""What an agent steps, against plain environments that are stepped and reset by hand."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt
import psutil
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment, Wrapper
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.actions import columns, converter
from genkidama.learning.environments import (
    Lanes,
    Single,
    _first_seed,
    as_number,
    closing_environment,
    make_environment,
    make_lanes,
    played,
)
from genkidama.learning.heads import head_for
from genkidama.learning.model import Model
from genkidama.runtime.import_strings import check_environment
from tests.environments import (
    BANDIT_BEST,
    CORRIDOR_LENGTH,
    Bandit,
    Corridor,
    Endless,
    corridor_values,
)
from tests.helpers import python, small
from tests.vectorized import CORRIDORS, LATE_CORRIDORS

Array = npt.NDArray[Any]


def not_an_environment() -> str:
    return "a moon"


class Refusing(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        raise OSError("no display")


@pytest.mark.parametrize("name", ["LunarLander-v3", "CartPole-v1", "Pendulum-v1"])
def test_a_gymnasium_id_is_made_without_rendering_and_without_the_checker(name: str) -> None:
    environment = make_environment(Environment(id=name))
    try:
        assert environment.spec is not None and environment.spec.id == name
        assert environment.render_mode is None
        assert not isinstance(environment, gymnasium.wrappers.PassiveEnvChecker)
        inner: Any = environment
        while isinstance(inner, gymnasium.Wrapper):
            assert not isinstance(inner, gymnasium.wrappers.PassiveEnvChecker)
            inner = inner.env
        observation, _ = environment.reset(seed=0)
        assert environment.observation_space.contains(observation)
    finally:
        environment.close()


def test_options_reach_the_environment() -> None:
    environment = make_environment(
        Environment(id="LunarLander-v3", options={"continuous": True, "max_episode_steps": 7})
    )
    try:
        assert isinstance(environment.action_space, gymnasium.spaces.Box)
        environment.reset(seed=0)
        assert [environment.step(np.zeros(2, np.float32))[3] for _ in range(7)] == [False] * 6 + [
            True
        ]
    finally:
        environment.close()


def test_an_environment_of_ones_own_is_named_by_an_import_string() -> None:
    bandit = make_environment(Environment(id="tests.environments:Bandit", options={"start": 3}))
    assert isinstance(bandit, Bandit)
    assert bandit.action_space == gymnasium.spaces.Discrete(3, start=3)


def forget_box2d(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    """Gymnasium's environments with Box2D as before their import, with a package missing."""
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, without, None)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "lander"),
        ("BipedalWalker-v3", "Box2D", "lander"),
        ("CarRacing-v3", "pygame", "play"),
    ],
)
def test_an_environment_with_box2d_names_the_extra_that_it_lacks(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_box2d(monkeypatch, package)
    with pytest.raises(ConfigurationError) as caught:
        make_environment(Environment(id=name))
    assert str(caught.value) == (
        f"environment.id = {name!r}: needs {package}, which is not installed: "
        f"pip install 'genkidama-rl[{extra}]'"
    )


@pytest.mark.parametrize("name", ["LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3"])
def test_environments_with_box2d_play_without_pygame(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_box2d(monkeypatch, "pygame")
    environment = make_environment(Environment(id=name))
    environment.reset(seed=0)
    observation, *_ = environment.step(environment.action_space.sample())
    assert observation.shape == environment.observation_space.shape
    from gymnasium.envs import box2d

    assert isinstance(environment.unwrapped, box2d.LunarLander | box2d.BipedalWalker)
    with pytest.raises(AttributeError, match="no attribute 'MoonLander'"):
        box2d.MoonLander  # noqa: B018


@pytest.mark.parametrize(
    ("settings", "beginning"),
    [
        (
            Environment(id="MoonLander-v3"),
            "Gymnasium does not know it: Environment `MoonLander` doesn't exist",
        ),
        (Environment(id="CartPole-v1", options={"gravity": 1}), "cannot be built: TypeError: "),
        (Environment(id="LunarLander-v3", options={"gravity": 5.0}), "cannot be built: "),
        (
            Environment(id="tests.environments:Bandit", options={"arms": 9}),
            "cannot be built: TypeError: ",
        ),
        (Environment(id="tests.casino:Bandit"), "cannot import 'tests.casino': "),
        (
            Environment(id="tests.environments:BANDIT_BEST"),
            "cannot be built: TypeError: 'tuple' object is not callable",
        ),
        (Environment(id=f"{__name__}:not_an_environment"), "gives a str, expected a gymnasium.Env"),
        (Environment(id=f"{__name__}:Refusing"), "cannot be built: OSError: no display"),
        (
            Environment(id="ALE/Pnog-v5"),
            "Gymnasium does not know it: Environment `Pnog` doesn't exist in namespace ALE. "
            "Did you mean: `Pong`?",
        ),
    ],
    ids=lambda argument: argument.id if isinstance(argument, Environment) else "",
)
def test_what_cannot_be_built_is_told_in_one_line(settings: Environment, beginning: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environment(settings)
    assert str(caught.value).startswith(f"environment.id = {settings.id!r}: {beginning}")
    assert len(str(caught.value).splitlines()) == 1


def test_in_place_of_envpools_environment_gymnasiums_is_played() -> None:
    options = {"num_threads": 2, "max_episode_steps": 9}
    lander = Environment(id="envpool:LunarLander-v3", options=options, reward_scale=0.5)
    gymnasiums = Environment(
        id="LunarLander-v3", options={"max_episode_steps": 9}, reward_scale=0.5
    )
    assert played(lander) == played(lander, "LunarLander-v3") == gymnasiums
    assert played(msgspec.structs.replace(lander, vectorized=True)) == gymnasiums
    assert played(lander, "envpool:LunarLander-v3") == lander
    assert played(gymnasiums) == gymnasiums
    corridor = Environment(id="tests.environments:Corridor")
    assert played(corridor) == corridor
    assert played(corridor, "CartPole-v1").id == "CartPole-v1"
    pong = Environment(id="envpool:Pong-v5", options=options)  # Gymnasium's has a namespace
    assert played(pong) == pong


# Wrappers.

ATARI = (
    Wrapper(name="AtariPreprocessing"),
    Wrapper(name="FrameStackObservation", options={"stack_size": 4}),
)


class Doubled(gymnasium.RewardWrapper[Any, Any]):
    """Pays twice as much, or `times` as much."""

    def __init__(self, environment: gymnasium.Env[Any, Any], times: float = 2.0) -> None:
        super().__init__(environment)
        self._times = times

    def reward(self, reward: Any) -> float:
        return float(reward) * self._times


class Breaking(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        raise RuntimeError("the wrapping tears")


def test_wrappers_are_put_around_from_the_innermost_on() -> None:
    wrappers = (
        Wrapper(name="TimeLimit", options={"max_episode_steps": 3}),
        Wrapper(name=f"{__name__}:Doubled"),
        Wrapper(name="ClipReward", options={"max_reward": 5.0}),
        Wrapper(name=f"{__name__}:Doubled", options={"times": 10.0}),
    )
    environment = make_environment(
        Environment(id="tests.environments:Endless", options={"limit": 9}, wrappers=wrappers)
    )
    environment.reset(seed=0)
    steps = [environment.step(np.zeros(1, np.float32)) for _ in range(3)]
    assert [(step[1], step[2], step[3]) for step in steps] == [(20.0, False, False)] * 2 + [
        (20.0, False, True)
    ]
    assert [type(layer).__name__ for layer in layers(environment)] == [
        "Doubled",
        "ClipReward",
        "Doubled",
        "TimeLimit",
        "Endless",
    ]


def layers(environment: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    """From the outermost to the innermost."""
    while isinstance(environment, gymnasium.Wrapper):
        yield environment
        environment = environment.env
    yield environment


def test_ale_with_wrappers_is_what_one_makes_by_hand_and_opencv_has_no_threads_of_its_own() -> None:
    import cv2

    cv2.setNumThreads(2)
    environment = make_environment(
        Environment(id="ALE/Pong-v5", options={"frameskip": 1}, wrappers=ATARI)
    )
    assert cv2.getNumThreads() == 1
    by_hand = FrameStackObservation(
        AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1)), 4
    )
    try:
        assert environment.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
        np.testing.assert_array_equal(environment.reset(seed=3)[0], by_hand.reset(seed=3)[0])
        for action in (0, 2, 3, 5):
            np.testing.assert_array_equal(environment.step(action)[0], by_hand.step(action)[0])
    finally:
        environment.close()
        by_hand.close()


class Parts(gymnasium.Env[Any, Any]):
    """Gives observations of whatever space it is made with."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.observation_space = space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}


def of_parts() -> Parts:
    spaces = gymnasium.spaces
    position = spaces.Box(-1.0, 1.0, (2, 2), np.float64)
    return Parts(spaces.Dict(position=position, gear=spaces.Discrete(3), lamps=LAMPS))


def of_a_pair() -> Parts:
    return Parts(gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(4), LAMPS)))


LAMPS = gymnasium.spaces.MultiBinary(2)


@pytest.mark.parametrize(("name", "length"), [("of_parts", 9), ("of_a_pair", 6)])
def test_observations_of_parts_become_one_vector(name: str, length: int) -> None:
    environment = make_environment(Environment(id=f"{__name__}:{name}"))
    space = environment.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    assert (space.shape, space.dtype) == ((length,), np.float32)
    observation, _ = environment.reset(seed=7)
    assert observation.dtype == np.float32 and observation in space
    bare = environment.unwrapped
    bare.observation_space.seed(7)
    sample = bare.observation_space.sample()
    assert np.allclose(observation, gymnasium.spaces.flatten(bare.observation_space, sample))
    Model(small(environment={"id": f"{__name__}:{name}"}), environment)  # a network takes it


def test_what_a_wrapper_cannot_be_put_around_is_told_in_one_line() -> None:
    settings = Environment(
        id="ALE/Pong-v5",
        wrappers=(Wrapper(name="TimeLimit", options={"max_episode_steps": 9}), *ATARI),
    )
    with pytest.raises(ConfigurationError) as caught:
        make_environment(settings)
    beginning = (
        "environment.wrappers[1] = 'AtariPreprocessing': options = {}: "
        "cannot be put around <TimeLimit<"
    )
    assert str(caught.value).startswith(beginning)
    assert "ValueError: Disable frame-skipping in the original env." in str(caught.value)
    with pytest.raises(
        ConfigurationError,
        match=r"^environment.wrappers\[0\] = '.*:Breaking': .* RuntimeError: the wrapping tears \(",
    ):
        make_environment(
            Environment(id="CartPole-v1", wrappers=(Wrapper(name=f"{__name__}:Breaking"),))
        )


@pytest.mark.parametrize(
    ("wrappers", "sentence"),
    [
        (
            (Wrapper(name="FlattenObservation"), Wrapper(name="tests.casino:Dealer")),
            "environment.wrappers[1] = 'tests.casino:Dealer': cannot import",
        ),
    ],
)
def test_a_wrapper_that_does_not_exist_is_told_early_and_late(
    wrappers: tuple[Wrapper, ...], sentence: str
) -> None:
    settings = Environment(id="CartPole-v1", wrappers=wrappers)
    for check in (
        make_environment,
        lambda settings: check_environment(Experiment(environment=settings)),
    ):
        with pytest.raises(ConfigurationError, match=f"^{re.escape(sentence)}"):
            check(settings)


# Vectorized forms as plain environments.

BREAKOUT = Environment(
    id="ALE/Breakout-v5",
    vectorized=True,
    options={"reward_clipping": False, "episodic_life": True, "max_num_frames_per_episode": 240},
)


def assert_plays_as(adapted: gymnasium.Env[Any, Any], plain: gymnasium.Env[Any, Any]) -> None:
    """Steps and resets of every kind, at any time, come to the same in both."""
    rng = np.random.default_rng(0)
    assert adapted.action_space == plain.action_space
    np.testing.assert_array_equal(adapted.reset(seed=1)[0], plain.reset(seed=1)[0])
    seen, over = set(), False
    for _ in range(2000):
        if over or rng.random() < 0.1:
            seed = int(rng.integers(2**31)) if rng.random() < 0.5 else None
            np.testing.assert_array_equal(adapted.reset(seed=seed)[0], plain.reset(seed=seed)[0])
            seen.add((over, seed is None))
        action = int(rng.integers(2))
        (observation, *rest, _), (expected, *others, _) = adapted.step(action), plain.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert rest == others
        over = bool(others[1] or others[2])
    assert seen == {(False, False), (False, True), (True, False), (True, True)}
    adapted.close()


def test_one_environment_of_a_vectorized_form_is_a_plain_environment() -> None:
    adapted = make_environment(Environment(id=CORRIDORS, vectorized=True))
    assert adapted.observation_space == Corridor().observation_space
    assert_plays_as(adapted, Corridor())


def test_it_keeps_gymnasiums_rules() -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        check_env(
            make_environment(Environment(id=CORRIDORS, vectorized=True)), skip_render_check=True
        )


def test_an_episode_of_ales_vectorized_form_depends_on_its_seed_alone() -> None:
    """ALE takes no seed from 2³¹ on."""
    environment = make_environment(BREAKOUT)

    def episode(seed: int) -> list[Any]:
        rng = np.random.default_rng(2)
        observation, _ = environment.reset(seed=seed)
        seen, over = [observation.tobytes()], False
        while not over:
            observation, reward, terminated, truncated, _ = environment.step(int(rng.integers(4)))
            over = terminated or truncated
            seen.append((observation.tobytes(), reward, terminated, truncated))
        assert observation in environment.observation_space
        return seen

    try:
        first = episode(2**31)
        environment.reset()
        other = episode(2**32 - 1)
        assert episode(2**31) == first != other
    finally:
        environment.close()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            Environment(id="tests.environments:Bandit", vectorized=True),
            "environment.vectorized = True: 'tests.environments:Bandit' gives a Bandit, expected a "
            "gymnasium.vector.VectorEnv; set it to false",
        ),
        (
            Environment(id=LATE_CORRIDORS, vectorized=True),
            f"environment.vectorized = True: the vectorized form of {LATE_CORRIDORS!r} has the "
            "autoreset mode NEXT_STEP, expected SAME_STEP; set it to false",
        ),
        (
            Environment(id="ALE/Pong-v5", vectorized=True, options={"stack_number": 3}),
            "environment.id = 'ALE/Pong-v5': cannot be built: TypeError: "
            "AtariVectorEnv.__init__() got an unexpected keyword argument 'stack_number'",
        ),
    ],
    ids=lambda argument: argument.id if isinstance(argument, Environment) else "",
)
def test_what_cannot_be_vectorized_is_told_in_one_line(
    settings: Environment, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environment(settings)
    assert str(caught.value) == sentence


# The tests' own environments, whose optima other tests rely on.


@pytest.mark.parametrize(
    "environment",
    [Bandit(), Corridor(), Endless(), Bandit(start=2, dtype="float64")],
    ids=lambda e: type(e).__name__,
)
def test_the_tests_environments_keep_gymnasiums_rules(environment: gymnasium.Env[Any, Any]) -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of infinite bounds and of missing render modes
        check_env(environment, skip_render_check=True)


def test_the_bandit_pays_for_one_action_in_each_context() -> None:
    bandit, contexts = Bandit(), set()
    bandit.reset(seed=0)
    for _ in range(60):
        observation, _ = bandit.reset()
        for action in range(3):
            _, reward, terminated, truncated, _ = bandit.step(action)
            assert (reward, terminated, truncated) == (
                float(action == BANDIT_BEST[int(observation.argmax())]),
                True,
                False,
            )
        contexts.add(int(observation.argmax()))
    assert contexts == {0, 1, 2}


def test_the_corridors_values_are_the_discounted_returns_of_going_right() -> None:
    corridor, seen = Corridor(), {}
    corridor.reset(seed=0)
    while len(seen) < CORRIDOR_LENGTH:
        observation, _ = corridor.reset()
        start, discounted, power, over = int(observation.argmax()), 0.0, 1.0, False
        while not over:
            _, reward, over, _, _ = corridor.step(1)
            discounted += power * reward
            power *= 0.9
        seen[start] = discounted
    assert [seen[cell] for cell in range(CORRIDOR_LENGTH)] == pytest.approx(
        corridor_values(0.9).tolist()
    )


#: An observation to go on from, reward, terminated, truncated, and the episode's last observation
#: if it ended.
Expected = tuple[Array, float, bool, bool, Array | None]

CORRIDOR = Environment(id="tests.environments:Corridor")


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


def breakout_by_hand(
    environment: VectorEnv[Any, Any, Any], seed: int, actions: list[int]
) -> tuple[Array, list[Expected]]:
    """The same from ALE's vectorized form in another mode.

    That mode shows an episode's last observation as any other, and resets after it.
    """
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
    lanes: Lanes, seed: int, actions: Array, expected: list[tuple[Array, list[Expected]]]
) -> None:
    """`actions` has the shape (steps, lanes)."""
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
    lanes = make_lanes(settings, count)
    lanes.reset(8)
    assert_lanes_show(lanes, 7, actions, expected)


def test_an_environment_that_cannot_be_closed_hides_no_error_and_keeps_none_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed: list[Any] = []

    class Dead(gymnasium.Env[Any, Any]):
        observation_space = action_space = gymnasium.spaces.Discrete(2)

        def close(self) -> None:
            closed.append(self)
            raise AttributeError("'NoneType' object has no attribute 'disconnect'")

    with pytest.raises(ValueError, match="licence"), closing_environment(Single([Dead(), Dead()])):
        raise ValueError("the simulator lost its licence")
    said = capsys.readouterr().err
    assert len(closed) == 2 and said.count("close() of an environment: AttributeError: ") == 2


def test_last_observations_may_have_their_older_name_and_must_not_be_missing() -> None:
    def made(key: str) -> Any:
        return make_lanes(Environment(id="tests.vectorized:Renamed", options={"key": key}), 3)

    actions = np.random.default_rng(1).integers(2, size=(200, 3))
    first = _first_seed(7, 3)
    expected = [
        by_hand(gymnasium.make(CORRIDORS), first + lane, list(actions[:, lane]))
        for lane in range(3)
    ]
    assert_lanes_show(made("final_observation"), 7, actions, expected)
    missing = made("")
    missing.reset(7)
    alone = make_environment(Environment(id="tests.vectorized:Renamed", options={"num_envs": 1}))
    alone.reset(seed=7)
    for step, taken in ((missing.step, actions.tolist()), (alone.step, actions[:, 0].tolist())):
        with pytest.raises(EnvironmentFailure, match=r"give it in infos\['final_obs'\]"):
            [step(action) for action in taken]


def test_ales_own_form_has_one_thread_and_shows_what_each_of_its_games_shows_alone() -> None:
    process = psutil.Process()
    before = process.num_threads()
    lanes = make_lanes(BREAKOUT, 2)
    assert process.num_threads() == before + 1
    assert lanes.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert lanes.action_space == gymnasium.spaces.Discrete(4)
    environment = gymnasium.make_vec(
        "ALE/Breakout-v5",
        num_envs=1,
        vectorization_mode="vector_entry_point",
        autoreset_mode=AutoresetMode.NEXT_STEP,
        **BREAKOUT.options,
    )
    actions = np.random.default_rng(1).integers(4, size=(90, 2))
    first = _first_seed(7, 2)
    expected = [
        breakout_by_hand(environment, first + lane, actions[:, lane].tolist()) for lane in range(2)
    ]
    environment.close()
    assert not np.array_equal(expected[0][0], expected[1][0])
    assert_both_ends(expected)
    assert_lanes_show(lanes, 7, actions, expected)


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
    assert_lanes_show(make_lanes(settings, 2), 3, actions, expected)


def test_lanes_differ_and_follow_from_one_seed() -> None:
    lanes = make_lanes(Environment(id="CartPole-v1"), 3)

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


def test_ales_vectorized_form_has_as_many_threads_as_it_is_given() -> None:
    process = psutil.Process()
    before = process.num_threads()
    options = {"num_threads": 2}
    lanes = make_lanes(Environment(id="ALE/Pong-v5", vectorized=True, options=options), 2)
    assert process.num_threads() - before == min(2, psutil.cpu_count())
    lanes.close()
    del lanes
    # A nursery that has tried an environment can be forked.
    assert process.num_threads() == before


def test_an_agents_environments_need_no_torch_and_say_nothing() -> None:
    code = """
import sys
from genkidama.config.sections import Environment, Wrapper
from genkidama.learning.environments import make_lanes
stacking = Wrapper(name="FrameStackObservation", options={"stack_size": 4})
wrappers = (Wrapper(name="AtariPreprocessing"), stacking)
single = Environment(id="ALE/Pong-v5", options={"frameskip": 1}, wrappers=wrappers)
for settings in (single, Environment(id="ALE/Pong-v5", vectorized=True)):
    lanes = make_lanes(settings, 1)
    lanes.reset(0)
    lanes.step([1])
    lanes.close()
assert "torch" not in sys.modules
"""
    found = python("-c", code)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@given(st.integers(1, 1000), st.integers(-1000, 1000), st.data())
def test_discrete_actions_are_stored_counted_from_0_and_may_start_anywhere(
    n: int, start: int, data: st.DataObject
) -> None:
    space = Discrete(n, start=start)
    number = data.draw(st.integers(0, n - 1))
    action = converter(space)(np.array([number], np.float32))
    assert columns(space) == 1
    assert type(action) is int and action == start + number and space.contains(action)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_continuous_actions_are_clipped_to_the_bounds_in_the_spaces_shape(
    shape: tuple[int, ...], dtype: type
) -> None:
    space = Box(-0.1, 0.3, shape, dtype)
    convert, size = converter(space), int(np.prod(shape))
    assert columns(space) == size
    # The bound of a space of float64 lies below float32's nearest number.
    for given_number, expected in (
        (-9.0, dtype(-0.1)),
        (0.125, 0.125),
        (0.3, dtype(0.3)),
        (9.0, dtype(0.3)),
    ):
        stored = np.full(size, given_number, np.float32)
        action = np.asarray(convert(stored))
        assert (
            action.shape == shape
            and (action == expected).all()
            and space.contains(action.astype(dtype))
        )
        assert (stored == np.float32(given_number)).all()  # what is stored is the sample


def test_each_number_has_its_own_bounds_and_some_have_none() -> None:
    space = Box(
        np.array([[-1.0, -np.inf], [0.0, -4.0]], np.float32),
        np.array([[1.0, np.inf], [2.0, np.inf]], np.float32),
    )
    assert converter(space)(np.array([-5.0, -5.0, -5.0, -5.0], np.float32)).tolist() == [
        [-1.0, -5.0],
        [0.0, -4.0],
    ]
    assert converter(space)(np.array([5.0, 5.0, 5.0, 5.0], np.float32)).tolist() == [
        [1.0, 5.0],
        [2.0, 5.0],
    ]


@pytest.mark.parametrize(
    "space",
    [
        Discrete(3),
        Discrete(2, start=7),
        Box(-1.0, 1.0, (2,)),
        Box(0.0, 0.5, (2, 2), np.float64),
        MultiDiscrete([2, 5, 3]),
        MultiDiscrete([[2, 1], [4, 3]], start=[[0, -3], [7, 1]]),
        MultiBinary(3),
        MultiBinary((2, 3)),
    ],
)
def test_a_head_stores_as_many_numbers_and_takes_them_to_the_same_action(
    space: gymnasium.Space[Any],
) -> None:
    head = head_for(space)
    assert head.columns == columns(space)
    sample, row = head.sampler(np.random.default_rng(0), 0.2), np.empty(head.columns, np.float32)
    for _ in range(50):
        action = sample(np.zeros(head.outputs, np.float32))
        row[:] = action
        given = head.to_environment(action)
        assert np.array_equal(converter(space)(row), given)
        assert isinstance(space, Box) or space.contains(given)


@pytest.mark.parametrize("ask", [columns, converter, head_for])
@pytest.mark.parametrize(
    ("space", "said"),
    [
        (Text(3), "is Text(1, 3, charset="),
        (Dict({"a": Tuple((Discrete(2), Sequence(Discrete(2))))}), "has the part Sequence("),
        (Box(0, 2**31 - 2, (2,), np.int32), "has 4294967294 choices of whole numbers, at most"),
        (Tuple(()), "with no action in it"),
    ],
    ids=str,
)
def test_other_spaces_are_refused_by_name(space: gymnasium.Space[Any], said: str, ask: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^environment: its action space ") as caught:
        ask(space)
    assert said in str(caught.value) and "\n" not in str(caught.value)


# Several environments in one object of the user's, by import string.


class Late(VectorEnv[Any, Any, Any]):
    """Corridors of Gymnasium's default kind: one begins anew in the step after its end."""

    def __init__(self, num_envs: int = 3) -> None:
        self._inner = gymnasium.vector.SyncVectorEnv([Corridor] * num_envs)
        self.num_envs = num_envs
        for name in ("single_observation_space", "single_action_space"):
            setattr(self, name, getattr(self._inner, name))
        self.observation_space, self.action_space = (
            self._inner.observation_space,
            self._inner.action_space,
        )

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._inner.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        return self._inner.step(actions)


def three_at_once() -> Late:
    return Late()


class Masked(Corridor):
    def __init__(self) -> None:
        super().__init__()
        inner = {"seen": self.observation_space, "action_mask": MultiBinary(2)}
        self.observation_space = gymnasium.spaces.Dict(inner)


def masked_at_once(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return gymnasium.vector.SyncVectorEnv([Masked] * num_envs)


def parts_at_once(num_envs: int) -> VectorEnv[Any, Any, Any]:
    return gymnasium.vector.SyncVectorEnv([partial(Buttons, 0.5)] * num_envs)


class Buttons(gymnasium.Env[Any, Any]):
    """Tells what was pressed: a Tuple and a Dict; an episode has two steps."""

    action_space = Tuple((Discrete(3), Box(-1.0, 1.0, (2,))))
    observation_space = Dict({"which": Discrete(3), "how": Box(-1.0, 1.0, (2,))})

    def __init__(self, reward: Any = ((0.5,),)) -> None:
        self._reward = reward

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self._steps = 0
        return {"which": 0, "how": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self._steps += 1
        seen = {"which": action[0], "how": action[1]}
        return seen, self._reward, self._steps == 2, False, {}


def test_an_object_with_several_environments_is_as_many_lanes() -> None:
    lanes = make_lanes(Environment(id="tests.vectorized:late_corridors"), 3)
    plain = make_lanes(Environment(id="tests.environments:Corridor"), 3)
    assert np.array_equal(lanes.reset(1), plain.reset(1))
    for _ in range(3 * CORRIDOR_LENGTH):
        found, expected = lanes.step([1, 1, 0]), plain.step([1, 1, 0])
        for ours, theirs in zip(found[:4], expected[:4], strict=True):
            assert np.array_equal(ours, theirs)
        assert found[4].keys() == expected[4].keys()
        assert all(np.array_equal(found[4][lane], expected[4][lane]) for lane in expected[4])


def test_one_that_begins_anew_in_the_step_after_the_end_has_a_step_that_does_nothing() -> None:
    lanes = make_lanes(Environment(id=f"{__name__}:three_at_once"), 3)
    lanes.reset(1)
    ended: set[int] = set()
    episodes = 0
    for _ in range(4 * CORRIDOR_LENGTH):
        seen, rewards, terminated, truncated, finals = lanes.step([1, 1, 0])
        over = np.logical_or(terminated, truncated)
        assert set(finals) == set(np.flatnonzero(over).tolist())
        for lane in ended:  # it begins anew, and earns nothing
            assert rewards[lane] == 0.0 and lane not in finals and np.asarray(seen)[lane].any()
        for lane, final in finals.items():
            assert np.array_equal(final, np.asarray(seen)[lane])
        ended, episodes = set(finals), episodes + len(finals)
    assert episodes > 4


def test_several_at_once_may_have_parts() -> None:
    lanes = make_lanes(Environment(id=f"{__name__}:parts_at_once"), 2)
    assert np.array_equal(lanes.reset(0), [[0, 0, 1, 0, 0]] * 2)
    act = converter(lanes.action_space)
    actions = [act(np.array([which, 0.5, -2.0], np.float32)) for which in (1, 2)]
    seen, *_, finals = lanes.step(actions)
    expected = [[0.5, -1.0, 0, 1, 0], [0.5, -1.0, 0, 0, 1]]
    assert np.array_equal(seen, expected) and not finals
    seen, *_, finals = lanes.step(actions)
    assert np.array_equal([finals[0], finals[1]], expected)
    assert np.array_equal(seen, [[0, 0, 1, 0, 0]] * 2)
    one = make_environment(Environment(id=f"{__name__}:parts_at_once"))
    one.reset(seed=0)
    for over in (False, True):
        found = one.step(actions[1])
        assert found[0].tolist() == expected[1] and found[2] == over


def test_a_number_of_environments_that_is_fixed_is_the_number_of_lanes() -> None:
    with pytest.raises(ConfigurationError, match=r"lanes = 2: '.*' makes 3 environments at once; "):
        make_lanes(Environment(id=f"{__name__}:three_at_once"), 2)
    wrapper = Wrapper(name="TimeLimit", options={"max_episode_steps": 9})
    with pytest.raises(ConfigurationError, match="cannot be put around several environments"):
        make_lanes(Environment(id=f"{__name__}:three_at_once", wrappers=(wrapper,)), 3)


@pytest.mark.parametrize(("name", "mask"), [("masked_at_once", "key"), ("three_at_once", "info")])
def test_masks_of_several_at_once_are_refused(name: str, mask: str) -> None:
    settings = Environment(id=f"{__name__}:{name}", action_mask=mask)
    for make in (partial(make_lanes, count=3), make_environment):
        with pytest.raises(ConfigurationError, match="has no action masks; let it return one of "):
            make(settings)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (np.array([2.5]), 2.5),
        (np.array([[2.5]]), 2.5),
        ([np.float16(2.5)], 2.5),
        (np.array(True), 1.0),
        (Decimal("2.5"), 2.5),
    ],
    ids=repr,
)
def test_a_reward_of_one_number_is_that_number_in_any_wrapping(reward: Any, number: float) -> None:
    assert as_number(reward) == number


@pytest.mark.parametrize("reward", [None, [1.0, 2.0], [], {"a": 1.0}, "many", 1j], ids=repr)
def test_what_is_no_number_is_no_reward(reward: Any) -> None:
    with pytest.raises(EnvironmentFailure, match=r"^the environment gave the reward "):
        as_number(reward)


def test_lanes_and_single_environments_give_such_rewards_as_numbers() -> None:
    lanes = make_lanes(Environment(id=f"{__name__}:Buttons"), 2)
    lanes.reset(0)
    action = (1, np.zeros(2, np.float32))
    assert lanes.step([action, action])[1] == [0.5, 0.5]
