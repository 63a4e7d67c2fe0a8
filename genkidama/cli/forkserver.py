"""One nursery for all children of a cluster on this machine, and for a learner beside the parent.

On a shelf of machines each child has its own. Here the libraries that all of them need are imported
once, and while the parent still starts.
"""

from __future__ import annotations

import socket
from pathlib import Path

from genkidama.child.forkservers import CORES
from genkidama.config.experiment import Experiment
from genkidama.runtime.files import remove_scratch, scratch_folder
from genkidama.runtime.forkserver import FOLDER_VARIABLE
from genkidama.runtime.process import Process

__all__ = ["SharedForkServer"]


class SharedForkServer:
    """The process, from which the cores of several children and the learner are forked.

    If it is killed, each child gets one of its own, and the next learner begins from nothing.

    Args:
        experiment: what it warms up with.
        log: where its standard output and error go. What cores write goes to their child's, and
            what the learner writes to the parent's.
    """

    def __init__(self, experiment: Experiment, log: Path) -> None:
        self._folder = scratch_folder()  # nobody else may enter it
        #: Where it listens.
        self.address = str(self._folder / "nursery")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen()  # so children may ask before it is there
            descriptor = listener.fileno()
            command = ["genkidama.runtime.forkserver_main", str(descriptor)]
            variables = {**CORES.variables(experiment), FOLDER_VARIABLE: str(self._folder)}
            self._process = Process("nursery", command, log, (descriptor,), variables)

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._process.log

    def terminate(self) -> None:
        """Asks it to end. Children that wait for it are told so by the end of their connection."""
        self._process.terminate()

    def close(self) -> None:
        """Ends it, and leaves nothing behind."""
        self._process.end(0.0)
        self._process.close()
        remove_scratch(self._folder)
