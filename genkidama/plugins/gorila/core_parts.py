"""Parts of a core for learners off their policy: replay and target network (hook `core_parts`).

Laws of this file:
- A replay is the child's own, a ring in its shared memory, or that of all children, in an engine.
- θ⁻ is in the child's shared memory. It outlives cores, and is the same for all of them.
- Each core that finds θ⁻ due copies θ_O. Two may do so at once, with the same result except for
  what a third has learned meanwhile.
- Or θ⁻ follows θ_O: after each update of a core it moves a little towards it.
- θ⁻ ages by the child's updates, by versions of the parent, or by both. A parent whose version has
  gone back, and weights that were reset, begin a new age.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from genkidama.child.collector import CollectedBatch, CollectorContext
from genkidama.child.core import CorePart, SingleCore
from genkidama.child.shared_memory import BatchSink, RolloutSink, SharedArray, SharedMemory
from genkidama.child.worker import PROGRESS
from genkidama.config.experiment import Experiment
from genkidama.learning.demonstrations import DemonstrationReplay, MixedReplay, check_fits, load
from genkidama.learning.forms import learner_class
from genkidama.learning.model import Model, Spaces
from genkidama.learning.optimizers import follow
from genkidama.learning.rollout import Replay, Rollout
from genkidama.plugins.gorila.global_replay import (
    EngineRing,
    GlobalReplay,
    GlobalReplayWriter,
    ring_settings,
)
from genkidama.plugins.gorila.redis_client import RedisClient
from genkidama.plugins.gorila.replay_tensor import ReplayTensor, RingSegment, ring_arrays
from genkidama.plugins.gorila.sampling import LocalReplay, SumTrees, nodes_of

#: Bytes of the replay that a core rehearses with instead of that of all children.
_REHEARSED_BYTES = 16_000_000

#: A core that only learns reports that it lives after this many empty batches.
_REPORT_BATCHES = 64


def _demonstrations(experiment: Experiment) -> tuple[str, ...]:
    """Files that a core draws steps from; none if it only acts."""
    return () if experiment.role == "act" else experiment.algorithm.demonstrations


class ReplayPart(CorePart):
    """The replay of an experiment with `replay.steps`."""

    def __init__(self, core: SingleCore) -> None:
        writer = "/".join(map(str, (*core.seed[1:2], core.index)))

        def check() -> None:
            core.pipe.check()
            core.pipe.report(PROGRESS)  # or the orchestrator would take it for hung

        self.sink, self._replay = make_replay(
            core.memory, core.model, core.draws, core.index, writer, check
        )
        self._drawn = self._replay
        if files := _demonstrations(core.model.experiment):
            shown = DemonstrationReplay(files, core.model, core.draws)
            self._drawn = MixedReplay(self._replay, shown, core.model.experiment.algorithm)

    @classmethod
    def arrays(cls, experiment: Experiment, model: Model) -> dict[str, SharedArray]:
        # Demonstrations that do not fit are refused before any core is started.
        for path in _demonstrations(experiment):
            check_fits(load(path), model)
        if experiment.shares_replay:
            return {}
        replay, batch = experiment.replay, experiment.algorithm.batch_size
        rows = ReplayTensor.rows(replay.steps, batch, experiment.environment.lanes)
        images = model.sees_bytes
        columns = ReplayTensor.columns(0 if images else model.observation_size, model.head.columns)
        arrays = ring_arrays(rows, columns, model.observation_size if images else 0)
        if replay.priority_exponent > 0.0:
            arrays["priorities"] = SharedArray((nodes_of(rows),), "float64")
            #: The largest priority that each core has given.
            arrays["largest"] = SharedArray((), "float64")
        return arrays

    @classmethod
    def check(cls, experiment: Experiment) -> None:
        if experiment.shares_replay:
            RedisClient(
                experiment.replay.url
            ).close()  # imports the client, and connects to nothing

    @classmethod
    def rehearsal(cls, experiment: Experiment, spaces: Spaces) -> Experiment:
        """With a small local replay: that of all children stays as it is."""
        if not experiment.shares_replay:
            return experiment
        replace = msgspec.structs.replace
        row_bytes = 4 * (int(np.prod(spaces.observation_space.shape or ())) + 8)
        most = min(experiment.replay.steps, _REHEARSED_BYTES // row_bytes)
        return replace(
            experiment,
            algorithm=replace(
                experiment.algorithm, start_steps=0, demonstrations=_demonstrations(experiment)
            ),
            replay=replace(
                experiment.replay, url="local", steps=max(experiment.algorithm.batch_size, most)
            ),
            child=replace(experiment.child, roles=("bundle",)),
        )

    def collector(self, context: CollectorContext) -> LearnerOnly | None:
        if isinstance(self._replay, GlobalReplay):
            self._replay.needs_log_mu = context.notes_log_mu
        return LearnerOnly(context) if context.model.experiment.role == "learn" else None

    def prepare(self, rollout: Rollout) -> None:
        rollout.replay = self._drawn


def make_replay(
    memory: SharedMemory,
    model: Model,
    rng: np.random.Generator,
    index: int,
    writer: str = "",
    check: Callable[[], None] = lambda: None,
) -> tuple[RolloutSink, Replay]:
    """The sink of a core's steps, and the replay that its learner samples by `rng`."""
    experiment = model.experiment
    if experiment.shares_replay:
        batch = BatchSink(memory, index, model.observation_shape, model.head.columns)
        ring = EngineRing(ring_settings(model), writer, check)
        ring.open()
        return GlobalReplayWriter(batch, ring), GlobalReplay(ring, model, rng)
    tensor = ReplayTensor(
        memory, experiment.algorithm.batch_size, model.observation_shape, model.head.columns
    )
    segment = RingSegment(tensor, index, experiment.environment.lanes)
    if not hasattr(memory, "priorities"):
        return segment, LocalReplay(tensor, model, rng, index)
    trees = SumTrees(memory, tensor, experiment.replay.priority_exponent)
    segment.written = trees.written
    return segment, LocalReplay(tensor, model, rng, index, trees)


class LearnerOnly:
    """A `Collector` of a core that only learns, from the steps of others: it plays nothing."""

    def __init__(self, context: CollectorContext) -> None:
        self._sink = context.sink
        self._pipe = context.pipe
        self._log_mu = np.zeros(0, np.float32) if context.notes_log_mu else None
        self._batches = 0

    def reset(self, seed: int, first: Any = None) -> None:
        pass

    def play(self, lanes: int) -> int:
        return lanes

    def collect(self, most: int = sys.maxsize) -> CollectedBatch:
        """An empty batch."""
        self._batches += 1
        if not self._batches % _REPORT_BATCHES:
            self._pipe.report(PROGRESS)
        return CollectedBatch(self._sink.begin(False), 0, [], [], self._log_mu)


class TargetNetwork(CorePart):
    """One core's view of θ⁻, older weights that all cores of a child compare themselves with."""

    def __init__(self, core: SingleCore) -> None:
        self._memory = core.memory
        self._index = core.index
        algorithm = core.model.experiment.algorithm
        #: τ, where θ⁻ follows θ_O after each update.
        self._rate = 0.0
        if getattr(learner_class(algorithm), "averages_target", False):
            self._rate = algorithm.target_rate
        self._every_updates = algorithm.target_updates
        self._every_versions = algorithm.target_versions
        self._learned = self._memory.weights[: len(self._memory.target)]
        self._target = core.model.native(self._memory.target)

    @classmethod
    def arrays(cls, experiment: Experiment, model: Model) -> dict[str, SharedArray]:
        return {
            # θ⁻.
            "target": SharedArray((model.trainable,), "float32", per_core=False),
            # Updates that each core has made.
            "updates": SharedArray((), "int64"),
            # Whether θ⁻ holds numbers; the version, and the updates of all cores, of that time.
            "refreshed": SharedArray((3,), "int64", per_core=False, reset=True),
        }

    def prepare(self, rollout: Rollout) -> None:
        self.renew()
        rollout.target = self._target

    def updated(self) -> None:
        self._memory.updates[self._index] += 1
        if self._rate:
            follow(self._memory.target, self._learned, self._rate)
        else:
            self.renew()

    def renew(self) -> bool:
        """θ⁻ ← θ_O if it is time; whether it was."""
        refreshed = self._memory.refreshed
        if self._rate and refreshed[0]:
            return False
        version = int(self._memory.progress[1])
        updates = int(self._memory.updates.sum())
        if refreshed[0]:
            aged = version - int(refreshed[1])
            due = bool(self._every_versions) and not 0 <= aged < self._every_versions
            if self._every_updates and updates - int(refreshed[2]) >= self._every_updates:
                due = True
            if not due:
                return False
        refreshed[:] = 1, version, updates
        self._memory.target[:] = self._learned
        return True
