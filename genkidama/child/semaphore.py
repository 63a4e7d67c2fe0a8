"""The semaphore vector: how the cores of one child wait for each other. What is said of cores holds for agents, too.

One boolean a core, in shared memory. A core that has finished its episode lights its own element and
sleeps; when all are lit, the child exchanges weights, darkens the elements and wakes the cores
(thesis §4.6). A core that is dead, being restarted or not there yet counts as lit, so that nobody waits for it.

This file holds the rules; the sleeping and waking is done by each core's pipe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SemaphoreVector"]


class SemaphoreVector:
    """The vector and its rules.

    Args:
        elements: bool, shape (C,), in shared memory; a core writes True to its own, nobody else does
            but this object, in the orchestrator. All are absent until they enter, those that never do for ever.
    """

    def __init__(self, elements: npt.NDArray[Any]) -> None:
        self._elements = elements
        self._elements[:] = True
        self._absent = np.ones(len(elements), np.bool_)

    def light(self, core: int) -> None:
        """The core is dead or dismissed: its element is lit for it until it is back."""
        self._elements[core] = True
        self._absent[core] = True

    def enter(self, core: int) -> None:
        """A core that was absent stands at the start and waits with the others."""
        self._elements[core] = True
        self._absent[core] = False

    @property
    def all_lit(self) -> bool:
        """Whether every core waits or is absent, and at least one waits."""
        return bool(self._elements.all()) and not bool(self._absent.all())

    def release(self) -> list[int]:
        """Darkens the elements of the waiting cores and says which they are, so that they be woken."""
        waiting = np.flatnonzero(self._elements & ~self._absent)
        self._elements[waiting] = False
        return [int(core) for core in waiting]
