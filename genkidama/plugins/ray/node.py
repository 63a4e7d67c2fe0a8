"""Actors on the nodes of a Ray cluster, each with one process of ours. They answer at once."""

from __future__ import annotations

import contextlib
import importlib
import re
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import msgspec

from genkidama._version import __version__
from genkidama.errors import EnvironmentFailure, GenkidamaError
from genkidama.runs.history import FallbackReader, whole_lines
from genkidama.runs.run import CHECKPOINTS, EXPERIMENT, HISTORY, LOGS, SETTINGS, STUDY, TRIALS
from genkidama.runtime.address import listening_socket, local_address
from genkidama.runtime.files import remove_scratch, scratch_folder
from genkidama.runtime.process import Process

#: Seconds for a process to end after SIGTERM.
GRACE_SECONDS = 5.0

#: Files of a run directory that are copied, beside the history: to the driver, and to a new parent.
_COPIED = re.compile(
    rf"({re.escape(STUDY)}|({TRIALS}/\d+/)?"
    rf"({re.escape(EXPERIMENT)}|{CHECKPOINTS}/[\w-]+\.safetensors))\Z"
)

#: Most bytes of a log or a history in one answer.
_PIECE = 4 << 20

#: Files are sent together up to this size.
_BATCH = 64 << 20


class Report(TypedDict, total=False):
    """Answer of an actor: the state of its process, and files to copy."""

    #: Exit code; None while it runs.
    code: int | None
    error: str
    log: bytes
    #: Of a parent: where it listens.
    url: str
    #: Of a parent: new lines of its history.
    history: bytes
    #: Of a parent: lines that it could not write into its history.
    fallback: bytes
    #: Of a parent: the files to be copied, each with a mark that changes when the file does.
    files: dict[str, str]


class ProcessActor:
    """An actor that looks after one process of ours.

    Its files are in a directory of its own, which only its user can read.
    """

    def __init__(self) -> None:
        self._node = _address_of_this_node()
        self._folder = scratch_folder()
        self._process: Process | None = None
        self._stopped = False
        self._problem = ""

    def stop(self, log: int) -> Report:
        """Ends the process in order."""
        self._stopped = True
        if self._process is not None:
            self._process.end(GRACE_SECONDS)
        return self._report(log)

    def close(self) -> None:
        """Removes what is on this node's disk."""
        if self._process is not None:
            self._process.end(0.0)
            self._process.close()
        remove_scratch(self._folder)

    def _report(self, log: int) -> Report:
        process = self._process
        said = b"" if process is None else _piece(process.log, log)
        if process is None or self._problem:
            return {"code": EnvironmentFailure.exit_code, "error": self._problem, "log": said}
        code = process.code
        if self._stopped and (code or 0) <= 0:  # it may have been too young to know SIGTERM
            return {"code": 0, "error": "", "log": said}
        error = _with_our_log(process, process.error()) if code else ""
        return {"code": code, "error": f"{error} (node {self._node})", "log": said}

    def _revive(self) -> None:
        """Starts the process again if it was killed."""
        process = self._process
        if process is not None and not self._stopped and (process.code or 0) < 0:
            try:
                process.restart()
            except EnvironmentFailure as error:
                self._problem = _with_our_log(process, str(error))

    def _other_version(self, version: str) -> bool:
        if version == __version__:
            return False
        self._problem = (
            f"node {self._node} has genkidama {__version__}, this program {version}; "
            "install the same version on all nodes"
        )
        return True


def _with_our_log(process: Process, text: str) -> str:
    """The text with the log's place in the run directory instead of that on the node."""
    return text.replace(str(process.log), f"{LOGS}/{process.log.name}")


class ParentActor(ProcessActor):
    """The Parent's actor."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._run = self._folder / name
        self._url = ""
        #: Each parent that is started here inherits it, and so has the same address.
        self._socket: socket.socket | None = None
        self._fallback = FallbackReader()
        #: Lines of the fallback that were not reported yet, and the last reason.
        self._news: list[bytes] = []
        self._said = ""

    def put(self, path: str, content: bytes) -> None:
        """Writes a file of a run that is resumed here."""
        try:
            (self._run / path).parent.mkdir(parents=True, exist_ok=True)
            (self._run / path).write_bytes(content)
        except OSError as error:
            self._problem = f"{self._run / path}: cannot be written: {error.strerror}"

    def start(self, version: str, token: str, history: int) -> Report:
        """Starts the parent on the files that were put here, and lists these."""
        given = dict(files(self._run))
        if not self._other_version(version) and not self._problem:
            try:
                self._process = self._started(token)
            except (OSError, GenkidamaError) as error:
                self._problem = str(error)
        return self.poll(history, 0) | {"files": given}

    def _started(self, token: str) -> Process:
        host = f"[{self._node}]" if ":" in self._node else self._node
        self._socket = listening_socket(f"{host}:0")
        self._url = f"ws://{local_address(self._socket)}"
        tokens = self._folder / "tokens"
        tokens.touch(0o600)
        tokens.write_text(f"* {token}\n")
        listens = self._socket.fileno()
        fallback = self._fallback.descriptor
        command = ["genkidama.parent", str(self._run / SETTINGS), "--listen", f"fd://{listens}"]
        command += ["--out", str(self._run), "--tokens-file", str(tokens), "--own-children"]
        command += ["--fallback", str(fallback)]
        process = Process("parent", command, self._folder / "parent.log", (listens, fallback))
        process.fallback_reason = self._listen
        return process

    def _listen(self) -> str:
        """The last line of the fallback; empty if there is none."""
        for line in self._fallback.read():
            self._news.append(line)
            self._said = msgspec.json.decode(line)["reason"]
        return self._said

    def poll(self, history: int, log: int) -> Report:
        """State, whole lines of the history from a position on, and files to copy."""
        self._revive()
        report = self._report(
            log
        )  # before the files: a process that has ended has written them all
        lines = whole_lines(_piece(self._run / HISTORY, history))
        self._listen()
        report["fallback"] = b"\n".join(self._news)
        self._news = []
        return report | {"url": self._url, "history": lines, "files": dict(files(self._run))}

    def stop_parent(self, history: int, log: int) -> Report:
        """`stop` and `poll`."""
        self.stop(log)
        return self.poll(history, log)

    def read(self, paths: list[str]) -> dict[str, bytes | None]:
        """The contents of these files, or of the first of them if they are large.

        None for a file that is gone, or in use for too long.
        """
        contents: dict[str, bytes | None] = {}
        for path in paths:
            try:
                read = _database if path == STUDY else Path.read_bytes
                contents[path] = read(self._run / path)
            except (FileNotFoundError, sqlite3.Error):
                contents[path] = None
            if sum(len(content or b"") for content in contents.values()) > _BATCH:
                break
        return contents

    def close(self) -> None:
        super().close()
        self._fallback.close()
        if self._socket is not None:
            self._socket.close()


class ChildActor(ProcessActor):
    """A Child's actor."""

    def start(self, version: str, token: str, url: str, name: str, cores: int, log: int) -> Report:
        """Starts the child, or starts it again for a parent that is elsewhere now.

        Its own weights are there again then, as it left them.
        """
        if not self._other_version(version):
            try:
                if self._process is not None:
                    self._process.end(GRACE_SECONDS)
                    self._process.close()
                self._process = self._started(token, url, name, cores)
            except OSError as error:
                self._problem = str(error)
        return self._report(log)

    def _started(self, token: str, url: str, name: str, cores: int) -> Process:
        command = ["genkidama.child", "--parent", url, "--name", name, "--cores", str(cores)]
        command += ["--allow", "*"]  # the user of the launch has installed the modules
        command += ["--state", str(self._folder / "state")]
        environment = {"GENKIDAMA_TOKEN": token}
        return Process(name, command, self._folder / f"{name}.log", environment=environment)

    def poll(self, log: int) -> Report:
        """State of the process."""
        self._revive()
        return self._report(log)


def _address_of_this_node() -> str:
    return str(importlib.import_module("ray.util").get_node_ip_address())


def _piece(path: Path, position: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(_PIECE)
    except FileNotFoundError:
        return b""


def files(run: Path) -> Iterator[tuple[str, str]]:
    """Files of a run directory to copy, each with a mark that changes when the file does."""
    runs = [run, *run.glob(f"{TRIALS}/*")]
    for folder in (place for each in runs for place in (each, each / CHECKPOINTS)):
        for path in folder.glob("*"):
            name = path.relative_to(run).as_posix()
            if _COPIED.match(name):
                with contextlib.suppress(FileNotFoundError):
                    # SQLite writes to a log of its own first.
                    both = (path, path.with_name(f"{path.name}-wal"))
                    yield name, " ".join(_mark(each) for each in both if each.exists())


def _mark(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def _database(path: Path) -> bytes:
    """A SQLite file as it is between two transactions, whoever is writing to it."""
    with tempfile.TemporaryDirectory(prefix="genkidama-") as folder:
        copy = Path(folder) / path.name
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        return copy.read_bytes()
