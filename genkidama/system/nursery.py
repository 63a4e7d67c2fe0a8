"""What happens in a nursery before anything is forked from it.

A nursery that belongs to one program is multiprocessing's forkserver, which imports this module.
One that several share is `python -m genkidama.system.nursery DESCRIPTOR`. It listens on the socket
that it inherits, and ends when its standard input does.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver

from genkidama.experiment import Experiment
from genkidama.system.forkserver import EXPERIMENT_VARIABLE, PRELOAD_VARIABLE
from genkidama.system.machine import unmap_libraries

__all__ = ["main", "prepare"]


def prepare() -> None:
    """Imports the module that this nursery is there for, warms it up, and freezes the heap.

    Raises:
        ImportError: it cannot be imported.
    """
    # What is imported stays. To look for garbage meanwhile would take a tenth of the time, and what
    # it leaves free would be filled by each core, on a page of its own.
    gc.disable()
    module = import_module(os.environ[PRELOAD_VARIABLE])
    with suppress(Exception):  # what is forked meets the same error and can report it
        module.warm_up(Experiment.from_dict(json.loads(os.environ[EXPERIMENT_VARIABLE])))
    gc.freeze()
    gc.enable()
    unmap_libraries()


def main() -> None:
    """A nursery that several programs share."""
    listener = int(sys.argv[1])
    alive = os.dup(0)  # multiprocessing closes standard input
    with suppress(ImportError):
        prepare()
    forkserver.main(listener, alive, [])


if __name__ == "__main__":
    main()
elif PRELOAD_VARIABLE in os.environ:  # not where a test imports it
    prepare()
