"""One core in the process that measures or tests it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from genkidama.child.core import SingleCore
from genkidama.child.core_forkserver import layout_of
from genkidama.child.shared_memory import SharedMemory
from genkidama.child.worker import RECORD, WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model


@contextmanager
def single(
    settings: Experiment, index: int = 0, cores: int = 1
) -> Iterator[tuple[SingleCore, SharedMemory, Any]]:
    """A core, the memory it works on and the orchestrator's end of its pipe."""
    environment = make_environment(settings.environment)
    model = Model(settings, environment)
    layout = layout_of(settings, model)
    memory = SharedMemory(layout.for_cores(cores))
    memory.weights[:] = model.numbers
    ours, theirs = multiprocessing.Pipe()
    line = WorkerPipe(theirs, memory.stop, None)
    core = SingleCore(index, settings, memory, line, (1, 2, 3))
    core.collector.reset(0)
    core.pull()
    try:
        yield core, memory, ours
    finally:
        ours.close()
        theirs.close()
        memory.close()


def replay_of(core: SingleCore) -> Any:
    """The replay that a core's learner reads."""
    rollout: Any = SimpleNamespace()
    core._parts[0].prepare(rollout)
    return rollout.replay


def records(line: Any) -> list[tuple[int, float, int]]:
    found = []
    while line.poll():
        found.append(RECORD.unpack(line.recv_bytes()))
    return found
