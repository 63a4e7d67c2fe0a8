"""A program that says what it finds when it begins."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    atexit.register(print, "at exit")
    print(arguments, os.environ["TEST_WORD"], sys.modules["__main__"].__name__)
    print(Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    print("signals", handlers[0] is signal.default_int_handler, handlers[1] is signal.SIG_DFL)
    print("session", os.getsid(0) == os.getpid(), flush=True)
    os.write(int(arguments[-1]), b"inherited\n")
    return 7
