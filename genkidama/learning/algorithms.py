"""Which learner `algorithm.name` names. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import Any

from genkidama.config.sections import Algorithm
from genkidama.runtime.import_strings import load_object

__all__ = ["ALGORITHMS", "learner_class"]

#: The class of each learner that has a name.
ALGORITHMS = {
    "a3c": "genkidama.learning.a3c:A3C",
    "ppo": "genkidama.learning.ppo:PPO",
    "dqn": "genkidama.plugins.gorila.dqn:DQN",
    "vtrace": "genkidama.plugins.gorila.off_policy:VTrace",
}


def learner_class(algorithm: Algorithm) -> Any:
    """The class of the learner.

    Raises:
        ConfigurationError: an import string that leads nowhere.
    """
    return load_object(ALGORITHMS.get(algorithm.name, algorithm.name), "algorithm.name")
