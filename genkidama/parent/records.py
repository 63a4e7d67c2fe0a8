"""A run's directory: `experiment.toml`, `history.jsonl` and `checkpoints/`, and what is kept in them while the run goes on.

Laws of this file:
- A directory that holds a run is taken up where that run's newest readable checkpoint left off.
- What cannot be written while the run goes on is reported once and tried again; the run goes on.
- The history tells things in the order in which they happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

import genkidama
from genkidama.blending import diagnose
from genkidama.checkpoint import Checkpoint, CheckpointFolder, write_atomically
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.parameter_server import ParameterServer
from genkidama.parent.checkpointer import Checkpointer
from genkidama.parent.history import History
from genkidama.parent.telemetry import EventLog

__all__ = ["Records", "make_directory"]


class Records:
    """What a parent writes down. Opening them restores `server` from the newest checkpoint, if there is one.

    Args:
        server: whose events and weights are recorded.
        out: the run's directory, which exists.
        now: the parent's clock, in seconds.
        log: where people read.

    Raises:
        ConfigurationError: the directory holds a run of another network.
        EnvironmentFailure: the directory cannot be written, or another parent is using it.
    """

    def __init__(self, server: ParameterServer, out: Path, now: Callable[[], float], log: FilteringBoundLogger) -> None:
        self._server = server
        self._now = now
        self._log = log
        self._events = EventLog(log)
        self._history_error = ""
        self._history = History(out / "history.jsonl")
        try:
            folder = CheckpointFolder(out / "checkpoints", server.experiment.parent.checkpoint_keep)
            self._checkpointer = Checkpointer(server, folder, self.note, self._complain)
            checkpoint = self._checkpointer.restore()
            if checkpoint is not None:
                _check_same_network(checkpoint, server.experiment, out)
            write_atomically(out / "experiment.toml", server.experiment.to_toml().encode())
        except BaseException:
            self._history.close()
            raise
        self._note_start(out.name, checkpoint)

    @property
    def urgent(self) -> bool:
        """Whether `keep` has something to do at once."""
        return self._checkpointer.due

    def pushed(self, now: float) -> None:
        """To be called after each push, before the next is handled."""
        self._checkpointer.pushed(now)

    def note(self, event: str, **details: Any) -> None:
        """Adds an event of the parent's own to the history and the log."""
        self._take_events({"time": self._now(), "event": event, **details})

    async def keep(self) -> None:
        """Writes what has happened since the last call. Never to be called twice at the same time."""
        self._take_events()
        await self._checkpointer.keep(self._now())
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
            await self._checkpointer.finish(self._now())
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
        self._history.close()

    def _take_events(self, *own: dict[str, Any]) -> None:
        events = [*self._server.take_events(), *own]
        self._history.add(events)
        self._events.report(events, self._now())
        if any(event["event"] in ("start", "resume", "join") for event in events):
            experiment = self._server.experiment
            children = sum(record.joined for record in self._server.children.values())
            self._events.advise(diagnose(experiment.parent.alpha, experiment.child.beta, children))

    def _complain(self, problem: str) -> None:
        self._log.error("problem", reason=problem)

    def _note_start(self, run: str, checkpoint: Checkpoint | None) -> None:
        software = genkidama.__version__
        if checkpoint is None:
            self.note("start", run=run, software=software)
            return
        trial, file = self._server.trial, checkpoint.path.name if checkpoint.path else ""
        self.note(
            "resume",
            run=run,
            software=software,
            file=file,
            version=trial.version,
            update=self._server.updates,
            episodes=trial.episodes,
            steps=trial.steps,
            mean_return=trial.mean_return,
        )


def make_directory(out: Path | None, name: str) -> Path:
    """The directory `out`, made if missing; without one a new `runs/NAME-DATE-TIME`.

    Raises:
        EnvironmentFailure: it cannot be made.
    """
    try:
        if out is None:
            return _new_directory(name)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailure(f"{out or 'runs'}: cannot be made: {error.strerror}; choose another directory with --out") from None
    return out


def _new_directory(name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{number}" for number in range(2, 100))):
        path = Path("runs") / f"{name}-{stamp}{suffix}"
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise EnvironmentFailure(f"runs/{name}-{stamp}: so many runs began in this second; choose a directory with --out")


def _check_same_network(checkpoint: Checkpoint, experiment: Experiment, out: Path) -> None:
    """Every child would be refused if a run went on with another network; say it before the first one comes."""
    before = checkpoint.experiment
    for key, was, now_is in (
        ("network", before.network, experiment.network),
        ("environment.id", before.environment.id, experiment.environment.id),
    ):
        if was != now_is:
            raise ConfigurationError(
                f"{out}: its checkpoints were made with {key} = {was!r}, now it is {now_is!r}; choose another directory with --out"
            )
