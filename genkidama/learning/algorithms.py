"""Which learner `algorithm.name` names. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import Any

from genkidama.settings import Algorithm
from genkidama.system.plugs import load_plug

__all__ = ["ALGORITHMS", "learner_class"]

#: The class of each learner that has a name.
ALGORITHMS = {
    "a3c": "genkidama.learning.a3c:A3C",
    "ppo": "genkidama.learning.ppo:PPO",
    "dqn": "genkidama.learning.dqn:DQN",
    "vtrace": "genkidama.learning.off_policy:VTrace",
}


def learner_class(algorithm: Algorithm) -> Any:
    """The class of the learner.

    Raises:
        ConfigurationError: an import string that leads nowhere.
    """
    return load_plug(ALGORITHMS.get(algorithm.name, algorithm.name), "algorithm.name")
