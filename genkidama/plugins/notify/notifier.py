"""Notices of a run: what is worth a person's attention, and when.

Laws of this file:
- It reads the run's events and changes nothing. Which notice follows depends on events, counts of
  pushes and the time alone.
- A lasting trouble is told once, and so is its end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from genkidama.config.experiment import Experiment
from genkidama.config.formatting import duration
from genkidama.errors import GenkidamaError
from genkidama.parent.extensions import Observer
from genkidama.parent.parent import Parent
from genkidama.plugins.notify import VARIABLE
from genkidama.plugins.notify.posting import Notice, Poster, service_at
from genkidama.runs.checkpoint import load
from genkidama.runs.run import Run
from genkidama.runs.status import line
from genkidama.runtime.log import get_logger
from genkidama.server.events import (
    Event,
    Exchange,
    Joined,
    Measures,
    PhaseReported,
    Resumed,
    Started,
    Stopped,
    Warned,
)

#: Seconds between two notices of a best mean return, or of a warning of the same kind.
BEST_SECONDS, WARNING_SECONDS = 600.0, 600.0

#: Seconds between two notices of a child that is throttled.
HOT_SECONDS = 3600.0

#: A child without a push for so long, or for three times `child.exchange_seconds`, is silent.
SILENT_SECONDS = 300.0

#: Children that fall silent, or are back, at once and have a notice each.
_FEW = 3

#: Seconds in which the last notice may be posted when the run is over, and when the parent is
#: stopped before that: whoever stops it does not wait for long.
_OVER_SECONDS, _STOPPED_SECONDS = 5.0, 1.5


class Notices:
    """Makes notices of a run's events. Pure.

    Args:
        describe: gives the run's state in one line.
        best: gives the best mean return before a resume, as far as it is known.
    """

    def __init__(
        self,
        experiment: Experiment,
        describe: Callable[[], str] = str,
        best: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._stop = experiment.stop
        self._describe = describe
        self._best_before = best
        self._patience = max(SILENT_SECONDS, 3.0 * experiment.child.exchange_seconds)
        self._run = ""
        self._over = False
        #: The best mean return, the last that was told, and when the next may be.
        self._best, self._told = -float("inf"), -float("inf")
        self._best_due = float("inf")
        #: By child: how many pushes it had made, and when it made the last.
        self._heard: dict[str, tuple[int, float]] = {}
        self._silent: set[str] = set()
        #: By trouble, until when it is not told again.
        self._quiet: dict[str, float] = {}

    def take(self, events: Sequence[Event], pushes: Mapping[str, int], now: float) -> list[Notice]:
        """The notices that follow from new events, the oldest first. `pushes`: of each child from
        which one is expected, how many it has made so far."""
        found = [notice for event in events for notice in self._of(event, pushes)]
        if self._best_due <= now and self._best > self._told:
            self._told, self._best_due = self._best, now + BEST_SECONDS
            found.append(self._notice("best", f"best so far {self._best:.1f}", self._describe()))
        return found if self._over else [*found, *self._listen(pushes, now)]

    def _of(self, event: Event, pushes: Mapping[str, int]) -> list[Notice]:
        match event:
            case Started(run=run) | Resumed(run=run):
                self._run, self._best_due = run, event.time + BEST_SECONDS
                begun = "begun"
                if isinstance(event, Resumed):
                    begun = "resumed"
                    self._heard = {name: (count, event.time) for name, count in pushes.items()}
                    if (best := self._best_before()) is not None:
                        self._best = self._told = best
                return [self._notice("begun", begun, self._describe())]
            case Joined(child=child) if child not in self._silent:
                self._heard[child] = pushes.get(child, 0), event.time
            case Exchange(trial=int()):
                pass  # one trial of many
            case Exchange(mean_return=float(mean)) if event.episodes >= self._stop.window:
                self._best = max(self._best, mean)
            case PhaseReported(metric=float(metric)):
                self._best = max(self._best, metric)
            case Measures(child=child, figures={"throttled": 1.0} | {"undervoltage": 1.0}):
                if self._may_tell(f"{child} is throttled", event.time, HOT_SECONDS):
                    words = "its machine is slowed down: it is too hot, or its supply is too weak"
                    return [self._notice("throttled", f"{child} is throttled", words)]
            case Warned(reason=reason):
                # Counts and times in it make it no other warning.
                kind = "".join(letter for letter in reason if not letter.isdigit())
                if self._may_tell(kind, event.time, WARNING_SECONDS):
                    return [self._notice("warning", "warning", reason)]
            case Stopped(reason=reason):
                self._over = True
                goal = self._stop.mean_return is not None and reason.startswith("mean return ")
                kind = "solved" if goal else "ended"
                return [self._notice(kind, kind, f"{reason}\n{self._describe()}")]
        return []

    def _may_tell(self, trouble: str, now: float, seconds: float) -> bool:
        """True if this trouble was not told in the last so many seconds; it is told now."""
        if now < self._quiet.get(trouble, now):
            return False
        self._quiet[trouble] = now + seconds
        return True

    def _listen(self, pushes: Mapping[str, int], now: float) -> list[Notice]:
        """Tells of children that fell silent, and of those that are back."""
        silent: dict[str, float] = {}
        back: dict[str, float] = {}
        for child, (count, time) in list(self._heard.items()):
            pushed = pushes.get(child)
            if pushed is None:  # it has said goodbye, or has nothing to train
                del self._heard[child]
                self._silent.discard(child)
            elif pushed != count:
                self._heard[child] = pushed, now
                if child in self._silent:
                    self._silent.discard(child)
                    back[child] = now - time
            elif now - time >= self._patience and child not in self._silent:
                self._silent.add(child)
                silent[child] = now - time
        return [
            *self._of_children("back", back, "after {} without a push"),
            *self._of_children("silent", silent, "no push for {}; the run goes on"),
        ]

    def _of_children(self, kind: str, times: Mapping[str, float], words: str) -> list[Notice]:
        """A notice of each child, or one of all if they are many, as when a switch fails."""
        if len(times) <= _FEW:
            return [
                self._notice(kind, f"{child} is {kind}", words.format(duration(time)))
                for child, time in times.items()
            ]
        first = ", ".join([*times][:_FEW])
        text = (
            f"{first} and {len(times) - _FEW} more: {words.format(duration(max(times.values())))}"
        )
        return [self._notice(kind, f"{len(times)} children are {kind}", text)]

    def _notice(self, kind: str, title: str, text: str) -> Notice:
        return Notice(kind, self._run, f"{self._run}: {title}", text)


def observer(parent: Parent) -> Observer | None:
    """Notices to the addresses in the environment; None without any.

    Raises:
        ConfigurationError: one of them is none.
    """
    addresses = os.environ.get(VARIABLE, "").split()
    if not addresses or not parent.part.is_first:
        return None
    log = get_logger()
    posters = []
    for service in map(service_at, dict.fromkeys(addresses)):

        def complain(problem: str, host: str = service.host) -> None:
            log.warning("notify", host=host, reason=f"{problem}; the run goes on")

        posters.append(Poster(service, complain))
    return _Notifier(parent, posters)


class _Notifier(Observer):
    """Posts the notices of a parent's run."""

    def __init__(self, parent: Parent, posters: Sequence[Poster]) -> None:
        self._parent = parent
        self._posters = posters
        self._notices = Notices(parent.experiment, self._line, self._best)

    def take(self, events: Sequence[Event]) -> None:
        server = self._parent.server
        pushes = {
            name: each.exchanges
            for name, each in server.children.items()
            # A node of a search may have no trial.
            if not each.parted and not (each.connected and server.idle(name))
        }
        for notice in self._notices.take(events, pushes, self._parent.now()):
            for poster in self._posters:
                poster.post(notice)

    async def finish(self) -> None:
        seconds = _OVER_SECONDS if self._parent.server.stop else _STOPPED_SECONDS
        await asyncio.gather(
            *(asyncio.to_thread(poster.close, seconds) for poster in self._posters)
        )

    def _best(self) -> float | None:
        """The best mean return of a run that was just resumed, if its directory tells one."""
        if (search := self._parent.status.search) is not None:
            return search.best_score
        assert self._parent.out is not None
        with suppress(GenkidamaError):  # a parent has complained of it
            if (file := Run(self._parent.out).best) is not None:
                return load(file).snapshot.mean_return
        return None

    def _line(self) -> str:
        document = self._parent.status.document(self._parent.now())
        return line(msgspec.to_builtins(document))
