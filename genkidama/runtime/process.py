"""Child processes with one owner: programs with a log, and workers with a pipe.

Laws of this file:
- A program ends when its standard input does, a worker when its pipe does. So none is left
  when the owner is killed, and the reader of a pipe notices a worker's death.
- Both are forked by a forkserver, or new interpreters. Their owner need not know which.
- Ctrl-C reaches a whole terminal from the first moment on, but the owner decides what ends when.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, TypeVar

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.runtime import descendants
from genkidama.runtime.forkserver import ForkedProcess, Server, open_program
from genkidama.runtime.import_strings import describe_exit
from genkidama.runtime.log import get_logger
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.script import mark

T = TypeVar("T")

log = get_logger()

#: A process that is lost more often within a minute will be lost again.
MOST_LOSSES = 5


def losses() -> RestartPolicy:
    """The policy for a process or an actor that is killed."""
    return RestartPolicy(MOST_LOSSES + 1, window=60.0, rest=1.0)


def failure(code: int, reason: str) -> GenkidamaError:
    """The error that a process with this exit code has ended with."""
    if code == ConfigurationError.exit_code:
        return ConfigurationError(reason)
    return EnvironmentFailure(reason)


async def in_thread(work: Callable[[], T], interrupt: Callable[[], None]) -> T:
    """The result of work that waits for a process, in a thread.

    If the caller is cancelled, it is interrupted until it has ended: nobody waits until torch is
    imported, or an environment is built.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            interrupt()
            await asyncio.wait((working,), timeout=0.1)
        working.exception()
        raise


class OwnedProcess:
    """A process that this one has started: its number, its exit code, its end."""

    _process: _Process | None = None

    @property
    def pid(self) -> int:
        """The process number; 0 before it is started."""
        return (self._process is not None and self._process.pid) or 0

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits for the exit code; None if it is still alive after `seconds`."""
        if self._process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(None if seconds is None else max(0.0, seconds))
            if isinstance(self._process, ForkedProcess):
                self._process.close()
                left, self._process.left = self._process.left, ()
                if left:
                    self.note_left(", ".join(left))
        return self._process.returncode

    def note_left(self, names: str) -> None:
        """Notes the processes that it has left behind, which are ended."""
        log.warning(descendants.ENDED, reason=names)

    @property
    def code(self) -> int | None:
        """The exit code, below 0 if it was killed; None while it runs."""
        return self.wait(0.0)

    def terminate(self) -> None:
        """Asks it to end, if it runs."""
        if self._process is not None and self.code is None:
            self._process.terminate()

    def kill(self) -> None:
        """Ends it at once, if it runs."""
        if self._process is not None and self.code is None:
            self._process.kill()

    def finish(self, seconds: float) -> None:
        """Waits for its end, and kills it if it lives on after this time.

        One for which a forkserver has had no time yet never lives.
        """
        waiting = isinstance(self._process, ForkedProcess) and not self._process.lives
        if self.wait(0.0 if waiting else seconds) is None:
            self.kill()
            self.wait()


class Process(OwnedProcess):
    """A module of ours as a process, and how often it was started again.

    Its standard output and error go to the log, behind what is there already. The environment is
    added to this process'. A forkserver forks it; without one, or when that is gone, it is a new
    interpreter. Words and descriptors for its first start come `once`. An OSError says that it
    cannot be started, an EnvironmentFailure that it cannot be started again.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        descriptors: tuple[int, ...] = (),
        environment: dict[str, str] | None = None,
        forkserver: Server | None = None,
        once: tuple[Sequence[str], Sequence[int]] = ((), ()),
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._descriptors = descriptors
        self._environment = {**os.environ, **mark(), **(environment or {})}
        self._forkserver = forkserver
        self._losses = losses()
        self._once = once
        #: Gives the last error of a process whose log cannot be written.
        self.fallback_reason: Callable[[], str] = str
        self._file: IO[bytes] = log.open("ab")
        #: Where its own words begin.
        self._mark = os.fstat(self._file.fileno()).st_size
        self.start()

    def start(self) -> None:
        """Starts it. Ctrl-C reaches this process alone, which then ends the others in order."""
        theirs, self._input = os.pipe()
        words, more = self._once
        self._once = (), ()
        command = [*self._command, *words, "--until-eof"]
        try:
            self._process = self._started(command, theirs, (*self._descriptors, *more))
        finally:
            os.close(theirs)

    def _started(self, command: list[str], stdin: int, descriptors: Sequence[int]) -> _Process:
        if self._forkserver is not None:
            log = self._file.fileno()
            with suppress(OSError):  # it is gone
                return self._forkserver.run(
                    command, self._environment, (stdin, log, log), descriptors
                )
            self._forkserver = None
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=stdin,
            stdout=self._file,
            stderr=self._file,
            pass_fds=tuple(descriptors),
            env=self._environment,
            start_new_session=True,
        )

    def restart(self) -> None:
        """Starts it again after it was killed, but not too often."""
        self._losses.died(time.monotonic())
        if self._losses.given_up:
            times = f"{self._losses.deaths} times within a minute"
            raise EnvironmentFailure(f"{self.name} was killed {times}; see {self.log}")
        self.start_again()

    def start_again(self) -> None:
        """Starts it again, however it ended."""
        self._close_input()
        try:
            self._mark = os.fstat(self._file.fileno()).st_size
            self.start()
        except OSError as error:
            raise EnvironmentFailure(
                f"{self.name}: cannot be started again: {error.strerror}"
            ) from None

    def error(self) -> str:
        """The last `error: …` line that it wrote, without the word.

        Where a traceback stands before it, it says so.
        """
        lines: list[str] = []
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(self._mark)
            lines = file.read().decode(errors="replace").splitlines()
        found = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        if found and "Traceback (most recent call last):" in lines:
            return f"{found[-1]}; the whole traceback is in {self.log}"
        if found or (reason := self.fallback_reason()):
            return found[-1] if found else reason
        return f"{self.name} ended with exit code {self.code}; see {self.log}"

    def note_left(self, names: str) -> None:
        with suppress(OSError, ValueError):
            self._file.write(f"{descendants.ENDED}: {names}\n".encode())
            self._file.flush()

    def end(self, grace: float) -> None:
        """Ends it: it is asked to, and killed if it is still there after `grace` seconds."""
        self.terminate()
        self.finish(grace)

    def close(self) -> None:
        """Closes its input and its log."""
        self._close_input()
        self._file.close()

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
        self._input = -1


#: How long a worker gets to end by itself before it is killed.
GRACE_SECONDS = 1.0

_Process: TypeAlias = subprocess.Popen[bytes] | ForkedProcess

#: Starts the process, given its end of the pipe. EOFError and OSError: not possible this time.
Launch: TypeAlias = Callable[[Connection], _Process]


class WorkerOwner(Protocol):
    """Receives the messages of workers, and their deaths."""

    def heard(self, worker: WorkerProcess, message: Any) -> None:
        """The worker has sent a message."""

    def lost(self, worker: WorkerProcess) -> None:
        """The worker has ended without being asked to. Its pipe is closed."""


class WorkerProcess(OwnedProcess):
    """One life of a worker, one of its owner's, who receives what it says.

    One asyncio loop makes all calls, but for `start`. `receive` reads one message from the pipe.
    """

    def __init__(
        self,
        owner: WorkerOwner,
        index: int = 0,
        receive: Callable[[Connection], Any] = Connection.recv,
    ) -> None:
        self.index = index
        #: The reason of its death, if it has said one, or was killed for one.
        self.failure = ""
        self._owner = owner
        self._receive = receive
        self._killed = False
        self.pipe, self._theirs = Pipe()

    def start(self, launch: Launch) -> None:
        """Starts it. Starting a program may take a while, so it is often called in a thread.

        EOFError, OSError: not possible this time; the pipe is closed.
        """
        try:
            with self._theirs:
                self._process = launch(self._theirs)
        except BaseException:
            self.pipe.close()
            raise
        if self._killed:
            self._process.kill()

    @property
    def reason(self) -> str:
        """The reason of its death, in words."""
        code = self.wait()
        return self.failure or describe_exit(code)

    # What it says.

    async def describe(
        self, experiment: Experiment, launch: Launch | None = None, spaces: Any = None
    ) -> tuple[Any, ...]:
        """Launches it, sends it the experiment and the spaces of its environment, if they are
        known, and returns its answer: what it has built. If the caller is cancelled, it is killed.

        Raises:
            ConfigurationError: it cannot build what the experiment names.
            EOFError, OSError: it died on the way.
        """
        # In a thread: an event loop cannot wait for the rest of a message, and a vector is long.
        answer = partial(self._answer, experiment, launch, spaces)
        kind, *description = await in_thread(answer, self.kill)
        if kind == "error":
            raise ConfigurationError(description[0])
        return tuple(description)

    def _answer(
        self, experiment: Experiment, launch: Launch | None, spaces: Any
    ) -> tuple[Any, ...]:
        if launch is not None:
            self.start(launch)
        self.pipe.send((experiment.to_dict(), spaces))
        answer: tuple[Any, ...] = self.pipe.recv()
        return answer

    def listen(self) -> None:
        """Hands all that it says to the owner from now on."""
        asyncio.get_running_loop().add_reader(self.pipe.fileno(), self.read)
        # uvloop makes what it watches non-blocking, but a long message comes in two parts.
        os.set_blocking(self.pipe.fileno(), True)

    def read(self) -> None:
        """Hands the messages that have come, and its end, to the owner."""
        try:
            while readable(self.pipe):
                self._owner.heard(self, self._receive(self.pipe))
        except (EOFError, OSError):
            self.hang_up()
            self._owner.lost(self)

    def send(self, message: Any) -> None:
        """Sends it a message. Its death is noticed by the reader."""
        with suppress(OSError):
            self.pipe.send(message)

    def hand_over(self, layout: Any, descriptor: int) -> None:
        """Sends it the layout and the descriptor of a shared memory."""
        with suppress(OSError), without_timeout():
            self.pipe.send(layout)
            reduction.send_handle(self.pipe, descriptor, self.pid)

    # Its end.

    def hang_up(self) -> None:
        """Closes the pipe. A worker that lives sees that and ends."""
        if not self.pipe.closed:
            asyncio.get_running_loop().remove_reader(self.pipe.fileno())
            self.pipe.close()

    def kill(self) -> None:
        """Ends it at once, also if it is just being started."""
        self._killed = True
        super().kill()

    def hung(self, seconds: float) -> None:
        """Kills it because it has done nothing for these seconds; the end of its pipe follows."""
        way_out = "if it needs so long, raise child.hang_seconds"
        self.failure = f"it hung: it did nothing for {seconds:.0f} s; {way_out}"
        self.kill()

    async def end(self) -> None:
        """Ends it, by force if it does not end by itself within its grace."""
        if self._process is not None and not self.pipe.closed:
            asyncio.get_running_loop().remove_reader(self.pipe.fileno())
            if await asyncio.to_thread(self._outlives_grace):
                self.kill()
        self.hang_up()
        await asyncio.to_thread(self.wait)

    def _outlives_grace(self) -> bool:
        """Shuts the pipe for writing; whether the other end is still open after the grace.

        A process says most surely itself that it is gone: of one that was forked nothing is known
        once the forkserver is gone.
        """
        with socket.socket(fileno=os.dup(self.pipe.fileno())) as line:
            line.settimeout(GRACE_SECONDS)
            try:
                line.shutdown(socket.SHUT_WR)
                while line.recv(65536):
                    pass
            except TimeoutError:
                return True
            except OSError:  # it is gone, and has left something unread
                pass
        return False


@contextmanager
def without_timeout() -> Iterator[None]:
    """Handles go through a pipe as through a socket. With a default timeout, which a module of the
    user's may have set, that would make the pipe non-blocking for good."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def readable(pipe: Connection) -> bool:
    """As `pipe.poll()`, which takes 70 µs for its selector; an OSError if it is closed."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(0))


def end_all(workers: Iterable[WorkerProcess], deadline: float) -> None:
    """Waits for the ends of workers that were hung up; kills those that live at the deadline."""
    for worker in workers:
        worker.finish(deadline - time.monotonic())


def start_program(module: str, numbers: Iterable[int], pipe: Connection, *more: int) -> _Process:
    """Starts a module of ours as a program, with one thread for numerics.

    Its arguments are the numbers and the descriptors that it inherits, its end of the pipe first.
    """
    inherited = [pipe.fileno(), *more]
    return open_program(["-m", module, *map(str, (*numbers, *inherited))], inherited)
