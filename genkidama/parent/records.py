"""A run's directory: `experiment.toml`, `history.jsonl` and `checkpoints/` or, of a search, `trials/` and the study.

Laws of this file:
- A directory that holds a run is taken up where that run's newest readable checkpoint left off.
- What cannot be written while the run goes on is reported once and tried again; the run goes on.
- The history tells things in the order in which they happened.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

import genkidama
from genkidama.averaging import diagnose
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment, read_toml
from genkidama.parameter_server import ParameterServer
from genkidama.parent.checkpointer import Checkpointer
from genkidama.parent.telemetry import EventLog
from genkidama.parent.trials import TrialKeeper
from genkidama.system.checkpoint import Checkpoint, CheckpointFolder
from genkidama.system.files import write_atomically
from genkidama.system.history import History
from genkidama.system.run import CHECKPOINTS, EXPERIMENT, HISTORY, new_directory

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
        self._history_error = self._problem = ""
        self._history = History(out / HISTORY)
        self._keeper: Checkpointer | TrialKeeper | None = None
        try:
            _check_same_kind(server.experiment, out)
            if server.search is None:
                start = self._take_up_run(out)
            else:
                start = self._take_up_search(out)
            write_atomically(out / EXPERIMENT, server.experiment.to_toml().encode())
        except BaseException:
            self.close()
            raise
        self.note(
            "resume" if start else "start", run=out.name, software=genkidama.__version__, **start
        )

    @property
    def urgent(self) -> bool:
        """Whether `keep` has something to do at once."""
        assert self._keeper is not None
        return self._keeper.due

    def pushed(self, now: float) -> None:
        """To be called after each push, before the next is handled."""
        assert self._keeper is not None
        self._keeper.pushed(now)

    def note(self, event: str, **details: Any) -> None:
        """Adds an event of the parent's own to the history and the log."""
        self._take_events({"time": self._now(), "event": event, **details})

    async def keep(self) -> None:
        """Writes what has happened since the last call. Never to be called twice at the same time."""
        assert self._keeper is not None
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
        assert self._keeper is not None
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
        if isinstance(self._keeper, TrialKeeper):
            self._keeper.close()
        self._history.close()

    def _take_up_run(self, out: Path) -> dict[str, Any]:
        """Goes on from the newest checkpoint; what there is to say about it, nothing of a new run."""
        server = self._server
        folder = CheckpointFolder(out / CHECKPOINTS, server.experiment.parent.checkpoint_keep)
        self._keeper = Checkpointer(server, folder, self.note, self._complain)
        checkpoint = self._keeper.restore()
        if checkpoint is None:
            return {}
        _check_same_network(checkpoint, server.experiment, out)
        trial = server.trial
        return {
            "file": checkpoint.path.name if checkpoint.path else "",
            "version": trial.version,
            "update": server.updates,
            "episodes": trial.episodes,
            "steps": trial.steps,
            "mean_return": trial.mean_return,
        }

    def _take_up_search(self, out: Path) -> dict[str, Any]:
        """Goes on from the study; what there is to say about it, nothing of a new search."""
        from genkidama.tuning.study import Study  # Optuna, which a plain run does without

        server = self._server
        study = Study(server.experiment, out, resumes=(out / EXPERIMENT).exists())
        self._keeper = TrialKeeper(server, study, out, self._complain, self._now)
        self._keeper.restore()
        assert server.search is not None
        return (
            {"trials": len(server.search.trials), "reports": server.search.reports}
            if server.search.trials
            else {}
        )

    def _take_events(self, *own: dict[str, Any]) -> None:
        events = [*self._server.take_events(), *own]
        self._history.add(events)
        self._events.report(events, self._now())
        if self._server.search is None and any(
            event["event"] in ("start", "resume", "join") for event in events
        ):
            experiment = self._server.experiment
            children = sum(record.joined for record in self._server.children.values())
            self._events.advise(diagnose(experiment.parent.alpha, experiment.child.beta, children))

    def _complain(self, problem: str) -> None:
        self._log.error("problem", reason=problem)
        if self._server.search is not None and problem != self._problem:
            self._problem = (
                problem  # its nodes may have to wait, and who watches the history wants to know why
            )
            self._history.add([{"time": self._now(), "event": "warning", "reason": problem}])


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
            f"{out or 'runs'}: cannot be made: {error.strerror}; choose another directory with --out"
        ) from None
    return out


def _check_same_kind(experiment: Experiment, out: Path) -> None:
    """A search and a plain run do not go on in each other's directory."""
    path = out / EXPERIMENT
    was_search = "search" in read_toml(path) if path.exists() else experiment.search is not None
    if was_search != (experiment.search is not None):
        was, now_is = ("a search", "a plain run") if was_search else ("a plain run", "a search")
        raise ConfigurationError(
            f"{out}: holds {was}, and this is {now_is}; choose another directory with --out"
        )


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
