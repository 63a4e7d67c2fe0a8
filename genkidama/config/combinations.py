"""Checks of settings that make no sense together: what no single setting's type can say. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from genkidama.config.dependent_defaults import ALGORITHMS_WITH, LANE_STEPS, applicable_settings
from genkidama.config.formatting import without_password
from genkidama.config.sections import CHUNKS
from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment

#: Values of `algorithm.name` that learn with a memory: those that learn from whole sequences.
REMEMBERING = ("a3c", "ppo", "vtrace")


def check_combination(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Raises a `ConfigurationError` with the first problem of these settings."""
    for problem in _problems(given, experiment):
        raise ConfigurationError(f"{source}: {problem}")


def _problems(given: dict[str, Any], experiment: Experiment) -> Iterator[str]:
    algorithm, environment = experiment.algorithm, experiment.environment
    child = experiment.child
    for key, value in given.get("algorithm", {}).items():
        if key not in applicable_settings({key: value}, algorithm.name):
            owners = " or ".join(map(repr, ALGORITHMS_WITH[key]))
            yield f"algorithm.{key} = {value!r}: only algorithm.name = {owners} has this setting"
    learns_itself = not experiment.sends_experience
    small = algorithm.minibatch_size > algorithm.batch_size
    if algorithm.name == "ppo" and small and learns_itself:
        yield (
            f"algorithm.minibatch_size = {algorithm.minibatch_size}: "
            f"at most algorithm.batch_size = {algorithm.batch_size} is allowed"
        )
    if experiment.network.memory:
        yield from _of_memory(experiment)
    elif algorithm.burn_in:
        yield (
            f"algorithm.burn_in = {algorithm.burn_in}: brings the state of a memory up "
            "to date, but network.memory = 0; set that, or take algorithm.burn_in out"
        )
    if environment.exclusive:
        yield from _of_exclusive(experiment)
    if environment.period:
        yield from _of_real_time(experiment)
    if environment.lanes > 1 and child.backend != "ga3c":
        yield from _of_lanes(experiment)
    if child.exchange == "chunk":
        yield from _of_chunk(experiment)
    if set(child.roles) != {"bundle"} and experiment.section("replay") is None:
        yield (
            f"child.roles = {list(child.roles)}: a replay for all children is of the "
            "plug-in 'gorila', which is not there; take the setting out"
        )
    on_policy = child.backend == "hogwild" and learns_itself and child.exchange != "chunk"
    other = algorithm.name in ("ppo", "dqn", "vtrace", "sac")
    if algorithm.vtrace and (other or on_policy):
        key, value = ("algorithm.name", algorithm.name) if other else ("child.backend", "hogwild")
        yield (
            "algorithm.vtrace = True: is for a3c with the backend ga3c, "
            "with child.exchange = 'chunk', or with parent.rule = 'experience', "
            f"but {key} = {value!r}"
        )
    if algorithm.vtrace and max(algorithm.epsilon, algorithm.final_epsilon):
        yield (
            "algorithm.vtrace = True: knows the policy's own actions only; "
            "set algorithm.epsilon and final_epsilon to 0"
        )
    if environment.wrappers and (environment.vectorized or environment.prefix):
        name = environment.wrappers[0].name
        cause = "environment.vectorized"
        if environment.prefix:
            cause = f"{environment.prefix + ':'!r} of environment.id"
        yield (
            f"environment.wrappers: {name!r} cannot be put around a vectorized environment; "
            f"take out {cause} or the wrappers"
        )
    if child.exchange == "free" and not child.exchange_seconds and not child.exchange_steps:
        yield (
            "child.exchange_seconds = 0: with exchange_steps = 0 too, "
            "a free child would never exchange; set one of them"
        )
    if experiment.parent.browsers and not experiment.sends_experience:
        yield (
            "parent.browsers = True: a browser acts and does not learn, but parent.rule "
            f"= {experiment.parent.rule!r}; set parent.rule = 'experience', or take browsers out"
        )
    if not experiment.parent.checkpoint_updates and not experiment.parent.checkpoint_seconds:
        yield (
            "parent.checkpoint_seconds = 0: with checkpoint_updates = 0 too, "
            "nothing would be saved on the way; set one of them"
        )


def _shared_by(experiment: Experiment) -> str:
    """The setting by which a core would have other than one environment; empty if none does."""
    environment = experiment.environment
    if environment.lanes > 1:
        return f"environment.lanes = {environment.lanes}: set it to 1"
    if environment.vectorized or environment.prefix:
        return "the environment is vectorized: take that out"
    if experiment.child.backend == "ga3c":
        return "child.backend = 'ga3c' has several agents: set it to 'hogwild'"
    return ""


def _of_memory(experiment: Experiment) -> Iterator[str]:
    """Problems of an experiment whose network has a memory."""
    cause = ""
    if experiment.algorithm.name not in REMEMBERING:
        known = ", ".join(map(repr, REMEMBERING))
        cause = f"algorithm.name = {experiment.algorithm.name!r}: take one of {known}"
    elif ":" in experiment.network.name:
        cause = f"network.name = {experiment.network.name!r}: take 'actor-critic' for instance"
    elif experiment.child.backend != "hogwild":
        cause = f"child.backend = {experiment.child.backend!r}: set it to 'hogwild'"
    elif experiment.shares_replay:
        cause = f"replay.url = {without_password(experiment.replay.url)!r}: set it to 'local'"
    if cause:
        yield (
            f"network.memory = {experiment.network.memory}: is impossible with {cause}, "
            "or network.memory to 0"
        )


def _of_exclusive(experiment: Experiment) -> Iterator[str]:
    """Problems of an experiment whose environment can be open once."""
    cores = experiment.child.cores
    cause = _shared_by(experiment)
    if not cause and cores not in ("auto", 1):
        cause = f"child.cores = {cores}: set it to 1"
    if cause:
        yield f"environment.exclusive = True: one core plays one environment, but {cause}"


def _of_real_time(experiment: Experiment) -> Iterator[str]:
    """Problems of an experiment whose environments have a clock."""
    environment = experiment.environment
    cause = _shared_by(experiment)
    if not cause and experiment.child.cores == "auto":
        cause = "child.cores = 'auto': set it to 1, or to how many there are at each child"
    if cause:
        yield (
            f"environment.period = {environment.period}: each core has one environment "
            f"with a clock, but {cause}"
        )
    if 0.0 < environment.safe_seconds <= environment.period:
        yield (
            f"environment.safe_seconds = {environment.safe_seconds}: an observation is "
            f"environment.period = {environment.period} old when the next action is due; set it to "
            "twice that, for instance"
        )
    if not environment.safe_action and (environment.safe_seconds or environment.offline_seconds):
        yield (
            "environment.safe_seconds, environment.offline_seconds: say when "
            "environment.safe_action is taken, which is not there; set it"
        )
    learns_itself = not experiment.sends_experience and experiment.child.backend == "hogwild"
    if environment.offline_seconds and learns_itself:
        yield (
            f"environment.offline_seconds = {environment.offline_seconds}: is for children that "
            "only act; one that learns itself goes on without its parent, and would learn from its "
            "safe actions; leave it out, or set parent.rule = 'experience'"
        )
    if environment.safe_action and not (environment.safe_seconds or environment.offline_seconds):
        yield (
            "environment.safe_action: is never taken; set environment.safe_seconds or, where "
            "children only act, environment.offline_seconds, or leave it out"
        )


def _of_chunk(experiment: Experiment) -> Iterator[str]:
    """Problems of an experiment whose children exchange after each chunk."""
    algorithm, lanes = experiment.algorithm, experiment.environment.lanes
    key = "child.exchange = 'chunk'"
    if experiment.pushes not in ("weights", "difference") or experiment.searches:
        cause = "a [search]" if experiment.searches else f"parent.rule = {experiment.parent.rule!r}"
        yield (
            f"{key}: averages weights, and {cause} does not; take another child.exchange, or "
            "parent.rule = 'blend'"
        )
    if experiment.child.backend == "ga3c" or set(experiment.child.roles) != {"bundle"}:
        yield (
            f"{key}: is for cores that act and learn; set child.backend to 'hogwild' and leave "
            "child.roles out"
        )
    if not algorithm.across_episodes:
        yield (
            f"{key}: a chunk does not end with its episode; set algorithm.across_episodes to true"
        )
    if algorithm.batch_size % (CHUNKS * lanes):
        yield (
            f"algorithm.batch_size = {algorithm.batch_size}: is no multiple of "
            f"{CHUNKS} chunks in environment.lanes = {lanes}; set it to {LANE_STEPS * lanes}, "
            "for instance"
        )


def _of_lanes(experiment: Experiment) -> Iterator[str]:
    lanes, algorithm = experiment.environment.lanes, experiment.algorithm
    key = f"environment.lanes = {lanes}"
    if not algorithm.across_episodes:
        yield (
            f"{key}: episodes in several lanes do not end together, "
            "but algorithm.across_episodes = False ends a batch with its episode; set it to true"
        )
    if algorithm.batch_size % lanes:
        divisible = max(1, algorithm.batch_size // lanes) * lanes
        yield (
            f"{key}: does not divide algorithm.batch_size = {algorithm.batch_size}; "
            f"set that to {divisible}, for instance"
        )
