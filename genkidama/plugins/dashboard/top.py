"""`genkidama top URL`: the page in a terminal, attached from anywhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import urlencode

import msgspec

from genkidama.cli.progress import LiveDisplay
from genkidama.config.parent_address import parse_url
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
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

#: What a key asks for, and whether a line follows: a name, or `y`.
_KEYS = {
    "c": ("checkpoint", ""),
    "m": ("extend", ""),
    "f": ("film", ""),
    "s": ("stop", "stop the run? y and Enter: "),
    "x": ("exclude", "the child to exclude, and Enter: "),
    "a": ("admit", "the child to admit again, and Enter: "),
}
_HELP = "c checkpoint · m more time · f film · s stop · x exclude a child · a admit it"

#: Rows of a document that is printed once.
_WHOLE = 10_000


def top(options: argparse.Namespace) -> int:
    """Shows a run until it is interrupted, or the run is over; connects again and again."""
    url = options.url or os.environ.get(VIEW_VARIABLE, "")
    url = sys.stdin.readline().strip() if url == "-" else url
    uplink = _uplink(url)
    if options.command:
        print(asyncio.run(_command(uplink, *options.command.partition("=")[::2])))
        return 0
    display = _Top(uplink, options.once)
    found = parse_url(url)
    owns = found is not None and found.name == "owner" and display.drawn
    with display, display.keys() if owns else nullcontext():
        asyncio.run(display.run())
    if options.once:
        display.print()
    return 0


def _uplink(url: str) -> Any:
    from genkidama.child.transport import Transport

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


async def _command(uplink: Any, action: str, value: str = "") -> str:
    """Asks for what a run's owner may ask for; a sentence about what came of it.

    Raises:
        ConfigurationError: the parent refuses it.
        EnvironmentFailure: it does not answer.
    """
    from genkidama.child.transport import FAILURES, explain

    given = {"action": action, ("share" if action == "extend" else "child"): value}
    query = urlencode({key: text for key, text in given.items() if text})
    try:
        status, words = await uplink.post(f"/control?{query}")
    except FAILURES as error:
        raise EnvironmentFailure(explain(error, uplink)) from None
    if status != HTTPStatus.OK:
        raise ConfigurationError(words.partition("\n")[0] or f"the parent answers {status}")
    return f"{action}{f' {value}' if value else ''}: done"


class _Top(LiveDisplay):
    """The status that a feed sends, on this terminal; `once` ends it after the first document."""

    #: Where an owner's keys come from.
    _terminal: BinaryIO

    def __init__(self, uplink: Any, once: bool) -> None:
        self._uplink = uplink
        self._once = once
        self._document: dict[str, Any] | None = None
        self._words = "connecting"
        self._said = Once()
        #: An owner's: the key whose line is being typed, the line, and what came of the last one.
        self._key = self._typed = ""
        self._answer = ""
        self._steers = False
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        super().__init__(sys.stdout)

    def draw(self, width: int, height: int) -> Any:
        from genkidama.cli.display import frame

        document, words = self._document, [self._words] if self._words else []
        if document is None:
            return "\n".join(words)
        notes = [f"note: {note}" for note in document["run"]["notes"]]
        notes += [f"ended: {document['run']['reason']}"] if document["run"]["reason"] else []
        if self._steers and not document["run"]["reason"]:
            line = f"{_KEYS[self._key][1]}{self._typed}" if self._key else _HELP
            words = [*words, *filter(None, (self._answer,)), line]
        return frame(document, width, height, notes + words)

    def line(self) -> str:
        return self._words if self._document is None else line(self._document)

    @contextmanager
    def keys(self) -> Iterator[None]:
        """Reads keys, one by one, within its block, if standard input is a terminal or there is
        one behind it."""
        import termios
        import tty

        with ExitStack() as stack:
            with suppress(OSError, termios.error):
                # The address may have come through standard input.
                source = 0 if sys.stdin.isatty() else "/dev/tty"
                terminal = open(source, "rb", buffering=0, closefd=source != 0)  # noqa: SIM115
                self._terminal = stack.enter_context(terminal)
                before = termios.tcgetattr(self._terminal)
                stack.callback(termios.tcsetattr, self._terminal, termios.TCSADRAIN, before)
                tty.setcbreak(self._terminal.fileno())
                self._steers = True
            yield

    def _read_key(self) -> None:
        for letter in self._terminal.read(64).decode(errors="replace"):
            if not self._key:
                self._answer = ""
                self._key = letter if letter in _KEYS else ""
                if self._key and not _KEYS[letter][1]:
                    self._ask("")
            elif letter in "\r\n":
                self._ask(self._typed)
            elif letter in "\x7f\b":
                self._typed = self._typed[:-1]
            elif letter.isprintable():
                self._typed += letter
        self.refresh()

    def _ask(self, typed: str) -> None:
        action, line = _KEYS[self._key]
        self._key = self._typed = ""
        if line and (not typed or (action == "stop" and typed != "y")):
            return
        task = asyncio.get_running_loop().create_task(
            self._do(action, "" if action == "stop" else typed)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, action: str, value: str) -> None:
        try:
            self._answer = await _command(self._uplink, action, value)
            self._stopped = self._stopped or action == "stop"
        except GenkidamaError as error:
            self._answer = str(error)
        self.refresh()

    async def run(self) -> None:
        """Connects until the run is over.

        Raises:
            ConfigurationError: what can never work.
        """
        from genkidama.child.transport import FAILURES, explain

        backoff = Backoff(_AGAIN_SECONDS, random.random)
        if self._steers:
            asyncio.get_running_loop().add_reader(self._terminal, self._read_key)
        while True:
            try:
                await self._watch(backoff)
            except FAILURES as error:
                status = getattr(getattr(error, "response", None), "status_code", None)
                if status is not None and 400 <= status < 500:
                    raise ConfigurationError(_refused(error)) from None
                full = status == HTTPStatus.SERVICE_UNAVAILABLE
                why = (full and _answer(error)) or explain(error, self._uplink)
                if self._once and self._document is None:
                    raise EnvironmentFailure(why) from None
                self._words = f"{why}; trying again"
            document = self._document
            # A parent that is told to stop may be gone before it has said that the run is over.
            run = {} if document is None else document["run"]
            # After these its service manager may start it again.
            away = run.get("reason") in ("SIGTERM", "SIGINT")
            over = run.get("state") == "over" and not away
            if over or self._stopped or (self._once and document is not None):
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

    async def _watch(self, backoff: Backoff) -> None:
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
                backoff.reset()
                if self._once:
                    return
                self.refresh()

    def print(self) -> None:
        """Prints the whole document, however many rows it has."""
        from rich.console import Console

        console = Console()
        console.print(self.draw(console.width, _WHOLE))


def _answer(error: Any) -> str:
    """The first line of an answer that refuses; empty if it has none."""
    return str((error.response.body or b"").decode(errors="replace").strip().partition("\n")[0])


def _refused(error: Any) -> str:
    """The refusal of a parent, in one line."""
    words, status = _answer(error), error.response.status_code
    if status == HTTPStatus.UPGRADE_REQUIRED or not words:
        return "no run is shown at this address: is the parent older than the page?"
    if status == HTTPStatus.UNAUTHORIZED:
        words += "; on the parent's machine, `genkidama token --viewer` prints the address"
    return words
