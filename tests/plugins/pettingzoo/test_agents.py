"""Agents as lanes: one that dies sees zeros and earns nothing until all are over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.learning.environment_checks import check_spaces
from genkidama.learning.environments import make_environment, make_lanes
from genkidama.learning.model import Model
from genkidama.runs.evaluation_worker import steps_of


class Race:
    """Agent i earns i + 1 a step. "b" dies in its second step; time is up in the third.

    Its module's name is that of PettingZoo's, by which an object of that kind is known.
    """

    __module__ = "pettingzoo.race"
    metadata: dict[str, Any] = {"render_modes": []}
    possible_agents = ("a", "b", "c")

    def __init__(self, alike: bool = True) -> None:
        self._alike = alike
        self.taken: list[dict[str, int]] = []

    def observation_space(self, agent: str) -> Any:
        low = 0.0 if self._alike or agent == "a" else -1.0
        return Dict({"t": Box(low, 9.0, (1,)), "who": Discrete(3)})

    def action_space(self, agent: str) -> Any:
        return Discrete(4)

    def _seen(self) -> dict[str, Any]:
        who = self.possible_agents.index
        return {name: {"t": np.array([self._t]), "who": who(name)} for name in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.seed, self._t, self.agents = seed, 0.0, list(self.possible_agents)
        return self._seen(), {name: {} for name in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        assert list(actions) == self.agents
        self.taken.append(actions)
        self._t += 1.0
        seen, present = self._seen(), self.agents
        rewards = {name: self.possible_agents.index(name) + 1.0 for name in present}
        dead = {name: name == "b" and self._t == 2.0 for name in present}
        late = dict.fromkeys(present, self._t == 3.0)
        self.agents = [name for name in present if not dead[name] and not late[name]]
        return seen, rewards, dead, late, {}

    def close(self) -> None:
        pass


ID = f"{__name__}:Race"


def test_each_agent_is_a_lane() -> None:
    lanes = make_lanes(Environment(id=ID, lanes=6), 6)
    first = lanes.reset(3)
    assert np.array_equal(first, np.tile(np.eye(4, dtype=np.float32)[1:], (2, 1)))
    earned = np.zeros(6)
    for t in range(1, 4):
        seen, rewards, terminated, truncated, finals = lanes.step([0, 1, 2, 3, 2, 1])
        earned += np.asarray(rewards)
        gone = t > 2
        assert np.asarray(seen)[1].tolist() == ([0.0, 0, 1, 0] if gone else [t, 0, 1, 0])
        assert bool(finals) == (t == 3)
    # "b" terminated when it died, and the others' time is up.
    assert np.asarray(terminated).tolist() == [False, True, False] * 2
    assert np.asarray(truncated).tolist() == [True, False, True] * 2
    assert earned.tolist() == [3.0, 4.0, 9.0] * 2
    assert finals[1].tolist() == [0.0] * 4 and finals[2].tolist() == [3.0, 0, 0, 1]
    assert np.array_equal(seen, first)  # all have begun anew


def test_one_policy_acts_for_all_in_turn() -> None:
    environment = make_environment(Environment(id=ID, lanes=3))
    race: Any = environment.unwrapped
    total, over, asked = 0.0, False, []
    seen, _ = environment.reset(seed=5)
    while not over:
        asked.append(int(seen[1:].argmax()))
        seen, reward, terminated, truncated, _ = environment.step(asked[-1])
        total, over = total + reward, terminated or truncated
    assert asked == [0, 1, 2, 0, 1, 2, 0, 2]  # the third time "b" is gone
    assert total == pytest.approx((3.0 + 4.0 + 9.0) / 3) and truncated and not terminated
    taken = race._part.environment.taken
    assert taken == [{"a": 0, "b": 1, "c": 2}] * 2 + [{"a": 0, "c": 2}]


def test_each_agent_has_a_memory_of_its_own_in_an_evaluation_as_in_training() -> None:
    network = {"hidden": [4], "memory": 4, "initialization": "normal", "initial_deviation": 0.5}
    experiment = Experiment.from_dict({"environment": {"id": ID}, "network": network})
    model = Model(experiment, environment := make_environment(experiment.environment))
    states: dict[int, np.ndarray] = {}
    for seen, action, _ in steps_of(model, environment, (1, 0), greedy=True):
        agent = int(seen[-3:].argmax())
        assert np.array_equal(seen[:4], states.get(agent, np.zeros(4)))
        if action is not None:
            model.network.acting()(seen)
            states[agent] = model.network.state[0].copy()
    assert len(states) == 3 and len({state.tobytes() for state in states.values()}) == 3


def test_what_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"^environment.lanes = 8: each of the 3 agents "):
        make_lanes(Environment(id=ID), 8)
    experiment = Experiment(environment=Environment(id=ID))
    with pytest.raises(ConfigurationError, match=r"^environment.lanes = 1: each of the 3 agents "):
        check_spaces(experiment, make_environment(experiment.environment))
    unlike = Environment(id=ID, options={"alike": False})
    with pytest.raises(ConfigurationError, match=r"the observation_space of agent b is Dict"):
        make_environment(unlike)
    with pytest.raises(ConfigurationError, match=r"needs PettingZoo, which is not installed: pip "):
        make_environment(Environment(id="pettingzoo:butterfly/pistonball_v6"))
