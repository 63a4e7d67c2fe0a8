"""Which node trains which trial: which trials wait, which nodes are away, what comes next. Pure.

Laws of this file:
- A trial belongs to one node at a time, and a node trains one trial at a time.
- A node that vanishes may return to its trial; after `search.return_seconds` another one gets it.
- A trial under way that nobody trains goes before one that has not begun.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from genkidama.plugins.hypertrick.records import PhaseRecord, State
from genkidama.server.trial import Snapshot, Trial

__all__ = ["Assignments", "SearchTrial"]


@dataclass
class SearchTrial(Trial):
    """A trial of a search."""

    #: The settings that make it differ from the others.
    params: dict[str, Any] = field(default_factory=dict)
    state: State = "waiting"
    #: The node that trains it.
    owner: str = ""
    failures: int = 0
    #: The nodes that could not train it: it goes to others first.
    failed_on: set[str] = field(default_factory=set)
    phases: list[PhaseRecord] = field(default_factory=list)
    #: Seconds that nodes have trained it.
    seconds: float = 0.0
    #: Search time at which its owner began the phase under way.
    began: float = 0.0
    #: When its owner was last heard.
    heard: float | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "stopped", "failed")

    @property
    def index(self) -> int:
        """Its number, which in a search it always has."""
        assert self.number is not None
        return self.number

    def as_run(self) -> Snapshot:
        """What its checkpoint says beside the vector: alone, it is a run of one child."""
        return self.snapshot(exchanges=self.version, updates=self.version, seconds=self.seconds)

    def hear(self, now: float) -> None:
        """Its owner says something. The time since its last word was spent on the trial."""
        if self.heard is not None:
            self.seconds += now - self.heard
        self.heard = now

    def done(self, unit: str) -> float:
        """How much was trained, in steps, episodes or seconds."""
        return {"steps": self.steps, "episodes": self.episodes}.get(unit, self.seconds)


class Assignments:
    """Which node trains which trial.

    Args:
        return_seconds: how long a node that has vanished may take to return to its trial.
    """

    def __init__(self, return_seconds: float) -> None:
        self._return_seconds = return_seconds
        #: All trials, by number.
        self.trials: dict[int, SearchTrial] = {}
        #: Trials that nobody trains, the next one first.
        self.waiting: deque[int] = deque()
        #: The trial of each node.
        self.owned: dict[str, int] = {}
        #: Trials whose node has vanished, and when.
        self.absent: dict[int, float] = {}
        #: Nodes that found no trial.
        self.hungry: set[str] = set()

    @property
    def fresh(self) -> int:
        """How many of the waiting trials nobody has tried to train yet."""
        waiting = (self.trials[number] for number in self.waiting)
        return sum(not (trial.phases or trial.failed_on) for trial in waiting)

    def find(self, child: str, now: float, training: int | None, more: bool) -> SearchTrial | None:
        """The trial for this node, which it may have already; None if there is none for it now.

        Args:
            training: the trial that the node says it is training already. It keeps that one, unless
                somebody else has it.
            more: whether there will be new configurations.
        """
        number = self.owned.get(child)
        if training is not None and training != number and self._is_free(training):
            if number is not None:
                self.orphan(self.trials[number])
            if training in self.waiting:
                self.waiting.remove(training)
            number = training
        if number is None:
            number = self._next(child, now, more)
        if number is None:
            self.hungry.add(child)
            return None
        self.hungry.discard(child)
        self.absent.pop(number, None)
        return self.trials[number]

    def own(self, child: str, trial: SearchTrial) -> None:
        """From now on the node trains this trial."""
        self._disown(trial)
        self.owned[child] = trial.index
        trial.owner = child
        trial.state = "running"

    def vanished(self, child: str, now: float) -> None:
        """The node's connection is gone; its trial waits for its return."""
        self.hungry.discard(child)
        if child in self.owned:
            self.absent[self.owned[child]] = now

    def released(self, child: str) -> None:
        """The node goes for good, and the next one that asks goes on with its trial."""
        self.hungry.discard(child)
        if child in self.owned:
            self.orphan(self.trials[self.owned[child]])

    def orphan(self, trial: SearchTrial) -> None:
        """Nobody trains the trial any more; it waits, before the new ones if it has begun."""
        self.retire(trial)
        trial.owner = ""
        trial.state = "waiting"
        trial.heard = None
        if trial.phases or trial.steps:
            self.waiting.appendleft(trial.index)
        else:
            self.waiting.append(trial.index)

    def retire(self, trial: SearchTrial) -> None:
        """No node has this trial any more."""
        self._disown(trial)
        self.absent.pop(trial.index, None)

    def restored(self, now: float) -> None:
        """Gives trials under way back to their nodes after a restart; the other trials wait.

        A node is with the trial for which it has reported last.
        """
        begun = [trial for trial in self.trials.values() if not trial.ended]
        begun.sort(key=_last_report, reverse=True)
        for trial in begun:
            if trial.owner and trial.owner not in self.owned:
                self.owned[trial.owner] = trial.index
                self.absent[trial.index] = now
                trial.state = "running"
            else:
                self.orphan(trial)
        order = sorted(self.waiting, key=lambda number: (not self.trials[number].phases, number))
        self.waiting = deque(order)

    def _disown(self, trial: SearchTrial) -> None:
        if self.owned.get(trial.owner) == trial.number:
            del self.owned[trial.owner]

    def _is_free(self, number: int) -> bool:
        """Whether a node may keep a trial that it says it is training.

        It may if nobody has the trial, or if only the study says that another node has it.
        """
        return number in self.waiting or (
            number in self.absent and self.trials[number].heard is None
        )

    def _next(self, child: str, now: float, more: bool) -> int | None:
        for number, since in self.absent.items():
            if now - since >= self._return_seconds:
                return number
        others = (each for each in self.waiting if child not in self.trials[each].failed_on)
        chosen = next(others, None)
        if chosen is None and self.waiting and not self.owned and not more:
            chosen = self.waiting[0]  # it has failed on this node, and there is no other
        if chosen is not None:
            self.waiting.remove(chosen)
        return chosen


def _last_report(trial: SearchTrial) -> int:
    return trial.phases[-1].report if trial.phases else -1
