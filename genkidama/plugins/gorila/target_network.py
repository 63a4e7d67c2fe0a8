"""θ⁻: weights as they were some time ago, which all cores of a child compare themselves with.

Laws of this file:
- θ⁻ lies in the child's shared memory. It outlives cores, and is the same for all of them.
- Whichever core finds that it is time copies θ_O. Two may do so at once, with the same result but
  for what a third has learned meanwhile.
- Time is counted in the child's updates, in versions of the parent, or in both. A parent whose
  version has gone back, and weights that were reset, are a beginning.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from genkidama.child.shared_memory import SharedMemory
from genkidama.config.sections import Algorithm

__all__ = ["TargetNetwork"]

Array = npt.NDArray[Any]


class TargetNetwork:
    """One core's view of θ⁻.

    Args:
        memory: the child's. Without room for θ⁻ there is none, and only updates are counted.
        index: the core.
        algorithm: has `target_updates` and `target_versions`.
    """

    def __init__(self, memory: SharedMemory, index: int, algorithm: Algorithm) -> None:
        self._memory = memory
        self._index = index
        self._every_updates = algorithm.target_updates
        self._every_versions = algorithm.target_versions
        size = len(memory.target)
        #: θ⁻, float32 (trainable,); None where no learner has one.
        self.numbers: Array | None = memory.target if size else None
        self._learned = memory.weights[:size]
        #: The same for learners.
        self.tensor = torch.from_numpy(memory.target) if size else None

    def renew(self) -> bool:
        """θ⁻ ← θ_O if it is time; whether it was."""
        if self.numbers is None:
            return False
        refreshed = self._memory.refreshed
        version = int(self._memory.version[0])
        updates = int(self._memory.updates.sum())
        if refreshed[0]:
            aged = version - int(refreshed[1])
            due = bool(self._every_versions) and not 0 <= aged < self._every_versions
            if self._every_updates and updates - int(refreshed[2]) >= self._every_updates:
                due = True
            if not due:
                return False
        refreshed[:] = 1, version, updates
        self.numbers[:] = self._learned
        return True

    def updated(self) -> None:
        """The core has made one more update."""
        self._memory.updates[self._index] += 1
        self.renew()
