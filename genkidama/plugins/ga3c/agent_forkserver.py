"""Where agents are born: a forkserver that has imported and tried the environment, and no torch.

This module is imported in the nursery, before any agent exists, and nowhere else.
"""

from __future__ import annotations

import genkidama.plugins.ga3c.agent  # noqa: F401  # every module that an agent needs
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_lanes

__all__ = ["warm_up"]


def warm_up(experiment: Experiment) -> None:
    """Does once what every agent will do: a step of its environment."""
    lanes = make_lanes(experiment.environment, 1)
    lanes.reset(0)
    lanes.step([lanes.action_space.sample()])
    lanes.close()
