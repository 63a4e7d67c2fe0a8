"""The parent's side of the page: its events go in, answers to plain HTTP and the feed come out.

Laws of this file:
- It reads the run and changes nothing.
- A viewer takes no child's place. There may be `genkidama.server.limits.VIEWERS` of them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from genkidama.errors import ProtocolError
from genkidama.parent.authentication import Authenticator
from genkidama.parent.connection import PIECE_BYTES, REFUSED_BY, Connection, address_of
from genkidama.plugins.dashboard.broadcast import Watchers
from genkidama.plugins.dashboard.files import Files, plotly
from genkidama.plugins.dashboard.http import as_asked, as_response
from genkidama.plugins.dashboard.metrics import metrics
from genkidama.plugins.dashboard.routes import HttpRequest, HttpResponse, answer, is_watching
from genkidama.plugins.dashboard.viewers import Viewers, cookie_of
from genkidama.protocol.shard import Shard
from genkidama.runs.status import Facts, RunStatus
from genkidama.server.events import Event
from genkidama.server.limits import ConnectionLimits
from genkidama.server.parameter_server import ParameterServer

__all__ = ["RECHECK_SECONDS", "STUCK_SECONDS", "Dashboard"]

#: A viewer says nothing; a message of more bytes ends the connection.
_LONGEST_WORD = 1024

#: A viewer that takes nothing for so long has gone.
STUCK_SECONDS = 30.0

#: How often it is looked whether who watches may still do so.
RECHECK_SECONDS = 2.0

#: The rest of a large answer may take so long.
_ANSWER_SECONDS = 60.0

#: If no child has exchanged for so long, nobody knows whether the other parts are there.
_PARTS_SECONDS = 30.0

#: Hashes of the keys of links that were opened, in the run's directory.
_OPENED = "opened-links"


class Dashboard:
    """What a parent shows of its run.

    Args:
        server: the parent's mind.
        children: the connections of those that take part, by name.
        doors: count the viewers.
        now: the parent's clock, in seconds.
        refused: called with the address of one who may not look, and why.
    """

    def __init__(
        self,
        server: ParameterServer,
        children: Mapping[str, ServerConnection],
        doors: ConnectionLimits,
        now: Callable[[], float],
        refused: Callable[[str, ProtocolError], None],
    ) -> None:
        self._refused = refused
        self.run_status = RunStatus(server.experiment)
        self.run_status.plotly = plotly() is not None
        self.files = Files()
        self.viewers = Viewers(None)
        self._server = server
        self._children = children
        self._doors = doors
        self._now = now
        self.watchers = Watchers(self.run_status, now, self._facts, self._gather)
        #: CPU seconds that taking events in has taken.
        self._spent = 0.0

    @property
    def spent(self) -> float:
        """CPU seconds that the page has taken so far."""
        return self._spent + self.watchers.spent

    def begin(self, out: Path, admission: Authenticator | None) -> None:
        """The run's directory is known, and who may look."""
        settings = self._server.experiment.parent
        name = socket.gethostname().lower()
        opened: frozenset[str] = frozenset()
        with suppress(OSError, UnicodeDecodeError):
            opened = frozenset((out / _OPENED).read_text().split())

        def remember(digest: str) -> None:
            with suppress(OSError), (out / _OPENED).open("a") as file:
                file.write(f"{digest}\n")

        self.viewers = Viewers(
            admission,
            frozenset({name, f"{name}.local", settings.listen.rpartition(":")[0].lower()}),
            secure=bool(settings.certificate_file),
            opened=opened,
            remember=remember,
        )

    def take(self, events: Sequence[Event]) -> None:
        """Takes in what has happened."""
        began = time.thread_time()
        self.run_status.take(events)
        self._spent += time.thread_time() - began

    def answer(self, connection: Connection, request: Request) -> tuple[bool, Response | None]:
        """Whether a request is the page's, and the answer if it is not to become the feed."""
        asked = as_asked(request)
        watching = is_watching(asked)
        if "upgrade" in asked.headers and not watching:
            return False, None
        found = answer(asked, self, self.viewers, time.time())
        if found is None and not watching:
            return False, None
        if found is not None and found.why and (code := REFUSED_BY.get(found.status)):
            self._refused(address_of(connection), ProtocolError(code, found.why))
        if found is None:
            try:
                if connection.visit is not None:
                    self._doors.watch(connection.visit)
            except ProtocolError as error:
                found = _full(error)
            else:
                connection.watching = True
                connection.shown = self.viewers.shown(asked.headers, cookie_of(_host(asked)))
                connection.set_limit(_LONGEST_WORD)
                connection.patience = min(connection.patience, STUCK_SECONDS)
                return True, None
        if asked.method == "GET" and len(found.body) > PIECE_BYTES and connection.visit is not None:
            try:
                self._doors.answer(connection.visit)
            except ProtocolError as error:
                found = _full(error)
        connection.close_timeout = _ANSWER_SECONDS
        return True, as_response(found, asked)

    async def watch(self, connection: Connection) -> None:
        """Sends the feed until the connection ends, or its viewer may look no longer."""
        self.watchers.add(connection)
        try:
            with suppress(ConnectionClosed):
                problem = ""
                while not problem:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(RECHECK_SECONDS):
                            await connection.recv()
                            problem = "a viewer says nothing"
                    problem = problem or self.viewers.problem(connection.shown, time.time())
                await connection.close(CloseCode.POLICY_VIOLATION, problem)
        finally:
            self.watchers.remove(connection)

    def end(self) -> None:
        """Tells all who watch how the run has ended."""
        if len(self.watchers):
            self.watchers.send()
        self.watchers.close()

    # What is shown, as `genkidama.plugins.dashboard.routes.Contents`.

    @property
    def plotly(self) -> bool:
        return self.run_status.plotly

    def status(self) -> bytes:
        return self.watchers.status()

    def metrics(self) -> HttpResponse:
        return metrics(self.status())

    def unready(self) -> str:
        server = self._server
        if server.stop:
            return "the run is over"
        limit = server.experiment.parent.max_children
        if len(self._children) >= limit:
            return f"parent.max_children = {limit}: so many are connected already"
        return ""

    def file(self, name: str, zipped: bool) -> tuple[bytes, bool] | None:
        return self.files.read(name, zipped)

    # Inside.

    def _gather(self) -> None:
        """What events do not tell."""
        server = self._server
        beta = server.experiment.child.beta
        self.run_status.advice = list(server.trials.rule.diagnose(beta, len(server.joined)))
        self.run_status.page = {"viewers": len(self.watchers), "seconds": round(self.spent, 6)}
        self.run_status.parts = self._parts()

    def _parts(self) -> list[dict[str, Any]] | None:
        """All parts of a parent in parts. A child pushes to all of them or to none, so the others
        are there while children exchange."""
        trial = self._server.trial
        if trial.part.count == 1:
            return None
        rows = self.run_status.children.values()
        latest = max((row.exchanged or 0.0 for row in rows), default=0.0)
        others = "there" if self._now() - latest < _PARTS_SECONDS else "unknown"
        found = []
        for number in range(1, trial.part.count + 1):
            ours = number == trial.part.number
            part = Shard(number, trial.part.count)
            size = 0 if trial.signature is None else part.of(trial.signature).size
            state = "there" if ours else others
            found.append({"part": number, "of": part.count, "state": state, "numbers": size})
        return found

    def _facts(self, name: str) -> Facts | None:
        record, connection = self._server.children.get(name), self._children.get(name)
        if record is None or not isinstance(connection, Connection):
            return None
        return Facts(
            address=address_of(connection).rpartition(":")[0],
            cores=record.cores or None,
            software=record.software,
            updates=float(record.exchanges),
            steps=record.steps,
            last_return=record.last_return,
            round_trip=connection.latency or None,
            bytes_in=connection.received,
            bytes_out=connection.sent,
        )


def _host(asked: HttpRequest) -> str:
    return asked.headers.get("host", "")


def _full(error: ProtocolError) -> HttpResponse:
    return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.reason}\n".encode())
