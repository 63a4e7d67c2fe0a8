"""Actor: a core that only acts. It fills blocks with the steps of its lanes, and learns nothing.

Laws of this file:
- Newer weights are taken over in the middle of a block. Each step has the probability of its action
  under the weights that chose it, so the learner can tell how old its policy is.
- A core plays as many lanes as its part of a push needs, at most `environment.lanes`. When that
  changes, all of them begin new episodes.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import msgspec
import numpy as np

from genkidama.child.collector import (
    Collector,
    CollectorContext,
    Prepared,
    make_collector,
    make_slots,
)
from genkidama.child.core import SingleCore
from genkidama.child.shared_memory import SharedArray, SharedMemory
from genkidama.child.worker import RECYCLED, MemoryGuard, StopWorker, WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import Single, close, make_lanes
from genkidama.learning.forms import learner_class
from genkidama.learning.learners import reads_replay
from genkidama.learning.model import Model
from genkidama.plugins.actors.outbox import BufferedPipe, Outbox, block_arrays
from genkidama.plugins.actors.rule import columns_of
from genkidama.protocol.diagnostics import Diagnostics
from genkidama.runtime.import_strings import is_gymnasiums
from genkidama.runtime.machine import forget_peak

#: Lanes stay as they are unless this many times more, or fewer, are wanted.
_MISFIT = 2.0

#: The fewest steps of a lane.
_LEAST_STEPS = 16


def lanes_and_steps(
    experiment: Experiment,
    cores: int,
    steps: int,
    before: int,
    resting: float = 0.0,
    whole: bool = False,
) -> tuple[int, int]:
    """The lanes that a core plays in its next block, and the steps of each.

    Lanes are a power of two, or all that there are (L = `environment.lanes`), and change only if
    another number fits much better than the one before (0 if there was none): a change costs
    unfinished episodes. If even one lane is too much, it is shorter. `steps` are what a push of all
    cores should bring; 0 leaves them to the child. The share `resting` of L does not play. If the
    lanes are a `whole`, as the agents of an environment, all play always, and are shorter.
    """
    most = max(1, round(experiment.environment.lanes * (1.0 if whole else 1.0 - resting)))
    length = experiment.algorithm.batch_size // experiment.environment.lanes
    wanted = steps / (cores * length) if steps else float(most)
    if whole or wanted >= most:
        before = most
    elif not (before and before / _MISFIT <= wanted <= before * _MISFIT):
        before = min(most, 2 ** max(0, round(math.log2(wanted))))
    if whole or before == 1:
        length = max(min(length, _LEAST_STEPS), min(length, round(wanted * length / before)))
    return before, length


class Actor:
    """The core number `index` of a child: a `genkidama.child.core.Core`; arguments as there."""

    def __init__(
        self,
        index: int,
        experiment: Experiment,
        memory: SharedMemory,
        pipe: WorkerPipe,
        seed: tuple[int, ...],
        prepared: Prepared | None = None,
    ) -> None:
        self._experiment = experiment
        self._index = index
        self._memory = memory
        self._pipe = pipe
        element = memory.semaphore[index : index + 1]
        self._records = BufferedPipe(pipe.pipe, memory.stop, element, "block")
        self._sequence = np.random.SeedSequence(seed)
        slots, self._first = prepared or Prepared(make_slots(experiment))
        self._slots = slots
        #: All that are built, and may play again; None of a vectorized form.
        self._environments: list[Any] | None = None
        if isinstance(slots, gymnasium.Env):
            self._environments = [slots]
        elif isinstance(slots, Single):
            self._environments = slots.environments
        self.model = Model(experiment, self._slots, memory.gradients[index])
        self._lanes = 0
        #: The share of lanes that rested when it chose them.
        self._resting = 0.0
        #: Whether the learner knows how old a step's policy is by its probability.
        self._notes_log_mu = not reads_replay(learner_class(experiment.algorithm))
        #: The number of its θ_O, as `news` in the memory counts them.
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

    @classmethod
    def arrays(cls, experiment: Experiment, model: Model) -> dict[str, SharedArray]:
        batch = experiment.algorithm.batch_size
        return SingleCore.arrays(experiment, model) | block_arrays(batch, columns_of(model))

    def run(self) -> int:
        """Acts until the orchestrator ends it; returns the process' exit code."""
        guard = MemoryGuard()
        try:
            while True:
                self._pipe.check()
                share = int(self._memory.share[0])
                resting = float(self._memory.resting[0])
                before = self._lanes if resting == self._resting else 0
                self._resting = resting
                cores = len(self._memory.semaphore)
                whole = self._environments is None  # one object has all lanes
                lanes, length = lanes_and_steps(
                    self._experiment, cores, share, before, resting, whole
                )
                self.play(lanes)
                self.collector.collect(length)
                if guard.leaks(self._records.episodes):
                    return RECYCLED
        except StopWorker:
            return 0
        finally:
            self.close()

    def renew(self) -> bool:
        """θ_L ← θ_O, if that is newer; whether it was."""
        news = int(self._memory.news[0])
        if news == self._news:
            return False
        self._news = news
        self.model.numbers[:] = self._memory.weights
        return True

    def play(self, lanes: int) -> None:
        """Sets the lanes of further blocks."""
        if lanes == self._lanes:
            return
        self._lanes = lanes
        experiment = _with_lanes(self._experiment, lanes)
        self._take_slots(experiment)
        if experiment.environment.period:
            memory, index = self._memory, self._index
            self._slots.report(memory.cycles[index], memory.answered, memory.resetting[index])
        self._outbox.play(lanes)
        child = self._sequence.spawn(1)[0]
        draws = np.random.default_rng(child)
        diagnostics = Diagnostics(self._memory.diagnostics[self._index])
        context = CollectorContext(
            self.model,
            self._outbox,
            self._records,
            draws,
            diagnostics,
            self._notes_log_mu,
            renew=self.renew,
        )
        self.collector = make_collector(experiment, self._slots, context)
        first, self._first = self._first, None
        if lanes != self._experiment.environment.lanes:
            first = None
        self.collector.reset(int(child.generate_state(1)[0]) % 2**31, first)

    def _take_slots(self, experiment: Experiment) -> None:
        settings = experiment.environment
        if self._environments is None:
            return
        if (missing := settings.lanes - len(self._environments)) > 0:
            more: Any = make_lanes(settings, missing)
            self._environments += more.environments
        playing = self._environments[: settings.lanes]
        if is_gymnasiums(settings):  # quickly built again, and memory until then
            for each in self._environments[settings.lanes :]:
                each.close()
            self._environments = playing
        self._slots = playing[0] if settings.lanes == 1 else Single(playing)

    def close(self) -> None:
        close(*(self._environments or [self._slots]))

    def rehearse(self) -> None:
        """Fills all blocks, and acts once on an observation of zeros."""
        self._memory.weights[:] = self.model.numbers
        self._outbox.rehearse()
        forget_peak()
        self.model.network.acting()(np.zeros(self.model.observation_shape, np.float32))


def _with_lanes(experiment: Experiment, lanes: int) -> Experiment:
    """The same with other lanes, whose trajectories are as long."""
    length = experiment.algorithm.batch_size // experiment.environment.lanes
    replace = msgspec.structs.replace
    return replace(
        experiment,
        environment=replace(experiment.environment, lanes=lanes),
        algorithm=replace(experiment.algorithm, batch_size=lanes * length),
    )
