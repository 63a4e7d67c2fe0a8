"""QR codes on a terminal: a camera takes what nobody wants to type."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Callable

from genkidama._version import pip_install
from genkidama.errors import ConfigurationError

#: Modules of light around a code; readers want some.
_BORDER = 2

#: White on black whatever the terminal's colours are, and back.
_PAINT, _RESET = "\033[97;40m", "\033[0m"


def qr_drawer(wanted: bool) -> Callable[[str], None]:
    """A function that draws a text as a QR code on standard error; it does nothing unless wanted.

    Where the terminal is too narrow, or is none, it prints a line about that instead.

    Raises:
        ConfigurationError: a code is wanted, and segno is not installed.
    """
    if not wanted:
        return lambda text: None
    if importlib.util.find_spec("segno") is None:
        raise ConfigurationError(f"--qr: needs segno: {pip_install('page')}")
    return _draw


def _draw(text: str) -> None:
    import segno

    code = segno.make(text, error="l", micro=False)
    needed, file = code.symbol_size(border=_BORDER)[0], sys.stderr
    utf8 = (file.encoding or "").lower().replace("-", "") == "utf8"
    if not (file.isatty() and utf8):
        problem = "standard error is no terminal with UTF-8"
    elif (columns := os.get_terminal_size(file.fileno()).columns) < needed:
        problem = f"it takes {needed} columns, and the terminal has {columns}"
    else:
        drawn = io.StringIO()
        code.terminal(drawn, border=_BORDER, compact=True)
        lines = [f"{_PAINT}{line}{_RESET}" for line in drawn.getvalue().splitlines()]
        print("\n".join(lines), file=file, flush=True)
        return
    print(f"--qr: no code is shown: {problem}", file=file)
