"""`genkidama top URL`: the page in a terminal, attached from anywhere; and `genkidama serve`."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
from contextlib import suppress
from typing import Any

import msgspec

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.pacing import Backoff, Once

__all__ = ["VIEW_VARIABLE", "serve", "top"]

#: An address in this variable, with its token, stands in no list of processes.
VIEW_VARIABLE = "GENKIDAMA_VIEW"

#: Seconds before a new try: the first bound, and the greatest.
_AGAIN_SECONDS = (0.5, 15.0)

#: The feed has nothing to say for so long at most. Then the connection is given up.
_SILENCE_SECONDS = 45.0

#: A document of a thousand children has half a million bytes.
_LONGEST_MESSAGE = 1 << 25

#: Draws so often a second.
_FRAMES = 4

#: Where it is no terminal, there is a line this often.
_LINE_SECONDS = 5.0

_FORM = re.compile(
    r"(?P<scheme>https?|wss?)://(?:(?P<name>[^:@/#]+):(?P<token>[^:@/#]+)@)?"
    r"(?P<address>[^@#?]+?)/?(?:#(?P<fingerprint>[0-9a-f]{64}))?\Z"
)


def top(options: argparse.Namespace) -> int:
    """Shows a run until it is interrupted, or the run is over; connects again and again."""
    uplink = _uplink(options.url or os.environ.get(VIEW_VARIABLE, ""))
    return asyncio.run(_Display(uplink, options.once).run())


def serve(options: argparse.Namespace) -> int:
    """Shows runs in directories, in a browser on this machine."""
    from genkidama.page.gallery import show

    show(options.runs, options.listen, lambda line: print(line, flush=True))
    return 0


def _uplink(url: str) -> Any:
    from genkidama.child.uplink import Uplink

    if url == "-":
        url = sys.stdin.readline().strip()
    found = _FORM.match(url)
    if found is None:
        raise ConfigurationError(
            "where is the parent? expected http://HOST:PORT, or what `genkidama token --viewer` "
            f"prints: https://viewer:TOKEN@HOST:PORT#FINGERPRINT; - reads it from standard input, "
            f"and {VIEW_VARIABLE} may hold it"
        )
    scheme = "wss" if found["scheme"] in ("https", "wss") else "ws"
    token, fingerprint = found["token"] or "", found["fingerprint"] or ""
    return Uplink(f"{scheme}://{found['address']}/watch", token=token, fingerprint=fingerprint)


class _Display:
    """What is known of a run, drawn on the terminal.

    Args:
        uplink: to the feed.
        once: shows the first document, and ends.
    """

    def __init__(self, uplink: Any, once: bool) -> None:
        self._uplink = uplink
        self._once = once
        self._document: dict[str, Any] | None = None
        self._words = "connecting"
        #: Set when there is a document.
        self._known = asyncio.Event()
        self._drawn = False
        self._said = Once()

    async def run(self) -> int:
        """Returns the exit code."""
        from rich.console import Console
        from rich.live import Live

        console = Console()
        if self._once or not console.is_terminal:
            return await self._lines(console)
        self._drawn = True
        with Live(
            console=console,
            get_renderable=lambda: self._draw(console),
            refresh_per_second=_FRAMES,
            screen=True,
        ):
            await self._follow()
        console.print(self._draw(console))
        return 0

    async def _lines(self, console: Any) -> int:
        """Without a terminal: one frame, or a line now and then."""
        following = asyncio.create_task(self._follow())
        following.add_done_callback(lambda _: self._known.set())
        try:
            await self._known.wait()
            if self._document is not None and self._once:
                console.print(self._draw(console, height=10_000))
                return 0
            while not following.done():
                print(_line(self._document), flush=True)
                await asyncio.wait((following,), timeout=_LINE_SECONDS)
            if self._document is not None:
                print(_line(self._document), flush=True)
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
        return 0

    def _draw(self, console: Any, height: int = 0) -> Any:
        from genkidama.page.table import frame

        width, rows = console.size
        if self._document is None:
            return self._words
        return frame(self._document, width, height or rows, self._words)

    async def _follow(self) -> None:
        """Connects until the run is over. What can never work is raised."""
        from genkidama.child.explanations import explain
        from genkidama.child.uplink import FAILURES

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
            if self._document is not None and self._document["run"]["state"] == "over":
                self._words = ""
                return
            self._say(self._words)
            await asyncio.sleep(backoff.wait())

    def _say(self, words: str) -> None:
        """What is wrong, once, where nothing is drawn."""
        if not self._drawn and self._said.is_new(words):
            print(words, file=sys.stderr, flush=True)

    async def _watch(self) -> None:
        from genkidama.page.folded import fold

        connection = await self._uplink.open()
        connection.protocol.max_message_size = _LONGEST_MESSAGE
        document = None
        async with connection:
            while True:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    message = await connection.recv()
                document = fold(document, msgspec.json.decode(message))
                self._document = document
                self._known.set()
                self._words = ""


def _refused(error: Any) -> str:
    """What the parent says, in one line."""
    words = (error.response.body or b"").decode(errors="replace").strip().partition("\n")[0]
    if error.response.status_code == 426 or not words:
        return "no run is shown at this address: is the parent older than the page?"
    return f"{words}; on the parent's machine, `genkidama token --viewer` prints the address"


def _line(document: dict[str, Any] | None) -> str:
    assert document is not None
    run, learning = document["run"], document["learning"]
    parts = [run["environment"], run["state"]]
    if learning["mean_return"] is not None:
        parts.append(f"mean return {learning['mean_return']:.1f}")
    there = sum(child["state"] == "training" for child in document["children"])
    parts += [f"{learning['steps']:,} steps", f"{learning['steps_per_second']:,.0f}/s"]
    return " · ".join([*parts, f"{there} child{'ren' * (there != 1)}"])
