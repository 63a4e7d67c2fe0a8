"""The backend's side of the engine process. No torch."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.plugins.ga3c.slots import Slots
from genkidama.runtime.worker_process import WorkerProcess, start_program

__all__ = ["EngineOwner", "EngineProcess"]


class EngineOwner(Protocol):
    """Notices that an engine is of no use any more."""

    def engine_lost(self, reason: str, alive: bool) -> None:
        """The engine says that training cannot go on, or has ended without being asked to.

        Args:
            alive: whether it is still there.
        """


class EngineProcess(WorkerProcess):
    """One engine process, running.

    Args:
        descriptors: what it inherits: the queues' and bells' ends, in the engine's order.
        backend: whose engine it is.
    """

    def __init__(self, descriptors: Sequence[int], backend: EngineOwner) -> None:
        super().__init__(self)
        self._backend = backend
        self._attached = False
        self._published: asyncio.Future[None] | None = None
        module = "genkidama.plugins.ga3c.engine"
        self.start(lambda pipe: start_program(module, (os.getpid(),), pipe, *descriptors))

    async def build(self, experiment: Experiment) -> tuple[Any, ...]:
        """What the engine has built.

        Returns:
            Signature entries, the vector's bytes, facts, the device's type.

        Raises:
            ConfigurationError: it cannot build what the experiment names.
            EnvironmentFailure: it died on the way.
        """
        try:
            description = await self.describe(experiment)
        except (EOFError, OSError):
            raise EnvironmentFailure(
                f"the process that holds the model died with exit code {self.wait()}; "
                f"try `{sys.executable} -c 'import torch'` on this machine, "
                f"and the environment {experiment.environment.id!r} by itself"
            ) from None
        self.listen()
        return description

    def attach(self, slots: Slots) -> None:
        """Gives it the shared memory; from now on it can be told things."""
        self.hand_over(slots.layout, slots.descriptor)
        self._attached = True

    def tell(self, *message: Any) -> None:
        """Tells it to do something that needs no answer; nothing happens before it is attached."""
        if self._attached:
            self.send(message)

    async def publish(self) -> None:
        """Tells it to copy weights and optimizer state into the shared memory.

        Returns when that is done, or the engine is gone.
        """
        if self._attached and not self.pipe.closed:
            self._published = asyncio.get_running_loop().create_future()
            self.tell("publish")
            await self._published

    def heard(self, _: WorkerProcess, message: tuple[Any, ...]) -> None:
        """It has copied what it was to publish, or has failed."""
        if message[0] == "failed":
            self._backend.engine_lost(message[1], True)
        else:
            self._release()

    def lost(self, _: WorkerProcess) -> None:
        """It is gone."""
        self._release()
        self._backend.engine_lost(f"exit code {self.wait()}", False)

    def _release(self) -> None:
        if self._published is not None and not self._published.done():
            self._published.set_result(None)


def pipe() -> tuple[Connection, Connection]:
    """A one-way pipe: the end to read, the end to write."""
    reader, writer = Pipe(duplex=False)
    return reader, writer
