"""The default stop condition: the mean return that counts as solved."""

from __future__ import annotations

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.runtime.import_strings import check_environment, environment_spec, is_import_string


def default_threshold(settings: Environment) -> float | None:
    """The mean return from which on Gymnasium calls the task solved, if it says so."""
    name = settings.plain_id
    if is_import_string(name):
        return None
    try:
        threshold: float | None = environment_spec(name).reward_threshold
    except (ConfigurationError, ImportError):
        return None
    return threshold


def prepare(experiment: Experiment) -> tuple[Experiment, str]:
    """Checks the environment, and sets a stop condition: the first step of each start."""
    check_environment(experiment)
    return with_default_stop(experiment)


def with_default_stop(experiment: Experiment) -> tuple[Experiment, str]:
    """The experiment with a stop condition, and a sentence about that.

    If `[stop]` has a condition, or there is a `[search]`, it stays as it is and the sentence is
    empty.
    """
    stop = experiment.stop
    limits = (stop.mean_return, stop.updates, stop.episodes, stop.steps, stop.seconds)
    if experiment.searches or any(limit is not None for limit in limits):
        return experiment, ""
    goal = experiment.solved
    if goal is None:
        goal = default_threshold(experiment.environment)
    if goal is None:
        return experiment, (
            "without a [stop] this run never ends, since nobody says when "
            f"{experiment.environment.id} counts as solved; "
            "end it with Ctrl-C, or give --set stop.seconds=600"
        )
    return experiment.with_settings({"stop.mean_return": goal}), (
        f"without a [stop] this run ends when the mean return over {stop.window} episodes "
        f"reaches {goal:g}, where {experiment.environment.id} counts as solved"
    )
