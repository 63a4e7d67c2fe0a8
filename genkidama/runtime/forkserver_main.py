"""The program of a forkserver: it imports and warms up before anything is forked from it.

A forkserver that belongs to one program is multiprocessing's forkserver, which imports this module.
One that several share is `python -m genkidama.runtime.forkserver_main DESCRIPTOR`. It listens on
the socket that it inherits, and ends when its standard input does.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import shutil
import sys
import time
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver

from genkidama.config.experiment import Experiment
from genkidama.runtime.forkserver import (
    EXPERIMENT_VARIABLE,
    FOLDER_VARIABLE,
    PRELOAD_VARIABLE,
    STARTER_VARIABLE,
)
from genkidama.runtime.lifeline import end_with_parent, outlive_parent
from genkidama.runtime.machine import unmap_libraries

__all__ = ["main", "prepare"]

#: A starter that ends takes no longer than this.
_PARTING_SECONDS = 2.0


def prepare() -> None:
    """Imports the module that this forkserver is there for, warms it up, and freezes the heap.

    Raises:
        ImportError: it cannot be imported.
    """
    # Its starter waits for it now. Later a forkserver notices by itself that it is alone, but its
    # imports take seconds and may hang.
    starter = os.environ.get(STARTER_VARIABLE)
    end_with_parent(None if starter is None else int(starter))
    try:
        _warm_up()
    finally:
        outlive_parent()
    if FOLDER_VARIABLE in os.environ:
        atexit.register(_tidy, os.environ[FOLDER_VARIABLE], os.getpid(), os.getppid())


def _warm_up() -> None:
    # What is imported stays. To look for garbage meanwhile would take a tenth of the time, and what
    # it leaves free would be filled by each core, on a page of its own.
    gc.disable()
    module = import_module(os.environ[PRELOAD_VARIABLE])
    with suppress(Exception):  # what is forked meets the same error and can report it
        module.warm_up(Experiment.from_dict(json.loads(os.environ[EXPERIMENT_VARIABLE])))
    gc.freeze()
    gc.enable()
    unmap_libraries()


def _tidy(folder: str, forkserver: int, starter: int) -> None:
    """Removes the folder with the forkserver's socket, if its starter has been killed."""
    deadline = time.monotonic() + _PARTING_SECONDS
    while os.getpid() == forkserver and os.path.exists(folder) and time.monotonic() < deadline:
        if os.getppid() != starter:
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.01)  # one that is being killed closes its pipes first


def main() -> None:
    """A forkserver that several programs share."""
    listener = int(sys.argv[1])
    alive = os.dup(0)  # multiprocessing closes standard input
    with suppress(ImportError):
        prepare()
    forkserver.main(listener, alive, [])


if __name__ == "__main__":
    main()
elif PRELOAD_VARIABLE in os.environ:  # not where a test imports it
    prepare()
