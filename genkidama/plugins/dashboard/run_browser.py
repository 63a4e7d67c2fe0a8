"""`genkidama serve`: the page over runs in directories, finished or not, without a parent."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from itertools import count, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response
from websockets.protocol import State

from genkidama._version import __version__
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.plugins.dashboard.broadcast import SECONDS, Page
from genkidama.plugins.dashboard.policies import Policies
from genkidama.plugins.dashboard.routes import (
    HttpResponse,
    answer,
    is_watching,
    make_response,
    parse_request,
)
from genkidama.plugins.dashboard.viewers import Viewers
from genkidama.protocol.tokens import is_loopback
from genkidama.runs.history import HistoryTail
from genkidama.runs.run import HISTORY, RecordedStatus, Run
from genkidama.runtime.address import explain, local_address, parse_listen
from genkidama.server.events import Event, from_line

#: What answers, in the headers.
SERVER = f"genkidama/{__version__}"

_PREFIX = "/runs/"


#: Lines are grouped so that a curve has at most this many points.
_POINTS = 2000

#: How long a line is, more or less.
_LINE_BYTES = 250


class RecordedRun:
    """The document of the run in the directory `path`, which grows with its history."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.resolve().name
        #: What is damaged; empty if nothing is.
        self.problem = ""
        self._unknown: dict[str, str] = {}
        try:
            experiment = Run.open(path).experiment
        except GenkidamaError as error:
            experiment = Experiment()  # which says nothing of this run
            self._unknown = dict.fromkeys(("environment", "algorithm", "backend", "rule"), "?")
            self.problem = str(error)
        self.status = RecordedStatus(Run(path), experiment)
        if self.problem:
            self.status.advice.append(self.problem)
        self._follower = HistoryTail(path / HISTORY)
        self._follower.position = 0
        #: What `_look` gave before the last `read`.
        self._seen = 0, 0

    @property
    def behind(self) -> bool:
        """True if there may be more than `read` has taken in."""
        return self._follower.behind or self._seen != self._look()

    def _look(self) -> tuple[int, int]:
        """The inode of the history, and its size; zeros if there is none."""
        with suppress(OSError):
            found = self._follower.path.stat()
            return found.st_ino, found.st_size
        return 0, 0

    def read(self) -> None:
        """Takes in the next piece, of 1 MiB at most, of what the history says."""
        self._seen = self._look()
        lines = iter(self._follower.read())
        if self._follower.problem:
            self._damaged(self._follower.problem)
            return
        together = max(1, self._seen[1] // _LINE_BYTES // _POINTS)
        while chunk := list(islice(lines, together)):
            self.status.take(filter(None, map(self._event, chunk)))
        if self._follower.skipped:
            self._damaged("a line is longer than any that a parent writes")

    def _event(self, line: bytes) -> Event | None:
        try:
            return from_line(line)
        except msgspec.ValidationError:
            return None  # a line that another program wrote
        except msgspec.DecodeError as error:
            self._damaged(str(error))
            return None

    def _damaged(self, problem: str) -> None:
        if not self.problem:
            self.problem = f"{self._follower.path}: is damaged: {problem}; the rest is shown"
            self.status.advice.append(self.problem)

    def summary(self, url: str) -> dict[str, Any]:
        """A row of the list of runs, with the run's curve as it was sent."""
        whole = self.status.document(self.status.time)
        run, learning = whole["run"], whole["learning"]
        keys = ("environment", "algorithm", "backend", "rule", "alpha", "beta", "state", "reason")
        return {
            "name": self.name,
            "url": url,
            **{key: run[key] for key in keys},
            **self._unknown,
            **({"state": "damaged", "reason": self.problem} if self.problem else {}),
            "seed": self.status.experiment.seed,
            "started": run["started"],
            "settings": {"parent.rule": run["rule"], **whole["settings"]},
            "evaluation": None if whole["evaluation"] is None else whole["evaluation"]["mean"],
            "elapsed": run["elapsed"],
            **{key: learning[key] for key in ("mean_return", "steps", "episodes", "curve")},
        }


def find_runs(folders: list[Path]) -> list[Path]:
    """The runs in these folders: each is a run, or holds some. One that holds none is a bad run.

    Raises:
        ConfigurationError: there is none in any of them.
    """
    found: dict[Path, None] = {}
    for folder in folders:
        here = [folder]
        if not _is_run(folder):
            with suppress(OSError):
                here = sorted(filter(_is_run, folder.iterdir())) or here
        found.update(dict.fromkeys(here))
    if not any(map(_is_run, found)):
        raise ConfigurationError(
            f"{folders[0]}: holds no run; give a run directory, or a folder with some, as runs/"
        )
    return list(found)


def _is_run(path: Path) -> bool:
    return os.path.isfile(path / HISTORY)  # a path's own method raises


class RecordedPage(Page):
    def __init__(self, run: RecordedRun) -> None:
        super().__init__(run.status)
        self.policies = Policies(lambda: run.status.experiment, run.path, lambda: None)
        self.run = run

    def now(self) -> float:
        return self.run_status.time

    def complete(self) -> None:
        self.run.read()

    def unready(self) -> str:
        return "this shows runs, and takes no children"


class _Viewer:
    """A connection, as `Broadcaster` takes it."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    @property
    def free(self) -> bool:
        return not self._connection.paused and self._connection.state is State.OPEN

    def write_frame(self, frame: bytes) -> None:
        self._connection.transport.write(frame)


class Gallery:
    """Serves the page of each run in these folders, or folders of folders.

    Raises:
        ConfigurationError: there is no run in one of them.
    """

    def __init__(self, folders: list[Path]) -> None:
        self._viewers = Viewers(None)
        self.runs: dict[str, RecordedPage] = {}
        for path in find_runs(folders):
            run = RecordedRun(path)
            names = (f"{run.name}-{number}" if number > 1 else run.name for number in count(1))
            run.name = next(name for name in names if name not in self.runs)
            run.read()
            self.runs[run.name] = RecordedPage(run)

    async def start(self, listen: str) -> Server:
        """A server on the loopback that serves until it is closed.

        Raises:
            ConfigurationError: other machines could come.
            EnvironmentFailure: nobody can listen there.
        """
        place = parse_listen(listen)
        if not is_loopback(str(place.get("host", ""))):
            raise ConfigurationError(
                f"--listen {listen}: whoever comes sees the runs, so this is for this machine "
                "alone: give 127.0.0.1:PORT, and reach it by ssh -L"
            )
        try:
            server = await serve(
                self._watch,
                place["host"],
                place["port"],
                process_request=self._answer,
                compression=None,
                server_header=SERVER,
                max_size=1024,
            )
        except OSError as error:
            raise explain(listen, error) from None
        self._reading = asyncio.create_task(self._read_on(server))
        return server

    async def _read_on(self, server: Server) -> None:
        """Reads what long histories hold, and what is added to those that nobody looks at, piece by
        piece, between the requests, until the server closes."""
        while server.is_serving():
            behind = [shown.run for shown in self.runs.values() if shown.run.behind]
            for run in behind:
                run.read()
                await asyncio.sleep(0)
            if not behind:
                await asyncio.sleep(SECONDS)

    def list(self) -> bytes:
        """All runs as JSON, with their curves."""
        rows = []
        for name, shown in self.runs.items():
            shown.run.read()
            if not len(shown.feed):
                shown.run.status.mark_sent()
            rows.append(shown.run.summary(f"runs/{quote(name)}/"))
        found = {"schema": 1, "type": "runs", "time": time.time()}
        return msgspec.json.encode({**found, "runs": rows})

    def _find(self, target: str) -> tuple[RecordedPage | None, str]:
        """The run of a request, and the rest of its address."""
        path = target.partition("?")[0]
        if path.startswith(_PREFIX):
            name, slash, _ = path[len(_PREFIX) :].partition("/")
            rest = target[len(_PREFIX) + len(name) :]
            return self.runs.get(unquote(name)), rest if slash else ""
        return next(iter(self.runs.values())), target

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        asked = parse_request(request)
        if asked.path == "/status" and len(self.runs) > 1:
            # Only the file's own rules are asked: it is answered like the status.
            shown = next(iter(self.runs.values()))
            refused = answer(asked._replace(target="/watch"), shown, self._viewers, time.time())
            body = HttpResponse(HTTPStatus.OK, self.list(), "application/json")
            return make_response(refused or body, asked)
        found, rest = self._find(asked.target)
        if found is None:
            response = HttpResponse(HTTPStatus.NOT_FOUND, b"there is no such run\n")
        elif not rest:
            to = (("Location", f"{asked.path}/"),)
            response = HttpResponse(HTTPStatus.SEE_OTHER, b"", headers=to)
        else:
            inner = asked._replace(target=rest)
            answered = answer(inner, found, self._viewers, time.time())
            if answered is None and is_watching(inner):
                return None
            nothing = HttpResponse(HTTPStatus.NOT_FOUND, b"there is nothing here\n")
            response = answered or nothing
        return make_response(response, asked)

    async def _watch(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        shown, _ = self._find(connection.request.path)
        assert shown is not None  # `_answer` has let it through
        viewer = _Viewer(connection)
        shown.feed.add(viewer)
        try:
            with suppress(ConnectionClosed):
                await connection.recv()
                await connection.close(CloseCode.POLICY_VIOLATION, "a viewer says nothing")
        finally:
            shown.feed.remove(viewer)


def show(folders: list[Path], listen: str, say: Callable[[str], None]) -> None:
    """Serves until it is interrupted; errors as `Gallery` and `Gallery.start`.

    Raises:
        SystemExit: SIGTERM has come.
    """
    gallery = Gallery(folders)

    async def serving() -> None:
        terminated = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
        server = await gallery.start(listen)
        place = local_address(next(iter(server.sockets)))
        say(f"{plural(len(gallery.runs), 'run')}: http://{place}/  (Ctrl+C ends it)")
        await terminated.wait()

    asyncio.run(serving())
    raise SystemExit(128 + signal.SIGTERM)
