"""Bugs to plant: each a text in a file of the package, and the text that takes its place.

`python -m tests.simulation planted` plants one after another in a copy of the package, and plays
days until one breaks a law.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    """A bug, and where it is planted."""

    name: str
    file: str
    old: str
    new: str


BUGS = (
    Bug(
        "a push that is sent again counts twice",
        "server/parameter_server.py",
        "message.sequence > record.sequence and not",
        "message.sequence >= record.sequence and not",
    ),
    Bug(
        "a push that is sent again has a new number",
        "protocol/session.py",
        "            self._sequence += 1\n        assert",
        "        self._sequence += 1\n        assert",
    ),
    Bug(
        "work is forgotten when its push has no reply",
        "protocol/session.py",
        "        if self._unanswered is None:\n            self._unanswered = self._pending",
        "        if True:\n            self._unanswered = self._pending",
    ),
    Bug(
        "work is reported again with the next push",
        "protocol/session.py",
        "            self._pending = Work()\n            self._sequence += 1",
        "            self._sequence += 1",
    ),
    Bug(
        "steps replace those that wait",
        "protocol/session.py",
        "        self.steps += steps\n",
        "        self.steps = steps\n",
    ),
    Bug(
        "a checkpoint is not flushed",
        "runtime/files.py",
        "                os.fsync(file.fileno())\n",
        "",
    ),
    Bug(
        "the folder of a checkpoint is not flushed",
        "runtime/files.py",
        "        flush_folder(path.parent)\n",
        "",
    ),
    Bug(
        "a checkpoint is written over the one before",
        "runtime/files.py",
        'temporary = path.with_name(f".{path.name}{own}.tmp")',
        "temporary = path",
    ),
    Bug(
        "a checksum is not compared",
        "runs/checkpoint.py",
        "if metadata[_CHECKSUM] != _checksum(tensors, metadata):",
        "if False:",
    ),
    Bug(
        "the oldest checkpoint is read first",
        "runs/checkpoint.py",
        "map(self.version_path, reversed(self.versions()))",
        "map(self.version_path, self.versions())",
    ),
    Bug(
        "the newest checkpoints are deleted",
        "runs/checkpoint.py",
        "older[: -self.keep]",
        "older[self.keep :]",
    ),
    Bug(
        "a checkpoint lacks the sessions",
        "server/child_record.py",
        "            if record.sequence\n",
        "            if record.sequence < 0\n",
    ),
    Bug(
        "a session's number is forgotten at each hello",
        "server/child_record.py",
        "if self.session != hello.session:",
        "if True:",
    ),
    Bug(
        "a checkpoint is of θ_P itself, not of a copy",
        "parent/checkpointer.py",
        "        vector = trial.vector.copy()\n",
        "        vector = trial.vector\n",
    ),
    Bug(
        "training continues from the mean of θ_P",
        "parent/checkpointer.py",
        "checkpoint.state.pop(TRAINED, None)",
        'checkpoint.state.pop("", None)',
    ),
    Bug(
        "no checkpoint is written at the end",
        "parent/checkpointer.py",
        "if not saved[0] or saved != self._state:",
        "if False:",
    ),
    Bug(
        "a child blends twice as fast",
        "server/rules/blend.py",
        "blend(parent, push.vector, self.alpha if push.alpha is None else push.alpha)",
        "blend(parent, push.vector, min(1.0, 2 * self.alpha))",
    ),
    Bug(
        "a shard's slice is shifted by one",
        "protocol/shard.py",
        "            trained * (self.number - 1) // self.count,\n",
        "            max(0, trained * (self.number - 1) // self.count - 1),\n",
    ),
    Bug(
        "the base of differences is kept",
        "protocol/session.py",
        "            self._base.set(weights.vector)\n        if weights.stop:",
        "            pass\n        if weights.stop:",
    ),
    Bug(
        "weights that are NaN are taken",
        "server/parameter_server.py",
        "        if wrong:\n            return self._diverged",
        "        if False:\n            return self._diverged",
    ),
    Bug(
        "a token is good after its end",
        "parent/authentication.py",
        "time.time() < entry.until and not",
        "time.time() >= 0 and not",
    ),
    Bug(
        "a token that was taken back is still good",
        "parent/authentication.py",
        "        try:\n            self._read()\n        except ConfigurationError as error:",
        "        try:\n            pass\n        except ConfigurationError as error:",
    ),
    Bug(
        "the parent's clock follows the system's",
        "parent/parent.py",
        "return time.monotonic() + self._offset",
        "return time.time()",
    ),
    Bug(
        "a child gives up after its first failure to connect",
        "child/parent_connection.py",
        "await asyncio.sleep(asked + backoff.wait())",
        "await asyncio.sleep(1e6)",
    ),
    Bug(
        "the end of an old connection disconnects the new one",
        "parent/connections.py",
        "if name and self.children.get(name) is connection:",
        "if name:",
    ),
    Bug(
        "the parent does not wait for a child that is cut off at the end",
        "parent/parent.py",
        "max(LEAVE_SECONDS if children else 0.0, self._linger_seconds if waits else 0.0)",
        "LEAVE_SECONDS if children else 0.0",
    ),
    Bug(
        "a torn line stays in the history",
        "runs/history.py",
        "if whole < os.fstat(opened).st_size:",
        "if False:",
    ),
    Bug(
        "a node returns to a trial that another one has",
        "plugins/hypertrick/search.py",
        "training != number and self._is_free(training):",
        "training != number:",
    ),
    Bug(
        "a node pushes to a trial of another one",
        "plugins/hypertrick/search.py",
        "return isinstance(trial, SearchTrial) and trial.owner == child",
        "return True",
    ),
    Bug(
        "the study lacks the newest report of a trial",
        "plugins/hypertrick/study.py",
        "[msgspec.to_builtins(record) for record in phases]",
        "[msgspec.to_builtins(record) for record in phases[:-1]]",
    ),
    # These were planted by another hand than the one that wrote the laws.
    Bug(
        "a push that comes after the run's end counts",
        "server/parameter_server.py",
        "message.sequence > record.sequence and not (self.stop or trial.stop):",
        "message.sequence > record.sequence and not trial.stop:",
    ),
    Bug(
        "the number of exchanges begins at 0 after a restart",
        "server/parameter_server.py",
        "self._tally.restore(snapshot.exchanges, snapshot.updates, snapshot.seconds)",
        "self._tally.restore(0, 0.0, snapshot.seconds)",
    ),
    Bug(
        "a child that is cut off is forgotten",
        "server/parameter_server.py",
        "        if record.exchanges:\n            self.children[child] = record",
        "        if False:\n            self.children[child] = record",
    ),
    Bug(
        "a push may start from a version that does not exist",
        "server/validation.py",
        "if message.version > trial.version:",
        "if False:",
    ),
    Bug(
        "a child that is stopped keeps its last work",
        "child/child.py",
        "                    self._gather(backend)\n                    await self._push",
        "                    await self._push",
    ),
    Bug(
        "a late answer to a pull replaces what was learned meanwhile",
        "child/child.py",
        "            if self._alone is None:\n                backend.take(",
        "            if True:\n                backend.take(",
    ),
    Bug(
        "rows are packed anew for a push that is sent again",
        "plugins/actors/outbox.py",
        "        if self._push is None:\n",
        "        if True:\n",
    ),
    Bug(
        "steps are learned from at any age",
        "plugins/actors/rule.py",
        "if self.batches - born > self.max_lag and not self.replays:",
        "if False:",
    ),
    Bug(
        "missed ticks of a robot are made up for",
        "learning/real_time.py",
        "else max(self._due, now - _LATE * self._period)",
        "else self._due",
    ),
    Bug(
        "what safe actions earn is lost",
        "learning/real_time.py",
        "reward = reward + self._meanwhile[1]",
        "reward = reward + 0.0",
    ),
)


def hunt(bug: Bug, seeds: int) -> Iterator[str]:
    """Plays days with a bug until one breaks a law: what `python -m tests.simulation` prints."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("genkidama", "tests", "benchmarks"):
            shutil.copytree(
                ROOT / name,
                Path(folder, name),
                ignore=shutil.ignore_patterns("__pycache__", ".venv"),
            )
        path = Path(folder, "genkidama", bug.file)
        text = path.read_text()
        assert text.count(bug.old) == 1, f"{bug.file} has {text.count(bug.old)} times {bug.old!r}"
        path.write_text(text.replace(bug.old, bug.new))
        command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds)]
        played = subprocess.run(
            [*command, "--no-shrink"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        yield from played.stdout.splitlines()
