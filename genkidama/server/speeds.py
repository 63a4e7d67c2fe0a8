"""The speeds of children, by their pushes. Pure."""

from __future__ import annotations

#: Share of the newest push in the running means of a child.
_NEW = 0.1

#: The time of the first push after a silence.
_LATER = 1e300


class Speeds:
    """Environment steps of each child a second: the ratio of two running means, of a push's steps
    and of the seconds since the push before.

    After a cut a child pushes again what had no answer, a few steps after a long time, and then the
    work of the whole cut, after a short one. So the ratio is right where a mean of speeds is not,
    and the time counts from the second push on.
    """

    def __init__(self) -> None:
        #: By child: the time of its last push, and the means of steps and seconds, 0 if unknown.
        self.figures: dict[str, tuple[float, float, float]] = {}

    def note(self, child: str, steps: int, seconds: float) -> None:
        """Notes a push: its environment steps, and its time in seconds."""
        if child not in self.figures:
            self.figures[child] = _LATER, 0.0, 0.0
            return
        before, mean, time = self.figures[child]
        if steps and seconds > before:
            new = _NEW if time else 1.0
            mean += new * (steps - mean)
            time += new * (seconds - before - time)
        self.figures[child] = seconds, mean, time

    def forget(self, child: str) -> None:
        """Forgets a child that takes part no longer. It may come back."""
        self.figures.pop(child, None)

    def relative(self, child: str) -> float | None:
        """A child's speed, relative to the mean of all children; None if it is not known."""
        speeds = {name: mean / time for name, (_, mean, time) in self.figures.items() if time}
        if child not in speeds:
            return None
        return speeds[child] * len(speeds) / sum(speeds.values())
