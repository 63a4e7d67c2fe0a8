"""Books of a parent that searches: its trials, their nodes, and its study.

Laws, checked with each message, and at the end of the day:
- A push counts for one trial, that of its node, and once.
- A trial is trained by one node at a time: by the last that it was given to. Nobody else is given
  it before that node has said goodbye, was told of its end, asks for another, or was silent for
  `search.return_seconds`.
- A node trains its trial with the settings that the study has for it.
- In the end the study has the reports, but for those of the last seconds, and the
  states that the parent has, and each trial that has reported has weights on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from genkidama.parent import Parent
from genkidama.plugins.hypertrick.search import Search, SearchTrial
from genkidama.plugins.hypertrick.study import open_study, read, storage_url
from genkidama.protocol.messages import Hello, Leave, Push, Reply, Welcome
from genkidama.protocol.session import Decision, Session, Train
from genkidama.protocol.vector import Vector
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.run import trial_folder
from genkidama.runs.sharded_checkpoint import CHECKPOINTS
from genkidama.server.trial import Snapshot
from tests.simulation.books import Books, Key
from tests.simulation.world import World

#: Seconds from a report to its place in the study, at most.
_WRITING = 5.0


class SearchBooks(Books):
    """The books of a parent that searches, through all its restarts."""

    def __init__(self, world: World, name: str, out: Path) -> None:
        super().__init__(world, name)
        self._out = out
        #: By trial: the node that it was given to last.
        self._nodes: dict[int, str] = {}
        #: By trial: its node, and when that was heard last, since the parent started.
        self._holds: dict[int, tuple[str, float]] = {}
        #: Pushes that have counted since the parent started.
        self._once: set[Key] = set()

    def attach(self, parent: Parent) -> None:
        self.parent = parent
        self._now = 0.0
        self._once.clear()
        self._holds.clear()
        server = parent.server
        handle = server.handle
        server.handle = lambda child, message, now: self._handle(handle, child, message, now)  # type: ignore[method-assign]

    def started(self) -> None:
        """Trials under way keep their nodes, which may come back."""

    def saves(self, snapshot: Snapshot, vector: Vector, state: dict[str, Any]) -> None:
        """Checkpoints of trials are looked at in the end."""

    def wrote(self, version: int) -> None:
        """As `saves`."""

    def ended(self) -> None:
        """As `closes`, which comes later."""

    def _handle(self, handle: Callable[..., Reply], child: str, message: Any, now: float) -> Reply:
        if now < self._now:
            self._break(f"its clock goes back from {self._now} to {now}")
        self._now = now
        before = {trial.index: _counts(trial) for trial in self._search.trials.values()}
        sequence = self._sequence(child)
        stayed = self.parent is not None and child in self.parent.server.joined
        reply = handle(child, message, now)
        if isinstance(reply, Welcome) and reply.trial is not None:
            if not stayed:  # a connection outlives its token, also from one trial to the next
                self._greet(message.name, message.session)
            self._nodes[reply.trial] = message.name
        self._hold(child, message, reply, now)
        for trial in self._search.trials.values():
            if before.get(trial.index, (0, 0, 0)) != _counts(trial):
                self._change(trial, child, message, self._sequence(child) != sequence)
        return reply

    def _hold(self, child: str, message: Any, reply: Reply, now: float) -> None:
        """Notes who holds which trial."""
        if isinstance(message, Hello) and isinstance(reply, Welcome):
            child = message.name
            holder, heard = self._holds.get(reply.trial or 0, (child, now))
            if reply.trial is not None and holder != child:
                silent = now - heard
                if silent < self._search.settings.return_seconds:
                    self._break(
                        f"trial {reply.trial} is given to {child}, and {holder}, which has it, "
                        f"was heard {silent:.1f} s ago"
                    )
        held = [number for number, (name, _) in self._holds.items() if name == child]
        if isinstance(message, Hello | Leave) or getattr(reply, "stop", ""):
            for number in held:
                del self._holds[number]
            held = []
        if isinstance(message, Hello) and isinstance(reply, Welcome) and reply.trial is not None:
            held = [reply.trial]
        for number in held:
            self._holds[number] = child, now

    def _change(self, trial: SearchTrial, child: str, message: Any, counts: bool) -> None:
        if not isinstance(message, Push) or not counts:
            self._break(f"a {type(message).__name__} of {child} counts, and is no push that may")
        elif self._nodes.get(trial.index) != child or message.trial != trial.index:
            self._break(
                f"{child} trains trial {trial.index}, which was given to "
                f"{self._nodes.get(trial.index)}"
            )
        key = child, *self._sequence(child)
        if key in self._once:
            self._break(f"push {key[2]} of {child} counts twice")
        self._once.add(key)
        self.pushes += 1

    def takes(self, session: Session, decision: Decision, version: int) -> None:
        if isinstance(decision, Train) and session.trial is not None:
            trial = self._search.trials.get(session.trial)
            rate = decision.experiment.optimizer.learning_rate
            if trial is None or trial.params["optimizer.learning_rate"] != rate:
                self._break(f"{session.name} trains trial {session.trial} with other settings")

    @property
    def is_busy(self) -> bool:
        """Whether a node may have to wait: all trials were begun, and those under way have nodes,
        or had them a moment ago."""
        search = self._search
        settings = search.settings
        return len(search.trials) == settings.trials and all(
            trial.ended
            or (
                trial.owner
                and self._now - search.absent.get(trial.index, self._now) <= settings.return_seconds
            )
            for trial in search.trials.values()
        )

    def settles(self, session: Session, word: str, gathered: int) -> None:
        """Steps of a trial that has ended, or goes to another node, are lost: that is allowed."""

    def closes(self) -> None:
        url = storage_url("", self._out)
        study = read(open_study(url, self._out.name))
        written = {trial.number: trial for trial in study.trials if trial.state != "waiting"}
        before = self._search.seconds(self._now) - _WRITING
        for trial in self._search.trials.values():
            if trial.phases and trial.phases[-1].end > before:
                continue
            record = written.get(trial.index)
            if record is None:
                self._break(f"the study does not know trial {trial.index}")
            elif [each.phase for each in record.phases] != [each.phase for each in trial.phases]:
                self._break(f"the study has other reports of trial {trial.index} than the parent")
            elif trial.ended and record.state != trial.state:
                self._break(f"trial {trial.index} is {trial.state}, in the study {record.state}")
            elif trial.phases and not self._damaged and not self._has_weights(trial.index):
                self._break(f"trial {trial.index} has reported, and has no weights")

    def _has_weights(self, number: int) -> bool:
        folder = CheckpointFolder(self._out / trial_folder(number) / CHECKPOINTS)
        return folder.latest() is not None

    @property
    def _search(self) -> Search:
        assert self.parent is not None
        search = self.parent.server.trials
        assert isinstance(search, Search)
        return search


def _counts(trial: SearchTrial) -> tuple[int, int, int]:
    return trial.version, trial.steps, trial.episodes
