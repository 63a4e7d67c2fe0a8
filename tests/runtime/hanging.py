"""Code that hangs: in a forkserver while it warms up, or in a process that it forks; and a
forkserver that has no room for one."""

from __future__ import annotations

import errno
import os
import time
from multiprocessing.connection import Connection

#: If it is set, warming up hangs.
HANGING = "GENKIDAMA_TEST_HANG"

#: If it is set, no process can be forked.
FULL = "GENKIDAMA_TEST_FULL"


def hang(*lines: Connection) -> None:
    """Says so first."""
    for line in lines:
        line.send_bytes(b"")
    while True:
        time.sleep(60.0)


def warm_up(_: object) -> None:
    if os.environ.get(HANGING):
        hang()
    if os.environ.get(FULL):
        os.fork = fail


def fail() -> int:
    raise OSError(errno.ENOMEM, "no memory")
