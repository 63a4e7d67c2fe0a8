"""One session with the parent, over one connection after another.

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
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from websockets.asyncio.client import ClientConnection

from genkidama.child import uplink
from genkidama.child.backend import Backend, GradientBackend, NewsBackend, tell_answered
from genkidama.child.explanations import Complaints
from genkidama.child.news import News
from genkidama.child.pulse import Pulse
from genkidama.child.uplink import FAILURES, Uplink, ask, make_room
from genkidama.decisions import Blend, Decision, Refused, Renamed, Reset, Wait
from genkidama.messages import Join, Pull, Request
from genkidama.session import Session
from genkidama.weights import Signature, Vector

__all__ = ["Conversation"]

log = structlog.get_logger()


class Conversation:
    """What a child and its parent say to each other, for as long as the child lives.

    Args:
        uplink: opens connections.
        session: decides.
        ended: called when the run is over, or the trial.
    """

    def __init__(self, uplink: Uplink, session: Session, ended: Callable[[], None]) -> None:
        self.uplink = uplink
        self.session = session
        #: When the last push was answered, as `time.monotonic` tells it; NaN before the first.
        self.exchanged = math.nan
        #: Whether pushes may be sent at present.
        self.joined = False
        self._entered = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._ended = ended
        self._news = News(session, ended)
        self._complaints = Complaints(uplink)
        self.pulse = Pulse()

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
                    return decision
        except BaseException:
            await self.close()
            raise

    async def enter(self, signature: Signature) -> Decision:
        """Joins, on a new connection if there is none, however long it takes.

        Raises:
            GenkidamaError: as `begin`.
        """
        join = self.session.join(signature)
        wait, longest = uplink.BACKOFF_SECONDS
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
            except Refused as refusal:
                self._complaints.refused(self.session.name, refusal)
                wait = min(longest, wait * 2)
            finally:
                if not self.joined:
                    await self.close()
            await asyncio.sleep(wait)

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

    async def exchange(self, backend: Backend) -> None:
        """One push and its reply. Without a connection, what was done is gathered for the next.

        Gradients are of no use without the parent, which makes the steps: with them the child waits
        until it is there.

        Raises:
            GenkidamaError: the parent refuses the push for good.
        """
        self._gather(backend)
        gradient = self._gradient(backend)
        while not await self._push(backend, gradient):
            if gradient is None or self.session.over is not None:
                return
            await self._entered.wait()

    async def _push(self, backend: Backend, gradient: Vector | None) -> bool:
        """Whether the push has got its reply."""
        connection = self._connection
        if connection is None or not self.joined:
            return False
        try:
            vector = backend.snapshot()
            news: NewsBackend | None = backend if hasattr(backend, "pulled") else None  # type: ignore[assignment]
            request: Request
            if vector is not None or self.session.pushes != "experience":
                request = self.session.push(vector, gradient)
                news = news if news is not None and news.asks else None
            elif news is not None:
                await self._news.pull(connection, news)
                return True
            else:
                request = Pull()
            decision = await self._ask(connection, request, news)
            if isinstance(decision, Join):
                decision = await self._ask(connection, decision)
        except (*FAILURES, Refused) as error:
            if isinstance(error, Refused):
                self._complaints.refused(self.session.name, error)
            self._lose(connection, _in_words(error))
            await connection.close()
            return False
        except asyncio.CancelledError:
            # The reply may still come, and would be taken for that to the next request.
            if self._connection is connection:
                self._forget()
            connection.transport.abort()
            raise
        self._carry_out(decision, backend)
        return True

    def _gradient(self, backend: Backend) -> Vector | None:
        if self.session.experiment is None or self.session.experiment.pushes != "gradient":
            return None
        gradients: GradientBackend = backend  # type: ignore[assignment]  # `make_backend` saw to it
        return gradients.gradient()

    async def leave(self, backend: Backend) -> None:
        """A last push, unless all is over, and a goodbye; errors as `ask` and `exchange`."""
        if self.session.over is None:
            self._gather(backend)
            await self._push(backend, self._gradient(backend))
        if self._connection is not None and self.joined:
            await self._news.ask(self._connection, self.session.leave())

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
        wait, longest = uplink.BACKOFF_SECONDS
        self._complaints.readable_token(self.session.name)
        while True:
            try:
                return await self._open()
            except FAILURES as error:
                self._complaints.unreachable(self.session.name, error)
            except Refused as refusal:
                self._complaints.refused(self.session.name, refusal)
            await asyncio.sleep(random.uniform(0.1, 1.0) * wait)  # noqa: S311
            wait = min(longest, wait * 2)

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
        self._entered.set()
        return decision

    async def _ask(
        self, connection: ClientConnection, request: Request, news: NewsBackend | None = None
    ) -> Decision:
        """What the session decides about the reply."""
        reply = await self._news.ask(connection, request, news)
        decision = self.session.hear(request, reply)
        if self.session.over is not None:
            self._ended()
        return decision

    def _gather(self, backend: Backend) -> None:
        work = backend.take_work()
        self.pulse.worked(work.steps, work.returns)
        left_out = self.session.gather(work.steps, work.returns, work.measures)
        if left_out.returns:
            log.warning(
                "returns that are NaN or infinite are not reported",
                child=self.session.name,
                count=left_out.returns,
            )
        if left_out.measures:
            log.warning(
                "measures that the protocol does not permit are not reported",
                child=self.session.name,
                measures=left_out.measures,
            )

    def _carry_out(self, decision: Decision, backend: Backend) -> None:
        """What the reply to a push means for the weights."""
        match decision:
            case Blend(progress, sent, vector, steps):
                self.exchanged = time.monotonic()
                self.pulse.exchanged(self.session.name, self.session.version)
                if vector is not None and sent is None:
                    backend.reset(vector)
                elif vector is not None and sent is not None:
                    assert self.session.experiment is not None
                    backend.blend(sent, vector, self.session.experiment.pull)
                backend.set_progress(progress)
                tell_answered(backend, steps, self.session.version)
            case Reset(vector):
                log.warning(
                    "training diverged, going on from the parent's weights",
                    child=self.session.name,
                    version=self.session.version,
                )
                backend.reset(vector)

    def _forget(self) -> None:
        self._connection = None
        self.joined = False
        self._entered.clear()
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
    return str(error) or type(error).__name__
