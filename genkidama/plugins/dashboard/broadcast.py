"""The feed: what all who watch are sent, encoded once for all of them.

Laws of this file:
- Whoever begins to watch gets the whole document, and then at most one change a second.
- A change is made only while somebody watches. It is one text message, the same bytes for all.
- Whoever does not read fast enough misses changes, and gets the whole document when it reads again.
- Making messages takes a small share of the time, however large they are: then they come less
  often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
from websockets.frames import Frame, Opcode

from genkidama.runs.status import FactsOf, RunStatus

__all__ = ["LONGEST_SECONDS", "SECONDS", "SHARE", "Viewer", "Watchers", "text_frame"]

#: A change is sent this often at most, and a whole document is this old at most.
SECONDS = 1.0

#: At most this share of the time goes into messages, as long as they need not wait longer than
#: `LONGEST_SECONDS`.
SHARE = 0.005
LONGEST_SECONDS = 15.0

_encoder = msgspec.json.Encoder()


class Viewer(Protocol):
    """One who watches."""

    @property
    def free(self) -> bool:
        """Whether the connection is open, and all that was sent has been taken."""

    def write_frame(self, frame: bytes) -> None:
        """Sends what is a websocket's frame already; only while it is `free`."""


class Watchers:
    """Sends a status to all who watch it.

    Args:
        status: what is sent.
        now: seconds, as the events have them.
        facts: as `RunStatus.document` takes them.
        gather: called before the status is read, so that it is complete.
    """

    def __init__(
        self,
        status: RunStatus,
        now: Callable[[], float],
        facts: FactsOf = lambda _: None,
        gather: Callable[[], None] = lambda: None,
    ) -> None:
        self._status = status
        self._now = now
        self._facts = facts
        self._gather = gather
        #: By viewer: whether it knows the newest change.
        self._viewers: dict[Viewer, bool] = {}
        self._whole = b""
        self._whole_made = -LONGEST_SECONDS
        self._rest = SECONDS
        self._task: asyncio.Task[None] | None = None
        #: CPU seconds that all this has taken.
        self.spent = 0.0

    def __len__(self) -> int:
        """How many watch."""
        return len(self._viewers)

    def add(self, viewer: Viewer) -> None:
        """Somebody begins to watch. The first message goes out at once."""
        viewer.write_frame(text_frame(self.status()))
        self._viewers[viewer] = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    def remove(self, viewer: Viewer) -> None:
        """Somebody watches no longer."""
        self._viewers.pop(viewer, None)
        if not self._viewers:
            self.close()

    def close(self) -> None:
        """Sends nothing any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def status(self) -> bytes:
        """The whole document as JSON, which is a second old at most."""
        now = time.monotonic()
        if self._whole and now - self._whole_made < self._rest:
            return self._whole
        began = time.thread_time()
        self._gather()
        if not self._viewers:
            self._status.mark_sent()
        self._whole = _encoder.encode(self._status.document(self._now(), self._facts))
        self._whole_made = now
        self._account(began)
        return self._whole

    def send(self) -> None:
        """One change to all. Whoever has missed one gets the whole document."""
        began = time.thread_time()
        self._gather()
        frame = text_frame(_encoder.encode(self._status.change(self._now(), self._facts)))
        self._whole = b""
        behind = []
        for viewer, knows in self._viewers.items():
            if not viewer.free:
                self._viewers[viewer] = False
            elif knows:
                viewer.write_frame(frame)
            else:
                behind.append(viewer)
        self._account(began)
        if behind:
            whole = text_frame(self.status())
            for viewer in behind:
                viewer.write_frame(whole)
                self._viewers[viewer] = True

    def _account(self, began: float) -> None:
        seconds = time.thread_time() - began
        self.spent += seconds
        self._rest = min(LONGEST_SECONDS, max(SECONDS, seconds / SHARE))

    async def _send(self) -> None:
        while True:
            await asyncio.sleep(self._rest)
            self.send()


def text_frame(content: bytes) -> bytes:
    """A whole websocket text frame, as a server sends it."""
    return Frame(Opcode.TEXT, content).serialize(mask=False)
