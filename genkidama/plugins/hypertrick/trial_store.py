"""What a search keeps while it goes on: a directory for each trial, and the study.

Laws of this file:
- A trial's directory, `trials/NNNN`, is a run's: `genkidama evaluate` and
  `genkidama train --resume` take it.
- At the end of each phase the trial's weights are copied between two pushes. First they are
  written, then the report, so that a report in the study always has its weights on the disk.
- What cannot be written is tried again; the search goes on.
- Nothing waits for the study but what needs it: it may be locked for a minute, or away.
- A directory belongs to the trial that made it. If the study knows no such trial, or one with other
  settings, it is put aside: its weights are nobody's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from genkidama._version import __version__
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.parent.checkpointer import RETRY_SECONDS
from genkidama.plugins.hypertrick.search import Search, SearchTrial
from genkidama.protocol.shard import Shard
from genkidama.protocol.vector import Signature, Vector
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.directory import CHECKPOINTS, EXPERIMENT, TRIALS, trial_folder
from genkidama.runtime.files import write_atomically
from genkidama.runtime.import_strings import is_import_string, load_object
from genkidama.server.child_record import restore_children
from genkidama.server.events import Resumed
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.rules.registry import check_parts, check_push, make_rule
from genkidama.server.trial import SingleTrialRun, Snapshot, Trials

if TYPE_CHECKING:  # it needs Optuna, which a plain run does without
    from genkidama.plugins.hypertrick.study import Study

__all__ = ["TrialStore", "make_trial_store"]

#: So many checkpoints of a trial under way are kept, beside the best.
_KEEP = 1

#: A trial's weights, what its checkpoint says beside them, and whether a phase has ended with them.
_Copy: TypeAlias = tuple[Signature, Vector, Snapshot, bool]


class TrialStore:
    """Keeps the trials of `search` under `out`, and its study up to date.

    Args:
        server: its `trials` is `search`.
        complain: called with one line about each file or database that cannot be written or read.
        now: the parent's clock, in seconds.
    """

    def __init__(
        self,
        server: ParameterServer,
        search: Search,
        study: Study,
        out: Path,
        complain: Callable[[str], None],
        now: Callable[[], float],
    ) -> None:
        self._server = server
        self._search = search
        self._study = study
        self._out = out
        self._complain = complain
        self._now = now
        self._copies: dict[int, _Copy] = {}
        self._reported: dict[int, SearchTrial] = {}
        self._saved: dict[int, int] = {}
        self._best: dict[int, float] = {}
        self._saved_at = -math.inf
        self._retry_at = -math.inf
        #: When the study is asked or told again.
        self._study_at = -math.inf
        self._reporting: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None

    def restore(self, now: float) -> Resumed | None:
        """Takes up the trials of the study; None if there are none.

        Raises:
            ConfigurationError: the study is empty, and there are trials' directories.
        """
        search = self._search
        trials = self._study.trials()
        self._put_strangers_aside({known.number for known in trials})
        for known in trials:
            trial = search.restore(known.number, known.params, known.state, known.phases)
            metrics = (record.metric for record in known.phases if record.metric is not None)
            self._best[known.number] = max(metrics, default=-math.inf)
            if not trial.ended:
                checkpoint = self._folder(known.number).latest(self._complain)
                if checkpoint is not None and not _has(checkpoint.snapshot, known.params):
                    self._put_aside(
                        known.number, "was trained with other settings than the study's"
                    )
                elif checkpoint is not None:
                    trial.restore(checkpoint.snapshot, checkpoint.signature, checkpoint.vector)
                    trial.seconds = checkpoint.snapshot.seconds
                    self._saved[known.number] = trial.version
                    self._server.children.update(restore_children(checkpoint.snapshot))
        search.restored(now)
        if not search.trials:
            return None
        return Resumed(
            time=now,
            run=self._server.run,
            software=__version__,
            trials=len(search.trials),
            reports=search.reports,
        )

    def lost(self) -> None:
        """The trials under way are written anew; those that have ended are gone."""
        self._saved.clear()
        self._saved_at = -math.inf

    @property
    def due(self) -> bool:
        """Whether `keep` has something to do at once."""
        if self._now() < self._study_at:
            return False
        return bool(self._reported and self._reporting is None) or (
            self._wanted and self._sampling is None
        )

    def pushed(self, now: float) -> bool:
        """To be called after each push, before the next is handled. As `due` afterwards.

        Copies the weights of a trial that has ended a phase.
        """
        for trial in self._search.take_changed():
            self._reported[trial.index] = trial
            self._copy(trial, phase_end=True)
        return self.due

    async def keep(self, now: float) -> None:
        """Writes what is due and fetches configurations.

        To be called often, and never twice at the same time.
        """
        self.pushed(now)  # a trial may also end without a push
        if now < self._retry_at:
            return
        if self._sampling is None and self._wanted and now >= self._study_at:
            self._sampling = asyncio.create_task(self._sample())
        if now - self._saved_at >= (self._server.experiment.parent.checkpoint_seconds or math.inf):
            self._saved_at = now
            for trial in self._search.trials.values():
                if trial.state == "running" and trial.version != self._saved.get(trial.index):
                    self._copy(trial)
        try:
            await self._write()
        except EnvironmentFailure as error:
            self._retry_at = now + RETRY_SECONDS
            self._complain(str(error))
            return
        if self._reported and self._reporting is None and now >= self._study_at:
            self._reporting = asyncio.create_task(self._report_later(self._report()))

    async def finish(self, now: float) -> None:
        """Writes all that is left, the weights of trials under way too.

        Raises:
            EnvironmentFailure: it cannot be written.
        """
        under_way = [task for task in (self._sampling, self._reporting) if task is not None]
        if under_way:
            await asyncio.wait(under_way)
        self.pushed(now)
        for trial in self._search.trials.values():
            if trial.version and not trial.ended:
                self._copy(trial)
        try:
            await self._write()
            await self._report()
        finally:
            self._study.close()

    def close(self) -> None:
        """Closes the study and writes nothing, for a parent that could not start."""
        self._study.close()

    @property
    def _wanted(self) -> bool:
        return not self._server.stop and self._search.wanted > 0

    def _copy(self, trial: SearchTrial, phase_end: bool = False) -> None:
        if trial.vector is None or trial.signature is None:
            return
        waiting = self._copies.get(trial.index)
        snapshot = trial.as_run()
        record = self._server.children.get(trial.owner)
        if record is not None:
            snapshot.sessions = {trial.owner: (record.session, record.sequence)}
        self._copies[trial.index] = (
            trial.signature,
            trial.vector.copy(),
            snapshot,
            phase_end or (waiting is not None and waiting[3]),
        )

    async def _write(self) -> None:
        while self._copies:
            number, copy = next(iter(self._copies.items()))
            await asyncio.to_thread(self._save, number, copy)
            if self._copies[number] is copy:  # no newer one has come meanwhile
                del self._copies[number]

    def _report(self) -> Awaitable[None]:
        """Tells the study what has been reported until now. All of its weights are written."""
        reported, self._reported = self._reported, {}
        paths = [(trial, self._path(number)) for number, trial in reported.items()]
        # A trial may go on, and end, while this is being written.
        ended = [number for number, trial in reported.items() if trial.ended]
        return self._told(reported, ended, self._study.write(paths))

    async def _told(
        self, reported: dict[int, SearchTrial], ended: list[int], writing: Awaitable[None]
    ) -> None:
        try:
            await writing
        except EnvironmentFailure:
            self._reported = reported | self._reported
            raise
        for number in ended:
            if number not in self._copies and number not in self._reported:
                # It is on the disk, and nobody asks for it any more.
                reported[number].vector = None

    async def _report_later(self, telling: Awaitable[None]) -> None:
        try:
            await telling
        except EnvironmentFailure as error:
            self._study_at = self._now() + RETRY_SECONDS
            self._complain(str(error))
        finally:
            self._reporting = None

    def _put_strangers_aside(self, known: set[int]) -> None:
        folders = [path for path in self._out.glob(f"{TRIALS}/[0-9]*") if path.name.isdecimal()]
        strangers = [int(path.name) for path in folders if int(path.name) not in known]
        if strangers and not known:
            raise ConfigurationError(
                f"{self._study.shown}: the study is empty, though {self._out / TRIALS} holds "
                f"{len(strangers)} trials: was it deleted? put it back from a copy, "
                "or begin anew with another directory by --out"
            )
        for number in strangers:
            self._put_aside(number, "is not in the study")

    def _put_aside(self, number: int, why: str) -> None:
        folder = self._out / trial_folder(number)
        aside = folder.with_name(f"lost-{folder.name}-{int(self._now())}")
        try:
            folder.rename(aside)
        except OSError as error:
            raise EnvironmentFailure(
                f"{folder}: {why}, and cannot be renamed: {error.strerror}; move it away"
            ) from None
        self._complain(f"{folder}: {why}; it is {aside.name} now")

    def _save(self, number: int, copy: _Copy) -> None:
        signature, vector, snapshot, phase_end = copy
        folder = self._folder(number)
        folder.prepare()
        settings = folder.path.parent / EXPERIMENT
        if not settings.exists():
            write_atomically(settings, Experiment.from_dict(snapshot.experiment).to_toml().encode())
        folder.save_latest(signature, vector, snapshot)
        self._saved[number] = snapshot.version
        if (
            phase_end
            and snapshot.mean_return is not None
            and snapshot.mean_return > self._best.get(number, -math.inf)
        ):
            self._best[number] = snapshot.mean_return
            folder.save_best(signature, vector, snapshot)

    def _folder(self, number: int) -> CheckpointFolder:
        return CheckpointFolder(self._out / trial_folder(number) / CHECKPOINTS, _KEEP)

    def _path(self, number: int) -> str:
        folder = self._folder(number)
        versions = folder.versions()
        return str(folder.version_path(versions[-1]).relative_to(self._out)) if versions else ""

    async def _sample(self) -> None:
        try:
            while self._wanted:
                number, params = await self._study.sample()
                self._search.offer(number, params, self._now())
        except EnvironmentFailure as error:
            self._study_at = self._now() + RETRY_SECONDS
            self._complain(str(error))
        finally:
            self._sampling = None


def _has(snapshot: Snapshot, params: dict[str, Any]) -> bool:
    """Whether a checkpoint was written with these settings."""
    for key, value in params.items():
        found: Any = snapshot.experiment
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found != value:
            return False
    return True


def make_trial_store(experiment: Experiment, part: Shard) -> Trials:
    """What a parent decides about: the trials of a search, or a plain run.

    Raises:
        ConfigurationError: as `Parent`.
    """
    check_parts(experiment, part.count)
    if experiment.search is not None:
        return Search(experiment)
    name = experiment.parent.rule
    rule = make_rule(
        experiment, load_object(name, "parent.rule") if is_import_string(name) else None
    )
    check_push(experiment, rule.takes)
    return SingleTrialRun(experiment, rule, part)
