"""Checkpoints of θ_P in a plain run, and their times.

Laws of this file:
- A checkpoint is a copy made between two pushes. A thread writes it, so no child waits for a disk.
- With `parent.checkpoint_updates` a checkpoint is of exactly the push that completes this number
  of updates.
- A failed checkpoint stops nothing: it is reported and tried again. Only the final one raises.
- After a failure, and at the end, the newest is written first: there may be room for one only.
- A folder that was deleted is made again and filled at once.
- A run is resumed with the network and the rule that it began with, and from θ_P, even if the
  checkpoint's network is a running mean of it.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import time
from collections import deque
from operator import attrgetter
from pathlib import Path
from typing import TypeAlias

from genkidama._version import __version__
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.parent.extensions import RunStore
from genkidama.parent.run_writer import RunWriter
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runs.checkpoint import Checkpoint, CheckpointFolder, load
from genkidama.runs.sharded_checkpoint import CHECKPOINTS, cut, newest, run_of
from genkidama.runs.warm_start import warm_start
from genkidama.runtime.files import hint
from genkidama.runtime.import_strings import is_import_string, load_object
from genkidama.runtime.pacing import Once
from genkidama.server.events import CheckpointWritten, Resumed, Started
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.rules.blend import Rule, RuleState
from genkidama.server.rules.registry import check_parts, check_push, make_rule
from genkidama.server.trial import SingleTrialRun, Snapshot, Trials

#: Seconds without writing after a failure.
RETRY_SECONDS = 10.0

#: While a run learns, nearly every episode is the best so far. Writing `best.safetensors` may take
#: this share of the time at most, and once a second at most, so that an SD card lives.
BEST_SHARE = 0.05

#: With `parent.average` the network of a checkpoint is the running mean, and θ_P is beside it under
#: this name, among the rule's state.
TRAINED = "__trained__"

#: The saved version when the files are gone.
_NONE = -1

#: Seconds between two looks at the free space of the disk.
_LOOK_SECONDS = 2.0

_Copy: TypeAlias = tuple[Signature, Vector, Snapshot, RuleState]


class Checkpointer(RunStore):
    """Decides when the trial of `server` is saved under `out`, and saves it."""

    def __init__(self, server: ParameterServer, out: Path, journal: RunWriter) -> None:
        self._server = server
        self._settings = server.experiment.parent
        self._out = out
        self._folder = CheckpointFolder(out / CHECKPOINTS, self._settings.checkpoint_keep)
        self._journal = journal
        # More than are kept need not wait: the older ones would be deleted anyway.
        self._due: deque[_Copy] = deque(maxlen=self._folder.keep)
        self._next_update = float(self._settings.checkpoint_updates or math.inf)
        #: The newest saved version, and the excluded children that it names.
        self._saved: tuple[int, list[str]] = (0, [])
        self._saved_at: float | None = None
        self._retry_at = self._looked_at = -math.inf
        self._best = self._best_at = -math.inf
        self._shortage = Once()

    @staticmethod
    def make_trials(experiment: Experiment, shard: Shard) -> Trials:
        check_parts(experiment, shard.count)
        name = experiment.parent.rule
        kind = load_object(name, "parent.rule") if is_import_string(name) else None
        rule = make_rule(experiment, kind)
        check_push(experiment, rule.takes)
        return SingleTrialRun(experiment, rule, shard)

    def restore(self, now: float) -> Resumed | Started | None:
        self._folder.prepare()
        part = self._server.trial.part
        checkpoint = newest(run_of(self._out, part), part, self._journal.complain)
        if checkpoint is None:
            return self._begin(part, now)
        self._check_same(checkpoint)
        server, snapshot = self._server, checkpoint.snapshot
        trained, shape = checkpoint.state.pop(TRAINED, None), checkpoint.vector.shape
        if trained is not None and (trained.dtype, trained.shape) != (DTYPE, shape):
            raise ConfigurationError(
                f"{checkpoint.path}: {TRAINED!r} is {trained.dtype} {list(trained.shape)}, "
                f"expected {DTYPE} {list(shape)}; use another checkpoint"
            )
        server.restore(snapshot, checkpoint.whole, checkpoint.vector)
        if trained is not None:
            server.trial.vector = trained
            if self._settings.average:
                server.trial.average = checkpoint.vector
                # Before it was counted, the mean was of all versions.
                server.trial.averaged = snapshot.averaged or snapshot.version
        _restore_rule(server.trials.rule, checkpoint)
        for child in server.children:  # of which none is there
            server.trials.rule.forget(child)
        self._copy(now)  # to go back to
        # One that was cut for this part is not its own yet.
        saved = part.is_first or self._folder.version_path(snapshot.version).exists()
        self._saved = snapshot.version if saved else 0, snapshot.excluded
        if self._settings.checkpoint_updates:
            self._plan_update()
        if self._folder.best_path.exists():
            try:
                self._best = _mean(load(self._folder.best_path).snapshot.mean_return)
            except GenkidamaError as error:
                self._journal.complain(str(error))
        return Resumed(
            time=now,
            run=server.run,
            software=__version__,
            file=checkpoint.path.name if checkpoint.path else "",
            version=snapshot.version,
            update=server.updates,
            episodes=snapshot.episodes,
            steps=snapshot.steps,
            seconds=snapshot.seconds,
            mean_return=server.trial.mean_return,
        )

    def _begin(self, part: Shard, now: float) -> Started | None:
        if (found := warm_start(self._server.experiment)) is None:
            return None
        whole, words = found
        first = cut(whole, part)
        self._server.restore(first.snapshot, whole.signature, first.vector)
        self._copy(now)
        server = self._server
        return Started(time=now, run=server.run, software=__version__, start=words)

    def after_push(self) -> bool:
        if self._server.updates >= self._next_update:
            self._plan_update()
            self._due.append(self._copy(self._journal.now()))
        return self.due

    def forget_files(self) -> None:
        self._saved = _NONE, []
        self._saved_at = self._retry_at = -math.inf
        self._best = self._best_at = -math.inf

    @property
    def due(self) -> bool:
        return bool(self._due)

    async def keep(self, now: float) -> None:
        if self._saved_at is None:
            self._saved_at = now
        if self._server.trial.vector is None or now < self._retry_at:
            return
        gone = not os.path.isdir(self._folder.path) and os.path.isdir(self._out)
        if gone and self._saved[0] > 0:
            self.forget_files()
            self._journal.complain(f"{self._folder.path}: was deleted; made again")
        self._look_for_room(now)
        asked = "checkpoint" in self._server.asked
        unsaved = self._saved != self._state
        anew = (asked and unsaved) or (self._saved[0] == _NONE and not self._due)
        if anew or (self._is_time(now - self._saved_at, now) and unsaved):
            self._due.append(self._copy(now))
        try:
            await self._write_due(now, newest_first=self._retry_at > -math.inf)
            self._retry_at = -math.inf
            if asked and self._saved[1] == self._state[1]:  # nobody was excluded meanwhile
                self._server.asked.discard("checkpoint")
            if now >= self._best_at and self._improved():
                began = time.monotonic()
                await self._write_best(now)
                took = time.monotonic() - began
                # At whole seconds, as all other parts.
                self._best_at = math.ceil(now + max(1.0, took / BEST_SHARE))
        except EnvironmentFailure as error:
            self._retry_at = now + RETRY_SECONDS
            self._journal.complain(str(error))

    async def finish(self, now: float) -> None:
        if self._server.trial.vector is None:
            return
        saved = self._saved
        if self._due:
            saved = self._due[-1][2].version, self._due[-1][2].excluded
        # Version 0 has weights, too: a learner's beside the parent, or those of a warm start.
        if not saved[0] or saved != self._state:
            self._due.append(self._copy(now))
        await self._write_due(now, newest_first=True)
        self._folder.prune(self._saved[0])
        if self._improved():
            await self._write_best(now)

    def _look_for_room(self, now: float) -> None:
        """Complains of a full disk before a checkpoint fails, which may take a while."""
        if now - self._looked_at < _LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            disk = os.statvfs(self._folder.path)
        except OSError:
            return  # the next checkpoint fails, too
        assert self._server.trial.vector is not None
        size = 2 * self._server.trial.vector.nbytes
        problem = ""
        if disk.f_flag & os.ST_RDONLY:
            problem = f"cannot be written: {hint(OSError(errno.EROFS, ''))}"
        elif disk.f_bavail * disk.f_frsize < size:
            problem = f"has no room for two more checkpoints; {hint(OSError(errno.ENOSPC, ''))}"
        if self._shortage.is_new(problem):
            self._journal.complain(f"{self._folder.path}: {problem}")

    def _check_same(self, checkpoint: Checkpoint) -> None:
        """Refuses another network, with which every child would be refused, and another rule, which
        cannot read the state of the one before."""
        before, after = checkpoint.experiment, self._server.experiment
        for key in ("network", "environment.id", "parent.rule"):
            was, now_is = attrgetter(key)(before), attrgetter(key)(after)
            if was != now_is:
                raise ConfigurationError(
                    f"{self._out}: its checkpoints were made with {key} = {was!r}, "
                    f"now it is {now_is!r}; choose another directory with --out"
                )
        expected = after.parent.signature
        if expected not in ("", checkpoint.signature.digest):
            raise ConfigurationError(
                f"{self._out}: its network has the signature {checkpoint.signature.digest}, "
                f"parent.signature = {expected!r}; choose another directory with --out"
            )

    def _plan_update(self) -> None:
        every = self._settings.checkpoint_updates
        self._next_update = float((math.floor(self._server.updates / every) + 1) * every)

    def _is_time(self, since: float, now: float) -> bool:
        """True if a checkpoint is due by the clock, `since` seconds after the last."""
        seconds = self._settings.checkpoint_seconds
        if not seconds or self._server.trial.part == WHOLE:
            return bool(seconds) and since >= seconds
        return now // seconds > (now - since) // seconds  # all parts at the same moments

    @property
    def _state(self) -> tuple[int, list[str]]:
        """The version of θ_P, and the excluded children."""
        return self._server.trial.version, sorted(self._server.excluded)

    def _improved(self) -> bool:
        trial = self._server.trial
        return len(trial.returns) == trial.window and _mean(trial.mean_return) > self._best

    def _copy(self, now: float) -> _Copy:
        trial = self._server.trial
        assert trial.vector is not None
        rule = self._server.trials.rule
        if not trial.is_sound(rule) and trial.backup is not None:
            self._journal.complain(f"θ_P holds NaN or infinity; {trial.go_back(rule)}")
        copies = {name: array.copy() for name, array in rule.state().items()}
        vector = trial.vector.copy()
        trial.backup = (vector, dict(copies), trial.version)
        if trial.average is not None:
            copies[TRAINED] = vector
            vector = trial.average.copy()
        return trial.held, vector, self._server.snapshot(now), copies

    async def _write_due(self, now: float, newest_first: bool = False) -> None:
        """Writes what is due now; pushes that come meanwhile may be faster than the disk."""
        for _ in range(len(self._due)):
            copy = self._due.pop() if newest_first else self._due.popleft()
            await self._journal.secure()
            try:
                path = await asyncio.to_thread(self._folder.save_latest, *copy)
            except EnvironmentFailure:
                kept = sorted([*self._due, copy], key=lambda each: each[2].version)
                self._due = deque(kept, maxlen=self._due.maxlen)
                raise
            version, update = copy[2].version, copy[2].updates
            if version >= self._saved[0]:
                self._saved = version, copy[2].excluded
            self._saved_at = now
            self._journal.note(
                CheckpointWritten(time=now, version=version, update=update, file=path.name)
            )

    async def _write_best(self, now: float) -> None:
        copy = self._copy(now)
        await asyncio.to_thread(self._folder.save_best, *copy)
        self._best = _mean(copy[2].mean_return)


def _restore_rule(rule: Rule, checkpoint: Checkpoint) -> None:
    if not checkpoint.state:
        # The rule had nothing to remember yet, or this was a trial, where no rule blends anything.
        return
    try:
        rule.restore(checkpoint.state)
    except (ValueError, KeyError) as error:
        raise ConfigurationError(
            f"{checkpoint.path}: {type(rule).__name__} cannot go on from its state there: "
            f"{error}; choose another directory with --out"
        ) from None


def _mean(value: float | None) -> float:
    return -math.inf if value is None else value
