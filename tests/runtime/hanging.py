"""What hangs: in a nursery while it is born, or in a process that it forks."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["hang", "warm_up"]


def hang() -> None:
    while True:
        time.sleep(60.0)


def warm_up(_: object) -> None:
    if os.environ["GENKIDAMA_TEST_HANG"]:
        Path(f"/tmp/genkidama-test-hanging-{os.getpid()}").touch()
        hang()
