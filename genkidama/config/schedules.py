"""Settings that change during a run, as functions of its progress.

Progress is a number in [0, 1]: the used share of the run's strictest stop condition. The
parent computes it and every reply carries it, so all children anneal together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genkidama.config.sections import Algorithm, Optimizer

__all__ = ["SCHEDULES", "constant", "exploration", "learning_rate", "linear"]


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


def exploration(settings: Algorithm, progress: float, part: float) -> float:
    """ε when so much of the run is done.

    Args:
        part: the core's place among its child's, from 0, the first, to 1, the last.
    """
    epsilon = SCHEDULES[settings.epsilon_schedule](
        settings.epsilon, settings.final_epsilon, progress / settings.epsilon_fraction
    )
    result: float = epsilon ** (1.0 + settings.epsilon_spread * part)
    return result
