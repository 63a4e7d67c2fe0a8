"""Real pseudo-terminals, whose screens pyte reads."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyte

from tests.helpers import PATIENCE, ROOT


@dataclass
class Terminal:
    """What a program has written to a terminal of so many columns and rows."""

    columns: int
    rows: int
    code: int = 0
    #: What was written, as it came.
    pieces: list[bytes] = field(default_factory=list)
    #: The descriptor behind it.
    keyboard: int = -1

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self.keyboard, keys.encode())

    @property
    def text(self) -> str:
        """All that was written."""
        return b"".join(self.pieces).decode(errors="replace")

    @property
    def frames(self) -> list[list[str]]:
        """The screen after each piece of output."""
        screen = pyte.Screen(self.columns, self.rows)
        stream = pyte.ByteStream(screen)
        found = []
        for piece in self.pieces:
            stream.feed(piece)
            found.append([line.rstrip() for line in screen.display])
        return found

    @property
    def lines(self) -> list[str]:
        """All lines, with those that have left the screen at its top."""
        return self.read(self.columns)

    def read(self, columns: int) -> list[str]:
        """The same output as a terminal of so many columns would have shown it."""
        screen = pyte.HistoryScreen(columns, self.rows, history=100_000)
        pyte.Stream(screen).feed(self.text)
        gone = ["".join(line[x].data for x in range(columns)) for line in screen.history.top]
        return [line.rstrip() for line in (*gone, *screen.display)]


def in_terminal(
    command: list[str],
    columns: int,
    rows: int,
    *,
    folder: Path,
    seconds: float = 3 * PATIENCE,
    meanwhile: Callable[[subprocess.Popen[bytes], Terminal], None] = lambda *_: None,
    **environment: str,
) -> Terminal:
    """Runs a command on a terminal of its own, which is its standard error and input.

    Args:
        meanwhile: is called after each piece of output.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    variables: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        variables.pop(name, None)
    found = Terminal(columns, rows, keyboard=ours)
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=variables | environment,
        start_new_session=True,
    )
    os.close(theirs)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:  # what Linux says when the last writer has gone
                break
            if not piece:
                break
            found.pieces.append(piece)
            meanwhile(process, found)
        found.code = process.wait(max(0.1, deadline - time.monotonic()))
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return found
