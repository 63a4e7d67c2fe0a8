"""Store of a search: a directory for each trial, and the study.

Laws of this file:
- A trial's directory, `trials/NNNN`, is a run's: `genkidama evaluate` and
  `genkidama train --resume` take it.
- At the end of each phase the trial's weights are copied between two pushes. They are written
  before the report, so that a report in the study always has its weights on disk.
- A failed write is tried again; the search continues.
- Only what needs the study waits for it: it may be locked for a minute, or unreachable.
- A directory belongs to the trial that made it. If the study has no such trial, or one with other
  settings, it is renamed: its weights belong to none.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Collection
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from genkidama._version import __version__
from genkidama.config.allowlist import check_imports, modules
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.parent.checkpointer import RETRY_SECONDS
from genkidama.parent.extensions import RunStore
from genkidama.parent.run_writer import RunWriter
from genkidama.plugins.hypertrick.rule import Verdict
from genkidama.plugins.hypertrick.search import Search, SearchTrial
from genkidama.protocol.shard import Shard
from genkidama.protocol.vector import Signature, Vector
from genkidama.runs.checkpoint import Checkpoint, CheckpointFolder
from genkidama.runs.run import EXPERIMENT, TRIALS, trial_folder
from genkidama.runs.sharded_checkpoint import CHECKPOINTS
from genkidama.runs.warm_start import warm_start
from genkidama.runtime.files import make_folder, write_atomically
from genkidama.server.child_record import restore_children
from genkidama.server.events import (
    Event,
    PhaseReported,
    Resumed,
    Started,
    TrialAssigned,
    TrialEnded,
)
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.rules.registry import check_parts
from genkidama.server.trial import Snapshot, Trials

#: Checkpoints kept of a trial under way, beside the best.
_KEEP = 1

#: A trial's weights, what its checkpoint says beside them, and whether a phase has ended with them.
_Copy: TypeAlias = tuple[Signature, Vector, Snapshot, bool]


class TrialStore(RunStore):
    """Keeps the trials of a `Search` under `out`, and its study up to date."""

    def __init__(self, server: ParameterServer, out: Path, journal: RunWriter) -> None:
        from genkidama.plugins.hypertrick.study import Study  # Optuna

        assert isinstance(server.trials, Search)
        self._server = server
        self._search = server.trials
        self._study = Study(server.experiment, out, resumes=(out / EXPERIMENT).exists())
        self._out = out
        self._journal = journal
        self._copies: dict[int, _Copy] = {}
        self._reported: dict[int, SearchTrial] = {}
        self._saved: dict[int, int] = {}
        self._best: dict[int, float] = {}
        self._saved_at = -math.inf
        self._retry_at = -math.inf
        #: When the study is used again after an error.
        self._study_at = -math.inf
        self._reporting: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None

    @staticmethod
    def make_trials(experiment: Experiment, shard: Shard) -> Trials:
        check_parts(experiment, shard.count)
        return Search(experiment)

    def restore(self, now: float) -> Resumed | Started | None:
        """See `RunStore`. An empty study beside trials' directories is an error."""
        search = self._search
        trials = self._study.trials()
        self._rename_unknown({each.number for each in trials})
        known = modules(self._server.experiment.to_dict())
        for each in trials:
            trial = search.restore(each.number, each.params, each.state, each.phases)
            # The study may be somebody else's, as the directory; it names nothing new.
            check_imports(trial.experiment, known, f"trial {each.number} of the study")
            metrics = (record.metric for record in each.phases if record.metric is not None)
            self._best[each.number] = max(metrics, default=-math.inf)
            if not trial.ended:
                folder = self._folder(each.number)
                if folder.path.exists():
                    folder.prepare()
                checkpoint = folder.latest(self._journal.complain)
                # Of a population one may have copied another before the study heard of it.
                fits = search.search_rule.takes_turns
                if checkpoint is not None and not (fits or _has(checkpoint.snapshot, trial)):
                    self._rename(each.number, "was trained with other settings than the study's")
                elif checkpoint is None and not each.phases:
                    self._begin(each.number, self._start_of(each.params))
                elif checkpoint is not None:
                    trial.restore(checkpoint.snapshot, checkpoint.signature, checkpoint.vector)
                    trial.seconds = checkpoint.snapshot.seconds
                    self._saved[each.number] = trial.version
                    self._server.children.update(restore_children(checkpoint.snapshot))
        self._journal.recall(_events(search.trials.values(), now))
        search.restored(now)
        if not search.trials:
            found = warm_start(search.plain)
            if found is None:
                return None
            run = self._server.run
            return Started(time=now, run=run, software=__version__, start=found[1])
        return Resumed(
            time=now,
            run=self._server.run,
            software=__version__,
            seconds=search.seconds(now),
            trials=len(search.trials),
            reports=search.reports,
        )

    def forget_files(self) -> None:
        """See `RunStore`. Trials under way are written anew; those that have ended are gone."""
        self._saved.clear()
        self._best.clear()
        self._saved_at = -math.inf

    @property
    def due(self) -> bool:
        if self._journal.now() < self._study_at:
            return False
        return bool(self._reported and self._reporting is None) or (
            self._wanted and self._sampling is None
        )

    def after_push(self) -> bool:
        """See `RunStore`. Copies the weights of a trial that has ended a phase."""
        for trial in self._search.take_changed():
            self._reported[trial.index] = trial
            self._copy(trial, phase_end=True)
        return self.due

    async def keep(self, now: float) -> None:
        """See `RunStore`. Also fetches configurations."""
        self.after_push()  # a trial may also end without a push
        if now < self._retry_at:
            return
        if self._sampling is None and self._wanted and now >= self._study_at:
            self._sampling = asyncio.create_task(self._sample())
        asked = "checkpoint" in self._server.asked
        every = self._server.experiment.parent.checkpoint_seconds or math.inf
        if asked or now - self._saved_at >= every:
            self._server.asked.discard("checkpoint")
            self._saved_at = now
            for trial in self._search.trials.values():
                if trial.state == "running" and trial.version != self._saved.get(trial.index):
                    self._copy(trial)
        try:
            await self._write()
        except EnvironmentFailure as error:
            self._retry_at = now + RETRY_SECONDS
            self._journal.complain(str(error))
            return
        if self._reported and self._reporting is None and now >= self._study_at:
            self._reporting = asyncio.create_task(self._report_later(self._report()))

    async def finish(self, now: float) -> None:
        """See `RunStore`. Writes the weights of trials under way, too."""
        under_way = [task for task in (self._sampling, self._reporting) if task is not None]
        if under_way:
            await asyncio.wait(under_way)
        self.after_push()
        for trial in self._search.trials.values():
            if trial.version and not trial.ended:
                self._copy(trial)
        try:
            await self._write()
            await self._report()
        finally:
            self._study.close()

    def close(self) -> None:
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
        if record is not None and not trial.stop:
            snapshot.sessions = {trial.owner: (record.session, record.sequence)}
        self._copies[trial.index] = (
            trial.signature,
            trial.vector.copy(),
            snapshot,
            phase_end or (waiting is not None and waiting[3]),
        )

    async def _write(self) -> None:
        if self._copies:
            await self._journal.secure()
        while self._copies:
            number, copy = next(iter(self._copies.items()))
            await asyncio.to_thread(self._save, number, copy)
            if self._copies[number] is copy:  # no newer one has come meanwhile
                del self._copies[number]

    def _report(self) -> Awaitable[None]:
        """Writes the reports so far to the study. All of their weights are on disk."""
        reported, self._reported = self._reported, {}
        paths = [(trial, self._path(number)) for number, trial in reported.items()]
        # A trial may continue, and end, while this is being written.
        ended = [number for number, trial in reported.items() if trial.ended]
        return self._settle(reported, ended, self._study.write(paths))

    async def _settle(
        self, reported: dict[int, SearchTrial], ended: list[int], writing: Awaitable[None]
    ) -> None:
        try:
            await writing
        except EnvironmentFailure:
            self._reported = reported | self._reported
            raise
        for number in ended:
            if number not in self._copies and number not in self._reported:
                # It is on disk, and it is not asked for any more.
                reported[number].vector = None

    async def _report_later(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except EnvironmentFailure as error:
            self._study_at = self._journal.now() + RETRY_SECONDS
            self._journal.complain(str(error))
        finally:
            self._reporting = None

    def _rename_unknown(self, numbers: set[int]) -> None:
        """Renames the directories of trials that the study does not have."""
        folders = [path for path in self._out.glob(f"{TRIALS}/[0-9]*") if path.name.isdecimal()]
        unknown = [int(path.name) for path in folders if int(path.name) not in numbers]
        if unknown and not numbers:
            raise ConfigurationError(
                f"{self._study.shown}: the study is empty, though {self._out / TRIALS} holds "
                f"{len(unknown)} trials: was it deleted? put it back from a copy, "
                "or begin anew with another directory by --out"
            )
        for number in unknown:
            self._rename(number, "is not in the study")

    def _rename(self, number: int, why: str) -> None:
        folder = self._out / trial_folder(number)
        renamed = folder.with_name(f"lost-{folder.name}-{int(self._journal.now())}")
        try:
            folder.rename(renamed)
        except OSError as error:
            raise EnvironmentFailure(
                f"{folder}: {why}, and cannot be renamed: {error.strerror}; move it away"
            ) from None
        self._journal.complain(f"{folder}: {why}; it is {renamed.name} now")

    def _save(self, number: int, copy: _Copy) -> None:
        signature, vector, snapshot, phase_end = copy
        folder = self._folder(number)
        make_folder(folder.path)
        settings = folder.path.parent / EXPERIMENT
        if phase_end or not settings.exists():  # it may have copied another trial's
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

    def _start_of(self, params: dict[str, Any]) -> Checkpoint | str | None:
        """The first weights of a trial with these settings; a text says why there are none."""
        try:
            experiment = self._search.plain.with_settings(params, source="the trial")
            found = warm_start(experiment)
        except GenkidamaError as error:
            return str(error)
        return found and found[0]

    def _begin(self, number: int, start: Checkpoint | str | None) -> None:
        trial = self._search.trials[number]
        if isinstance(start, Checkpoint):
            trial.restore(start.snapshot, start.signature, start.vector)
        elif start and not trial.stop:
            self._journal.complain(f"trial {number} begins with new weights: {start}")

    async def _sample(self) -> None:
        try:
            while self._wanted:
                number, params = await self._study.sample()
                start = await asyncio.to_thread(self._start_of, params)
                self._search.offer(number, params, self._journal.now())
                self._begin(number, start)
        except EnvironmentFailure as error:
            self._study_at = self._journal.now() + RETRY_SECONDS
            self._journal.complain(str(error))
        finally:
            self._sampling = None


def _events(trials: Collection[SearchTrial], now: float) -> list[Event]:
    """The reports of a search as events, by the clock of a parent that resumes it now."""
    records = sorted((r for trial in trials for r in trial.phases), key=lambda r: r.report)
    began = now - max((record.end for record in records), default=0.0)
    newest = {record.node: record.report for record in records}
    events: list[Event] = []
    for trial in trials:
        end: tuple[str, float] | None = None
        for record in trial.phases:
            if end != (record.node, record.start):
                if end is not None:  # it had no node meanwhile
                    events[-1] = msgspec.structs.replace(events[-1], verdict=Verdict.PAUSE)
                events.append(
                    TrialAssigned(
                        time=began + record.start,
                        trial=trial.index,
                        child=record.node,
                        phase=record.phase,
                        params=trial.params,
                    )
                )
            end = record.node, record.end
            events.append(
                PhaseReported(
                    time=began + record.end, trial=trial.index, **msgspec.structs.asdict(record)
                )
            )
        if trial.ended and trial.phases:
            time = events[-1].time
            events.append(
                TrialEnded(time=time, trial=trial.index, state=trial.state, reason=trial.stop)
            )
        elif trial.phases and newest[trial.phases[-1].node] != trial.phases[-1].report:
            # Its node has gone on with another one.
            events[-1] = msgspec.structs.replace(events[-1], verdict=Verdict.PAUSE)
    return sorted(events, key=lambda event: event.time)


def _has(snapshot: Snapshot, trial: SearchTrial) -> bool:
    """True if a checkpoint was written with the trial's settings."""
    # Each may have or lack what has its default.
    theirs, ours = (
        Experiment.from_dict(each, f"the checkpoint of trial {trial.number}").to_dict()
        for each in (snapshot.experiment, trial.experiment)
    )
    return all(_setting(theirs, key) == _setting(ours, key) for key in trial.params)


def _setting(settings: Any, key: str) -> Any:
    """The setting of a dotted key; None if it is absent."""
    for word in key.split("."):
        settings = settings.get(word) if isinstance(settings, dict) else None
    return settings
