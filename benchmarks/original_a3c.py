"""A3C with the two faults of the thesis' own program, to see what they are worth.

If a batch ends within an episode, that program bootstraps with the value of the last stored state
instead of the state that follows. It also treats an episode that reaches the time limit as if it
had terminated. `examples/lunarlander/thesis.toml` has neither fault. This is a plug, as users write
them:

    PYTHONPATH=benchmarks genkidama train examples/lunarlander/thesis.toml --children 2 --cores 4 \
        --set algorithm.name=original_a3c:OriginalA3C
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from genkidama.learning.a3c import A3C
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.settings import Algorithm


class OriginalA3C(A3C):
    """For batches that end with their episode (`across_episodes = false`)."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        super().__init__(algorithm, model)
        self._full = algorithm.batch_size

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        if (
            len(rollout.cuts) and len(rollout.rewards) < self._full
        ):  # cut before it was full: the time limit
            rollout.cuts, rollout.cut_observations = rollout.cuts[:0], rollout.cut_observations[:0]
        elif len(rollout.cuts):
            rollout.cut_observations = rollout.observations[-1:]
        yield from super().losses(rollout, rng)
