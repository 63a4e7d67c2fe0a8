"""What the page plays: its environments beside Gymnasium's, its network beside NumPy's."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.box2d import lunar_lander

from benchmarks.made_up import DRAWN, document, made_up
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.dashboard.policies import policy_document
from tests.helpers import ROOT, until
from tests.plugins.dashboard.browser import Look, picture, violations
from tests.plugins.dashboard.node import Node, in_node

sys.path.insert(0, str(ROOT / "examples/rotary"))
from rotary import RotaryPendulum


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with in_node(
        tmp_path_factory.mktemp("modules"),
        ("environments", "policy"),
        'import { environment } from "./environments.mjs";',
        'import { actor, network } from "./policy.mjs";',
        "const made = (id) => environment({ id, options: {}, wrappers: [] });",
    ) as node:
        yield node


PLAY = """
const { observe, step } = made(data.id);
return data.moves.map(([state, action]) => {
  const [next, reward, terminated] = step(state, action);
  return [[...observe(next)], reward, terminated];
});
"""

EPISODES = """
const { observe, step } = made(data.id);
return data.episodes.map(([state, actions]) => actions.map((action) => {
  let reward, terminated;
  [state, reward, terminated] = step(state, action);
  return [[...observe(state)], reward, terminated];
}));
"""

#: Bounds of states, far wider than those of a start.
STATES = {
    "CartPole-v1": [(-2.5, 2.5), (-3, 3), (-0.25, 0.25), (-3, 3)],
    "Acrobot-v1": [(-3.14, 3.14), (-3.14, 3.14), (-12.5, 12.5), (-28, 28)],
    "Pendulum-v1": [(-9, 9), (-8, 8)],
    "MountainCar-v0": [(-1.2, 0.6), (-0.07, 0.07)],
    "MountainCarContinuous-v0": [(-1.2, 0.6), (-0.07, 0.07)],
    "rotary:RotaryPendulum": [(-2, 2), (-0.5, 0.5), (-20, 20), (-20, 20), (-1, 1)],
}


def made(name: str) -> gymnasium.Env[Any, Any]:
    if name == "rotary:RotaryPendulum":
        return RotaryPendulum(seconds=0.02)
    return gymnasium.make(name).unwrapped


def put(env: Any, state: list[float]) -> None:
    if isinstance(env, RotaryPendulum):
        env._arm, env._rod, env._arm_speed, env._rod_speed, env._action = state
    else:
        dtype = np.float32 if "Continuous" in type(env).__name__ else np.float64
        env.state = np.array(state, dtype)


def got(env: Any) -> list[float]:
    if isinstance(env, RotaryPendulum):
        return [env._arm, env._rod, env._arm_speed, env._rod_speed, env._action]
    return [float(number) for number in env.state]


def stepped(env: Any, action: Any) -> tuple[list[float], float, bool]:
    given = np.array(action, np.float32) if isinstance(action, list) else action
    observation, reward, terminated, _, _ = env.step(given)
    return observation.tolist(), float(reward), terminated


def actions(env: Any, count: int) -> list[Any]:
    env.action_space.seed(3)
    found = [env.action_space.sample() for _ in range(count)]
    return [each.tolist() if isinstance(each, np.ndarray) else int(each) for each in found]


def agree(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert ours[0] == pytest.approx(theirs[0], rel=1e-6, abs=1e-6), number
        assert ours[1] == pytest.approx(theirs[1], rel=1e-6, abs=1e-6), number
        assert ours[2] == theirs[2], number


@pytest.mark.parametrize("name", STATES)
def test_a_step_from_anywhere_is_gymnasiums(node: Node, name: str) -> None:
    env, rng = made(name), np.random.default_rng(1)
    env.reset(seed=1)
    moves, expected = [], []
    for action in actions(env, 400):
        state = [float(np.float32(rng.uniform(*bounds))) for bounds in STATES[name]]
        put(env, state)
        if name == "CartPole-v1":
            env.steps_beyond_terminated = None
        moves.append((state, action))
        expected.append(stepped(env, action))
    agree(node(PLAY, id=name, moves=moves), expected)
    assert len({terminated for _, _, terminated in expected}) == 1 + (name != "Pendulum-v1")


@pytest.mark.parametrize("name", STATES)
def test_episodes_are_gymnasiums_step_by_step(node: Node, name: str) -> None:
    env = made(name)
    episodes, expected = [], []
    for seed in range(10):
        env.reset(seed=seed)
        episodes.append((got(env), []))
        expected.append([])
        # Acrobot is chaotic: after 100 steps the last bit of a sine would be seen.
        for action in actions(env, 100):
            episodes[-1][1].append(action)
            expected[-1].append(stepped(env, action))
            if expected[-1][-1][2]:
                break
    found = node(EPISODES, id=name, episodes=episodes)
    for ours, theirs in zip(found, expected, strict=True):
        agree(ours, theirs)


def test_an_environment_with_options_or_wrappers_of_its_own_is_not_played(node: Node) -> None:
    body = "return data.all.map((each) => environment(each) !== null);"
    plain = {"options": {}, "wrappers": []}
    rotary = "rotary:RotaryPendulum"
    found = node(
        body,
        all=[
            {"id": "CartPole-v1", **plain},
            {"id": "CartPole-v1", **plain, "options": {"sutton_barto_reward": True}},
            {"id": "CartPole-v1", **plain, "wrappers": [{"name": "TimeAwareObservation"}]},
            {"id": "Ant-v5", **plain},
            {"id": rotary, **plain, "options": {"seconds": 0.02}},
            {"id": rotary, **plain, "options": {"volts": 5}},
        ],
    )
    assert found == [True, False, False, False, True, False]


# The lander is an approximation; these say how near it comes.

FLIGHT = """
const lander = made("LunarLander-v3");
const half = () => 0.5;  // engines without dispersion
return data.flights.map(([start, actions]) => {
  let state = { ...lander.reset(seeded(1)), ...start, heights: Array(11).fill(-9) };
  const seen = actions.map((action) => {
    [state] = lander.step(state, action, half);
    return [...lander.observe(state)];
  });
  return seen;
});
"""


def test_the_lander_flies_as_gymnasiums_does(node: Node) -> None:
    env = gymnasium.make("LunarLander-v3").unwrapped
    flights, expected = [], []
    for seed in range(12):
        action = seed % 4
        env.reset(seed=seed)
        env.np_random = type("Half", (), {"uniform": lambda self, low, high: 0.0})()
        body = env.lander
        start = {
            "x": body.position.x,
            "y": body.position.y,
            "dx": body.linearVelocity.x,
            "dy": body.linearVelocity.y,
            "angle": body.angle,
            "turn": body.angularVelocity,
        }
        moves = [action, *([0] * 4)] * 6
        flights.append((start, moves))
        expected.append([env.step(each)[0] for each in moves])
    found = np.array(node(FLIGHT, flights=flights))
    difference = np.abs(found - np.array(expected))[:, :, :6].max((0, 1))
    # Of positions, velocities, angle and turn, after 0.6 s in which each engine fired six times.
    assert (difference < (0.01, 0.02, 0.03, 0.04, 0.08, 0.08)).all(), difference


#: Gymnasium's own controller.
HEURISTIC = """
function heuristic(s) {
  const limit = (x, most) => Math.min(Math.max(x, -most), most);
  let angle = (limit(s[0] * 0.5 + s[2] * 1.0, 0.4) - s[4]) * 0.5 - s[5] * 1.0;
  let hover = (0.55 * Math.abs(s[0]) - s[1]) * 0.5 - s[3] * 0.5;
  if (s[6] || s[7]) [angle, hover] = [0, -s[3] * 0.5];
  if (hover > Math.abs(angle) && hover > 0.05) return 2;
  return angle < -0.05 ? 3 : angle > 0.05 ? 1 : 0;
}
const lander = made(data.id);
return Array.from({ length: data.episodes }, (_, seed) => {
  const random = seeded(seed + 1);
  let [state, reward, done, total, steps] = [lander.reset(random), 0, false, 0, 0];
  while (!done && steps < lander.longest) {
    const action = data.controlled ? heuristic(lander.observe(state)) : Math.floor(4 * random());
    const given = lander.choices ? action : [[0, 0], [0, -1], [1, 0], [0, 1]][action];
    [state, reward, done] = lander.step(state, given, random);
    total += reward;
    steps += 1;
  }
  return [total, reward];
});
"""


def test_gymnasiums_controller_lands_there_as_often_as_in_gymnasium(node: Node) -> None:
    env = gymnasium.make("LunarLander-v3")
    theirs = [lunar_lander.demo_heuristic_lander(env, seed=seed) for seed in range(40)]
    ours = node(HEURISTIC, id="LunarLander-v3", episodes=40, controlled=True)
    returns = [total for total, _ in ours]
    landed = sum(last == 100 for _, last in ours)
    assert landed >= 36 and sum(total > 200 for total in theirs) >= 36, (landed, returns)
    assert np.mean(returns) == pytest.approx(np.mean(theirs), abs=50)
    falls = node(HEURISTIC, id="LunarLander-v3", episodes=40, controlled=False)
    assert sum(last == -100 for _, last in falls) >= 36 and np.mean([t for t, _ in falls]) < -100
    weak = node(HEURISTIC, id="LunarLanderContinuous-v3", episodes=10, controlled=True)
    assert sum(last == 100 for _, last in weak) >= 8


EXPERIMENTS: list[tuple[str, dict[str, Any]]] = [
    ("CartPole-v1", {}),
    ("CartPole-v1", {"environment.normalize_observations": True, "network.shared": True}),
    ("CartPole-v1", {"network.activation": "relu", "network.hidden": [8, 9]}),
    ("CartPole-v1", {"network.activation": "elu"}),
    ("Pendulum-v1", {"network.activation": "silu", "algorithm.name": "ppo"}),
    ("MountainCarContinuous-v0", {"environment.normalize_observations": True}),
    ("CartPole-v1", {"network.memory": 5, "environment.normalize_observations": True}),
    ("Pendulum-v1", {"network.memory": 3, "network.activation": "relu"}),
    ("Pendulum-v1", {"algorithm.name": "sac"}),
    ("MountainCarContinuous-v0", {"algorithm.name": "sac", "network.sde_steps": 8}),
]


@pytest.mark.parametrize(("name", "changes"), EXPERIMENTS)
def test_the_network_gives_what_numpys_gives(
    node: Node, name: str, changes: dict[str, Any]
) -> None:
    experiment = Experiment().with_settings({"environment.id": name, **changes})
    env = make_environment(experiment.environment)
    model = Model(experiment, env)
    rng = np.random.default_rng(2)
    observations = rng.normal(0.0, 2.0, (200, *env.observation_space.shape)).astype(np.float32)
    states = rng.uniform(-1.0, 1.0, (200, model.memory)).astype(np.float32)
    if (moments := model.moments("observations")) is not None:
        data = rng.normal(0.5, 2.0, (50, moments._sum.size))
        data[:, -1] = 100.0  # always, and its deviation is a thousandth of that
        observations[:, -1] = 100.0 + 0.1 * observations[:, -1]
        moments.add(data)
    document = policy_document(experiment, model.signature, model.numbers, 7)
    assert document["version"] == 7 and document["environment"]["id"] == name
    body = """
    const outputs = network(data.policy);
    const act = actor(data.policy, made(data.id));
    return data.observations.map((x, i) => {
      const given = Float32Array.from(x);
      const action = act(given, Float32Array.from(data.states[i]));
      const state = Float32Array.from(data.states[i]);
      return [[...outputs(given, state)], action.length ? [...action] : action, [...state]];
    });
    """
    found = node(
        body,
        policy=document,
        id=name,
        observations=observations.tolist(),
        states=states.tolist(),
    )
    rows = np.concatenate((states, observations), 1)
    expected, _ = model.evaluate(model.native(model.seen(rows)))
    if model.memory:
        after = np.array([state for *_, state in found])
        np.testing.assert_allclose(after, model.network.state, atol=1e-5)
    width = len(found[0][0])  # without the deviations of continuous actions
    outputs = np.array([each for each, *_ in found])
    np.testing.assert_allclose(outputs, np.asarray(expected)[:, :width], atol=1e-5, rtol=1e-4)
    for (_, action, _), row in zip(found, outputs, strict=True):
        taken = model.head.to_environment(model.head.mode(row))
        np.testing.assert_allclose(action, taken, rtol=1e-6, atol=1e-7)
    assert math.isfinite(outputs.sum())


def test_a_head_of_a_learner_of_ones_own_is_not_played() -> None:
    experiment = Experiment().with_settings({"environment.id": "CartPole-v1"})
    model = Model(experiment, make_environment(experiment.environment))
    theirs = experiment.with_settings({"algorithm.name": "mine:Learner"})
    found = policy_document(theirs, model.signature, model.numbers, 7)
    assert "a head" in found["problem"] and "numbers" not in found


# In a browser.


def counting_policy(version: int) -> dict[str, Any]:
    """A policy for CartPole that pushes to one side three times, and then to the other."""
    settings = {"environment.id": "CartPole-v1", "network.hidden": [2], "network.memory": 1}
    experiment = Experiment().with_settings(settings)
    model = Model(experiment, make_environment(experiment.environment))
    model.numbers[:] = 0.0
    parts = model.network.parts
    # h ← h + (1 − h)/11: above 0.3 from the fourth step on.
    parts["memory.bias_ih_l0"][1:] = np.log(10.0), 20.0
    parts["policy.0.weight"][:, 0] = 0.0, 1.0
    parts["policy.0.bias"][:] = 0.3, 0.0
    return policy_document(experiment, model.signature, model.numbers, version)


def constant_policy(version: int, action: int, **changes: Any) -> dict[str, Any]:
    """A policy for CartPole that does the same whatever it sees."""
    settings = {"environment.id": "CartPole-v1", "network.hidden": [2], **changes}
    experiment = Experiment().with_settings(settings)
    model = Model(experiment, make_environment(experiment.environment))
    model.numbers[:] = 0.0
    model.network.parts["policy.2.bias"][action] = 1.0
    return policy_document(experiment, model.signature, model.numbers, version)


def at(version: int, **changes: Any) -> dict[str, Any]:
    """What a parent says of a run of CartPole at this version."""
    whole = document(10.0, children=1)
    whole["learning"]["diagnostics"] = {}
    whole["run"] |= {"environment": "CartPole-v1", **changes}
    whole["learning"]["version"] = version
    return whole


def label(page: Any) -> str:
    return str(page.inner_text("#play-label"))


def until_it_says(page: Any, words: str) -> None:
    """Moves the page's clock until the words are there."""
    until(lambda: (page.clock.run_for(20), words in label(page))[1], words)


def steps(page: Any) -> Iterator[int]:
    """The steps that are shown, one after another fiftieth of a second of the page's clock."""
    while True:
        yield int(re.findall(r"step (\d+)", label(page))[0])
        page.clock.run_for(20)


def lengths(page: Any) -> Iterator[int]:
    """How many steps each episode has, the present one first."""
    before = 0
    for step in steps(page):
        if step < before:
            yield before
        before = step


def test_the_newest_policy_plays_and_a_slider_goes_back(look: Look) -> None:
    with made_up(at(9)) as parent:
        parent.policies |= {
            None: {**constant_policy(9, 1), "checkpoints": [3, 5]},
            3: counting_policy(3),
            5: {"version": 5, "problem": "no such checkpoint"},
        }
        ended: list[Any] = []
        with look(parent.url, halted=True, ended=ended) as page:
            until_it_says(page, "version 9 plays (the newest)")
            # Pushed to one side without end, the pole falls after eight to eleven steps.
            assert 8 <= max(islice(steps(page), 75)) <= 11
            # The whole page is small.
            sizes = {request.url: request.sizes()["responseBodySize"] for request in ended}
            assert any("play.js" in url for url in sizes) and sum(sizes.values()) < 120_000, sizes

            page.focus("#play-version")
            page.keyboard.press("Home")
            page.wait_for_selector("#play-label >> text=version 3 plays (newest 9)")
            assert page.get_attribute("#play-version", "aria-valuetext") == "version 3"
            # Each episode begins with a memory of nothing: to one side without end, as with an
            # older state, it would be eight to eleven steps.
            assert all(15 <= length <= 19 for length in islice(lengths(page), 3))
            page.keyboard.press("ArrowRight")  # a checkpoint that was deleted meanwhile
            page.wait_for_selector("#play-version[max='1']")
            page.keyboard.press("End")
            page.wait_for_selector("#play-label >> text=version 9 plays (the newest)")

            page.focus("#play-pause")
            page.keyboard.press("Space")
            before = label(page)
            page.clock.run_for(300)
            assert label(page) == before
            page.keyboard.press("Space")
            page.clock.run_for(300)
            assert label(page) != before

            # Weights are asked for every five seconds at most.
            parent.policies[None] = {**constant_policy(20, 0), "checkpoints": [3]}
            page.clock.run_for(5000)
            parent.say({**at(20), "type": "status"})
            until_it_says(page, "version 20 plays (the newest)")
            asked: list[Any] = []
            page.on("request", lambda request: asked.append(1) if "policy" in request.url else None)
            for version in range(21, 30):
                parent.say({**at(version), "type": "status"})
                page.wait_for_timeout(20)
                page.clock.run_for(480)
            assert not asked

            page.clock.resume()
            assert not violations(page)
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                picture(page, f"play-{width}")


def test_a_page_that_was_hidden_ten_times_draws_once_a_frame(look: Look) -> None:
    drawn = """(toggles) => {
      let hidden = false;
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      for (let i = 0; i < 2 * toggles; i++) {
        hidden = !hidden;
        document.dispatchEvent(new Event("visibilitychange"));
      }
      const canvas = document.getElementById("play-canvas").getContext("2d");
      window.drawn = 0;
      canvas.clearRect = () => { window.drawn += 1; };
    }"""
    with made_up(at(9)) as parent:
        parent.policies |= {None: {**constant_policy(9, 1), "checkpoints": []}}
        with look(parent.url, halted=True) as page:
            until_it_says(page, "step 2")
            found = []
            for toggles in (0, 10):
                page.evaluate(drawn, toggles)
                page.clock.run_for(320)
                found.append(page.evaluate("window.drawn"))
            assert found[0] == found[1] > 0, found


def test_what_it_cannot_play_is_a_film_or_nothing(look: Look) -> None:
    with made_up(at(9, environment="Ant-v5")) as parent, look(parent.url) as page:
        page.wait_for_selector(DRAWN)
        assert not page.is_visible("#play")
        parent.say({**at(9, environment="Ant-v5", film=7), "type": "status"})
        page.wait_for_selector("#play")
        assert label(page) == "a film of version 7"
        assert page.get_attribute("#play-film", "src").endswith("=7")
        parent.say({**at(9, kind="search"), "type": "status"})
        page.wait_for_selector("#play", state="hidden")
