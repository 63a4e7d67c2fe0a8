"""What a core or an agent says to its orchestrator, and how a core is started; needs no torch until a core runs."""

from __future__ import annotations

import struct
from multiprocessing.connection import Connection

from genkidama.child.memory import SharedMemory
from genkidama.experiment import Experiment

__all__ = [
    "EPISODE",
    "FAILED",
    "PROGRESS",
    "READY",
    "RECORD",
    "RECYCLED",
    "REPORT_STEPS",
    "start_core",
]

#: Kind, undiscounted return, steps since the last record. EPISODE: an episode has ended, with this return. PROGRESS: an
#: episode goes on. FAILED is followed by the reason. An empty message means: I wait at the semaphore.
RECORD = struct.Struct("<Bdq")
READY, EPISODE, FAILED, PROGRESS = range(4)

#: After so many steps of an episode that goes on there is a word about it: some last minutes.
REPORT_STEPS = 256

#: The exit code of a process that has grown by `capacity.GROWTH_BYTES` and asks to be replaced.
RECYCLED = 75


def start_core(
    index: int,
    experiment: Experiment,
    memory: SharedMemory,
    line: Connection,
    seed: tuple[int, ...],
) -> None:
    """The first function of a core process, which has come from the nursery with everything imported."""
    from genkidama.child.core import run_core

    run_core(index, experiment, memory, line, seed)
