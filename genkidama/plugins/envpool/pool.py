"""EnvPool's environments, as a vectorized form of Gymnasium's kind. Needs no torch.

EnvPool (Weng et al., 2022, https://envpool.readthedocs.io) steps many environments in C++, in one
call. An environment begins anew in its step *after* an episode's end; here that step is taken at
once. Random numbers are EnvPool's own, and a seed counts only when a pool is made: a seed makes a
new one, which takes about a millisecond.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import warnings
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from genkidama._version import pip_install
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.runtime.import_strings import describe_error

Array = npt.NDArray[Any]

_INSTALL = pip_install("envpool")

#: EnvPool's options that follow from the number of lanes and the seed, or are EnvPool's own affair.
_NOT_THE_USERS = (
    "num_envs",
    "batch_size",
    "max_num_players",
    "seed",
    "env_seed",
    "base_path",
    "gym_reset_return_info",
    "reward_threshold",
)


class Pool(gymnasium.vector.VectorEnv[Array, Array, Array]):
    """`count` environments, each begun anew in the very step that ends its episode.

    They exist from the first `reset` on, and with them EnvPool's threads: before it, and after
    `close`, the process may fork. There is one thread, unless `environment.options` says otherwise:
    a child's processes are its parallelism.

    Raises:
        ConfigurationError: EnvPool is not installed, has no such environment or not with these
            options, or its observations or actions are not one array.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, settings: Environment, count: int) -> None:
        self._settings = settings
        self._envpool = _load_envpool(settings)
        spec = _spec(self._envpool, settings)
        self.num_envs = count
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bounds of float64 are cut to the space's float32
            self.single_observation_space = _with_bounds(spec.observation_space)
            self.single_action_space = spec.action_space
        states, actions = list(spec._state_keys), list(spec._action_keys)
        if "obs" not in states or len(actions) != 3 or spec.config.max_num_players != 1:
            raise ConfigurationError(
                f"environment.id = {settings.id!r}: its spaces are {spec.observation_space} and "
                f"{spec.action_space}; of EnvPool's environments, the ones with one array of "
                "observations and one of actions can be trained"
            )
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self._action_dtype = spec._action_spec[-1][0]
        self._observation, self._reward = states.index("obs"), states.index("reward")
        self._done, self._truncated = states.index("done"), states.index("trunc")
        self._lanes = np.arange(count, dtype=np.int32)
        self._pool: Any = None

    @staticmethod
    def check(settings: Environment) -> None:
        """Checks that EnvPool is installed. Whether it has the environment, children find out.

        Raises:
            ConfigurationError: it is not.
        """
        if importlib.util.find_spec("envpool") is None:
            raise ConfigurationError(
                f"environment.id = {settings.id!r}: needs EnvPool, which is not installed: "
                f"{_INSTALL}"
            )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begins an episode in each lane; lane i has `seed` + i, below 2³¹."""
        super().reset(seed=seed)
        if seed is not None or self._pool is None:
            free = 2**31 - self.num_envs
            first = int(self.np_random.integers(free)) if seed is None else seed
            self._pool = self._envpool.make_gymnasium(
                self._settings.plain_id,
                num_envs=self.num_envs,
                seed=list(range(first, first + self.num_envs)),
                **_options(self._settings),
            )
        return self._begin(self._lanes), {}

    def _begin(self, lanes: npt.NDArray[np.int32]) -> Array:
        self._pool._reset(lanes)
        begun: Array = self._pool._recv()[self._observation]
        return begun

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Takes one action in each lane, shape (lanes, …).

        Returns:
            Observations (lanes, …), rewards, terminated and truncated (lanes,), all of them new
            arrays. Where episodes ended, `"final_obs"` of the last value has their last
            observations at their lanes.
        """
        # `step` and `recv` sort the same arrays into dictionaries: a tenth of the time of 16 lanes.
        pool = self._pool
        pool._send([self._lanes, self._lanes, np.ascontiguousarray(actions, self._action_dtype)])
        state = pool._recv()
        observations, done = state[self._observation], state[self._done]
        truncated = state[self._truncated]
        infos: dict[str, Any] = {}
        if done.any():
            infos["final_obs"] = observations.copy()
            ended = np.flatnonzero(done).astype(np.int32)
            observations[ended] = self._begin(ended)
        return observations, state[self._reward], done & ~truncated, truncated, infos

    def close_extras(self, **_: Any) -> None:
        self._pool = None


def _load_envpool(settings: Environment) -> Any:
    """EnvPool's module, which takes a second and 110 MB."""
    Pool.check(settings)
    try:
        return importlib.import_module("envpool")
    except Exception as error:  # without its packages of assets it lacks folders
        raise ConfigurationError(
            f"environment.id = {settings.id!r}: importing EnvPool fails: "
            f"{describe_error(error)}; install all of it: {_INSTALL}"
        ) from error


def _options(settings: Environment) -> dict[str, Any]:
    return {"num_threads": 1} | settings.options


def _spec(envpool: Any, settings: Environment) -> Any:
    """EnvPool's specification of an environment with its options; no environment is made."""
    name, options = settings.plain_id, settings.options
    known = envpool.list_all_envs()
    if name not in known:
        near = difflib.get_close_matches(name, known, 3)
        hint = (
            f"did you mean {' or '.join(repr(f'envpool:{one}') for one in near)}?"
            if near
            else "its envpool.list_all_envs() names them"
        )
        raise ConfigurationError(
            f"environment.id = {settings.id!r}: EnvPool {envpool.__version__} does not know it; "
            f"{hint}"
        )
    own = [key for key in envpool.make_spec(name).config._fields if key not in _NOT_THE_USERS]
    problem = next(
        (f"{key!r} is no option of an experiment" for key in options if key in _NOT_THE_USERS), ""
    )
    limit = options.get("max_episode_steps", 1)
    if not problem and not (isinstance(limit, int) and limit >= 1):
        problem = f"max_episode_steps = {limit!r} is no number of steps"
    if not problem:
        try:
            return envpool.make_spec(name, num_envs=1, **_options(settings))
        except Exception as error:  # pybind's tells every type that there is, line by line
            said = (str(error) or type(error).__name__).splitlines()[0]
            problem = said.replace("Config.__new__()", "it")
            if "constructor arguments" in said:
                problem = "a value has the wrong type"
    raise ConfigurationError(
        f"environment.options = {options!r}: EnvPool's {name!r} cannot take them: {problem}; its "
        f"options: {', '.join(own)}; Gymnasium's, without 'envpool:', may have others"
    )


def _with_bounds(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """The space, unbounded where C++'s least *positive* and its largest number mean no bound."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype.kind != "f":
        return space
    range_ = np.finfo(space.dtype)
    return gymnasium.spaces.Box(
        np.where(space.low == range_.tiny, -np.inf, space.low).astype(space.dtype),
        np.where(space.high == range_.max, np.inf, space.high).astype(space.dtype),
        dtype=space.dtype.type,
    )
