"""The forkserver, or zygote: a process that has imported everything once, and forks others from it.

Laws of this file:
- A forked process shares the memory of its forkserver, until either of them writes to a page.
- A request is a message, and the process lives once the forkserver has come to it. Nobody waits for
  a forkserver that is busy, as while it imports torch.
- A forkserver ends soon after the process that has started it, once all that it forked has ended. A
  worker that it forks ends with the one that has asked for it: Linux kills it, whatever it does at
  the moment. A program that it forks ends when its standard input does.
- What a worker has started and not ended, as a simulator, the forkserver ends after it.
- If a forkserver is killed, what it has forked lives on.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import takewhile
from multiprocessing import Pipe, context, reduction, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from genkidama.config.experiment import Experiment
from genkidama.runtime import descendants, script
from genkidama.runtime.import_strings import load_object
from genkidama.runtime.machine import ONE_THREAD, at_end_of_pipe, end_with_pipe, unmap_libraries

#: A request is one of these bytes, with descriptors. To fork: a pipe with a `_Head` and a task, one
#: for the answers, the standard streams, and what the process inherits. To warm up: a pipe with a
#: module, an experiment and variables. To write elsewhere from now on: the standard streams.
_FORK, _WARM_UP = b"f", b"w"
_WRITE = b"o"

#: Descriptors of a request, at most.
_MOST_DESCRIPTORS = 250

#: After a process has said its exit code, an idle forkserver finds it within milliseconds.
_NOTICE_SECONDS = 0.2

#: A worker's exit functions, as an environment's, take no longer.
_EXIT_SECONDS = 1.0

#: How long an idle forkserver may take to end, and how long all that it forked.
_CLOSE_SECONDS = 0.8
_POLL_SECONDS = 0.005
_LINGER_SECONDS = 10.0

#: Below are the numbers that a program's descriptors may have.
_HIGH = 200

#: The program of a forkserver. It is no `python -m`: then this module would be there twice.
_PROGRAM = "from genkidama.runtime import forkserver; forkserver.main()"


class _Head(NamedTuple):
    """The first part of a request: all that a process needs before its task."""

    environment: dict[str, str]
    #: The words that `ps` shows after `python -m`.
    title: list[str]
    #: Whether it has a session of its own.
    session: bool
    #: `sys.path`.
    path: list[str]
    #: The numbers of a program's inherited descriptors; None for a worker.
    numbers: Sequence[int] | None = None
    #: A program's folder; a worker is where a module of the user's has gone as it was imported.
    folder: str = ""


# Those that ask.


class ForkedProcess:
    """A process that a forkserver forks, with the methods of a `subprocess.Popen`.

    An OSError says that the forkserver is gone.
    """

    #: The exit code, below 0 if it was killed; None as long as none is known.
    returncode: int | None = None
    #: Processes that it left behind, which are ended: `"sleep 1000 (4711)"`.
    left: Sequence[str] = ()

    def __init__(self, answers: Connection, alive: Connection, pid: int | None = None) -> None:
        self._answers, self._alive = answers, alive  # a worker ends with the second
        self._pid = pid
        self._said: int | None = None
        self._lock = threading.Lock()
        #: Descriptors that it inherits.
        self._descriptors: list[int] = []

    @classmethod
    def start(
        cls,
        control: socket.socket,
        head: _Head,
        task: tuple[Any, ...],
        streams: Sequence[int],
        descriptors: Sequence[int] = (),
    ) -> ForkedProcess:
        """Asks the forkserver at `control` for one."""
        ours, answers = Pipe(duplex=False)
        payload, alive = Pipe(duplex=False)
        process = cls(ours, alive)
        process._descriptors += descriptors
        with payload, answers:
            context.set_spawning_popen(process)  # type: ignore[arg-type]
            try:
                content = reduction.ForkingPickler.dumps(task)
            finally:
                context.set_spawning_popen(None)
            sent = (payload.fileno(), answers.fileno(), *streams, *process._descriptors)
            socket.send_fds(control, [_FORK], sent)
        alive.send(head)
        alive.send_bytes(content)
        return process

    @property
    def descriptors(self) -> tuple[int, int]:
        """Its pipes. Who has both, and closes them, owns the process."""
        return self._answers.fileno(), self._alive.fileno()

    # Multiprocessing asks these two of the process for which it pickles.

    def duplicate_for_child(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return len(self._descriptors) - 1

    def DupFd(self, index: int) -> _Inherited:  # noqa: N802
        return _Inherited(index)

    @property
    def pid(self) -> int:
        """The process number; 0 if it never lived. Waits until it lives."""
        while self._pid is None and self.returncode is None:
            self._read(None)
        return self._pid or 0

    @property
    def lives(self) -> bool:
        """True once it has been forked."""
        return self.poll() is not None or self._pid is not None

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        while self.returncode is None and self._read(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit code; raises a `subprocess.TimeoutExpired`."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not self._read(left):
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return self.returncode

    def end(self, seconds: float) -> None:
        """Waits so long for its end, and then kills it."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Closes its pipes, when its exit code is known."""
        self._answers.close()
        self._alive.close()

    def _signal(self, number: int) -> None:
        if self.poll() is None:
            if self._pid is None:  # it will not live
                self._alive.close()
                self.returncode = -number
                return
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _read(self, seconds: float | None) -> bool:
        """Takes an answer if one comes in this time."""
        try:
            if not self._answers.poll(seconds):
                return False
        except OSError:  # closed by another thread, which knows its end
            return True
        with self._lock:
            if self.returncode is None and self._answers.poll():  # and no other thread has read it
                self._take_answer()
        return True

    def _take_answer(self) -> None:
        try:
            kind, number = self._answers.recv()
        except EOFError:  # neither the process nor its forkserver lives
            self.returncode = -signal.SIGKILL if self._said is None else self._said
            return
        if kind == "pid":
            self._pid = number
        elif kind == "left":
            self.left = number
        elif kind == "found":
            self.returncode = number
        else:  # a forkserver finds its end, too, unless it is gone or busy
            self._said = number
            if self._answers.poll(_NOTICE_SECONDS):
                self._take_answer()
            else:
                self.returncode = number


class _Inherited:
    """A descriptor that a forked process inherits."""

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        return _inherited[self._index]


#: Those of this process, if it was forked.
_inherited: list[int] = []


class Server:
    """A forkserver that lives, or has lived; each method raises an OSError if it is gone.

    Requests go to `control`. It ends with the pipe `alive`; None if another program has started it.
    """

    def __init__(
        self, control: socket.socket, alive: Connection | None = None, pid: int = 0
    ) -> None:
        self._control = control
        self._alive = alive
        self.pid = pid
        #: The modules that it was asked to warm up with by this program.
        self._warm: set[str] = set()

    def __del__(self) -> None:  # most live until their program ends
        self._control.close()

    def check(self) -> None:
        """Raises a BrokenPipeError if it is gone."""
        if self._control.fileno() < 0:
            raise BrokenPipeError
        state = select.poll()
        state.register(self._control, 0)
        if state.poll(0):
            raise BrokenPipeError

    def write_to(self, log: Path) -> None:
        """Has its standard output and error go to this file."""
        with log.open("ab") as file, _null() as null:
            socket.send_fds(self._control, [_WRITE], [null, file.fileno(), file.fileno()])

    def warm_up(self, module: str, experiment: Experiment, variables: Mapping[str, str]) -> None:
        """Has it import a module and call its `warm_up(experiment)`, if that has not been done.

        What is forked later meets the module's errors, and reports them. The variables are in the
        forkserver's environment from now on.
        """
        if module not in self._warm:
            payload, request = Pipe(duplex=False)
            with request:
                with payload:
                    socket.send_fds(self._control, [_WARM_UP], [payload.fileno()])
                request.send((module, experiment.to_dict(), dict(variables)))
            self._warm.add(module)

    def fork(
        self,
        entry: str,
        args: tuple[Any, ...],
        variables: Mapping[str, str],
        streams: Sequence[int] | None = None,
    ) -> ForkedProcess:
        """Forks a worker, which ends with this program.

        Its standard streams are these descriptors; by default it writes where this program does.

        The entry, `"module:function"`, is looked up in the new process, so this one need not import
        the module; the arguments are pickled. The variables come beside this program's.
        """
        environment = {**os.environ, **script.mark(), **variables}
        # The system may share the CPU out by sessions (Linux' autogroups). In the forkserver's, all
        # cores of all children together would get as much as one of them.
        head = _Head(environment, [entry], self._alive is None, sys.path)
        with _null() as null:
            if streams is None:
                streams = [null, *(each if _is_open(each) else null for each in (1, 2))]
            return ForkedProcess.start(self._control, head, (entry, args), streams)

    def run(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        streams: Sequence[int],
        descriptors: Sequence[int] = (),
    ) -> ForkedProcess:
        """Forks a program as by `python -m MODULE ARGUMENT…`, in a session of its own.

        The module's `__main__` has a function `main(arguments)`. The streams are descriptors of its
        standard input, output and error; other descriptors keep their numbers.
        """
        head = _Head(environment, list(command), True, sys.path, descriptors, os.getcwd())
        return ForkedProcess.start(self._control, head, (command,), streams, descriptors)

    def close(self) -> None:
        """Ends it, if this program has started it, and what its workers have left behind.

        It is killed if it hangs, or if what it forked lives on.
        """
        self._control.close()
        if self._alive is None:
            return
        self._alive.close()
        self._alive = None
        deadline = time.monotonic() + _CLOSE_SECONDS
        with suppress(ProcessLookupError, ChildProcessError):
            while not os.waitpid(self.pid, os.WNOHANG)[0]:
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    return
                time.sleep(_POLL_SECONDS)


def open_program(
    arguments: Sequence[str], descriptors: Sequence[int], own_session: bool = False
) -> subprocess.Popen[bytes]:
    """Starts an interpreter like this one, with its path and one thread for numerics.

    It has no standard input, inherits the descriptors, and Ctrl-C waits until it is started.
    """
    variables = {**os.environ, **script.mark(), **ONE_THREAD}
    variables["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            env=variables,
            start_new_session=own_session,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _spawn(log: Path | None = None) -> Server:
    """Starts a forkserver as a program."""

    def started(*descriptors: int) -> int:
        arguments = ["-c", _PROGRAM, *map(str, descriptors)]
        process = open_program(arguments, descriptors, own_session=log is not None)
        process.returncode = 0  # `Server.close` waits for it
        return process.pid

    server = _serving(started)
    if log is not None:
        server.write_to(log)
    return server


def _serving(started: Callable[..., int]) -> Server:
    """A forkserver, whose process is started with the descriptors for `_serve`."""
    ours, theirs = socket.socketpair()
    ending, alive = Pipe(duplex=False)
    server = Server(ours, alive)
    with theirs, ending:
        server.pid = started(theirs.fileno(), ours.fileno(), ending.fileno())
    return server


#: The forkserver that this process was forked from, or has forked for itself.
_shared: Server | None = None


def prefork() -> None:
    """Forks a forkserver from this command, which has imported most of what it needs.

    Only a process with one thread can do that. Others start a program when they need one.
    """
    global _shared

    def forked(*descriptors: int) -> int:
        if (pid := os.fork()) == 0:
            try:
                kept = {0, 1, 2, *descriptors}
                _close(*({int(name) for name in os.listdir("/proc/self/fd")} - kept))
                with _null() as null:
                    os.dup2(null, 0)
                # The service manager hears of this program's state from itself alone.
                variables = {**os.environ}
                variables.pop("NOTIFY_SOCKET", None)
                _show([__name__], variables)
                _serve(*descriptors)
            finally:
                os._exit(1)
        return pid

    with suppress(OSError):  # not Linux
        if _shared is None and len(os.listdir("/proc/self/task")) == 1:
            _freeze()
            _shared = _serving(forked)


def share() -> None:
    """Has all `ForkServer`s of this program use one, which a later `begin` takes over."""
    global _shared
    if _shared is None:
        _shared = _spawn()


def leave_shared() -> None:
    """Ends the shared one, if this program has started it."""
    global _shared
    if _shared is not None:
        _shared.close()
        _shared = None


def begin(log: Path) -> Server:
    """The forkserver of all processes of a run on this machine: a shared one, or a new one.

    Its standard output and error go to the log.
    """
    global _shared
    found, _shared = _shared, None
    if found is not None:
        with suppress(OSError):
            found.write_to(log)
            return found
        found.close()
    return _spawn(log)


class ForkServer:
    """Starts workers in the forkserver that this program shares, or in one of its own.

    Its own is started when it is needed first, and again whenever it was killed. It imports the
    module, and calls its `warm_up(experiment)`, if it has one, which does once what every process
    will do. Without a module, this program uses a shared one or none. It and all that is forked
    from it have these environment variables besides this program's, the first ones it was given.
    """

    def __init__(
        self, module: str | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.module = module
        self.variables = variables or {}
        self._own: Server | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process number of its own; None without one."""
        return None if self._own is None else self._own.pid

    @property
    def running(self) -> bool:
        """True if there is one, of this program or another."""
        return (_shared or self._own) is not None

    def warm_up(self, experiment: Experiment, server: Server | None = None) -> Server:
        """Has a forkserver warm up, or this one, without waiting; an OSError if there is none."""
        global _shared
        if server is not None:
            return self._warm(server, experiment)
        with self._lock:
            if _shared is not None:
                with suppress(OSError):
                    return self._warm(_shared, experiment)
                _shared.close()  # it was killed
                _shared = None
            if (own := self._own) is not None:
                with suppress(OSError):
                    return self._warm(own, experiment)
                self.close()
            if self.module is None:
                raise ProcessLookupError("the forkserver is gone")
            self._own = _spawn()
            return self._warm(self._own, experiment)

    def _warm(self, server: Server, experiment: Experiment) -> Server:
        server.check()
        if self.module is not None:
            server.warm_up(self.module, experiment, self.variables)
        return server

    def start(
        self,
        entry: str,
        args: tuple[Any, ...],
        experiment: Experiment,
        streams: Sequence[int] | None = None,
    ) -> ForkedProcess:
        """Starts a worker, as `Server.fork`, which lives once the forkserver is warm. After an
        OSError, which says that this has just died, the next call starts another one, if this
        program may have one."""
        server = self.warm_up(experiment)
        return server.fork(entry, args, self.variables, streams)

    def close(self) -> None:
        """Ends its own, which may hang, as in the user's code."""
        own, self._own = self._own, None  # meanwhile another thread may start the next
        if own is not None:
            own.close()


# The forkserver.


def main() -> None:
    """A forkserver that was started as a program."""
    _show([__name__], dict(os.environ))
    _freeze()
    _serve(*map(int, sys.argv[1:4]))


def _serve(*descriptors: int) -> NoReturn:
    """Answers requests until the starter ends.

    Descriptors: where requests come, the other end of that, for what is forked, and the pipe whose
    end is the starter's.
    """
    listener, *others = map(_high, descriptors)
    client, ending = others
    descendants.adopt_orphans()
    #: By process number: where its answers go.
    living: dict[int, Connection] = {}
    #: What workers have left behind, and was asked to end.
    asked: set[int] = set()
    at_end_of_pipe(ending, lambda: _finish(living, asked))  # it may be warming up
    noticed, notice = os.pipe()
    os.set_blocking(notice, False)
    _handle_signals(notice)
    warm: set[str] = set()
    #: When those are killed; infinite if there are none.
    kill = math.inf
    requests = socket.socket(fileno=listener)
    sources: list[Any] = [requests, ending, noticed]
    while True:
        left = None if kill == math.inf else max(0.0, kill - time.monotonic())
        ready = select.select(sources, [], [], left)[0]
        if ending in ready:
            _finish(living, asked)
        if noticed in ready:
            os.read(noticed, 4096)
            before = len(asked)
            _bury(living, asked)
            if len(asked) > before:
                kill = time.monotonic() + descendants.GRACE_SECONDS
        if time.monotonic() >= kill:
            descendants.end(_orphans(living), signal.SIGKILL)
            asked.clear()
            kill = math.inf
        if requests not in ready:
            continue
        kind, received = socket.recv_fds(requests, 1, _MOST_DESCRIPTORS)[:2]
        if kind == _WARM_UP:
            _warm_up(Connection(received.pop(), writable=False), warm)
            _handle_signals(notice)  # a module may have handlers of its own
            os.write(notice, b"!")  # and may have kept the ends of processes from us
        elif kind == _WRITE:
            for number, descriptor in enumerate(received):
                os.dup2(descriptor, number)
        else:
            answers = Connection(_high(received.pop(1)), readable=False)
            process = None
            with suppress(OSError):  # there is no room for a process
                process = os.fork()
            if process == 0:
                signal.set_wakeup_fd(-1)
                _close(listener, ending, noticed, notice)
                for each in living.values():
                    each.close()
                _become(client, Connection(received[0], writable=False), answers, received[1:])
            if process is None:
                answers.close()  # its end tells the requester
            else:
                living[process] = answers
                _answer(answers, "pid", process)
        _close(*received)


def _handle_signals(notice: int) -> None:
    """Ignores Ctrl-C, and has the end of a process be told to the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notice, warn_on_full_buffer=False)


def _answer(answers: Connection, kind: str, what: int | list[str]) -> None:
    with suppress(OSError):  # nobody wants to know
        answers.send((kind, what))


def _bury(living: dict[int, Connection], asked: set[int]) -> None:
    """Passes on the exit codes of all that has ended, and asks what they have left behind to end.

    Those processes come into `asked`.
    """
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if (answers := living.pop(found[0], None)) is not None:
                with answers:
                    orphans = _orphans(living)
                    if new := [each for each in orphans if each.pid not in asked]:
                        descendants.end(new)
                        asked.update(each.pid for each in new)
                        _answer(answers, "left", [str(each) for each in new])
                    _answer(answers, "found", os.waitstatus_to_exitcode(found[1]))


def _orphans(living: Collection[int]) -> list[descendants.Descendant]:
    """All below this process that no living process of ours has started. What has lost its
    variables may be anybody's."""
    found: dict[int, descendants.Descendant] = {}
    for each in descendants.descendants():
        if each.parent in found:
            found[each.pid] = each
        elif each.parent == os.getpid() and each.pid not in living:
            worker = descendants.worker_of(each.pid)
            if worker not in living if worker else not living:
                found[each.pid] = each
    return list(found.values())


def _finish(living: dict[int, Connection], asked: set[int]) -> NoReturn:
    """Ends this forkserver once all that it forked has ended, with all that they have left."""
    deadline = time.monotonic() + _LINGER_SECONDS
    while living and time.monotonic() < deadline:
        _bury(living, asked)
        time.sleep(_POLL_SECONDS)
    if left := descendants.end_all(lambda: _bury(living, asked)):
        print(f"{descendants.ENDED}: {', '.join(map(str, left))}", file=sys.stderr, flush=True)
    os._exit(0)


#: Variables, and folders to import from, that modules have set as they were imported here: what is
#: forked does not import them again.
_set_by_modules: dict[str, str] = {}
_put_before: list[str] = []
_put_behind: list[str] = []


def _warm_up(payload: Connection, warm: set[str]) -> None:
    """Imports a module and warms it up, unless that has been done."""
    with payload, suppress(EOFError):
        module, experiment, variables = payload.recv()
        if module in warm:
            return
        warm.add(module)
        os.environ.update(variables)
        before, folders = dict(os.environ), list(sys.path)
        # What is imported stays. To look for garbage meanwhile would take a tenth of the time, and
        # what it leaves free would be filled by each core, on a page of its own.
        gc.disable()
        with suppress(BaseException):  # what is forked meets the same error and can report it
            warmed = import_module(module)
            if hasattr(warmed, "warm_up"):
                warmed.warm_up(Experiment.from_dict(experiment))
        gc.enable()
        now = os.environ.items()
        _set_by_modules.update((name, text) for name, text in now if before.get(name) != text)
        first = [*takewhile(lambda folder: folder not in folders, sys.path)]
        _put_before[:0] = first
        _put_behind.extend(each for each in sys.path if each not in (*folders, *first))
        _freeze()


def _freeze() -> None:
    """Prepares this process' memory for being shared, and gives back what is free."""
    gc.freeze()  # to look for garbage would be to write to every page
    if sys.version_info < (3, 12):  # later names live for ever, and nothing counts who uses them
        # It holds the names that were looked up last. With each one that a forked process looks up,
        # it would let go of another, and so write to that one's page.
        sys._clear_type_cache()
    unmap_libraries()
    with suppress(OSError, AttributeError):  # glibc alone can
        ctypes.CDLL(None).malloc_trim(0)


# What it forks.


def _become(
    client: int, payload: Connection, answers: Connection, descriptors: list[int]
) -> NoReturn:
    """The life of a forked process, with the standard streams and what it inherits."""
    code = 1
    try:
        atexit._clear()  # the starter's
        util._finalizer_registry.clear()  # type: ignore[attr-defined]
        code = _run(client, payload, descriptors)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            if _shared is None:  # a worker, whose environment may have threads and exit functions
                timer = threading.Timer(_EXIT_SECONDS, _leave, (code & 0xFF, answers))
                timer.daemon = True
                timer.start()
            else:
                threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            util._exit_function()  # type: ignore[attr-defined]
        _leave(code & 0xFF, answers)


def _leave(code: int, answers: Connection) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()
    _answer(answers, "said", code)
    os._exit(code)


def _run(client: int, payload: Connection, descriptors: list[int]) -> int:
    """Does what the request says; returns the exit code."""
    global _shared
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    _close(*descriptors[:3])
    head: _Head = payload.recv()
    if head.session:
        os.setsid()
    own = {**_set_by_modules, descendants.WORKER: str(os.getpid())}
    _show(head.title, {**head.environment, **own})
    added = {*_put_before, *_put_behind}
    rest = (each for each in head.path if each not in added)
    sys.path[:] = [*_put_before, *rest, *_put_behind]
    script.inherit()
    if head.numbers is None:
        # Ctrl-C reaches the whole group of processes, but the owner decides what ends when.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _shared = None
        _close(client)
        sys.modules["__main__"] = types.ModuleType("__main__")
        _inherited[:] = descriptors[3:]
        task = payload.recv_bytes()
        end_with_pipe(payload.fileno())
        entry, args = reduction.ForkingPickler.loads(task)
        load_object(entry, "entry")(*args)
        return 0
    os.chdir(head.folder)
    _shared = Server(socket.socket(fileno=client))
    (command,) = payload.recv()
    payload.close()
    inherited = list(map(_high, descriptors[3:]))
    for number, descriptor in zip(head.numbers, inherited, strict=True):
        os.dup2(descriptor, number)
    _close(*inherited)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main = sys.modules["__main__"] = import_module(f"{command[0]}.__main__")
    sys.argv = [main.__file__ or "", *command[1:]]
    code: int = main.main(list(command[1:]))
    return code


def _show(words: Sequence[str], environment: dict[str, str]) -> None:
    """Gives this process its variables, and has `ps` show them and `python -m WORD…`.

    The kernel looks for both where they were when the program began. A command line that ends
    without a zero byte goes on in the room of the variables.
    """
    os.environ.clear()  # Python copies what it sets, so nothing looks there any more
    os.environ.update(environment)
    with suppress(OSError, ValueError, IndexError):  # not Linux
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, last = int(fields[45]), int(fields[48])
        room = int(fields[46]) - start
        title = os.fsencode(" ".join(("python", "-m", *words)))
        if len(title) < room:
            title = title.replace(b" ", b"\0").ljust(room - 1, b"\0")
        # There may be no room for the longest ones.
        variables = sorted((b"%s=%s" % each for each in os.environb.items()), key=len)
        content = b"\0".join((title, *variables))[: last - start - 1]
        ctypes.memmove(start, content.ljust(last - start, b"\0"), last - start)


# Descriptors.


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def _high(descriptor: int) -> int:
    """Gives a file a number that no program asks for."""
    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(descriptor)
    return high


def _is_open(descriptor: int) -> bool:
    with suppress(OSError):
        return bool(os.fstat(descriptor))
    return False


@contextmanager
def _null() -> Iterator[int]:
    descriptor = os.open(os.devnull, os.O_RDWR)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
