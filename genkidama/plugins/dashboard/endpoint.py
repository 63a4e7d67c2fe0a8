"""The parent's side of the page: reads its events, answers plain HTTP, and sends the feed.

Laws of this file:
- It reads the run, and changes nothing but by its owner's commands, on which the server decides.
- A viewer takes no child's place. There may be `genkidama.server.limits.VIEWERS` of them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.http11 import Request, Response

from genkidama.errors import ProtocolError
from genkidama.parent.connection import PIECE_BYTES, REFUSED_BY, Connection
from genkidama.parent.extensions import Observer
from genkidama.parent.parent import Parent
from genkidama.plugins.dashboard.broadcast import Page
from genkidama.plugins.dashboard.films import make_film, newest_film
from genkidama.plugins.dashboard.policies import Policies
from genkidama.plugins.dashboard.routes import (
    CONTROL,
    HttpResponse,
    answer,
    is_watching,
    make_response,
    parse_request,
)
from genkidama.plugins.dashboard.viewers import ViewerCredential, Viewers, cookie_of
from genkidama.protocol.shard import Shard
from genkidama.protocol.tokens import Entry, link_cookie, link_token, parse_tokens, written
from genkidama.protocol.vector import Signature, Vector
from genkidama.runs.run import OWNER
from genkidama.runs.status import Facts
from genkidama.runtime.address import own_host

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


class Dashboard(Observer, Page):
    """The page of a parent, which is started and knows its directory."""

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self._server = parent.server
        self._connections = parent.connections
        assert parent.out is not None
        Page.__init__(self, parent.status)
        self.policies = Policies(lambda: parent.server.experiment, parent.out, self._newest)
        settings = parent.experiment.parent
        self.browsers = settings.browsers
        file = parent.out / _OPENED
        opened: frozenset[str] = frozenset()
        with suppress(OSError, UnicodeDecodeError):
            opened = frozenset(file.read_text().split())

        def remember(digest: str) -> None:
            with suppress(OSError), file.open("a") as lines:
                lines.write(f"{digest}\n")

        self._film: asyncio.Task[None] | None = None
        if film := newest_film(parent.out):
            with suppress(ValueError):  # another program's file
                self.run_status.film = int(film.stem.rpartition("-")[2])
        #: Of a parent without tokens: the file of its owner's token, and the secrets in it.
        self._owner_file = parent.out / OWNER
        self._key = self._salt = ""
        self._secret = ""
        owners: tuple[Entry, ...] = ()
        if parent.connections.authenticator is None and parent.part.is_first:
            self._key, self._salt = _link(self._owner_file)
            self._secret = link_token(self._key, self._salt)
            cookie = link_cookie(self._key, self._salt)
            line = written("owner", self._secret, None, self._salt, cookie, "owner")
            owners = parse_tokens(line, OWNER)
        name = socket.gethostname().lower()
        self.viewers = Viewers(
            parent.connections.authenticator,
            frozenset({name, f"{name}.local", settings.listen.rpartition(":")[0].lower()}),
            secure=bool(settings.certificate_file),
            opened=opened,
            remember=remember,
            owners=owners,
        )

    def links(self, host: str, port: int) -> dict[str, str]:
        page = f"http{'s' * self.viewers.secure}://{own_host(host)}:{port}/"
        if self._secret:
            top = page.replace("://", f"://owner:{self._secret}@").rstrip("/")
            with suppress(OSError):
                self._owner_file.unlink(missing_ok=True)
                with open(self._owner_file, "x", opener=partial(os.open, mode=0o600)) as file:
                    file.write(f"{top}\n{page}?key={self._key}\n{self._salt}\n")
        return {"page": page}

    def answer(self, connection: Connection, request: Request) -> Response | None:
        asked = parse_request(request)
        watching = is_watching(asked)
        if "upgrade" in asked.headers and not watching:
            return None
        response = answer(asked, self, self.viewers, time.time())
        if response is None and not watching:
            return None
        if response is not None and response.why and (code := REFUSED_BY.get(response.status)):
            code = "token" if asked.path == CONTROL else code
            self._connections.refuse(connection.peer, ProtocolError(code, response.why))
        slot, limits = connection.slot, self._connections.limits
        if response is None:
            try:
                limits.watch(slot)
            except ProtocolError as error:
                response = _full(error)
            else:
                shown = self.viewers.shown(asked.headers, cookie_of(asked.headers.get("host", "")))
                connection.served_by = partial(self.watch, connection, shown)
                connection.set_limit(_LONGEST_WORD)
                connection.patience = min(connection.patience, STUCK_SECONDS)
                return None
        if asked.method == "GET" and len(response.body) > PIECE_BYTES:
            try:
                limits.answer(slot)
            except ProtocolError as error:
                response = _full(error)
        connection.close_timeout = _ANSWER_SECONDS
        return make_response(response, asked)

    async def watch(self, connection: Connection, shown: ViewerCredential) -> None:
        """Sends the feed until the connection ends, or its viewer may look no longer."""
        self.feed.add(connection)
        try:
            with suppress(ConnectionClosed):
                problem = ""
                while not problem:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(RECHECK_SECONDS):
                            await connection.recv()
                            problem = "a viewer says nothing"
                    problem = problem or self.viewers.problem(shown, time.time())
                await connection.close(CloseCode.POLICY_VIOLATION, problem)
        finally:
            self.feed.remove(connection)

    def end(self) -> None:
        if len(self.feed):
            self.feed.send()
        self.feed.close()

    async def finish(self) -> None:
        if self._film is not None:
            self._film.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._film
        with suppress(OSError):
            if self._secret:
                self._owner_file.unlink()

    # The page.

    def now(self) -> float:
        return self._parent.now()

    def unready(self) -> str:
        server = self._server
        if server.stop:
            return "the run is over"
        limit = server.experiment.parent.max_children
        if len(self._connections.children) >= limit:
            return f"parent.max_children = {limit}: so many are connected already"
        return ""

    def command(self, by: str, action: str, child: str, share: float) -> None:
        self._server.command(action, by, self.now(), child, share)
        if action == "exclude":
            self._connections.exclude(child)
        elif action == "film":
            assert self._parent.out is not None
            film = make_film(self._server, self._parent.out, self.now)
            self._film = asyncio.create_task(film)

    def _newest(self) -> tuple[Signature, Vector, int] | None:
        """The weights that a checkpoint would have; none of a search, nor of a part of them."""
        trial = self._server.trial
        vector = trial.vector if trial.average is None else trial.average
        if vector is None or trial.signature is None or trial.part.count > 1:
            return None
        return trial.signature, vector, trial.version

    def complete(self) -> None:
        server = self._server
        beta = server.experiment.child.beta
        self.run_status.advice = list(server.trials.rule.diagnose(beta, len(server.joined)))
        self.run_status.page = {"viewers": len(self.feed), "seconds": round(self.feed.spent, 6)}
        self.run_status.parts = self._parts()
        self.run_status.excluded = sorted(server.excluded)

    def _parts(self) -> list[dict[str, Any]] | None:
        """All parts of a parent in parts. A child pushes to all of them or to none, so the others
        are there while children exchange."""
        trial = self._server.trial
        if trial.part.count == 1:
            return None
        rows = self.run_status.children.values()
        latest = max((row.exchanged or 0.0 for row in rows), default=0.0)
        others = "there" if self._parent.now() - latest < _PARTS_SECONDS else "unknown"
        parts = []
        for number in range(1, trial.part.count + 1):
            ours = number == trial.part.number
            part = Shard(number, trial.part.count)
            size = 0 if trial.signature is None else part.of(trial.signature).size
            state = "there" if ours else others
            parts.append({"part": number, "of": part.count, "state": state, "numbers": size})
        return parts

    def facts(self, name: str) -> Facts | None:
        record, connection = self._server.children.get(name), self._connections.children.get(name)
        if record is None or not isinstance(connection, Connection):
            return None
        return Facts(
            address=connection.peer.rpartition(":")[0],
            cores=record.cores or None,
            software=record.software,
            updates=float(record.exchanges),
            steps=record.steps,
            last_return=record.last_return,
            round_trip=connection.latency or None,
            bytes_in=connection.received,
            bytes_out=connection.sent,
        )


def _link(file: Path) -> tuple[str, str]:
    """The key and the salt of an owner's link: those that a parent which was killed has left in its
    file, if it is whole and nobody else can have read or written it; else new ones."""
    with suppress(OSError, ValueError), file.open() as lines:
        found = os.fstat(lines.fileno())
        top, page, salt = lines.read().split()
        key = page.partition("?key=")[2]
        whole = f":{link_token(key, salt)}@" in top
        if whole and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return key, salt
    return secrets.token_urlsafe(32), secrets.token_hex(16)


def _full(error: ProtocolError) -> HttpResponse:
    return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE, f"{error.reason}\n".encode())
