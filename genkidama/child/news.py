"""A pull that waits at the parent until there is something new, while the child goes on.

Laws of this file:
- One pull stands at most. Replies come in the order of their requests, so the reply to a pull that
  stands is read before that to any later request.
- What goes wrong with a pull is raised by the request that comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection

from genkidama.child import uplink
from genkidama.child.backend import NewsBackend
from genkidama.decisions import Blend
from genkidama.messages import Pull, Reply, Request, decode_reply, encode
from genkidama.session import Session

__all__ = ["News"]

_PULL = Pull(wait=True)


class News:
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
        async with asyncio.timeout(uplink.REPLY_SECONDS):
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
        decision = self._session.hear(_PULL, decode_reply(frame))
        assert isinstance(decision, Blend)
        backend.set_progress(decision.progress)
        backend.pulled(decision.vector, decision.steps)
        if self._session.over is not None:
            self._ended()


def _seen(task: asyncio.Task[None]) -> None:
    """Its error is raised by the next request, or belongs to a connection that is gone."""
    if not task.cancelled():
        task.exception()
