"""What the parent knows of one child, whether connected or not. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from genkidama.lines import ParentLine, unknown_base
from genkidama.messages import Push
from genkidama.trial import Trial

__all__ = ["ChildRecord"]


@dataclass
class ChildRecord:
    """One child, by its name."""

    session: str = ""
    connected: bool = False
    #: The number of its last counted push in this session.
    sequence: int = 0
    exchanges: int = 0
    episodes: int = 0
    steps: int = 0
    #: What it trains.
    trial: Trial | None = field(default=None, compare=False, repr=False)
    #: How differences travel on its connection; None if all weights travel whole.
    line: ParentLine | None = field(default=None, compare=False, repr=False)

    def counts(self) -> dict[str, int]:
        """What a checkpoint keeps of it."""
        return {"exchanges": self.exchanges, "episodes": self.episodes, "steps": self.steps}

    def read(self, child: str, push: Push) -> Push:
        """The same push with its whole vector.

        Raises:
            ProtocolError: it is a difference to weights that are not known here, or is none.
        """
        if not push.encoding:
            return push
        if self.line is None:
            raise unknown_base(child, push)
        return self.line.read(child, push)
