"""One core in the test's own process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from genkidama.child.core import SingleCore
from genkidama.child.memory import Layout, SharedMemory
from genkidama.child.process import RECORD, Line
from genkidama.child.replay import ReplayTensor
from genkidama.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.learning.optimizers import STATE_ROWS

__all__ = ["records", "single"]


@contextmanager
def single(
    settings: Experiment, index: int = 0, cores: int = 1
) -> Iterator[tuple[SingleCore, SharedMemory, Any]]:
    """A core, the memory it works on and the orchestrator's end of its pipe."""
    environment = make_environment(settings.environment)
    model = Model(settings, environment)
    memory = SharedMemory(
        Layout(
            cores=cores,
            steps=ReplayTensor.rows(
                settings.replay.steps, settings.algorithm.batch_size, settings.environment.lanes
            ),
            columns=ReplayTensor.columns(
                model.observation_size, model.head.columns, settings.replay.steps > 0
            ),
            size=model.signature.size,
            trainable=model.trainable,
            state_rows=STATE_ROWS[settings.optimizer.name],
            state_sets=1 if settings.optimizer.shared else cores,
        )
    )
    memory.weights[:] = model.numbers
    ours, theirs = multiprocessing.Pipe()
    line = Line(theirs, memory.stop, None)
    core = SingleCore(index, settings, memory, line, (1, 2, 3))
    core.collector.reset(0)
    core.pull()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a core's process has it
    try:
        yield core, memory, ours
    finally:
        torch.set_num_threads(threads)
        ours.close()
        theirs.close()
        memory.close()


def records(line: Any) -> list[tuple[int, float, int]]:
    found = []
    while line.poll():
        found.append(RECORD.unpack(line.recv_bytes()))
    return found
