"""One session with the parent, or with one part of it, over one connection after another.

Laws of this file:
- The session decides. This file sends its requests, carries out its decisions, and opens, watches
  and closes connections.
- It waits for a parent that is not there, with jittered backoff: children that have lost the same
  parent do not all return at once.
- It waits in the same way for a parent that does not know the child's token, whose certificate
  cannot be verified, or that refuses the child for a while: people and clocks come right later. It
  says the reason once, with the way out, and again when the reason has changed.
- A connection that fails is given up, and training goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

import structlog
from websockets.asyncio.client import ClientConnection

from genkidama.child import transport
from genkidama.child.backend import NewsBackend
from genkidama.child.connect_errors import ConnectErrors
from genkidama.child.transport import FAILURES, Transport, ask, make_room
from genkidama.protocol.messages import Join, Pull, Reply, Request, decode_reply, encode
from genkidama.protocol.session import (
    BlendReply,
    Decision,
    Keep,
    Renamed,
    RequestRefused,
    Session,
    Wait,
)
from genkidama.protocol.vector import Signature, Vector
from genkidama.runtime.log import log_with
from genkidama.runtime.pacing import Backoff

__all__ = ["ParentConnection", "LongPoll"]


# ------------------------------------------------------------------------------------------------
# A pull that waits at the parent until there is something new, while the child goes on.
#
# Laws of this file:
# - One pull stands at most. Replies come in the order of their requests, so the reply to a pull
# that   stands is read before that to any later request.
# - What goes wrong with a pull is raised by the request that comes next.

_PULL = Pull(wait=True)


class LongPoll:
    """The pull of one child, if one stands, and the requests beside it.

    Args:
        session: decides what follows from the reply.
        ended: called when the run is over.
    """

    def __init__(self, session: Session, ended: Callable[[], None]) -> None:
        self._session = session
        self._ended = ended
        self._standing: asyncio.Task[None] | None = None

    async def ask(
        self, connection: ClientConnection, request: Request, backend: NewsBackend | None = None
    ) -> Reply:
        """One request and its reply; errors as `uplink.ask`.

        Args:
            backend: asks for news with this request, if there is one.
        """
        async with asyncio.timeout(transport.REPLY_SECONDS):
            await connection.send(encode(request))
            if backend is not None:
                await connection.send(encode(_PULL))
            await self._heard()
            frame = await connection.recv(decode=False)
        if backend is not None:
            self._stand(connection, backend)
        return decode_reply(frame)

    async def pull(self, connection: ClientConnection, backend: NewsBackend) -> None:
        """Asks for news alone. The backend is told them when they come."""
        await self._heard()
        await connection.send(encode(_PULL))
        self._stand(connection, backend)

    def forget(self) -> None:
        """The connection is gone, and the answer will not come."""
        if self._standing is not None:
            self._standing.cancel()
            self._standing = None

    async def _heard(self) -> None:
        if self._standing is not None:
            standing, self._standing = self._standing, None
            await standing

    def _stand(self, connection: ClientConnection, backend: NewsBackend) -> None:
        backend.pulling()
        self._standing = asyncio.create_task(self._hear(connection, backend))
        self._standing.add_done_callback(_seen)

    async def _hear(self, connection: ClientConnection, backend: NewsBackend) -> None:
        frame = await connection.recv(decode=False)
        decision = self._session.receive(_PULL, decode_reply(frame))
        assert isinstance(decision, BlendReply)
        backend.set_progress(decision.progress)
        backend.pulled(decision.vector, decision.steps)
        if self._session.over is not None:
            self._ended()


def _seen(task: asyncio.Task[None]) -> None:
    """Its error is raised by the next request, or belongs to a connection that is gone."""
    if not task.cancelled():
        task.exception()


log = structlog.get_logger()


class ParentConnection:
    """What a child and its parent, or one part of it, say to each other as long as the child lives.

    Args:
        uplink: opens connections.
        session: decides.
        ended: called when the run is over, or the trial.
    """

    def __init__(self, uplink: Transport, session: Session, ended: Callable[[], None]) -> None:
        self.uplink = uplink
        self.session = session
        #: Whether pushes may be sent at present.
        self.joined = False
        #: Set as long as they may.
        self.entered = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._ended = ended
        self._news = LongPoll(session, ended)
        self._complaints = ConnectErrors(uplink)

    @property
    def problem(self) -> str:
        """Why the parent is waited for at present; empty while it is not."""
        return self._complaints.problem

    # Before training.

    async def begin(self) -> Decision:
        """Says hello until the parent says what to train, or that there is nothing left to train.

        Raises:
            Refused: the parent never wants this child.
            GenkidamaError: the address is invalid, the parent speaks another protocol, or its
                experiment cannot be read.
        """
        try:
            while True:
                decision = await self._greet()
                if isinstance(decision, Wait):
                    await asyncio.sleep(decision.seconds)
                elif isinstance(decision, Renamed):
                    await self.close()
                else:
                    log_with(run=self.session.run, child=self.session.name)
                    return decision
        except BaseException:
            await self.close()
            raise

    async def enter(self, signature: Signature, cores: int = 0) -> Decision:
        """Joins, on a new connection if there is none, however long it takes.

        Args:
            cores: how many the child trains with; 0 means as many as before.

        Raises:
            GenkidamaError: as `begin`.
        """
        self.session.cores = cores or self.session.cores
        self.joined = False  # of an earlier trial, whose connection goes on
        join = self.session.join(signature)
        backoff = Backoff(transport.BACKOFF_SECONDS, random.random)
        while True:
            try:
                if self._connection is None:
                    decision = await self._connect()
                    if not isinstance(decision, Join):
                        return decision
                return await self._join(join, signature.size)
            except FAILURES as error:
                assert self._connection is not None  # `_connect` lets no failure through
                self._note_lost(self._connection, _in_words(error))
            except RequestRefused as refusal:
                self._complaints.refused(self.session.name, refusal)
            finally:
                if not self.joined:
                    await self.close()
            await asyncio.sleep(backoff.wait())

    async def give_back(self, reason: str) -> None:
        """Tells the parent that the trial cannot be trained here, and closes the connection."""
        with suppress(*FAILURES):
            if self._connection is not None:
                await ask(self._connection, self.session.give_back(reason))
        await self.close()

    # During training.

    async def keep(self, signature: Signature) -> None:
        """Enters again whenever the connection is gone, until all is over; errors as `enter`."""
        while self.session.over is None:
            connection = self._connection
            if connection is None or not self.joined:
                await self.enter(signature)
            else:
                await connection.wait_closed()
                reason = f"closed with {connection.close_code} {connection.close_reason}".rstrip()
                self._lose(connection, reason)

    async def push(
        self, vector: Vector | None, gradient: Vector | None, news: NewsBackend | None = None
    ) -> Decision | None:
        """One push and its reply, or one pull if there is nothing to push.

        Args:
            vector: as `Session.push` takes it, and `gradient`, too.
            news: is told of newer weights when they come, if it asks for them.

        Returns:
            What follows; None if there is no connection, or no reply.

        Raises:
            GenkidamaError: the parent refuses the push for good.
        """
        connection = self._connection
        if connection is None or not self.joined:
            return None
        try:
            request: Request
            if vector is not None or self.session.pushes != "experience":
                request = self.session.push(vector, gradient)
                news = news if news is not None and news.asks else None
            elif news is not None:
                await self._news.pull(connection, news)
                return Keep()  # `news` is told the answer
            else:
                request = Pull()
            decision = await self._ask(connection, request, news)
            if isinstance(decision, Join):
                decision = await self._ask(connection, decision)
        except (*FAILURES, RequestRefused) as error:
            if isinstance(error, RequestRefused):
                self._complaints.refused(self.session.name, error)
            self._lose(connection, _in_words(error))
            await connection.close()
            return None
        except asyncio.CancelledError:
            # The reply may still come, and would be taken for that to the next request.
            if self._connection is connection:
                self._forget()
            connection.transport.abort()
            raise
        return decision

    async def leave(self, over: str = "", proof: str = "") -> None:
        """A goodbye, if there is a connection; arguments as `Session.leave`, errors as `ask`."""
        if self._connection is not None and self.joined:
            await self._news.ask(self._connection, self.session.leave(over, proof))

    async def close(self) -> None:
        """Ends the connection, if there is one."""
        connection = self._connection
        self._forget()
        if connection is not None:
            await connection.close()

    # Inside.

    async def _greet(self) -> Decision:
        """Says hello on the connection that stands or, if it fails, on a new one."""
        connection = self._connection
        if connection is None:
            return await self._connect()
        try:
            return await self._ask(connection, self.session.hello())
        except FAILURES:
            self._note_closed(connection)
            await self.close()
        return self.session.over or await self._connect()

    async def _connect(self) -> Decision:
        """Says hello on a new connection, however long it takes to get one."""
        backoff = Backoff(transport.BACKOFF_SECONDS, random.random)
        self._complaints.readable_token(self.session.name)
        while True:
            told = 0.0
            try:
                return await self._open()
            except FAILURES as error:
                self._complaints.unreachable(self.session.name, error)
                told = min(transport.BACKOFF_SECONDS[1], transport.retry_after(error))
            except RequestRefused as refusal:
                self._complaints.refused(self.session.name, refusal)
            if told:  # it is there, and is not to be waited for longer
                backoff.reset()
            await asyncio.sleep(told + backoff.wait())

    async def _open(self) -> Decision:
        connection = await self.uplink.open()
        try:
            decision = await self._ask(connection, self.session.hello())
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        self._complaints.connected()
        if not isinstance(decision, Renamed):
            told = self.session.experiment
            role = {"role": told.role} if told is not None and told.shares_replay else {}
            log.info(
                "connected",
                child=self.session.name,
                parent=self.uplink.parent,
                run=self.session.run,
                **role,
            )
        return decision

    async def _join(self, join: Join, size: int) -> Decision:
        connection = self._connection
        assert connection is not None
        make_room(connection, size)
        decision = await self._ask(connection, join)
        self.joined = True
        self._complaints.admitted()
        self.entered.set()
        return decision

    async def _ask(
        self, connection: ClientConnection, request: Request, news: NewsBackend | None = None
    ) -> Decision:
        """What the session decides about the reply."""
        reply = await self._news.ask(connection, request, news)
        decision = self.session.receive(request, reply)
        if self.session.over is not None:
            self._ended()
        return decision

    def _forget(self) -> None:
        self._connection = None
        self.joined = False
        self.entered.clear()
        self._news.forget()

    def _lose(self, connection: ClientConnection, reason: str) -> None:
        if self._connection is connection:
            self._forget()
            self._note_lost(connection, reason)

    def _note_closed(self, connection: ClientConnection) -> None:
        self.session.closed(connection.close_code, connection.close_reason or "")
        if self.session.over is not None:
            self._ended()

    def _note_lost(self, connection: ClientConnection, reason: str) -> None:
        self._note_closed(connection)
        if self.session.over is None:
            log.warning(
                "parent lost, still trying",
                child=self.session.name,
                parent=self.uplink.parent,
                reason=reason,
            )


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no answer within {transport.REPLY_SECONDS:g} s"
    return str(error) or type(error).__name__
