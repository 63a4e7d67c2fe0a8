"""`genkidama top URL`: the page in a terminal, attached from anywhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from typing import Any

import msgspec

from genkidama.cli.progress import LiveDisplay
from genkidama.config.parent_address import parse_url
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runs.status import fold, line
from genkidama.runtime.pacing import Backoff, Once

#: An address in this variable, with its token, is in no list of processes.
VIEW_VARIABLE = "GENKIDAMA_VIEW"

#: Seconds before a new try: the first bound, and the greatest.
_AGAIN_SECONDS = (0.5, 15.0)

#: The feed has nothing to say for so long at most. Then the connection is given up.
_SILENCE_SECONDS = 45.0

#: A document of a thousand children has half a million bytes.
_LONGEST_MESSAGE = 1 << 25

#: Rows of a document that is printed once.
_WHOLE = 10_000


def top(options: argparse.Namespace) -> int:
    """Shows a run until it is interrupted, or the run is over; connects again and again."""
    uplink = _uplink(options.url or os.environ.get(VIEW_VARIABLE, ""))
    display = _Top(uplink, options.once)
    with display:
        asyncio.run(display.run())
    if options.once:
        display.print()
    return 0


def _uplink(url: str) -> Any:
    from genkidama.child.transport import Transport

    if url == "-":
        url = sys.stdin.readline().strip()
    found = parse_url(url)
    if found is None:
        raise ConfigurationError(
            "where is the parent? expected http://HOST:PORT, or what `genkidama token --viewer` "
            f"prints: https://viewer:TOKEN@HOST:PORT#FINGERPRINT; - reads it from standard input, "
            f"and {VIEW_VARIABLE} may hold it"
        )
    return Transport(
        f"{'wss' if found.secure else 'ws'}://{found.place}/watch",
        token=found.token,
        fingerprint=found.fingerprint,
    )


class _Top(LiveDisplay):
    """The status that a feed sends, on this terminal; `once` ends it after the first document."""

    def __init__(self, uplink: Any, once: bool) -> None:
        self._uplink = uplink
        self._once = once
        self._document: dict[str, Any] | None = None
        self._words = "connecting"
        self._said = Once()
        super().__init__(sys.stdout)

    def draw(self, width: int, height: int) -> Any:
        from genkidama.cli.display import frame

        document, words = self._document, [self._words] if self._words else []
        if document is None:
            return "\n".join(words)
        notes = [f"note: {note}" for note in document["run"]["notes"]]
        notes += [f"ended: {document['run']['reason']}"] if document["run"]["reason"] else []
        return frame(document, width, height, notes + words)

    def line(self) -> str:
        return self._words if self._document is None else line(self._document)

    async def run(self) -> None:
        """Connects until the run is over.

        Raises:
            ConfigurationError: what can never work.
        """
        from genkidama.child.transport import FAILURES, explain

        backoff = Backoff(_AGAIN_SECONDS, random.random)
        while True:
            try:
                await self._watch()
                backoff.reset()
            except FAILURES as error:
                status = getattr(getattr(error, "response", None), "status_code", None)
                if status is not None and 400 <= status < 500:
                    raise ConfigurationError(_refused(error)) from None
                why = explain(error, self._uplink)
                if self._once and self._document is None:
                    raise EnvironmentFailure(why) from None
                self._words = f"{why}; trying again"
            document = self._document
            if document is not None and (self._once or document["run"]["state"] == "over"):
                self._words = ""
                return
            self._complain()
            await asyncio.sleep(backoff.wait())

    def _complain(self) -> None:
        """Shows what is wrong: in the display, or once on standard error."""
        if self.drawn:
            self.refresh()
        elif self._said.is_new(self._words):
            print(self._words, file=sys.stderr, flush=True)

    async def _watch(self) -> None:
        connection = await self._uplink.open()
        connection.protocol.max_message_size = _LONGEST_MESSAGE
        document = None
        async with connection:
            while True:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    message = await connection.recv()
                document = fold(document, msgspec.json.decode(message))
                self._document = document
                self._words = ""
                if self._once:
                    return
                self.refresh()

    def print(self) -> None:
        """Prints the whole document, however many rows it has."""
        from rich.console import Console

        console = Console()
        console.print(self.draw(console.width, _WHOLE))


def _refused(error: Any) -> str:
    """The refusal of a parent, in one line."""
    words = (error.response.body or b"").decode(errors="replace").strip().partition("\n")[0]
    if error.response.status_code == 426 or not words:
        return "no run is shown at this address: is the parent older than the page?"
    return f"{words}; on the parent's machine, `genkidama token --viewer` prints the address"
