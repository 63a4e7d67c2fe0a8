"""Where agents are born: a forkserver that has imported and tried the environment, and no torch."""

from __future__ import annotations

import gc
import json
import os
from contextlib import suppress
from typing import Any

from genkidama.child.forkserver import EXPERIMENT_VARIABLE, PRELOAD_VARIABLE

__all__: list[str] = []


def _warm_up(settings: dict[str, Any]) -> None:
    """Does once what every agent will do: imports, and a step of its environments."""
    from genkidama.child.ga3c import agent  # noqa: F401  # every module an agent needs
    from genkidama.experiment import Experiment
    from genkidama.learning.lanes import make_lanes

    lanes = make_lanes(Experiment.from_dict(settings).environment, 1)
    lanes.reset(0)
    lanes.step([lanes.action_space.sample()])
    lanes.close()


if os.environ.get(PRELOAD_VARIABLE) == __name__:
    with suppress(Exception):  # agents meet the same error and can report it
        _warm_up(json.loads(os.environ[EXPERIMENT_VARIABLE]))
    gc.collect()
    gc.freeze()
