"""`python -m tests.small_disk DIR MODULE …`: a program that sees a disk of 2 MB at DIR.

Only it and what it starts see that disk, which is gone with them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_MOUNT = 'mount -t tmpfs -o size=2m none "$0" && exec "$@"'


def possible() -> bool:
    """Whether this user may make one."""
    if shutil.which("unshare") is None:
        return False
    trial = ["unshare", "-m", "sh", "-c", _MOUNT, "/mnt", "true"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def disk_of(pid: int, folder: Path) -> Path:
    """The disk as this process sees it."""
    return Path(f"/proc/{pid}/root{folder}")


if __name__ == "__main__":
    folder, *module = sys.argv[1:]
    words = ["unshare", "-m", "sh", "-c", _MOUNT, folder, sys.executable, "-m", *module]
    os.execvp(words[0], words)
