"""The parent of a cluster on this machine: one process, or one for each shard.

Laws of this file:
- A process that was killed, or stopped by others, is restarted under the same address.
- A process that ends with an error ends the cluster.
- The first shard counts for all. When it has ended, the others are ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from genkidama.protocol.shard import SECRET, WHOLE, Shard
from genkidama.runs.history import FallbackReader, HistoryTail
from genkidama.runs.run import HISTORY, LOGS, SETTINGS
from genkidama.runs.sharded_checkpoint import directory_of
from genkidama.runtime.address import listening_socket, local_address
from genkidama.runtime.forkserver import Server
from genkidama.runtime.process import Process, failure

#: The reasons of a parent that was stopped though its run is not over.
_SIGNALS = ("SIGTERM", "SIGINT")


class ParentProcess:
    """A parent's process, or that of one of its parts, and what it tells.

    Args:
        run: the run's directory, prepared.
        part: which part it is.
        secret: what all parts know, and no child; empty if there is one part.
        listen: where it listens. The socket is bound here and inherited. So children may connect
            before the parent listens, and one that is started again has the same address.

    Raises:
        GenkidamaError: the address cannot be bound.
    """

    def __init__(self, run: Path, part: Shard, listen: str, secret: str = "") -> None:
        self._run = run
        self._part = part
        self._name = "parent" if part == WHOLE else f"parent-{part.number}"
        self._process: Process | None = None
        #: Why it has stopped, as it says itself.
        self._reason = ""
        self._ended = False
        self._secret = secret
        self._end_reported = False
        #: Whether this process has taken a child, so that there is something to be lost.
        self._joined = False
        self._socket = listening_socket(listen)
        self._reader = HistoryReader(directory_of(run, part) / HISTORY)

    @property
    def address(self) -> str:
        """`HOST:PORT`, as this machine's children reach it."""
        return local_address(self._socket)

    def start(self, options: Sequence[str], forkserver: Server | None = None) -> None:
        """Starts it with these options beside its own."""
        socket_fd, pipe_fd = self._socket.fileno(), self._reader.fallback.descriptor
        command = ["genkidama.parent", str(self._run / SETTINGS), "--out", str(self._run)]
        command += ["--listen", f"fd://{socket_fd}", "--fallback", str(pipe_fd), *options]
        if self._part != WHOLE:
            command += ["--shard", str(self._part)]
        log = self._run / LOGS / f"{self._name}.log"
        self._process = Process(
            self._name, command, log, (socket_fd, pipe_fd), {SECRET: self._secret}, forkserver
        )
        self._process.fallback_reason = self._reader.last_reason

    @property
    def process(self) -> Process:
        assert self._process is not None, "it is started"
        return self._process

    def read(self) -> list[dict[str, Any]]:
        """The lines of its history since the last call."""
        ended = self.process.code == 0
        lines = self._reader.read()
        for line in lines:
            if line["event"] == "stop":
                self._reason = line["reason"]
            self._joined |= line["event"] == "join"
        self._ended = ended
        return lines

    @property
    def stopping(self) -> bool:
        """True if it has said that the run is over. What it then writes may take minutes."""
        return bool(self._reason) and self._reason not in _SIGNALS

    @property
    def over(self) -> bool:
        """True if, at the last `read`, it had ended because the run is over."""
        return self._ended and self._reason not in _SIGNALS

    def poll(self, say: Callable[[str], None]) -> None:
        """Starts it again if it was killed, or stopped by others. Says that a shard other than
        the first has ended.

        Raises:
            GenkidamaError: what it has ended with.
        """
        code = self.process.code
        if self.over and not self._part.is_first and not self._end_reported:
            self._end_reported = True
            say(f"the parent, part {self._part}, has ended: {self._reason}")
        if code is None or (code == 0 and (self.over or not self._ended)):
            return
        if code > 0:
            raise failure(code, self.process.error())
        what = "was killed" if code else f"was stopped by {self._reason}"
        self._reason = ""
        self._ended = False
        self._joined = False
        self.process.restart()
        of = "" if self._part == WHOLE else f", part {self._part},"
        say(f"the parent{of} {what}, and is started again")

    def terminate(self) -> None:
        """Asks it to end, if it runs."""
        if self._process is not None:
            self._process.terminate()

    def wait(self, seconds: float) -> None:
        """Waits until it has ended, but no longer than this."""
        if self._process is not None:
            self._process.wait(seconds)

    def close(self, error: BaseException | None) -> None:
        """Kills it if it runs, and closes its files; notes a lost checkpoint in the error."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.close()
            if self._joined or (self._process.code or 0) > 0:
                note_loss(error, self._process)
        self._socket.close()
        self._reader.fallback.close()


def wait_all(parts: Sequence[ParentProcess], grace: float) -> None:
    """Asks all to end, and waits until they have, but no longer than this."""
    for part in parts:
        part.terminate()
    deadline = time.monotonic() + grace
    for part in parts:
        part.wait(deadline - time.monotonic())


class HistoryReader:
    """Follows the history of one run, whose file need not be there yet."""

    def __init__(self, history: Path) -> None:
        self._history = HistoryTail(history)
        #: The pipe that the parent writes to when its disk is full.
        self.fallback = FallbackReader()
        #: Reasons that came through the pipe, the newest last.
        self._reasons: dict[str, None] = {}
        self._waiting: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        lines = [msgspec.json.decode(line) for line in self._history.read()]
        while self._history.behind:
            lines += [msgspec.json.decode(line) for line in self._history.read()]
        found = [line for line in lines if line.get("reason") not in self._reasons]
        self.last_reason()
        found += self._waiting
        self._waiting = []
        return found

    def last_reason(self) -> str:
        """The last reason that came through the pipe; empty if none has."""
        for line in self.fallback.read():
            event = msgspec.json.decode(line)
            self._reasons[event["reason"]] = None
            self._waiting.append(event)
        return next(reversed(self._reasons), "")


def note_loss(error: BaseException | None, parent: Process) -> None:
    """Has an error say that the parent, which has ended, could not write its last checkpoint."""
    if error is None or not parent.code:
        return
    reason = "it was killed before that" if parent.code < 0 else parent.error()
    if reason not in str(error):
        error.add_note(f"the parent has not written its last checkpoint: {reason}")
