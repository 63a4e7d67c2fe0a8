"""Makes the pictures of the README: `make pictures`, which takes two or three minutes.

terminal.svg   the display of `genkidama train lunarlander`, as a real terminal has shown it
landing.gif    what `genkidama play` shows of the policy that it has trained
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

HERE = Path(__file__).resolve().parent
COLUMNS, ROWS = 100, 24
SECONDS = 90
#: The display is pictured at this share of the run, when something has been learned.
SHARE = 0.8

TRAIN = ["train", "lunarlander", "--out", "run", "--episodes", "0"]
TRAIN += ["--set", f"stop.seconds={SECONDS}", "--set", "stop.mean_return=300"]


def main() -> None:
    """Trains, and makes the two pictures."""
    with tempfile.TemporaryDirectory() as folder:
        pieces = trained(Path(folder))
        picture(display(pieces), HERE / "terminal.svg")
        film = ["play", "run", "--deterministic", "--every", "4"]
        film += ["--video", str(HERE / "landing.gif")]
        subprocess.run([sys.executable, "-m", "genkidama", *film], cwd=folder, check=True)


def trained(folder: Path) -> list[bytes]:
    """Trains in a terminal of its own, and returns what was written to it, piece by piece."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "genkidama", *TRAIN],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"},
    )
    os.close(theirs)
    pieces = []
    while piece := read(ours):
        pieces.append(piece)
    if process.wait():
        raise SystemExit(b"".join(pieces).decode())
    return pieces


def read(terminal: int) -> bytes:
    """What comes next; nothing if nobody writes any more."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def display(pieces: list[bytes]) -> Text:
    """The screen at its last moment before `SHARE` of the run, without its empty rows."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    shown = Text()
    for piece in pieces:
        stream.feed(piece)
        if 0.0 < share(screen.display) <= SHARE:
            shown = coloured(screen)
    return shown


def share(lines: list[str]) -> float:
    """What the display's bar says; 0 where there is none."""
    words = [word for line in lines if "█" in line for word in line.split()]
    found = [word[:-1] for word in words if word.endswith("%")]
    return int(found[0]) / 100 if found else 0.0


def coloured(screen: pyte.Screen) -> Text:
    """A screen's rows with their colours, from the display's first row on."""
    first = next(row for row, line in enumerate(screen.display) if "█" in line) - 1
    last = max(row for row, line in enumerate(screen.display) if line.strip())
    text = Text()
    for row in range(first, last + 1):
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            text.append(cell.data, Style(color=colour(cell.fg), bold=cell.bold))
        text.append("\n")
    return text


def colour(name: str) -> str | None:
    """pyte's name of a colour, as rich calls it."""
    if name == "default":
        return None
    if len(name) == 6 and all(digit in "0123456789abcdef" for digit in name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


def picture(shown: Text, path: Path) -> None:
    """Writes a screen as SVG, in a terminal's window."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, color_system="truecolor")
        console.print(shown, end="")
        drawn = console.export_svg(title="genkidama train lunarlander")
    # Its font would be asked of another site; the reader's own monospaced one does as well.
    path.write_text(re.sub(r"@font-face {.*?}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
