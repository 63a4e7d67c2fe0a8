"""Environments: made from `[environment]`, and stepped together. Imports no torch.

An environment is one of Gymnasium's, a plug-in's, or the user's, which is named by an import
string. Wrappers may be put around it, or its vectorized form may replace it.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, SupportsFloat, TypeAlias

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from genkidama._version import pip_install
from genkidama.config.plugin import find
from genkidama.config.sections import Environment, Wrapper
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.actions import ActionMask, has_masks
from genkidama.learning.observations import WAY_OUT, Flat, FlatBox
from genkidama.learning.real_time import RealTime, keeps_time
from genkidama.runtime.import_strings import (
    describe_error,
    environment_spec,
    is_gymnasiums,
    is_import_string,
    load_object,
    load_wrapper,
    vectorized_spec,
)

Array = npt.NDArray[Any]

#: Gymnasium's package of environments with Box2D, and the module of each.
_BOX2D = "gymnasium.envs.box2d"
_BOX2D_MODULES = {
    "BipedalWalker": "bipedal_walker",
    "BipedalWalkerHardcore": "bipedal_walker",
    "CarRacing": "car_racing",
    "LunarLander": "lunar_lander",
    "LunarLanderContinuous": "lunar_lander",
}

#: Options of vectorized forms about computing, which change no result.
THREADS = ("num_threads", "thread_affinity_offset")


#: Looks at an environment as it is built, before anything is put around it. It may raise.
Check: TypeAlias = Callable[[Environment, "gymnasium.Env[Any, Any]"], None]


def make_environment(
    settings: Environment, *, lean: bool = False, check: Check | None = None
) -> gymnasium.Env[Any, Any]:
    """One environment with its wrappers. It is not rendered, and its steps are not checked.

    Args:
        lean: whether Gymnasium's lander may be ours, which gives the same bits in less time.
        check: is shown a single environment.

    Raises:
        ConfigurationError: it does not exist, does not accept `environment.options`, or cannot be
            built; or the same is true of a wrapper.
    """
    environment = bare_environment(settings, lean=lean)
    if check is not None:
        check(settings, environment)
    return adapted(environment, settings)


def bare_environment(
    settings: Environment, *, lean: bool = False, made: Any = None
) -> gymnasium.Env[Any, Any]:
    """The same with the user's own wrappers alone, around what their own callable has `made`, if it
    was called already."""
    if settings.prefix:
        maker = find("environments", settings.prefix)
        if hasattr(maker, "single"):
            single: gymnasium.Env[Any, Any] = maker.single(settings)
            return single
    if settings.vectorized or settings.prefix:
        return _OneOfMany(make_vectorized(settings, 1))
    environment = _made(settings, 1, lean) if made is None else made
    if isinstance(environment, VectorEnv):
        _refuse_wrappers(settings)
        return _OneOfMany(_checked(environment, settings, 1))
    if (agents := _agents(environment)) is not None:
        environment = agents.single(settings, environment)
    if not isinstance(environment, gymnasium.Env):
        raise ConfigurationError(
            f"environment.id = {settings.id!r}: gives a {type(environment).__name__}, "
            f"expected a gymnasium.Env{_way_to_gymnasium(environment)}"
        )
    for position, wrapper in enumerate(settings.wrappers):
        environment = _wrapped(environment, wrapper, f"environment.wrappers[{position}]")
    return environment


def _made(settings: Environment, count: int, lean: bool = False) -> Any:
    """The product of `environment.id`. A callable that takes `num_envs` is given this count."""
    try:
        if is_import_string(settings.id):
            maker = load_object(settings.id, "environment.id")
            return maker(**_vector_options(maker, count) | settings.options)
        else:
            spec = environment_spec(settings.id)  # imports what registers it
            if str(spec.entry_point).startswith(_BOX2D):
                _import_box2d()
            environment = gymnasium.make(settings.id, disable_env_checker=True, **settings.options)
            if lean and "gymnasium.envs.box2d.lunar_lander" in sys.modules:
                from genkidama.learning.lander import make_lean

                make_lean(environment)
            return environment
    except ConfigurationError:
        raise
    except Exception as error:  # an environment may raise anything; the setting names it
        raise _cannot_be_built(settings, error) from error


def _vector_options(maker: Any, count: int) -> dict[str, Any]:
    """The arguments of a user's callable that makes several environments at once; {} of another."""
    accepted: Any = {}
    with suppress(TypeError, ValueError):  # it has no signature
        accepted = inspect.signature(maker).parameters
    if "num_envs" not in accepted:
        return {}
    if "autoreset_mode" not in accepted:
        return {"num_envs": count}
    from gymnasium.vector import AutoresetMode  # since Gymnasium 1.1

    return {"num_envs": count, "autoreset_mode": AutoresetMode.SAME_STEP}


def _agents(made: Any) -> Any:
    """The maker of lanes from an environment of several agents; None for any other object."""
    if any(kind.__module__.startswith("pettingzoo.") for kind in type(made).__mro__):
        return find("environments", "pettingzoo")
    return None


def _way_to_gymnasium(made: Any) -> str:
    if any(kind.__module__.partition(".")[0] == "gym" for kind in type(made).__mro__):
        return (
            ", and is one of the old package gym: write `import gymnasium as gym` in its module, "
            "or return shimmy.GymV26CompatibilityV0(env=…) (GymV21… if its step gives four "
            "values) from a function: pip install shimmy"
        )
    return "; derive its class from gymnasium.Env" if hasattr(made, "step") else ""


def _refuse_wrappers(settings: Environment) -> None:
    if settings.wrappers:
        raise ConfigurationError(
            f"environment.wrappers: {settings.wrappers[0].name!r} cannot be put around several "
            f"environments at once, which {settings.id!r} makes; put it around each of them there"
        )


def adapted(environment: gymnasium.Env[Any, Any], settings: Environment) -> gymnasium.Env[Any, Any]:
    """The environment in our own wrappers: its mask, its observations, its clock.

    Raises:
        ConfigurationError: its observations or masks cannot be used, or its clock not be kept.
    """
    environment = ActionMask.around(environment, settings.action_mask == "info")
    environment = Flat.around(environment)
    if settings.period:
        environment = RealTime(environment, settings)
    elif keeps_time(environment):
        raise ConfigurationError(
            f"environment.period = 0: {settings.id!r} cannot be paused; set it to the seconds from "
            "one of its steps to the next"
        )
    if (cv2 := sys.modules.get("cv2")) is not None:
        # OpenCV's threads would compete with the other cores' processes. And the threads of a
        # forkserver do not survive in its forks.
        cv2.setNumThreads(1)
    return environment


def import_environment(settings: Environment) -> None:
    """Imports all that builds this environment, and builds none.

    Raises:
        ConfigurationError: it, or a wrapper, does not exist.
    """
    if settings.prefix:
        find("environments", settings.prefix)
    elif is_import_string(settings.id):
        load_object(settings.id, "environment.id")
    else:
        spec = environment_spec(settings.id)
        made_by = spec.vector_entry_point if settings.vectorized else spec.entry_point
        if str(made_by).startswith(_BOX2D):
            _import_box2d()
        if isinstance(made_by, str):
            load_env_creator(made_by)
        if "gymnasium.envs.box2d.lunar_lander" in sys.modules:
            import_module("genkidama.learning.lander")
    for position, wrapper in enumerate(settings.wrappers):
        load_wrapper(wrapper, f"environment.wrappers[{position}]")


def make_vectorized(settings: Environment, count: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """`count` environments in their own vectorized form.

    Each begins anew in the very step that ends its episode. Where that form has threads it gets
    one, unless `environment.options` says otherwise: a child's processes are its parallelism.

    Raises:
        ConfigurationError: it does not exist, does not accept `environment.options`, cannot be
            built, has no vectorized form, or has one that begins anew at another time.
    """
    if settings.action_mask == "info":
        raise ConfigurationError(
            "environment.action_mask = 'info': a vectorized form has no masks; play several with "
            "environment.lanes"
        )
    environments: Any
    if settings.prefix:
        environments = find("environments", settings.prefix)(settings, count)
        assert isinstance(environments, VectorEnv)
        return environments
    if is_import_string(settings.id):
        environments = _made(settings, count)
        if isinstance(environments, VectorEnv):
            return _checked(environments, settings, count)
        raise ConfigurationError(
            f"environment.vectorized = True: {settings.id!r} gives a "
            f"{type(environments).__name__}, expected a gymnasium.vector.VectorEnv; set it to false"
        )
    try:
        from gymnasium.vector import AutoresetMode  # since Gymnasium 1.1

        entry_point = vectorized_spec(settings).vector_entry_point
        accepted = inspect.signature(
            entry_point if callable(entry_point) else load_env_creator(entry_point)
        ).parameters
        ours: dict[str, Any] = {"num_threads": 1, "autoreset_mode": AutoresetMode.SAME_STEP}
        options = {key: value for key, value in ours.items() if key in accepted} | settings.options
        environments = gymnasium.make_vec(
            settings.id, num_envs=count, vectorization_mode="vector_entry_point", **options
        )
    except ConfigurationError:
        raise
    except Exception as error:  # as above
        raise _cannot_be_built(settings, error) from error
    mode = environments.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.SAME_STEP:
        found = getattr(mode, "name", mode)
        raise ConfigurationError(
            f"environment.vectorized = True: the vectorized form of {settings.id!r} has the "
            f"autoreset mode {found}, expected SAME_STEP; set it to false"
        )
    same_step: VectorEnv[Any, Any, Any] = environments
    return same_step


def _checked(environments: Any, settings: Environment, count: int) -> VectorEnv[Any, Any, Any]:
    """The user's own environments in one object, if they can be `count` lanes."""
    found = environments.num_envs
    if count not in (1, found):
        raise ConfigurationError(
            f"environment.lanes = {count}: {settings.id!r} makes {found} environments at once; set "
            f"it to {found}, or let the callable take their number as `num_envs`"
        )
    mode = environments.metadata.get("autoreset_mode")
    if getattr(mode, "name", "") == "DISABLED":
        raise ConfigurationError(
            f"environment.id = {settings.id!r}: has the autoreset mode DISABLED, expected SAME_STEP"
        )
    if type(environments) is SyncVectorEnv:
        with suppress(ImportError):  # before Gymnasium 1.1 there was one mode
            from gymnasium.vector import AutoresetMode

            environments.autoreset_mode = AutoresetMode.SAME_STEP
    masked = has_masks(environments.single_observation_space, environments.single_action_space)
    if masked or settings.action_mask == "info":
        raise ConfigurationError(
            f"environment.id = {settings.id!r}: makes several environments in one object, which "
            "has no action masks; let it return one of them, and set environment.lanes"
        )
    checked: VectorEnv[Any, Any, Any] = environments
    return checked


def as_number(reward: Any) -> float:
    """A reward as a number, also where an array or a list holds that one number.

    Raises:
        EnvironmentFailure: it is none.
    """
    with suppress(TypeError, ValueError):
        (number,) = np.asarray(reward).reshape(-1).tolist()
        return float(number)
    raise EnvironmentFailure(
        f"the environment gave the reward {reward!r}, expected a number; {WAY_OUT}"
    )


def played(settings: Environment, name: str | None = None) -> Environment:
    """The environment that a policy is evaluated in.

    It is the one that it was trained in. But in place of a plug-in's environment it is Gymnasium's
    of the same id, if Gymnasium knows that id.

    Args:
        name: the id of another environment, which is taken whatever it is.
    """
    if name is None and settings.prefix:
        with suppress(ConfigurationError):
            name = environment_spec(settings.plain_id).id
    result = settings if name is None else msgspec.structs.replace(settings, id=name)
    if not settings.prefix or result.prefix:
        return result
    options = {key: value for key, value in settings.options.items() if key not in THREADS}
    return msgspec.structs.replace(result, options=options, vectorized=False)


def _import_box2d() -> None:
    """Imports Gymnasium's package of environments with Box2D, but none of its modules.

    The package itself imports all of them. One needs pygame, which only draws in the others, and
    takes 35 MB of the disk, and 6 MB and 40 ms of each process.
    """
    if _BOX2D in sys.modules:
        return
    spec = importlib.util.find_spec(_BOX2D)
    assert spec is not None
    package = importlib.util.module_from_spec(spec)

    def load(name: str) -> Any:
        if name not in _BOX2D_MODULES:
            raise AttributeError(f"module {_BOX2D!r} has no attribute {name!r}")
        return getattr(import_module(f"{_BOX2D}.{_BOX2D_MODULES[name]}"), name)

    package.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[_BOX2D] = gymnasium.envs.box2d = package


def _wrapped(
    environment: gymnasium.Env[Any, Any], wrapper: Wrapper, key: str
) -> gymnasium.Env[Any, Any]:
    kind = load_wrapper(wrapper, key)
    try:
        wrapped: gymnasium.Env[Any, Any] = kind(environment, **wrapper.options)
    except Exception as error:  # a wrapper may raise anything: some look only now at what is inside
        problem = f"cannot be put around {environment}: {describe_error(error)}"
        raise ConfigurationError(
            f"{key} = {wrapper.name!r}: options = {wrapper.options!r}: {problem}"
        ) from error
    return wrapped


def _cannot_be_built(settings: Environment, error: Exception) -> ConfigurationError:
    problem = f"cannot be built: {describe_error(error)}"
    if isinstance(error, gymnasium.error.DependencyNotInstalled) and "box2d" in str(error).lower():
        extra, package = ("play", "pygame") if "pygame" in str(error) else ("lander", "Box2D")
        problem = f"needs {package}, which is not installed: {pip_install(extra)}"
    return ConfigurationError(f"environment.id = {settings.id!r}: {problem}")


#: One step of every lane: the observations to go on from, the rewards, which lanes terminated,
#: which were truncated, and the last observation of each episode that ended. Where an episode
#: ended, the observation to go on from is the first of the next one. A vectorized form gives arrays
#: where the others give lists.
Step: TypeAlias = tuple[
    list[Array] | Array,
    list[SupportsFloat] | Array,
    list[bool] | Array,
    list[bool] | Array,
    dict[int, Array],
]


#: If the first of several environments is not built after this time, the others are built
#: meanwhile, in threads.
_SLOW_SECONDS = 1.0


def make_lanes(settings: Environment, count: int, check: Check | None = None) -> Lanes:
    """`count` environments, in a vectorized form if a plug-in makes them or it is asked for.

    Raises:
        ConfigurationError: as `make_environment`.
    """
    if settings.vectorized or settings.prefix:
        return _Vectorized(make_vectorized(settings, count), count)
    made, others = _built_together(settings, count)
    if isinstance(made, VectorEnv):
        _refuse_wrappers(settings)
        return _Vectorized(_checked(made, settings, count), count)
    if (agents := _agents(made)) is not None:
        _refuse_wrappers(settings)
        return _Vectorized(agents(settings, count, made), count)
    first = bare_environment(settings, lean=True, made=made)
    if check is not None:
        check(settings, first)
    return Single([adapted(first, settings), *others])


def _built_together(settings: Environment, count: int) -> tuple[Any, list[gymnasium.Env[Any, Any]]]:
    """The product of `environment.id`, and the environments beside it, unless it is all of them."""
    if is_gymnasiums(settings):  # quickly built, and threads take memory
        made = _made(settings, count, lean=True)
        return made, [make_environment(settings, lean=True) for _ in range(count - 1)]
    others: list[Future[gymnasium.Env[Any, Any]]] = []
    first_is_built = threading.Event()

    def build_others() -> None:
        if not first_is_built.wait(_SLOW_SECONDS):
            others.extend(threads.submit(make_environment, settings, lean=True) for _ in rest)

    rest = range(1, count)
    with ThreadPoolExecutor(count) as threads:
        made_at_once = is_import_string(settings.id) and _vector_options(
            load_object(settings.id, "environment.id"), 1
        )
        if rest and not made_at_once:
            threads.submit(build_others)
        try:
            made = _made(settings, count, lean=True)
        finally:
            first_is_built.set()
    # Some can only be built by the main thread, as what takes signals.
    built = [each.result() for each in others if each.exception() is None]
    if isinstance(made, VectorEnv) or _agents(made) is not None:
        for each in built:
            each.close()
        return made, []
    while len(built) < count - 1:
        built.append(make_environment(settings, lean=True))
    return made, built


def _first_seed(seed: int, count: int) -> int:
    """The first of `count` consecutive seeds below 2³¹, far from those of neighbouring `seed`s."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0]) % (2**31 - count)


def close(*environments: Any) -> None:
    """Closes environments. An error there is said, and ends nothing: it would hide another one."""
    for each in environments:
        try:
            each.close()
        except Exception as error:
            print(f"close() of an environment: {describe_error(error)}", file=sys.stderr)


@contextmanager
def closing_environment(environment: Any) -> Iterator[Any]:
    """As `contextlib.closing`, by `close`."""
    try:
        yield environment
    finally:
        close(environment)


class Single:
    """Single environments, numbered from 0 and stepped one after the other. Each begins anew in the
    very step that ends its episode."""

    #: Whether `step` may be given the actions of the first lanes alone; the others then rest.
    may_rest = True

    def __init__(self, environments: list[gymnasium.Env[Any, Any]]) -> None:
        self.count = count = len(environments)
        #: The spaces of one of them.
        self.observation_space = environments[0].observation_space
        self.action_space = environments[0].action_space
        self.environments = environments
        self._steps = [(lane, environment.step) for lane, environment in enumerate(environments)]
        # Filled anew in each step: new lists would cost a fast environment several per cent.
        self._result: Step = (
            [np.empty(0)] * count,
            [0.0] * count,
            [False] * count,
            [False] * count,
            {},
        )

    def reset(self, seed: int) -> list[Array]:
        """The first observations. Each lane has a seed of its own, which follows from this one."""
        first = _first_seed(seed, self.count)
        return [each.reset(seed=first + i)[0] for i, each in enumerate(self.environments)]

    def step(self, actions: list[Any]) -> Step:
        """Takes one action in each lane. Of those that rest, the result says nothing.

        What it returns is good until the next step, which may overwrite all of it.
        """
        result = observations, rewards, terminations, truncations, finals = self._result
        finals.clear()
        for (lane, step), action in zip(self._steps, actions, strict=False):
            observation, reward, terminated, truncated, _ = step(action)
            try:
                rewards[lane] = float(reward)
            except TypeError:
                rewards[lane] = as_number(reward)
            terminations[lane] = terminated
            truncations[lane] = truncated
            if terminated or truncated:
                finals[lane] = np.array(observation)  # the next one may overwrite it
                observation, _ = self.environments[lane].reset()
            observations[lane] = observation
        return result

    def close(self) -> None:
        close(*self.environments)


class _Vectorized:
    """As `Single`, environments in their own vectorized form, which steps them in one call."""

    may_rest = False

    def __init__(self, environments: VectorEnv[Any, Any, Any], count: int) -> None:
        self.count = count
        space = environments.single_observation_space
        #: Makes an observation of a lane one that a network can take; None if it is that.
        self._join: Callable[[Any], Array] | None = None
        if not (isinstance(space, gymnasium.spaces.Box) and space.shape):
            space = FlatBox(space)
            self._join = space.join
        self.observation_space: gymnasium.Space[Any] = space
        self.action_space = environments.single_action_space
        self._environments = environments
        self._same_step = _begins_in_the_last_step(environments)
        self._batch = _batching(environments)

    def _joined(self, observations: Any) -> Array | list[Array]:
        """Those of each lane."""
        if self._join is not None:
            rows = iterate(self._environments.observation_space, observations)
            return [self._join(row) for row in rows]
        found: Array = observations
        return found

    def reset(self, seed: int) -> Array | list[Array]:
        return self._joined(self._environments.reset(seed=_first_seed(seed, self.count))[0])

    def step(self, actions: list[Any]) -> Step:
        seen, rewards, terminated, truncated, infos = self._environments.step(self._batch(actions))
        observations = self._joined(seen)
        finals, last = {}, _last_observations(infos)
        for lane in np.flatnonzero(terminated | truncated).tolist():
            if last is not None:
                final = _of_lane(last, lane)
                finals[lane] = final if self._join is None else self._join(final)
            elif self._same_step and truncated[lane]:
                raise EnvironmentFailure(_NO_LAST_OBSERVATION)
            elif lane < self.count:
                # It begins anew in the next step, whatever the action: what is seen now counts as
                # the beginning of the next episode, too.
                finals[lane] = np.array(observations[lane])
        return observations, rewards, terminated, truncated, finals

    def close(self) -> None:
        self._environments.close()


Lanes: TypeAlias = Single | _Vectorized


def _begins_in_the_last_step(environments: VectorEnv[Any, Any, Any]) -> bool:
    """True if they say that the step which ends an episode begins the next one."""
    # ALE writes its mode into what all classes share; then nobody's own is known.
    own = environments.metadata is not VectorEnv.metadata
    mode = environments.metadata.get("autoreset_mode") if own else None
    return getattr(mode, "name", "") == "SAME_STEP"


_NO_LAST_OBSERVATION = (
    "the environments begin anew in the step that truncates an episode (autoreset_mode SAME_STEP), "
    "and do not give its last observation; let them give it in infos['final_obs']"
)


def _batching(environments: VectorEnv[Any, Any, Any]) -> Callable[[list[Any]], Any]:
    """A function from the actions of the first lanes to what the environments take: the others get
    the first one's, too."""
    space, count = environments.single_action_space, environments.num_envs
    dtype = environments.action_space.dtype

    def batch(actions: list[Any]) -> Any:
        if len(actions) < count:
            actions = [*actions, *actions[:1] * (count - len(actions))]
        if space.shape is None:  # a Tuple or Dict
            room: Any = create_empty_array(space, count)
            return concatenate(space, actions, room)
        return np.asarray(actions, dtype)

    return batch


def _last_observations(infos: dict[str, Any]) -> Any:
    """Those of episodes that ended in a step which began the next, by the newer or the older key of
    Gymnasium's vectorized environments; None without any."""
    return infos.get("final_obs", infos.get("final_observation"))


def _of_lane(final: Any, lane: int) -> Any:
    """The last observation of a lane; of a Dict, Gymnasium gives a dictionary of all lanes."""
    if not isinstance(final, dict):
        return final[lane]
    return {key: _of_lane(part, lane) for key, part in final.items() if not key.startswith("_")}


class _OneOfMany(gymnasium.Env[Array, Any]):
    """A vectorized form of one environment as a plain environment.

    The step that ends an episode returns its last observation; the first of the next one, which the
    same step has made already, is kept for `reset`.
    """

    def __init__(self, environments: VectorEnv[Any, Any, Any]) -> None:
        self._environments = environments
        #: Environments that it has at once; the first one is played.
        self.lanes_at_once = environments.num_envs
        self.observation_space = environments.single_observation_space
        self.action_space = environments.single_action_space
        self._same_step = _begins_in_the_last_step(environments)
        self._batch = _batching(environments)
        self._begun: Array | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        observation, self._begun = self._begun, None
        if observation is None or seed is not None:
            below = None if seed is None else seed % 2**31  # ALE's takes no larger ones
            seen = self._environments.reset(seed=below, options=options)[0]
            observation = self._first(seen)
        return observation, {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        seen, rewards, terminated, truncated, infos = self._environments.step(self._batch([action]))
        observation = self._first(seen)
        last = _last_observations(infos)
        if (terminated[0] or truncated[0]) and last is not None:
            observation, self._begun = _of_lane(last, 0), observation
        elif truncated[0] and self._same_step:
            raise EnvironmentFailure(_NO_LAST_OBSERVATION)
        return observation, float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def _first(self, seen: Any) -> Any:
        if isinstance(seen, np.ndarray):
            return seen[0]
        return next(iter(iterate(self._environments.observation_space, seen)))

    def close(self) -> None:
        self._environments.close()
