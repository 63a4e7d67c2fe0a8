"""`python -m studies.faults.inside OPTIONS -- MODULE …`: a program in a place of its own.

Its `/dev/shm` is a folder of ours, so that what it leaves there is seen. With `--namespace` it has
another network.
"""

from __future__ import annotations

import argparse
import os
import sys

_MOUNT = 'mount --bind "$0" /dev/shm && exec "$@"'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shm", required=True)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE of its environment")
    parser.add_argument("--namespace")
    parser.add_argument("module", nargs="+")
    options = parser.parse_args()
    os.environ.update(pair.split("=", 1) for pair in options.set)
    words = [
        "unshare",
        "-m",
        "--propagation",
        "slave",
        "sh",
        "-c",
        _MOUNT,
        options.shm,
        sys.executable,
        "-m",
    ]
    if options.namespace:
        words = ["ip", "netns", "exec", options.namespace, *words]
    os.execvp(words[0], [*words, *options.module])


if __name__ == "__main__":
    main()
