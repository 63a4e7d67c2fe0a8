"""A run's directory: `experiment.toml`, `history.jsonl`, and what its keeper keeps beside them.

Laws of this file:
- A directory that holds a run is taken up where that run's newest readable checkpoint left off.
- What cannot be written while the run goes on is reported once and tried again; the run goes on.
- The history tells things in the order in which they happened.
- The keeper of a plain run is a `Checkpointer`, that of a search a `TrialKeeper`. Only
  `_make_keeper` asks which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from structlog.typing import FilteringBoundLogger

import genkidama
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.events import Event, Resumed, Started, Warned
from genkidama.experiment import Experiment, read_toml
from genkidama.parameter_server import ParameterServer
from genkidama.parent.checkpointer import Checkpointer
from genkidama.parent.telemetry import EventLog
from genkidama.parent.trials import TrialKeeper
from genkidama.system.files import write_atomically
from genkidama.system.history import History
from genkidama.system.run import EXPERIMENT, HISTORY, new_directory
from genkidama.tuning.service import Search

__all__ = ["Keeper", "Records", "make_directory"]


class Keeper(Protocol):
    """Keeps on the disk what a run is learning."""

    def restore(self, now: float) -> Resumed | None:
        """Lets the server go on from what is there; None if nothing is. Raises as `Records`."""

    def pushed(self, now: float) -> None:
        """To be called after each push, before the next is handled."""

    @property
    def due(self) -> bool:
        """Whether `keep` has something to do at once."""

    async def keep(self, now: float) -> None:
        """Writes what is due. To be called often, and never twice at the same time."""

    async def finish(self, now: float) -> None:
        """Writes all that is left, and closes what is open. Raises an `EnvironmentFailure`."""

    def close(self) -> None:
        """Closes what is open and writes nothing, for a parent that could not start."""


class Records:
    """What a parent writes down. Opening them restores `server` from the disk, if there is a run.

    Args:
        server: whose events and weights are recorded.
        out: the run's directory, which exists.
        now: the parent's clock, in seconds.
        log: where people read.

    Raises:
        ConfigurationError: the directory holds a run of another kind, network or rule.
        EnvironmentFailure: the directory cannot be written, or another parent is using it.
    """

    def __init__(
        self,
        server: ParameterServer,
        out: Path,
        now: Callable[[], float],
        log: FilteringBoundLogger,
    ) -> None:
        self._server = server
        self._now = now
        self._log = log
        self._events = EventLog(log)
        self._history_error = ""
        #: Whether the history, too, tells problems; and the one that it has told last.
        self._aloud = False
        self._problem = ""
        self._history = History(out / HISTORY)
        try:
            _check_same_kind(server.experiment, out)
            self._keeper = self._make_keeper(out)
        except BaseException:
            self._history.close()
            raise
        try:
            resumed = self._keeper.restore(now())
            write_atomically(out / EXPERIMENT, server.experiment.to_toml().encode())
        except BaseException:
            self.close()
            raise
        self.note(
            resumed
            or Started(time=now(), run=server.run or out.name, software=genkidama.__version__)
        )

    @property
    def urgent(self) -> bool:
        """Whether `keep` has something to do at once."""
        return self._keeper.due

    def pushed(self, now: float) -> None:
        """To be called after each push, before the next is handled."""
        self._keeper.pushed(now)

    def note(self, event: Event) -> None:
        """Adds an event of the parent's own to the history and the log, with the time as it is now.

        While a checkpoint was being written, pushes have come. They stand before it.
        """
        event.time = self._now()
        self._take_events(event)

    async def keep(self) -> None:
        """Writes what has happened since the last call. Never to be called twice at a time."""
        self._take_events()
        await self._keeper.keep(self._now())
        try:
            self._history.flush()
            self._history_error = ""
        except EnvironmentFailure as error:
            if self._history_error != str(error):
                self._history_error = str(error)
                self._complain(self._history_error)

    async def finish(self) -> None:
        """Writes the final checkpoint and the rest of the history, and closes them.

        Raises:
            EnvironmentFailure: one of them could not be written.
        """
        failure: EnvironmentFailure | None = None
        try:
            await self._keeper.finish(self._now())
        except EnvironmentFailure as error:
            failure = error
        self._take_events()
        self._events.close()
        try:
            self._history.flush()
        except EnvironmentFailure as error:
            failure = failure or error
        self._history.close()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Closes the files and writes nothing, for a parent that could not start."""
        self._keeper.close()
        self._history.close()

    def _make_keeper(self, out: Path) -> Keeper:
        server = self._server
        if not isinstance(server.trials, Search):
            return Checkpointer(server, out, self.note, self._complain)
        from genkidama.tuning.study import Study  # Optuna, which a plain run does without

        self._aloud = True
        study = Study(server.experiment, out, resumes=(out / EXPERIMENT).exists())
        return TrialKeeper(server, server.trials, study, out, self._complain, self._now)

    def _take_events(self, *own: Event) -> None:
        events = [*self._server.take_events(), *own]
        self._history.add(events)
        self._events.report(events, self._now())
        server = self._server
        beta = server.experiment.child.beta
        self._events.advise(server.trials.rule.diagnose(beta, len(server.joined)))

    def _complain(self, problem: str) -> None:
        """Logs it. The history of a search tells it, too, since nodes may have to wait for it."""
        self._log.error("problem", reason=problem)
        if self._aloud and problem != self._problem:
            self._problem = problem
            self._take_events()
            self._history.add([Warned(time=self._now(), reason=problem)])


def make_directory(out: Path | None, name: str) -> Path:
    """The directory `out`, made if missing; without one a new `runs/NAME-DATE-TIME`.

    Raises:
        EnvironmentFailure: it cannot be made.
    """
    try:
        if out is None:
            return new_directory(name)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"{out or 'runs'}: cannot be made: {error.strerror}; "
            "choose another directory with --out"
        ) from None
    return out


def _check_same_kind(experiment: Experiment, out: Path) -> None:
    """A search and a plain run do not go on in each other's directory."""
    path = out / EXPERIMENT
    if not path.exists():
        return
    was, now_is = (
        "a search" if search else "a plain run"
        for search in ("search" in read_toml(path), experiment.search is not None)
    )
    if was != now_is:
        raise ConfigurationError(
            f"{out}: holds {was}, and this is {now_is}; choose another directory with --out"
        )
