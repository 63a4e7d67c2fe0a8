"""Which settings of `[algorithm]` which algorithm has, and what it needs beside them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.experiment import Experiment

__all__ = ["check_algorithm", "fitting"]

#: The algorithms that learn from samples of the replay tensor.
_OFF_POLICY = ("dqn", "vtrace")

#: The settings that some algorithms alone have. One of a user's own has all.
_OWN = {
    "epochs": ("ppo",),
    "minibatch_size": ("ppo", *_OFF_POLICY),
    "clip": ("ppo",),
    "start_steps": _OFF_POLICY,
    "batch_updates": _OFF_POLICY,
    "n_steps": _OFF_POLICY,
    "double": ("dqn",),
    "dueling": ("dqn",),
    "huber": ("dqn",),
    "target_updates": ("dqn",),
    "target_versions": ("dqn",),
}


def fitting(section: dict[str, Any], name: str) -> dict[str, Any]:
    """What of `[algorithm]` the algorithm of this name has."""
    return {
        key: value
        for key, value in section.items()
        if ":" in str(name) or name in _OWN.get(key, (name,))
    }


def check_algorithm(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks the settings as they were given, and those that an off-policy learner needs.

    Raises:
        ConfigurationError: a setting of another algorithm, or one without which nothing is learned.
    """
    algorithm, replay = experiment.algorithm, experiment.replay
    name = algorithm.name
    for key, value in given.get("algorithm", {}).items():
        if key not in fitting({key: value}, name):
            names = " or ".join(map(repr, _OWN[key]))
            raise ConfigurationError(
                f"{source}: algorithm.{key} = {value!r}: "
                f"only algorithm.name = {names} has this setting"
            )
    if replay.priority_exponent and not replay.steps:
        raise ConfigurationError(
            f"{source}: replay.priority_exponent = {replay.priority_exponent}: with "
            "replay.steps = 0 nothing is kept that could be drawn; set that, too"
        )
    if name not in _OFF_POLICY:
        return
    if experiment.sends_experience:
        raise ConfigurationError(
            f"{source}: algorithm.name = {name!r}: samples what its own child remembers, but with "
            "parent.rule = 'experience' children only act; take another parent.rule"
        )
    if not replay.steps:
        raise ConfigurationError(
            f"{source}: replay.steps = 0: {name!r} samples the replay tensor; set it to how many "
            "steps each core is to keep, with child.backend = 'hogwild'"
        )
    if algorithm.start_steps > replay.steps:
        raise ConfigurationError(
            f"{source}: algorithm.start_steps = {algorithm.start_steps}: at most replay.steps = "
            f"{replay.steps} is allowed, or a child with one core would never learn"
        )
    if name == "dqn" and not (algorithm.target_updates or algorithm.target_versions):
        raise ConfigurationError(
            f"{source}: algorithm.target_updates = 0: with target_versions = 0 too, θ⁻ would never "
            "follow θ; set one of them"
        )
