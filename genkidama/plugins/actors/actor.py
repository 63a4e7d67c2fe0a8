"""One core that only acts: it fills blocks with the steps of its lanes, and learns nothing.

Laws of this file:
- Newer weights are taken over in the middle of a block. Every step says how probable its action was
  for those that chose it, so the learner can tell how old its policy is.
- A core plays as many lanes as its part of a push needs, at most `environment.lanes`. When that
  changes, all of them begin new episodes.
"""

from __future__ import annotations

import math
from multiprocessing.connection import Connection

import msgspec
import numpy as np
import torch

from genkidama.child.collector import Collector, CollectorContext, make_collector, make_slots
from genkidama.child.shared_memory import SharedMemory
from genkidama.child.worker import (
    GONE,
    READY,
    RECYCLED,
    BufferedPipe,
    MemoryGuard,
    WorkerPipe,
    run_worker,
)
from genkidama.config.experiment import Experiment
from genkidama.learning.model import Model
from genkidama.plugins.actors.learner import columns_of
from genkidama.plugins.actors.outbox import Outbox
from genkidama.protocol.diagnostics import Diagnostics
from genkidama.runtime.machine import forget_peak

__all__ = ["Actor", "part_of", "run_actor"]

#: Lanes stay as they are unless so many times more, or less, are wanted.
_MISFIT = 2.0

#: Steps of a lane, at least.
_LEAST_STEPS = 16


def part_of(experiment: Experiment, cores: int, steps: int, before: int) -> tuple[int, int]:
    """How many lanes a core plays in its next block, and how many steps of each.

    Lanes are a power of two, or all that there are, and change only where another number fits much
    better: a change costs unfinished episodes. Where even one lane is too much, it is shorter.

    Args:
        experiment: has L = `environment.lanes`, each with T = `batch_size` / L steps of a block.
        cores: of the child.
        steps: that a push should bring; 0 if nobody has said.
        before: lanes of the last block; 0 if there was none.
    """
    most = experiment.environment.lanes
    length = experiment.algorithm.batch_size // most
    wanted = steps / (cores * length) if steps else float(most)
    if not (before and before / _MISFIT <= wanted <= before * _MISFIT):
        before = min(most, 2 ** max(0, round(math.log2(wanted))))
    if before == 1:
        length = max(min(length, _LEAST_STEPS), min(length, round(wanted * length)))
    return before, length


class Actor:
    """The core number `index` of a child; arguments as for `SingleCore`."""

    def __init__(
        self,
        index: int,
        experiment: Experiment,
        memory: SharedMemory,
        line: WorkerPipe,
        seed: tuple[int, ...],
    ) -> None:
        self._experiment = experiment
        self._index = index
        self._memory = memory
        self._line = line
        element = memory.semaphore[index : index + 1]
        self._records = BufferedPipe(line.pipe, memory.stop, element, "block")
        self._sequence = np.random.SeedSequence(seed)
        self._places = make_slots(experiment)
        gradient = torch.from_numpy(memory.gradients[index])
        self.model = Model(experiment, self._places, gradient)
        self._shared = torch.from_numpy(memory.weights)
        self._lanes = 0
        #: Which θ_O it has, as `news` in the memory counts them.
        self._news = -1
        self._outbox = Outbox(
            memory,
            index,
            columns_of(self.model),
            self.model.observation_shape,
            experiment.algorithm.gamma,
            self._records,
        )
        self.collector: Collector

    def run(self) -> int:
        """Acts until the orchestrator ends it; returns the process' exit code."""
        guard = MemoryGuard()
        try:
            self._line.report(READY)
            while True:
                self._line.check()
                share = int(self._memory.share[0])
                lanes, length = part_of(self._experiment, self._cores, share, self._lanes)
                self.play(lanes)
                self.collector.collect(length)
                if guard.leaks():
                    return RECYCLED
        except GONE:
            return 0
        finally:
            self._places.close()

    @property
    def _cores(self) -> int:
        return len(self._memory.semaphore)

    def renew(self) -> bool:
        """θ_L ← θ_O, if that has come anew; whether it has."""
        news = int(self._memory.news[0])
        if news == self._news:
            return False
        self._news = news
        self.model.vector.copy_(self._shared)
        return True

    def play(self, lanes: int) -> None:
        """Blocks have so many lanes from now on."""
        if lanes == self._lanes:
            return
        self._lanes = lanes
        experiment = _with_lanes(self._experiment, lanes)
        self._places.close()
        self._places = make_slots(experiment)
        self._outbox.play(lanes)
        child = self._sequence.spawn(1)[0]
        draws = np.random.default_rng(child)
        ended = Diagnostics(self._memory.diagnostics[self._index]).ended
        kit = CollectorContext(
            self.model, self._outbox, self._records, draws, True, renew=self.renew, ended=ended
        )
        self.collector = make_collector(experiment, self._places, kit)
        self.collector.reset(int(child.generate_state(1)[0]) % 2**31)

    def rehearse(self) -> None:
        """Does once whatever takes memory: a block."""
        self._shared.copy_(self.model.vector)
        self.play(self._experiment.environment.lanes)
        self._outbox.rehearse()
        self._memory.sizes[:] = 0
        forget_peak()
        self.collector.collect(1)


def _with_lanes(experiment: Experiment, lanes: int) -> Experiment:
    """The same with so many lanes, whose trajectories are as long."""
    length = experiment.algorithm.batch_size // experiment.environment.lanes
    replace = msgspec.structs.replace
    return replace(
        experiment,
        environment=replace(experiment.environment, lanes=lanes),
        algorithm=replace(experiment.algorithm, batch_size=lanes * length),
    )


def run_actor(
    index: int,
    experiment: Experiment,
    memory: SharedMemory,
    pipe: Connection,
    seed: tuple[int, ...],
) -> None:
    """The life of an actor's process, from its fork to its exit code."""

    def life() -> int:
        torch.set_num_threads(1)
        line = WorkerPipe(pipe, memory.stop, None)
        return Actor(index, experiment, memory, line, seed).run()

    run_worker(pipe, life, len(memory.semaphore))
