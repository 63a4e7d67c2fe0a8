"""A run's directory: `experiment.toml`, `history.jsonl`, and what its keeper keeps beside them.

Laws of this file:
- A directory that holds a run is taken up where that run's newest readable checkpoint left off.
- What cannot be written while the run goes on is reported once and tried again; the run goes on.
- A problem stands in the log and in the history. One of the history itself is told aside, since
  the terminal that follows a run reads the history.
- A directory that was deleted is made again, with all that is known.
- The history tells things in the order in which they happened.
- The keeper of a plain run is a `Checkpointer`, that of a search a `TrialStore`. Only
  `_make_keeper` asks which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from genkidama._version import __version__
from genkidama.config.experiment import Experiment, read_toml
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.parent.checkpointer import Checkpointer
from genkidama.parent.log import EventLog, ProgressLog
from genkidama.plugins.hypertrick.search import Search
from genkidama.plugins.hypertrick.trial_store import TrialStore
from genkidama.runs.directory import EXPERIMENT, HISTORY, new_directory
from genkidama.runs.history import History
from genkidama.runs.status import RunStatus
from genkidama.runtime.files import hint, write_atomically
from genkidama.runtime.pacing import Once
from genkidama.server.events import CheckpointWritten, Event, Resumed, Started, Warned, as_lines
from genkidama.server.parameter_server import ParameterServer

__all__ = ["RunStore", "RunWriter", "make_directory"]

#: How often the parent looks whether its directory is still there.
_LOOK_SECONDS = 1.0


class RunStore(Protocol):
    """Keeps on the disk what a run is learning."""

    def restore(self, now: float) -> Resumed | None:
        """Lets the server go on from what is there; None if nothing is. Raises as `RunWriter`."""

    def pushed(self, now: float) -> bool:
        """To be called after each push, before the next is handled. As `due` afterwards."""

    def lost(self) -> None:
        """What was written is gone: `keep` writes it anew."""

    @property
    def due(self) -> bool:
        """Whether `keep` has something to do at once."""

    async def keep(self, now: float) -> None:
        """Writes what is due. To be called often, and never twice at the same time."""

    async def finish(self, now: float) -> None:
        """Writes all that is left, and closes what is open. Raises an `EnvironmentFailure`."""

    def close(self) -> None:
        """Closes what is open and writes nothing, for a parent that could not start."""


class RunWriter:
    """What a parent writes down. Opening them restores `server` from the disk, if there is a run.

    Args:
        server: whose events and weights are recorded.
        out: the run's directory, which exists.
        now: the parent's clock, in seconds.
        log: where people read.
        aside: is given lines of a history that cannot be written.
        also: is given the events, too.
        status: the run's status, which `also` keeps up to date.

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
        aside: Callable[[bytes], None] = lambda _: None,
        also: Callable[[list[Event]], None] = lambda _: None,
        status: RunStatus | None = None,
    ) -> None:
        self._server = server
        self._also = also
        self._out = out
        self._aside = aside
        self._now = now
        self._log = log
        self._events = EventLog(log)
        self._history_error = Once()
        #: The problem that the history has told last.
        self._problem = Once()
        self._looked_at = now()
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
        self._progress = ProgressLog(
            server, status or RunStatus(server.experiment), out, log, now()
        )
        name = server.run or out.name
        self.note(resumed or Started(time=now(), run=name, software=__version__))

    def pushed(self, now: float) -> bool:
        """To be called after each push, before the next is handled.

        Returns:
            Whether `keep` has something to do at once.
        """
        return self._keeper.pushed(now)

    def note(self, event: Event) -> None:
        """Adds an event of the parent's own to the history and the log, with the time as it is now.

        While a checkpoint was being written, pushes have come. They stand before it.
        """
        event.time = self._now()
        if isinstance(event, CheckpointWritten):
            self._problem.message = ""  # if it returns, it is news
        self._take_events(event)

    async def keep(self) -> None:
        """Writes what has happened since the last call. Never to be called twice at a time."""
        self._take_events()
        self._progress.beat(self._now())
        try:
            self._look()
            self._history.flush()
            self._history_error.message = ""
        except EnvironmentFailure as error:
            if self._history_error.is_new(str(error)):
                self._complain(str(error))
        await self._keeper.keep(self._now())

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
        self._take_events(last=True)
        self._progress.end(self._now(), "stopped")
        try:
            self._look(at_once=True)
            self._history.flush()
        except EnvironmentFailure as error:
            failure = failure or error
        self._history.close()
        if failure is not None:
            self._tell_aside(str(failure))
            raise failure

    def close(self) -> None:
        """Closes the files and writes nothing, for a parent that could not start."""
        self._keeper.close()
        self._history.close()

    def _make_keeper(self, out: Path) -> RunStore:
        server = self._server
        if not isinstance(server.trials, Search):
            return Checkpointer(server, out, self.note, self._complain)
        from genkidama.plugins.hypertrick.study import (
            Study,  # Optuna, which a plain run does without
        )

        study = Study(server.experiment, out, resumes=(out / EXPERIMENT).exists())
        return TrialStore(server, server.trials, study, out, self._complain, self._now)

    def _take_events(self, *own: Event, last: bool = False) -> None:
        if last:
            self._server.settle(self._now(), last)
        events = [*self._server.take_events(), *own]
        self._history.add(events)
        self._also(events)
        self._events.report(events, self._now(), last)
        server = self._server
        beta = server.experiment.child.beta
        self._events.advise(server.trials.rule.diagnose(beta, len(server.joined)))

    def _complain(self, problem: str) -> None:
        """Logs it. The history tells it, too, if it is another one than before."""
        self._log.error("problem", reason=problem)
        if self._problem.is_new(problem):
            self._take_events()
            self._history.add([Warned(time=self._now(), reason=problem)])
            if self._history_error.message:
                self._tell_aside(problem)

    def _tell_aside(self, problem: str) -> None:
        self._aside(as_lines([Warned(time=self._now(), reason=problem)]))

    def _look(self, at_once: bool = False) -> None:
        """Makes the directory again if it has gone."""
        now = self._now()
        if not at_once and now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        if self._history.gone:
            self._history.reopen()
            write_atomically(self._out / EXPERIMENT, self._server.experiment.to_toml().encode())
            self._keeper.lost()
            self._complain(
                f"{self._out}: was deleted or moved while the run goes on; made again, "
                "without what was in it"
            )


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
            f"{out or 'runs'}: cannot be made: {error.strerror}; {hint(error)}"
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
