"""How the children of one machine share its CPU cores and its memory."""

from __future__ import annotations

from genkidama.capacity import expected_cores
from genkidama.experiment import Experiment
from genkidama.system.machine import available_bytes, available_cores

__all__ = ["cores_of_each"]


def cores_of_each(experiment: Experiment, cores: int | None, children: int) -> int | None:
    """How many cores each child is told to use; None leaves it to the experiment."""
    if cores is not None or experiment.child.cores != "auto":
        return cores
    share = max(1, children)
    available = available_bytes()
    # A learner beside the parent takes a core, too.
    free = available_cores() - experiment.sends_experience
    return expected_cores(None if available is None else available // share, max(1, free // share))
