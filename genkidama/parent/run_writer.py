"""Writer of a run's directory: `experiment.toml`, `history.jsonl`, and the store beside them.

Laws of this file:
- A directory that holds a run is resumed from that run's newest readable checkpoint.
- A failed write is reported once and tried again; the run continues.
- A problem is in the log and in the history. One of the history itself also goes to the fallback,
  since the terminal that follows a run reads the history.
- A directory that was deleted is made again, with everything that the parent knows.
- The history has events in the order in which they happened. Those before a checkpoint are on the
  disk before it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from genkidama._version import __version__
from genkidama.config.experiment import Experiment, read_toml
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.parent.event_log import EventLog, ProgressLog
from genkidama.parent.extensions import RunStore
from genkidama.runs.history import History
from genkidama.runs.run import EXPERIMENT, HISTORY, SETTINGS
from genkidama.runtime.files import write_atomically
from genkidama.runtime.log import FilteringBoundLogger
from genkidama.runtime.pacing import Once
from genkidama.server.events import CheckpointWritten, Event, Started, Warned, as_lines

if TYPE_CHECKING:
    from genkidama.parent.parent import Parent


class RunWriter:
    """Writes down what a parent does, and restores its server if the directory holds a run.

    Args:
        parent: its status and observers get the events.
        store: keeps the weights.
        out: the run's directory, which exists.
        log: for people.

    Raises:
        ConfigurationError: the directory holds a run of another kind, network or rule.
        EnvironmentFailure: the directory cannot be written, or another parent is using it.
    """

    def __init__(
        self, parent: Parent, store: type[RunStore], out: Path, log: FilteringBoundLogger
    ) -> None:
        self._parent = parent
        self._server = server = parent.server
        self._out = out
        self._log = log
        self._events = EventLog(log)
        self._history_error = Once()
        self._sync_error = Once()
        #: The problem in the newest warning of the history.
        self._problem = Once()
        self._history = History(out / HISTORY)
        try:
            _check_same_kind(server.experiment, out)
            self._store = store(server, out, self)
        except BaseException:
            self._history.close()
            raise
        try:
            begun = self._store.restore(self.now())
            self._written = server.experiment
            self._write_experiment()
        except BaseException:
            self.close()
            raise
        run, command = parent.out or out, parent.command
        self._progress = ProgressLog(server, parent.status, run, command, log, self.now())
        name = server.run or out.name
        self.note(begun or Started(time=self.now(), run=name, software=__version__))

    # A store calls these.

    def now(self) -> float:
        """The parent's clock, in seconds."""
        return self._parent.now()

    def note(self, event: Event) -> None:
        """Adds an event, at the present time. Pushes that came while a checkpoint was being written
        are before it."""
        event.time = self.now()
        if isinstance(event, CheckpointWritten):
            self._problem.message = ""  # if it returns, it is news
        self._take_events(event)

    def recall(self, events: Sequence[Event]) -> None:
        """Adds events of a run that is resumed to its status. The history has them."""
        self._parent.status.take(events)

    def complain(self, problem: str) -> None:
        """Reports a file or a database that cannot be read or written, in one line. The history has
        it, too, if it is unlike the last one."""
        self._log.error("problem", reason=problem)
        if self._problem.is_new(problem):
            self._take_events()
            self._share([Warned(time=self.now(), reason=problem)])
            if self._history_error.message:
                self._write_fallback(problem)

    async def secure(self) -> None:
        """Returns when all events so far would survive a power cut, or cannot be written."""
        self._take_events()
        try:
            self._history.flush()
            await asyncio.to_thread(self._history.sync)
            self._sync_error.message = ""
        except EnvironmentFailure as error:
            if self._sync_error.is_new(str(error)) and str(error) != self._history_error.message:
                self.complain(str(error))

    # The parent calls these.

    def after_push(self) -> bool:
        """To be called after each push, before the next. Whether `keep` has something to write."""
        return self._store.after_push()

    async def keep(self) -> None:
        """Writes what has happened since the last call. Never to be called twice at a time."""
        self._take_events()
        self._progress.beat(self.now())
        try:
            self._flush()
            self._history_error.message = ""
        except EnvironmentFailure as error:
            if self._history_error.is_new(str(error)):
                self.complain(str(error))
        await self._store.keep(self.now())

    async def finish(self) -> None:
        """Writes the final checkpoint and the rest of the history, and closes them.

        Raises:
            EnvironmentFailure: one of them could not be written.
        """
        failure: EnvironmentFailure | None = None
        try:
            await self._store.finish(self.now())
        except EnvironmentFailure as error:
            failure = error
        self._take_events(last=True)
        self._progress.end(self.now(), "stopped")
        try:
            self._flush()
            await asyncio.to_thread(self._history.sync)
        except EnvironmentFailure as error:
            failure = failure or error
        self._history.close()
        if failure is not None:
            self._write_fallback(str(failure))
            raise failure

    def close(self) -> None:
        """Closes the files and writes nothing, for a parent that could not start."""
        self._store.close()
        self._history.close()

    def _take_events(self, *own: Event, last: bool = False) -> None:
        if last:
            self._server.settle(self.now(), last)
        events = [*self._server.take_events(), *own]
        self._share(events)
        self._events.report(events, self.now(), last)
        server, beta = self._server, self._server.experiment.child.beta
        self._events.advise(server.trials.rule.diagnose(beta, len(server.joined)))

    def _share(self, events: list[Event]) -> None:
        self._history.add(events)
        self._parent.status.take(events)
        for observer in self._parent.observers:
            observer.take(events)

    def _flush(self) -> None:
        """Writes the history and, if the run's owner has changed them, the settings."""
        self._look()
        self._history.flush()
        if self._server.experiment is not self._written:
            self._write_experiment()

    def _write_experiment(self) -> None:
        experiment = self._server.experiment
        for name in (EXPERIMENT, SETTINGS):  # the second, from which a starter begins again
            if name == EXPERIMENT or (self._out / name).exists():
                write_atomically(self._out / name, experiment.to_toml().encode())
        self._written = experiment

    def _write_fallback(self, problem: str) -> None:
        self._parent.fallback(as_lines([Warned(time=self.now(), reason=problem)]))

    def _look(self) -> None:
        """Makes the directory again if it has gone."""
        if self._history.gone:
            self._history.reopen()
            self._write_experiment()
            self._store.forget_files()
            self.complain(
                f"{self._out}: was deleted or moved while the run goes on; made again, "
                "without what was in it"
            )


def _check_same_kind(experiment: Experiment, out: Path) -> None:
    """Refuses to resume a search as a plain run, and a plain run as a search."""
    path = out / EXPERIMENT
    if not path.exists():
        return
    was, now_is = (
        "a search" if search else "a plain run"
        for search in ("search" in read_toml(path), experiment.searches)
    )
    if was != now_is:
        raise ConfigurationError(
            f"{out}: holds {was}, and this is {now_is}; choose another directory with --out"
        )
