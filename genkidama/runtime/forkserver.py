"""Forkservers: processes that have a module imported and warm, and fork workers on request.

Each is separate: multiprocessing's code, but not its one global server. So a program may have one
that has imported torch and one that has not, and neither affects the program's other uses of
multiprocessing. Several programs on one machine may share one.

This module relies on parts of multiprocessing that have no documentation.
`tests/runtime/test_forkserver.py` checks them, and explains what to do if a new Python changes
them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, reduction, resource_tracker, util
from multiprocessing.context import ForkServerProcess
from typing import Any

import msgspec

from genkidama.config.experiment import Experiment
from genkidama.runtime.files import remove_scratch, scratch_folder
from genkidama.runtime.import_strings import load_object
from genkidama.runtime.lifeline import end_with_pipe
from genkidama.runtime.script import mark

__all__ = [
    "EXPERIMENT_VARIABLE",
    "FOLDER_VARIABLE",
    "PRELOAD_VARIABLE",
    "STARTER_VARIABLE",
    "ForkServer",
    "disable_resource_tracker",
]

#: Environment variables of a forkserver: its module, the experiment (JSON) to warm up with, and the
#: process that has started it. All that is forked from it inherits them.
PRELOAD_VARIABLE = "GENKIDAMA_FORKSERVER"
EXPERIMENT_VARIABLE = "GENKIDAMA_FORKSERVER_EXPERIMENT"
STARTER_VARIABLE = "GENKIDAMA_FORKSERVER_STARTER"

#: And where the folder with its socket lies. Its starter removes that, or else the forkserver.
FOLDER_VARIABLE = "GENKIDAMA_FORKSERVER_FOLDER"

#: Starting a process changes for a moment what all threads of the program share.
_lock = threading.Lock()


class ForkServer:
    """A server process that is started when the first process is asked of it.

    It lives as long as this process, and so does all that is forked from it: the kernel sees to
    that, whatever they do at the moment.

    Args:
        preload: the module that is imported in it. If it cannot be imported, nothing is warm. Its
            function `warm_up(experiment)`, if it has one, does once what every process will do.
            None: this program has no forkserver of its own, and only joins another one's.
        variables: environment variables, for an experiment, of the forkserver and of all that is
            forked from it, besides this program's own. A forkserver keeps its first variables.
    """

    def __init__(
        self,
        preload: str | None = None,
        variables: Callable[[Experiment], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._preload = preload
        self._variables = variables
        self._server = _Server()
        self._server.replaceable = preload is not None
        self._server.set_forkserver_preload(["genkidama.runtime.forkserver_main"])

    @property
    def pid(self) -> int | None:
        """Its process number; None before it is started, and if it is another program's."""
        number: int | None = getattr(self._server, "_forkserver_pid", None)
        return number

    @property
    def running(self) -> bool:
        """True if there is one, of this program or another."""
        return self._server.joined or self.pid is not None

    def join(self, address: str) -> None:
        """Starts processes in a forkserver of another program, as long as that is there.

        Args:
            address: where it listens: a socket of the system's, with
                `genkidama.runtime.forkserver_main` behind it.
        """
        self._server.join(address)

    def variables(self, experiment: Experiment) -> dict[str, str]:
        """The environment variables of a forkserver that is to warm up with this experiment."""
        if self._preload is None:
            return {}
        return {
            **self._variables(experiment),
            PRELOAD_VARIABLE: self._preload,
            EXPERIMENT_VARIABLE: msgspec.json.encode(experiment.to_dict()).decode(),
            STARTER_VARIABLE: str(os.getpid()),
        }

    def start(self, entry: str, args: tuple[Any, ...], experiment: Experiment) -> ForkServerProcess:
        """Starts a daemonic process and returns as soon as it lives.

        That takes milliseconds, or as long as importing and warming up with this experiment where
        the forkserver must be started first. May be called in several threads; they take turns.

        Args:
            entry: `"module:function"`, which is looked up in the new process. So this one need not
                import the module.
            args: for the function; they are pickled.
            experiment: what a forkserver that is started now warms up with.

        Raises:
            EOFError, OSError: the forkserver is dead: killed, or ended by something that it
                imports. The next call starts another one, if this program may have one.
        """
        output = _Output() if self._server.joined else None
        process = multiprocessing.get_context("forkserver").Process(
            target=_enter, args=(entry, args, output), daemon=True
        )
        with self._starting(experiment):
            process.start()
        return process

    @contextmanager
    def _starting(self, experiment: Experiment) -> Iterator[None]:
        """Prepares this process for the start of another, and restores it afterwards.

        A forkserver that is started now gets the experiment to warm up with. Multiprocessing is
        kept from importing the caller's main script in every process: they run code of this package
        only, so a research script needs no `if __name__ == "__main__"`, and no process carries the
        script's imports. Ctrl-C, which reaches a whole terminal, interrupts nothing that is started
        here: the owner decides what ends when.
        """
        with _lock:
            # It unblocks SIGINT when it starts; the forkserver's start would have it do that.
            resource_tracker.ensure_running()
            variables = {**self.variables(experiment), **mark()}
            variables[FOLDER_VARIABLE] = _folder()
            before = {name: os.environ.get(name) for name in variables}
            os.environ.update(variables)
            main = sys.modules["__main__"]
            sys.modules["__main__"] = types.ModuleType("__main__")
            # Multiprocessing looks its server up by this name whenever a process is started.
            connect = forkserver.connect_to_new_process
            forkserver.connect_to_new_process = self._server.connect_to_new_process
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                yield
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                forkserver.connect_to_new_process = connect
                sys.modules["__main__"] = main
                # The program that embeds a child has an environment of its own.
                for name, value in before.items():
                    if value is None:
                        del os.environ[name]
                    else:
                        os.environ[name] = value


def _folder() -> str:
    """The folder of multiprocessing's sockets: one of ours, which is removed even if this process
    is killed."""
    settings: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if settings.get("tempdir") is None:
        folder = scratch_folder()
        util.Finalize(None, remove_scratch, args=(folder,), exitpriority=-100)
        settings["tempdir"] = str(folder)
    return util.get_temp_dir()


class _Server(forkserver.ForkServer):
    """Multiprocessing's forkserver, or the way to one that another program has started."""

    #: Whether it is another program's.
    joined = False

    #: Whether one of our own takes its place when it is gone.
    replaceable = True

    def join(self, address: str) -> None:
        self._forkserver_address = address
        # Each process holds this. It does not keep the forkserver alive: that is its starter's.
        self._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
        self.joined = True

    def ensure_running(self) -> None:
        if not self.joined:
            super().ensure_running()

    def connect_to_new_process(self, fds: Sequence[int]) -> tuple[int, int]:
        if self.joined:
            try:
                return super().connect_to_new_process(fds)
            except OSError:  # it is gone
                if not self.replaceable:
                    raise
                os.close(self._forkserver_alive_fd)
                self.joined = False
        return super().connect_to_new_process(fds)


class _Output:
    """This program's standard output and error, for a process whose own are its forkserver's."""

    _theirs: list[Any]

    def __getstate__(self) -> list[Any]:
        return [reduction.DupFd(descriptor) for descriptor in (1, 2)]

    def __setstate__(self, state: list[Any]) -> None:
        self._theirs = state

    def take_over(self) -> None:
        for number, theirs in enumerate(self._theirs, start=1):
            descriptor = theirs.detach()
            os.dup2(descriptor, number)
            os.close(descriptor)


def _enter(entry: str, args: tuple[Any, ...], output: _Output | None) -> None:
    """The first function of each process."""
    # When these have ended, multiprocessing ends the forkserver, too.
    starter = multiprocessing.parent_process()
    assert starter is not None
    end_with_pipe(starter.sentinel)
    if output is not None:
        # The system may share the CPU out by sessions (Linux' autogroups). In the forkserver's, all
        # cores of all children together would get as much as one of them.
        os.setsid()
        output.take_over()
    load_object(entry, "entry")(*args)


def disable_resource_tracker() -> None:
    """Makes multiprocessing believe that its resource tracker runs, and sends its messages nowhere.

    That process takes 7 MB, which matter on a Pi. After a crash it removes named shared memory and
    semaphores, and no process of ours has any that could be left behind.
    """
    resource_tracker._resource_tracker._fd = os.open(os.devnull, os.O_WRONLY)  # type: ignore[attr-defined]
