"""The feed: changes of a status for all viewers, encoded once for all of them.

Laws of this file:
- A new viewer gets the whole document, and then at most one change a second.
- Changes are made only while there are viewers. A change is one text message, the same for all.
- A viewer that does not read fast enough misses changes, and then gets the whole document.
- Making messages takes a small share of the time, however large they are: then they come less
  often.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import msgspec
from websockets.frames import Frame, Opcode

from genkidama.errors import ProtocolError
from genkidama.plugins.dashboard.metrics import metrics
from genkidama.plugins.dashboard.policies import Policies
from genkidama.plugins.dashboard.routes import HttpResponse
from genkidama.runs.status import Facts, RunStatus

#: A change is sent this often at most, and a whole document is this old at most.
SECONDS = 1.0

#: At most this share of the time goes into messages, as long as they need not wait longer than
#: `LONGEST_SECONDS`.
SHARE = 0.005
LONGEST_SECONDS = 15.0

_encoder = msgspec.json.Encoder()


class Viewer(Protocol):
    @property
    def free(self) -> bool:
        """True if the connection is open, and all that was sent has been taken."""

    def write_frame(self, frame: bytes) -> None:
        """Sends what is a websocket's frame already; only while it is `free`."""


class Page:
    """A run that is shown: the source of a feed, and of the answers of the routes."""

    #: Whether browsers may be children.
    browsers = False
    #: What it plays, and the films.
    policies: Policies

    def __init__(self, status: RunStatus) -> None:
        self.run_status = status
        self.feed = Broadcaster(self)

    def now(self) -> float:
        """The clock of the run's events, in seconds."""
        raise NotImplementedError

    def complete(self) -> None:
        """Fills in the parts of the status that no event tells."""

    def facts(self, name: str) -> Facts | None:
        """Facts of the connection of a child; None if it is not connected."""
        return None

    def unready(self) -> str:
        """The reason why no child can join; empty if one can."""
        raise NotImplementedError

    def status(self) -> bytes:
        """The document as JSON."""
        return self.feed.status()

    def metrics(self) -> HttpResponse:
        """The text for Prometheus."""
        return metrics(self.status())

    def command(self, by: str, action: str, child: str, share: float) -> None:
        """Does what the run's owner asks, by its name; see `ParameterServer.command`.

        Raises:
            ProtocolError: it cannot be done.
        """
        raise ProtocolError("order", "a finished run is not steered")


class Broadcaster:
    """Sends the status of a page to its viewers."""

    def __init__(self, page: Page) -> None:
        self._page = page
        #: By viewer: whether it knows the newest change.
        self._viewers: dict[Viewer, bool] = {}
        self._whole = b""
        self._whole_made = -LONGEST_SECONDS
        self._rest = SECONDS
        self._task: asyncio.Task[None] | None = None
        #: CPU seconds spent so far.
        self.spent = 0.0

    def __len__(self) -> int:
        return len(self._viewers)

    def add(self, viewer: Viewer) -> None:
        """Adds a viewer, and sends the first message at once."""
        viewer.write_frame(text_frame(self.status()))
        self._viewers[viewer] = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send())

    def remove(self, viewer: Viewer) -> None:
        self._viewers.pop(viewer, None)
        if not self._viewers:
            self.close()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def status(self) -> bytes:
        """The whole document as JSON, which is a second old at most."""
        now = time.monotonic()
        if self._whole and now - self._whole_made < self._rest:
            return self._whole
        page = self._page
        began = time.thread_time()
        page.complete()
        if not self._viewers:
            page.run_status.mark_sent()
        self._whole = _encoder.encode(page.run_status.document(page.now(), page.facts))
        self._whole_made = now
        self._account(began)
        return self._whole

    def send(self) -> None:
        """Sends a change to all. Viewers that missed one get the whole document."""
        page = self._page
        began = time.thread_time()
        page.complete()
        frame = text_frame(_encoder.encode(page.run_status.change(page.now(), page.facts)))
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
