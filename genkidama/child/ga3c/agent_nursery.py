"""Where agents are born: a forkserver that has imported and tried the environment, and no torch.

This module is imported in the nursery, before any agent exists, and nowhere else.
"""

from __future__ import annotations

import gc
import json
import os
from contextlib import suppress

import genkidama.child.ga3c.agent  # noqa: F401  # every module that an agent needs
from genkidama.child.forkserver import EXPERIMENT_VARIABLE, PRELOAD_VARIABLE
from genkidama.experiment import Experiment
from genkidama.learning.lanes import make_lanes

__all__: list[str] = []


def _warm_up(experiment: Experiment) -> None:
    """Does once what every agent will do: a step of its environment."""
    lanes = make_lanes(experiment.environment, 1)
    lanes.reset(0)
    lanes.step([lanes.action_space.sample()])
    lanes.close()


if os.environ.get(PRELOAD_VARIABLE) == __name__:
    with suppress(Exception):  # agents meet the same error and can report it
        _warm_up(Experiment.from_dict(json.loads(os.environ[EXPERIMENT_VARIABLE])))
    gc.collect()
    gc.freeze()
