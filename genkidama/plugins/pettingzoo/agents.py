"""PettingZoo's parallel environments with one policy for all agents: each agent is a lane.

Terry et al. 2021, "PettingZoo: Gym for Multi-Agent Reinforcement Learning" (https://pettingzoo.
farama.org). The policy is the same for all (parameter sharing), so all agents have the same spaces.

An agent that is not there, as it has died or has not come yet, sees zeros and earns nothing until
the last one leaves: the episodes of all agents of an environment end together ("black death").
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.learning.observations import FlatBox
from genkidama.runtime.import_strings import describe_error, load_object, user_errors

Array = npt.NDArray[Any]


class Agents(VectorEnv[Array, Any, Array]):
    """`count` agents of as many environments as that takes.

    Args:
        settings: `[environment]`. Its id is `"pettingzoo:FAMILY/NAME"`, as in
            `pettingzoo.FAMILY.NAME`, or an import string of a callable that returns an environment.
        count: a multiple of the agents of an environment; or 1, for a look at one of them, while
            the others act at random.
        made: an environment, if there is one.

    Raises:
        ConfigurationError: PettingZoo is not installed, has no such environment or not with these
            options; its agents differ in their spaces; or `count` does not fit.
    """

    def __init__(self, settings: Environment, count: int, made: Any = None) -> None:
        first = _make(settings) if made is None else made
        self.single_observation_space, self.single_action_space = _spaces(first, settings)
        agents = len(first.possible_agents)
        if count % agents and count != 1:
            raise ConfigurationError(
                f"environment.lanes = {count}: each of the {agents} agents of {settings.id!r} is a "
                f"lane; set it to a multiple of {agents}"
            )
        rest = [_make(settings) for _ in range(max(1, count // agents) - 1)]
        self._parts = [_Part(one, self.single_observation_space) for one in (first, *rest)]
        self.num_envs = count
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        from gymnasium.vector import AutoresetMode  # since Gymnasium 1.1

        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    @classmethod
    def check(cls, settings: Environment) -> None:
        """Checks that PettingZoo is installed.

        Raises:
            ConfigurationError: it is not, or there is no such module in it.
        """
        _module(settings)

    @classmethod
    def single(cls, settings: Environment, made: Any = None) -> gymnasium.Env[Any, Any]:
        """One environment in which a single policy acts for all agents; errors as above."""
        environment = _make(settings) if made is None else made
        return Turns(environment, *_spaces(environment, settings))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begins an episode in each environment; number i has `seed` + i."""
        super().reset(seed=seed)
        for i, part in enumerate(self._parts):
            part.reset(None if seed is None else seed + i)
        return self._seen(), {}

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Takes one action for each agent, (lanes, …).

        Returns:
            Observations (lanes, …), rewards, terminated and truncated (lanes,). Where episodes
            ended, `"final_obs"` of the last value has their last observations at their lanes.
        """
        given = list(iterate(self.action_space, actions))
        rewards, terminated = np.zeros(self.num_envs), np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        begin, ended = 0, []
        for part in self._parts:
            lanes = slice(begin, begin + len(part.names))
            rewards[lanes] = part.step(given[lanes])[: self.num_envs]
            if part.is_over:
                terminated[lanes] = part.terminated[: self.num_envs]
                truncated[lanes] = ~terminated[lanes]
                ended.append(part)
            begin = lanes.stop
        infos: dict[str, Any] = {}
        if ended:
            infos["final_obs"] = self._seen()
            for part in ended:
                part.reset(None)
        return self._seen(), rewards, terminated, truncated, infos

    def _seen(self) -> Array:
        return np.concatenate([part.seen for part in self._parts])[: self.num_envs]

    def close_extras(self, **_: Any) -> None:
        for part in self._parts:
            part.environment.close()


class _Part:
    """One environment: its agents in the order of their names."""

    def __init__(self, environment: Any, space: gymnasium.Space[Any]) -> None:
        self.environment = environment
        self.names = list(environment.possible_agents)
        self._join: Any = space.join if isinstance(space, FlatBox) else np.asarray
        #: (agents, …): what each sees.
        self.seen = np.zeros((len(self.names), *(space.shape or ())), space.dtype)
        #: (agents,): whether it left because its episode was over.
        self.terminated = np.zeros(len(self.names), np.bool_)

    @property
    def is_over(self) -> bool:
        return not self.environment.agents

    def reset(self, seed: int | None) -> None:
        observations = self.environment.reset(seed=seed)[0]
        self.terminated[:] = False
        self._look(observations)

    def step(self, actions: list[Any]) -> Array:
        """Takes the agents' actions, of those that are there; at random where one is missing.
        Returns the rewards (agents,)."""
        alive = set(self.environment.agents)
        taken = {
            name: actions[i] if i < len(actions) else self.environment.action_space(name).sample()
            for i, name in enumerate(self.names)
            if name in alive
        }
        observations, rewards, terminated, *_ = self.environment.step(taken)
        self._look(observations)
        for i, name in enumerate(self.names):
            self.terminated[i] |= bool(terminated.get(name, False))
        return np.array([float(rewards.get(name, 0.0)) for name in self.names])

    def _look(self, observations: dict[Any, Any]) -> None:
        for i, name in enumerate(self.names):
            self.seen[i] = self._join(observations[name]) if name in observations else 0


class Turns(gymnasium.Env[Array, Any]):
    """An environment of several agents for one policy that acts for all: in each step for the next
    one that is there. When all have acted, time passes. Its reward is then the mean of the agents'.

    Raises:
        ConfigurationError: as `Agents`.
    """

    def __init__(
        self,
        environment: Any,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._part = _Part(environment, observation_space)
        self.metadata = dict(environment.metadata)
        self.render_mode = getattr(environment, "render_mode", None)
        self.agents_in_turn = len(self._part.names)
        self._actions: list[Any] = []

    @property
    def agent_in_turn(self) -> int:
        """The number of the agent whose observation was returned last, and who acts next."""
        return len(self._actions) % self.agents_in_turn

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._part.reset(seed)
        self._actions = []
        return self._next(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._actions.append(action)
        observation = self._next()
        if len(self._actions) < self.agents_in_turn:
            return observation, 0.0, False, False, {}
        reward = float(self._part.step(self._actions).mean())
        self._actions = []
        over, terminated = self._part.is_over, bool(self._part.terminated.all())
        return self._next(), reward, over and terminated, over and not terminated, {}

    def _next(self) -> Array:
        """The observation of the next agent that is there."""
        names, alive = self._part.names, self._part.environment.agents
        while len(self._actions) < len(names) and alive and names[len(self._actions)] not in alive:
            self._actions.append(None)
        seen: Array = self._part.seen[self.agent_in_turn].copy()
        return seen

    def render(self) -> Any:
        return self._part.environment.render()

    def close(self) -> None:
        self._part.environment.close()


def _module(settings: Environment) -> str:
    """The module of `"pettingzoo:FAMILY/NAME"`."""
    family, _, name = settings.plain_id.removeprefix("pettingzoo.").replace("/", ".").partition(".")
    if importlib.util.find_spec("pettingzoo") is None:
        raise ConfigurationError(
            f"environment.id = {settings.id!r}: needs PettingZoo, which is not installed: "
            f"pip install 'pettingzoo[{family}]'"
        )
    module = f"pettingzoo.{family}.{name}"
    home = importlib.util.find_spec(f"pettingzoo.{family}") if family else None
    if home is None or importlib.util.find_spec(module) is None:
        folders = [] if home is None else home.submodule_search_locations
        known = [f"{family}/{each.name}" for each in pkgutil.iter_modules(folders)]
        near = difflib.get_close_matches(f"{family}/{name}", known, 3)
        hint = "expected 'pettingzoo:FAMILY/NAME', as 'pettingzoo:butterfly/pistonball_v6'"
        if near:
            hint = f"did you mean {' or '.join(repr(f'pettingzoo:{one}') for one in near)}?"
        raise ConfigurationError(
            f"environment.id = {settings.id!r}: PettingZoo has no {family}/{name}; {hint}"
        )
    return module


def _make(settings: Environment) -> Any:
    """A new environment; errors as `Agents`."""
    if settings.prefix:
        maker = _imported(settings)
    else:
        maker = load_object(settings.id, "environment.id")
    with user_errors(f"environment.id = {settings.id!r}: cannot be built"):
        return maker(**settings.options)


def _imported(settings: Environment) -> Any:
    module = _module(settings)
    try:
        return importlib.import_module(module).parallel_env
    except Exception as error:  # a family lacks what it is drawn or moved with
        said = describe_error(error)
        way = "" if "pip install" in said else f"; pip install 'pettingzoo[{module.split('.')[1]}]'"
        raise ConfigurationError(
            f"environment.id = {settings.id!r}: cannot be imported: {said}{way}"
        ) from error


def _spaces(
    environment: Any, settings: Environment
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """Those of every agent, the observations as a network can take them."""
    agents = environment.possible_agents
    for what in (environment.observation_space, environment.action_space):
        spaces = list(map(what, agents))
        for agent, space in zip(agents, spaces, strict=True):
            if space != spaces[0]:
                raise ConfigurationError(
                    f"environment.id = {settings.id!r}: the {what.__name__} of agent {agent} is "
                    f"{space}, that of {agents[0]} is {spaces[0]}: one policy cannot act for both; "
                    "make them alike (supersuit.pad_observations_v0, pad_action_space_v0)"
                )
    seen = environment.observation_space(agents[0])
    plain = isinstance(seen, gymnasium.spaces.Box) and bool(seen.shape)
    return seen if plain else FlatBox(seen), environment.action_space(agents[0])
