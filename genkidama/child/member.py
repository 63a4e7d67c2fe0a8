"""One process of a crew, as the crew sees it: its number and its line."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import TypeAlias

__all__ = ["Fork", "Member", "bear"]

#: Starts the process of an index, given the process' end of its line and the seed of its random
#: numbers. It is called in threads, several at once. EOFError and OSError mean that it could not be
#: started this time.
Fork: TypeAlias = Callable[[int, Connection, tuple[int, ...]], ForkServerProcess]


@dataclass
class Member:
    """The crew's side of one process."""

    index: int
    process: ForkServerProcess
    line: Connection
    failure: str = ""


async def bear(fork: Fork, index: int, seed: tuple[int, ...], failure: str = "") -> Member:
    """Starts the process of an index, in a thread.

    Args:
        fork: starts it.
        seed: of its random numbers.
        failure: the reason that one before it gave.

    Raises:
        EOFError, OSError: it could not be started this time.
    """
    ours, theirs = multiprocessing.Pipe()
    try:
        with theirs:
            process = await asyncio.to_thread(fork, index, theirs, seed)
    except BaseException:
        ours.close()
        raise
    return Member(index, process, ours, failure)
