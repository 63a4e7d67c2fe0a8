"""A module that changes its process as it is imported, as users' environments do."""

from __future__ import annotations

import os
import signal
import sys
import time

FOLDER = "/opt/simulator/lib"

os.environ["SDL_VIDEODRIVER"] = "dummy"
sys.path.insert(0, FOLDER)
sys.path.append("/opt/simulator/vendored")
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # "no zombies"


def check() -> None:
    ends = (sys.path[0], sys.path[-1]) == (FOLDER, "/opt/simulator/vendored")
    sys.exit(ends and os.environ["SDL_VIDEODRIVER"] == "dummy" and 5)


def rest() -> None:
    time.sleep(60.0)
