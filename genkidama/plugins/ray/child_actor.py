"""Actor on a node of a Ray cluster, with the process of one Child. It answers at once."""

from __future__ import annotations

import importlib
from typing import TypeAlias

from genkidama._version import __version__
from genkidama.errors import EnvironmentFailure
from genkidama.runs.run import LOGS
from genkidama.runtime.files import remove_scratch, scratch_folder
from genkidama.runtime.process import Process

#: Seconds for the process to end after SIGTERM. The driver waits a little longer.
_GRACE_SECONDS = 2.5

#: Most bytes of the log in one answer.
_PIECE = 4 << 20

#: Exit code or None while it runs, error, and the log from the position that was asked for.
Report: TypeAlias = tuple[int | None, str, bytes]


class ChildActor:
    """Starts a Child, and restarts it if it is killed.

    Its files are in a directory of its own, which only its user can read. The token is passed by
    the environment, never on a command line. This node must have the driver's version.
    """

    def __init__(self, version: str, token: str, url: str, name: str, cores: int) -> None:
        self._node = str(importlib.import_module("ray.util").get_node_ip_address())
        self._folder = scratch_folder()
        self._process: Process | None = None
        self._problem = ""
        if version != __version__:
            self._problem = (
                f"node {self._node} has genkidama {__version__}, this program {version}; "
                "install the same version on all nodes"
            )
            return
        command = ["genkidama.child", "--parent", url, "--name", name, "--cores", str(cores)]
        command += ["--allow", "*"]  # the user of the launch has installed the modules
        command += ["--state", str(self._folder / "state")]
        try:
            self._process = Process(
                name, command, self._folder / f"{name}.log", environment={"GENKIDAMA_TOKEN": token}
            )
        except OSError as error:
            self._problem = str(error)

    def poll(self, log: int) -> Report:
        """The state of the process, and its log from that byte on; if it was killed, it is started
        again, with its weights.
        """
        process = self._process
        if process is not None and not self._problem and (process.code or 0) < 0:
            try:
                process.restart()
            except EnvironmentFailure as error:
                self._problem = str(error)
        if process is None or self._problem:
            return EnvironmentFailure.exit_code, self._problem, self._read(log)
        code = process.code
        reason = process.error().replace(str(process.log), f"{LOGS}/{process.log.name}")
        return code, f"{reason} (node {self._node})" if code else "", self._read(log)

    def stop(self, log: int) -> Report:
        """Ends the process in order, and removes what is on this node's disk."""
        if self._process is not None:
            self._process.end(_GRACE_SECONDS)
        text = self._read(log)
        if self._process is not None:
            self._process.close()
        remove_scratch(self._folder)
        return 0, "", text

    def _read(self, position: int) -> bytes:
        if self._process is None:
            return b""
        with self._process.log.open("rb") as file:
            file.seek(position)
            return file.read(_PIECE)
