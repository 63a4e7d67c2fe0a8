"""ParentConnection: one session with a parent, over one websocket after another.

Laws of this file:
- The session decides. This file sends its requests, carries out its decisions, and opens, watches
  and closes connections.
- It waits for a parent that is not there, with jittered backoff: children that have lost the same
  parent do not all return at once.
- It waits in the same way for a parent that does not know the child's token, whose certificate
  cannot be verified, or that refuses the child for a while: people and clocks may correct it later.
- A connection that fails is closed, and training continues.
- A pull may wait at the parent until there is something new, while the child pushes. At most one
  waits. Replies come in the order of their requests, so its reply is read before that to any
  later request, which raises its error.
- A parent in several processes has the connection of a plug-in (hook `connections`): an object with
  the public methods of `ParentConnection`, which has one for each of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

from websockets.asyncio.client import ClientConnection

from genkidama.child import transport
from genkidama.child.backend import NewsBackend, Work
from genkidama.child.transport import FAILURES, ConnectErrors, Token, Transport, make_room
from genkidama.config.allowlist import ANYTHING
from genkidama.config.plugin import find
from genkidama.errors import ConfigurationError
from genkidama.protocol.messages import Join, Pull, Reply, Request, decode_reply, encode
from genkidama.protocol.session import (
    BlendReply,
    Decision,
    Keep,
    LeftOut,
    Over,
    Renamed,
    RequestRefused,
    Session,
    Wait,
)
from genkidama.protocol.shard import WHOLE, Shard, addresses, fingerprints
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runtime.log import get_logger, log_with
from genkidama.runtime.machine import machine_name

_PULL = Pull(wait=True)

log = get_logger()


def connection_class(parent: str) -> type[ParentConnection]:
    """The class that connects to a parent: of a plug-in, if these are the addresses of shards.

    Raises:
        ConfigurationError: no plug-in connects to a parent in shards.
    """
    if (count := len(addresses(parent))) == 1:
        return ParentConnection
    kind: type[ParentConnection] | None = find("connections", "shards")
    if kind is None:
        raise ConfigurationError(
            f"parent = {parent!r}: {count} addresses, and no plug-in connects to a parent in "
            "shards; give one address"
        )
    return kind


class ParentConnection:
    """The connection to a parent of one process, or to one shard.

    Args:
        transport: opens connections.
        session: decides.
        ended: as `to` takes it.
    """

    def __init__(self, transport: Transport, session: Session, ended: Callable[[], None]) -> None:
        self.transport = transport
        #: The session whose progress and version are the run's.
        self.session = session
        #: Whether pushes reach the whole parent at present.
        self.joined = False
        self._joining = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._ended = ended
        #: Bytes of the whole vector, which a reply may hold.
        self._vector_bytes = 0
        #: Reads the reply to the pull that waits at the parent.
        self._pull: asyncio.Task[None] | None = None
        self._errors = ConnectErrors(transport)

    @classmethod
    def to(
        cls,
        parent: str,
        ended: Callable[[], None],
        *,
        name: str,
        role: str,
        token: Token,
        ca_file: str | None,
        fingerprint: str,
        allow: Sequence[str] = (ANYTHING,),
        shard: Shard = WHOLE,
        word: str = "",
    ) -> ParentConnection:
        """A connection, which opens when it begins. Arguments are as for `Session` and `Transport`.

        `ended` is called when the run is over, or the trial. Without a name the child has the
        machine's, numbered if that is taken.

        Raises:
            ConfigurationError: as `Transport`.
        """
        (parent,) = addresses(parent)
        (fingerprint,) = fingerprints(fingerprint, [parent], parent)
        chosen, word = name or machine_name(), word or secrets.token_hex(8)
        session = Session(
            *(chosen, word), numbered=not name, parent=parent, role=role, part=shard, allow=allow
        )
        link = Transport(parent, token=token, ca_file=ca_file, fingerprint=fingerprint)
        return cls(link, session, ended)

    @property
    def over(self) -> Over | None:
        """Set when the run is over, or the trial."""
        return self.session.over

    @property
    def can_push(self) -> bool:
        """True if a push reaches some of the parent."""
        return self.joined

    @property
    def address(self) -> str:
        """The address of the parent, or of a shard that is waited for."""
        return self.session.parent

    @property
    def problem(self) -> str:
        """The reason for waiting for the parent; empty while the child does not wait."""
        return self._errors.problem

    # Before training.

    async def begin(self) -> Decision:
        """Says hello until the parent says what to train, or that there is nothing left to train.

        Raises:
            RequestRefused: the parent never wants this child.
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

    async def enter(
        self,
        signature: Signature,
        cores: int = 0,
        snapshot: Callable[[], Vector | None] = lambda: None,
    ) -> Decision:
        """Joins, on a new connection if there is none, however long it takes.

        Args:
            signature: of the child's vector.
            cores: that the child trains with; 0 means as many as before.
            snapshot: the child's vector, for a shard that has lost its slice.

        Raises:
            GenkidamaError: as `begin`, or the parent has another network.
        """
        self.session.cores = cores or self.session.cores
        self.joined = False  # of an earlier trial on the same connection
        join = self.session.join(signature)
        backoff = transport.backoff()
        while True:
            try:
                if self._connection is None:
                    decision = await self._connect()
                    if isinstance(decision, Renamed):
                        log_with(child=self.session.name)
                        continue
                    if not isinstance(decision, Join):
                        return decision
                return await self._join(join, signature.size)
            except FAILURES as error:
                assert self._connection is not None  # `_connect` lets no failure through
                self._note_lost(self._connection, _in_words(error))
            except RequestRefused as refusal:
                self._errors.refused(self.session.name, refusal)
            finally:
                if not self.joined:
                    await self.close()
            await asyncio.sleep(backoff.wait())

    async def give_back(self, reason: str) -> None:
        """Reports that the trial cannot be trained here, and closes the connection."""
        with suppress(*FAILURES):
            if self._connection is not None:
                await self._exchange(self._connection, self.session.give_back(reason))
        await self.close()

    # During training.

    async def keep(self, signature: Signature) -> None:
        """Enters again whenever the connection is lost, until all is over; errors as `enter`."""
        while self.session.over is None:
            connection = self._connection
            if connection is None or not self.joined:
                await self.enter(signature)
            else:
                await connection.wait_closed()
                reason = f"closed with {connection.close_code} {connection.close_reason}".rstrip()
                self._lose(connection, reason)

    async def watch(self, seconds: float, alive: Callable[[], None]) -> None:
        """Pings the parent every so many seconds, and calls `alive` when it has answered."""
        while True:
            await asyncio.sleep(seconds)
            if (connection := self._connection) is not None and self.joined:
                with suppress(*FAILURES):
                    await (await connection.ping())
                    alive()

    def gather(self, work: Work) -> LeftOut:
        """Adds work to that of the next push; returns what a push cannot carry."""
        return self.session.add_work(work.steps, work.returns, work.measures)

    async def push(
        self, vector: Vector | None, gradient: Vector | None, news: NewsBackend | None = None
    ) -> Decision | None:
        """One push and its reply, or one pull if there is nothing to push.

        Args:
            vector, gradient: as `Session.push` takes them.
            news: receives newer weights when they come, if it asks for them.

        Returns:
            The decision; None if there is no connection, or no reply.

        Raises:
            GenkidamaError: the parent refuses the push for good.
        """
        connection = self._connection
        if connection is None or not self.joined:
            return None
        if vector is not None or self.session.pushes != "experience":
            news = news if news is not None and news.asks else None
            return await self._ask_or_lose(connection, self.session.push(vector, gradient), news)
        return await self._ask_or_lose(connection, Pull() if news is None else None, news)

    async def pull(self, own: Vector) -> Decision | None:
        """θ_P, to learn from; None if θ_C has to be pushed first, or as `push`.

        Args:
            own: θ_C. Where the parent has several shards, one may be lost.
        """
        connection, request = self._connection, self.session.pull()
        if connection is None or not self.joined or request is None:
            return None
        return await self._ask_or_lose(connection, request)

    async def _ask_or_lose(
        self, connection: ClientConnection, request: Request | None, news: NewsBackend | None = None
    ) -> Decision | None:
        """As `push`; without a request, `news` alone is asked for."""
        try:
            if request is None:
                assert news is not None
                await connection.send(encode(_PULL))  # which has the one that stands answered
                await self._read_pull()
                self._await_news(connection, news)
                return Keep()
            decision = await self._ask(connection, request, news)
            if isinstance(decision, Join):
                decision = await self._ask(connection, decision)
        except (*FAILURES, RequestRefused) as error:
            if isinstance(error, RequestRefused):
                self._errors.refused(self.session.name, error)
            self._lose(connection, _in_words(error))
            await connection.close(self.session.close_code)
            return None
        except asyncio.CancelledError:
            # The reply may still come, and would be taken for that to the next request.
            if self._connection is connection:
                self._forget()
            connection.transport.abort()
            raise
        return decision

    async def wait_joined(self) -> None:
        """Returns when `can_push`."""
        await self._joining.wait()

    async def leave(self, over: str = "", proof: str = "") -> None:
        """A goodbye, if there is a connection; arguments as `Session.leave`."""
        if self._connection is not None and self.joined:
            await self._exchange(self._connection, self.session.leave(over, proof))

    def renew(self) -> None:
        """Forgets the trial that is over, or the run, so that `begin` asks for another one."""
        self.session.renew()

    async def close(self) -> None:
        """Ends the connection, if there is one."""
        connection = self._connection
        self._forget()
        if connection is not None:
            await connection.close(self.session.close_code)

    # Requests and replies.

    async def _greet(self) -> Decision:
        """Says hello on the present connection or, if that fails, on a new one."""
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
        backoff = transport.backoff()
        self._errors.readable_token(self.session.name)
        while True:
            asked = 0.0
            try:
                return await self._open()
            except FAILURES as error:
                if self.session.over is not None:
                    return self.session.over
                self._errors.unreachable(self.session.name, error)
                asked = min(transport.BACKOFF_SECONDS[1], transport.retry_after(error))
            except RequestRefused as refusal:
                self._errors.refused(self.session.name, refusal)
            if asked:  # the parent is there, and need not be waited for longer
                backoff.reset()
            await asyncio.sleep(asked + backoff.wait())

    async def _open(self) -> Decision:
        connection = await self.transport.open()
        try:
            decision = await self._ask(connection, self.session.hello())
        except BaseException:
            self._note_closed(connection)
            await connection.close(self.session.close_code)
            raise
        self._connection = connection
        self._errors.connected()
        if not isinstance(decision, Renamed):
            where = {"child": self.session.name, "parent": self.transport.parent}
            experiment = self.session.experiment
            shares = experiment is not None and experiment.shares_replay
            role = {"role": experiment.role} if experiment is not None and shares else {}
            log.info("connected", **where, run=self.session.run, **role)
        return decision

    async def _join(self, join: Join, size: int) -> Decision:
        connection = self._connection
        assert connection is not None
        make_room(connection, size)
        self._vector_bytes = size * DTYPE.itemsize
        decision = await self._ask(connection, join)
        self.joined = True
        self._errors.admitted()
        self._joining.set()
        return decision

    async def _ask(
        self, connection: ClientConnection, request: Request, news: NewsBackend | None = None
    ) -> Decision:
        """The session's decision about the reply to a request."""
        decision = self.session.receive(request, await self._exchange(connection, request, news))
        if self.session.over is not None:
            self._ended()
        return decision

    async def _exchange(
        self, connection: ClientConnection, request: Request, news: NewsBackend | None = None
    ) -> Reply:
        """One request and its reply; `news`, if there is one, asks for newer weights with it.

        Raises one of `FAILURES`: there is no reply, or it makes no sense.
        """
        sent = encode(request)
        replies = 1 if self._pull is None else 2
        size = len(sent) + replies * self._vector_bytes
        transport.await_pong(connection, size)
        seconds = transport.reply_seconds(size)
        try:
            async with asyncio.timeout(seconds):
                await connection.send(sent)
                if news is not None:
                    await connection.send(encode(_PULL))
                await self._read_pull()
                frame = await connection.recv(decode=False)
        except TimeoutError:
            raise TimeoutError(f"no answer within {seconds:.0f} s") from None
        if news is not None:
            self._await_news(connection, news)
        return decode_reply(frame)

    # The pull that waits at the parent.

    def _await_news(self, connection: ClientConnection, news: NewsBackend) -> None:
        news.pulling()
        self._pull = asyncio.create_task(self._hear_news(connection, news))
        # Its error is raised by the next request, or belongs to a connection that is gone.
        self._pull.add_done_callback(lambda pull: pull.cancelled() or pull.exception())

    async def _hear_news(self, connection: ClientConnection, news: NewsBackend) -> None:
        frame = await connection.recv(decode=False)
        decision = self.session.receive(_PULL, decode_reply(frame))
        assert isinstance(decision, BlendReply)
        news.set_progress(decision.progress)
        news.pulled(decision.vector, decision.steps)
        if self.session.over is not None:
            self._ended()

    async def _read_pull(self) -> None:
        """Reads the reply to the pull first, if there is one."""
        if self._pull is not None:
            pull, self._pull = self._pull, None
            await pull

    # The end of a connection.

    def _forget(self) -> None:
        self._connection = None
        self.joined = False
        self._joining.clear()
        if self._pull is not None:
            self._pull.cancel()
            self._pull = None

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
            where = {"child": self.session.name, "parent": self.transport.parent}
            log.warning("parent lost, still trying", **where, reason=reason)


def _in_words(error: Exception) -> str:
    return str(error) or type(error).__name__
