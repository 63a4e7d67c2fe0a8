"""Settings that change during a run, as functions of its progress.

Progress is a number in [0, 1]: the used share of the run's strictest stop condition. The
parent computes it and every reply carries it, so all children anneal together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment
    from genkidama.config.sections import Algorithm, Optimizer

#: Up to this many children, lanes and minibatches are as set; from twice as many on, half of it.
_FEW = 4.0


def constant(start: float, end: float, progress: float) -> float:
    """`start`, always."""
    return start


def linear(start: float, end: float, progress: float) -> float:
    """A straight line from `start` at progress 0 to `end` at progress 1."""
    return start + (end - start) * min(1.0, max(0.0, progress))


SCHEDULES = {"constant": constant, "linear": linear}


def learning_rate(settings: Optimizer, progress: float) -> float:
    """η when so much of the run is done."""
    return SCHEDULES[settings.schedule](
        settings.learning_rate, settings.final_learning_rate, progress / settings.schedule_fraction
    )


def exploration(settings: Algorithm, progress: float, version: float, part: float) -> float:
    """ε at this progress and version of θ_P; `part` is the core's place in its child, 0 to 1."""
    versions = settings.epsilon_versions
    done = version / versions if versions else progress / settings.epsilon_fraction
    epsilon = SCHEDULES[settings.epsilon_schedule](settings.epsilon, settings.final_epsilon, done)
    result: float = epsilon ** (1.0 + settings.epsilon_spread * part)
    return result


class Following(NamedTuple):
    """The settings that follow the number of children with `child.exchange = "chunk"`."""

    #: Environments that a core plays at once; not rounded.
    lanes: float
    minibatch_size: int
    #: Factor of the learning rate.
    rate: float


def following(experiment: Experiment, children: float) -> Following:
    """A child's settings while n children push; those that `experiment.adapts` lacks stay.

    A child's step counts η = min(1/2, 2/n) at the parent. The rate grows in proportion to 1/η and
    to the root of the minibatch, so that signal and noise of a sample are the same for any n, which
    is 0 if it is not known.
    """
    n = max(1.0, children)
    adapts = experiment.adapts
    share = min(1.0, max(0.5, _FEW / n))
    lanes = experiment.environment.lanes * (share if "lanes" in adapts else 1.0)
    minibatch = share if "minibatch_size" in adapts else 1.0
    rate = math.sqrt(minibatch) * max(1.0, n / _FEW) if "learning_rate" in adapts else 1.0
    return Following(lanes, round(experiment.algorithm.minibatch_size * minibatch), rate)
