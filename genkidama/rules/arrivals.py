"""How many steps each child should bring, so that all push equally often. Pure.

A child that is told to push every so many steps pushes seldom where it is slow. What it does while
the others push many times is then old when it comes (Nguyen et al. 2022 call it a straggler). So
each child is told its own number, in proportion to its speed, which its pushes tell.
"""

from __future__ import annotations

__all__ = ["Arrivals"]

#: How much of a child's speed is that of its newest push.
_NEW = 0.2


class Arrivals:
    """How fast the children are.

    Args:
        steps: that a child of mean speed should bring.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        #: By child: when its last push came, and its steps a second.
        self._last: dict[str, float] = {}
        self._speeds: dict[str, float] = {}

    def note(self, child: str, steps: int, seconds: float) -> None:
        """A push of so many steps has come, at this time."""
        before = self._last.get(child, seconds)
        self._last[child] = seconds
        if steps and seconds > before:
            speed = steps / (seconds - before)
            known = self._speeds.get(child, speed)
            self._speeds[child] = known + _NEW * (speed - known)

    def forget(self, child: str) -> None:
        """The child does not take part any more. It may come back."""
        self._last.pop(child, None)
        self._speeds.pop(child, None)

    def share(self, child: str) -> int:
        """How many steps its next push should bring; 0 leaves it to the child."""
        speed = self._speeds.get(child)
        if speed is None:
            return 0
        mean = sum(self._speeds.values()) / len(self._speeds)
        return max(1, round(self._steps * speed / mean))
