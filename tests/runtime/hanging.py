"""Code that hangs: in a forkserver while it warms up, or in a process that it forks."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

#: If it is set, warming up hangs.
HANGING = "GENKIDAMA_TEST_HANG"


def hang(*lines: Connection) -> None:
    """Says so first."""
    for line in lines:
        line.send_bytes(b"")
    while True:
        time.sleep(60.0)


def warm_up(_: object) -> None:
    if os.environ.get(HANGING):
        hang()
