"""Worker processes that need no torch, and their forkserver."""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from genkidama.child.shared_memory import SharedMemory
from genkidama.child.worker import EPISODE, PROGRESS, RECORD, UPDATE
from genkidama.runtime.forkserver import ForkServer

ROOT = Path(__file__).parents[2]


def light() -> ForkServer:
    """A forkserver without torch. It has this module warm."""
    variables = {"PYTHONPATH": str(ROOT), "GENKIDAMA_TEST_LIGHT": "1"}
    return ForkServer("tests.child.workers", variables)


LIGHT = light()

#: The process that has imported this module.
_IMPORTED_IN = os.getpid()


def look(line: Connection) -> None:
    """Sends what a process finds when it is born.

    Its nursery, whether this module was warm, whether torch is imported, its variables.
    """
    line.send((os.getppid(), os.getpid() != _IMPORTED_IN, "torch" in sys.modules, dict(os.environ)))


def leave(line: Connection) -> None:
    """Waits for a message, and leaves with code 5."""
    line.recv_bytes()
    sys.exit(5)


def work(index: int, memory: SharedMemory, line: Connection, plan: str) -> None:
    """Follows a plan until the line ends.

    - `"episodes"`: an episode of 5 + 5 + 2 steps between two exchanges.
    - `"updates"`: the same, and then an update whose loss is its index.
    - `"deaf"`: one such episode, and after the exchange it hears nothing for a minute.
    - `"progress"`: five steps now and then of an episode without an end.
    - `"fall"`: falls after five steps.
    - `"end"`: falls after an episode of five steps.
    - `"die"`: falls before any.
    """
    played = False
    try:
        while plan == "progress":
            line.send_bytes(RECORD.pack(PROGRESS, 0.0, 5))
            time.sleep(0.001)
        if plan == "fall":
            line.send_bytes(RECORD.pack(PROGRESS, 0.0, 5))
        if plan == "end":
            line.send_bytes(RECORD.pack(EPISODE, 12.0, 5))
        if plan in ("fall", "end", "die"):
            sys.exit(3)
        while True:
            memory.semaphore[index] = True
            line.send_bytes(b"")
            line.recv_bytes()
            if plan == "deaf" and played:
                time.sleep(60.0)
            line.send_bytes(RECORD.pack(PROGRESS, 0.0, 5))
            line.send_bytes(RECORD.pack(PROGRESS, 0.0, 5))
            line.send_bytes(RECORD.pack(EPISODE, 12.0, 2))
            if plan == "updates":
                line.send_bytes(RECORD.pack(UPDATE, float(index), 0))
            played = True
    except (EOFError, OSError):
        return


def run_watched_core(*arguments: Any) -> None:
    """A core that looks at its memory more often."""
    process = import_module("genkidama.child.worker")
    process._LOOK_SECONDS = 0.05  # type: ignore[attr-defined]
    process._SETTLING_SECONDS = 0.1  # type: ignore[attr-defined]
    import_module("genkidama.child.core").run_core(*arguments)  # which imports torch
