"""Engines forked from one process that has imported torch, which takes seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import pytest

from genkidama.config.experiment import Experiment
from genkidama.plugins.ga3c import backend
from genkidama.runtime.forkserver import ForkedProcess, ForkServer
from genkidama.runtime.machine import ONE_THREAD


class _Inherited(int):
    """A descriptor that the fork inherits."""

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _detached, (reduction.DupFd(int(self)),)


def _detached(descriptor: Any) -> int:
    number: int = descriptor.detach()
    return number


def main(descriptors: list[int]) -> None:
    """The life of a forked engine."""
    from genkidama.plugins.ga3c import engine

    sys.argv = ["engine", *map(str, (os.getppid(), *descriptors))]
    sys.exit(engine.main())


@contextmanager
def forked_engines() -> Iterator[None]:
    """Has each `GA3C` fork its engines."""

    def fork(_: str, __: Iterable[int], pipe: Connection, *more: int) -> ForkedProcess:
        inherited = [_Inherited(each) for each in (pipe.fileno(), *more)]
        return server.start(f"{__name__}:main", (inherited,), Experiment())

    with (
        closing(ForkServer("genkidama.plugins.ga3c.engine", ONE_THREAD)) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(backend, "start_program", fork)
        yield
