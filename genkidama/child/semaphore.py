"""The semaphore vector: how the cores of one child wait for each other. So do the agents of GA3C.

One boolean a core, in shared memory. A core that has finished its episode lights its own element
and sleeps. When all elements are lit, the child exchanges weights, darkens the elements and wakes
the cores (thesis §4.6). A core that is dead, being restarted or not there yet counts as lit, so
that nobody waits for it.

This file holds the rules; each core's pipe does the sleeping and waking.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SemaphoreVector"]


class SemaphoreVector:
    """The vector and its rules.

    A core is absent until it enters. Some elements may belong to no core: they stay absent.

    Args:
        elements: bool, shape (C,), in shared memory. A core writes True to its own; nothing else
            writes to them but this object, in the orchestrator.
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
        """The core says that it waits. If it was absent it takes part from now on.

        The word of a core that is there already changes nothing: it has lit its element itself, and
        may have been released since.
        """
        self._absent[core] = False

    def lit(self, core: int) -> bool:
        """Whether it waits. Its word that it does may come after it has been released."""
        return bool(self._elements[core])

    @property
    def all_lit(self) -> bool:
        """Whether every core waits or is absent, and at least one waits."""
        return bool(self._elements.all()) and not bool(self._absent.all())

    def release(self) -> list[int]:
        """Darkens the elements of the waiting cores. The caller wakes these cores."""
        waiting = np.flatnonzero(self._elements & ~self._absent)
        self._elements[waiting] = False
        return [int(core) for core in waiting]
