"""Tasks: functions that may build environments, each in a forked process of its own.

An environment may start threads and processes, take signals, and end its process. So a program of
the user's never builds one itself; it asks a task, and reads what that says.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import traceback
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure, GenkidamaError
from genkidama.runtime import descendants
from genkidama.runtime.forkserver import ForkServer
from genkidama.runtime.import_strings import (
    describe_error,
    describe_exit,
    is_gymnasiums,
    load_object,
    print_user_traceback,
)
from genkidama.runtime.machine import ONE_THREAD
from genkidama.runtime.process import GRACE_SECONDS, failure, in_thread

#: How long one may take to end by itself: to close its environment, and its exit functions.
_END_SECONDS = 2 * GRACE_SECONDS


class Task:
    """A function in a process of its own, and the conversation with it.

    Args:
        server: forks it.
        experiment: what the server is warmed up for.
        entry: `"module:function"`. It is called with `receive`, `send` and the arguments. When
            this object is closed, `receive` and `send` raise what ends the process.
        args: are pickled.
        what: the sentence that an unexpected error is put into, as `"playing episodes fails"`.
        log: the file that is written if it fails or leaves processes behind.

    Raises:
        EnvironmentFailure: it cannot be started.
    """

    def __init__(
        self,
        server: ForkServer,
        experiment: Experiment,
        entry: str,
        args: tuple[Any, ...],
        what: str,
        log: Path | None = None,
    ) -> None:
        self._what, self._log = what, log
        self._pipe, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe would fill up
        with theirs, open(os.devnull, "rb") as null:
            streams = (null.fileno(), self._said.fileno(), self._said.fileno())
            arguments = (theirs, entry, args, what)
            try:
                self._process = server.start(f"{__name__}:perform", arguments, experiment, streams)
            except (OSError, EOFError) as error:
                self._pipe.close()
                self._said.close()
                raise EnvironmentFailure(f"{what}: no process can be started: {error}") from error

    def send(self, message: Any) -> None:
        with suppress(OSError):  # it is dead, as `receive` finds
            self._pipe.send(message)

    def receive(self) -> Any:
        """The next thing that it says.

        Raises:
            GenkidamaError: its error, or the reason of its death.
        """
        try:
            code, said = self._pipe.recv()
        except (EOFError, OSError):
            self._end()
            words = _last_words(self._text()) or "it said nothing"
            cause = describe_exit(self._process.returncode)
            raise EnvironmentFailure(
                f"{self._what}: the process ended: {cause}: {words}{self._kept()}"
            ) from None
        if code is None:
            return said
        self._end()
        raise failure(code, said + self._kept())

    def kill(self) -> None:
        """Ends it at once; whoever waits for what it says learns that it is gone."""
        self._process.kill()

    def close(self) -> None:
        """Ends it, and what its environment has started."""
        self._end()
        if self._process.left and self._log is not None:
            with suppress(OSError), self._log.open("a", encoding="utf-8") as file:
                print(f"{descendants.ENDED}: {', '.join(self._process.left)}", file=file)
            self._process.left = ()
        self._said.close()

    def _end(self) -> None:
        self._pipe.close()
        self._process.end(_END_SECONDS)
        self._process.close()

    def _text(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def _kept(self) -> str:
        """Writes a traceback to the log; returns where it is."""
        text = self._text()
        if self._log is None or "Traceback (most recent call last):" not in text:
            return ""
        with suppress(OSError):
            self._log.parent.mkdir(exist_ok=True)
            self._log.write_text(text, encoding="utf-8")
            return f"; the whole traceback is in {self._log}"
        return ""


def call(
    experiment: Experiment,
    entry: str,
    args: tuple[Any, ...],
    what: str,
    begun: Callable[[Task], None] = lambda _: None,
) -> Any:
    """The only thing that a task says; `begun` is given it. Arguments and errors as `Task`."""
    with (
        closing(ForkServer(entry.partition(":")[0], ONE_THREAD)) as server,
        closing(Task(server, experiment, entry, args, what)) as task,
    ):
        begun(task)
        return task.receive()


async def see_spaces(experiment: Experiment) -> Any:
    """The spaces of the environment, as `genkidama.learning.spaces` describes them; None of
    Gymnasium's own, which cost nothing to build. Errors as `Task`. If the caller is cancelled, the
    task is killed.
    """
    settings = experiment.environment
    if is_gymnasiums(settings):
        return None
    what, tasks = f"the spaces of {settings.id!r} cannot be seen", list[Task]()

    def kill() -> None:
        for task in tasks:
            task.kill()

    entry = "genkidama.learning.spaces:look"
    return await in_thread(partial(call, experiment, entry, (settings,), what, tasks.append), kill)


class _Gone(Exception):
    """Nobody waits any longer for what a task says."""


def perform(pipe: Connection, entry: str, args: tuple[Any, ...], what: str) -> None:
    """The life of a task's process."""
    function: Callable[..., None] = load_object(entry, "entry")

    def receive() -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError):
            raise _Gone from None

    def send(message: Any) -> None:
        try:
            pipe.send((None, message))
        except OSError:
            raise _Gone from None

    try:
        function(receive, send, *args)
        return
    except _Gone:
        return
    except GenkidamaError as error:
        print_user_traceback(error)
        answer = error.exit_code, str(error)
    except BaseException as error:  # a user's environment or network may raise anything, or exit
        traceback.print_exc()
        answer = 1, f"{what}: {describe_error(error)}"
    with suppress(OSError):
        pipe.send(answer)


def _last_words(text: str) -> str:
    """The exception behind a traceback, whose lines are indented, or else the last line."""
    lines = text.rstrip().splitlines()
    behind = list(itertools.takewhile(lambda line: not line.startswith(" "), reversed(lines)))
    return " ".join(reversed(behind)) if len(behind) < len(lines) else "".join(lines[-1:])
