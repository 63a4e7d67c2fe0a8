"""The backend's side of the engine process: start it, talk to it, notice its end. No torch."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection
from typing import Any

from genkidama.child.ga3c.slots import Slots
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.experiment import Experiment
from genkidama.system.machine import ONE_THREAD

__all__ = ["EngineProcess"]

#: How long an engine that is told to end may take before it is killed.
_GRACE_SECONDS = 1.0


class EngineProcess:
    """One engine process, running.

    Args:
        descriptors: what it inherits: the queues' and bells' ends, in the engine's order.
        lost: called with a reason, and whether the engine is still there. It is called when the
            engine says that training cannot go on, or has ended without being told to.
    """

    def __init__(self, descriptors: Sequence[int], lost: Callable[[str, bool], None]) -> None:
        self._lost = lost
        self._control, theirs = Pipe()
        # Ctrl-C reaches a whole terminal from the first moment on, but the orchestrator decides
        # what ends when.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                inherited = [theirs.fileno(), *descriptors]
                numbers = map(str, (os.getpid(), *inherited))
                self.popen = subprocess.Popen(
                    [sys.executable, "-m", "genkidama.child.ga3c.engine", *numbers],
                    stdin=subprocess.DEVNULL,
                    pass_fds=inherited,
                    env={
                        **os.environ,
                        **ONE_THREAD,
                        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
                    },
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._attached = False
        self._published: asyncio.Future[None] | None = None

    async def describe(self, experiment: Experiment) -> tuple[Any, ...]:
        """What the engine has built.

        Returns:
            Signature entries, the vector's bytes, facts, the device's type.

        Raises:
            ConfigurationError: it cannot build what the experiment names.
            EnvironmentFailure: it died on the way.
        """
        # In a thread: a whole vector comes, and an event loop has no way to wait for the rest of a
        # message.
        told = asyncio.ensure_future(asyncio.to_thread(self._be_told, experiment))
        try:
            kind, *description = await asyncio.shield(told)
        except asyncio.CancelledError:
            self.popen.kill()  # a child that is told to stop does not wait until torch is imported
            await asyncio.wait((told,))
            told.exception()
            raise
        except (EOFError, OSError):
            code = self.popen.wait()
            raise EnvironmentFailure(
                f"the process that holds the model died with exit code {code}; "
                f"try `{sys.executable} -c 'import torch'` on this machine, "
                f"and the environment {experiment.environment.id!r} by itself"
            ) from None
        if kind == "error":
            raise ConfigurationError(description[0])
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._listen)
        return tuple(description)

    def _be_told(self, experiment: Experiment) -> tuple[Any, ...]:
        self._control.send(experiment.to_dict())
        description: tuple[Any, ...] = self._control.recv()
        return description

    def attach(self, slots: Slots) -> None:
        """Gives it the shared memory; from now on it can be told things."""
        with suppress(OSError):
            self._control.send(slots.layout)
            reduction.send_handle(self._control, slots.descriptor, self.popen.pid)
        self._attached = True

    def tell(self, *message: Any) -> None:
        """Tells it to do something that needs no answer.

        Before it is attached, and after its death, which is noticed elsewhere, nothing happens.
        """
        if self._attached:
            with suppress(OSError):
                self._control.send(message)

    async def publish(self) -> None:
        """Tells it to copy weights and optimizer state into the shared memory.

        Returns when that is done, or the engine is gone.
        """
        if self._attached and not self._control.closed:
            self._published = asyncio.get_running_loop().create_future()
            self.tell("publish")
            await self._published

    def _listen(self) -> None:
        try:
            while self._control.poll():
                kind, *words = self._control.recv()
                if kind == "failed":
                    self._lost(words[0], True)
                else:
                    self._release()
        except (EOFError, OSError):
            self._close()
            self._release()
            self._lost(f"exit code {self.popen.wait()}", False)

    def _release(self) -> None:
        if self._published is not None and not self._published.done():
            self._published.set_result(None)

    def _close(self) -> None:
        if not self._control.closed:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()

    async def end(self) -> None:
        """Ends the process, which ends by itself when its socket is closed."""
        self._close()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.popen.wait, _GRACE_SECONDS)
        self.kill()
        self.popen.wait()

    def kill(self) -> None:
        """Ends it at once."""
        if self.popen.poll() is None:
            self.popen.kill()


def pipe() -> tuple[Connection, Connection]:
    """A one-way pipe: the end to read, the end to write."""
    reader, writer = Pipe(duplex=False)
    return reader, writer
