"""What a core says to its orchestrator, and how it is started; needs no torch until a core runs."""

from __future__ import annotations

import struct
from multiprocessing.connection import Connection

from genkidama.child.memory import SharedMemory
from genkidama.experiment import Experiment

__all__ = ["EPISODE", "FAILED", "READY", "RECORD", "RECYCLED", "start_core"]

#: Kind, undiscounted return and length of the episode. An empty message means: I wait at the semaphore.
RECORD = struct.Struct("<Bdq")
READY, EPISODE, FAILED = range(3)

#: The exit code of a core that has grown too large and asks to be replaced.
RECYCLED = 75


def start_core(index: int, experiment: Experiment, memory: SharedMemory, line: Connection, seed: tuple[int, ...]) -> None:
    """The first function of a core process, which has come from the nursery with everything imported."""
    from genkidama.child.core import run_core

    run_core(index, experiment, memory, line, seed)
