"""Ctrl-C while a command imports what it needs ends it at once, and prints no traceback.

`python -m genkidama…` imports this module before all else. In any other program it does nothing.
"""

from __future__ import annotations

import signal
import sys

__all__ = ["heed"]


def _is_command() -> bool:
    """Whether this program is one of ours, and would answer Ctrl-C by a traceback."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    ours = spec is not None and spec.name.startswith("genkidama.")
    return ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def heed() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again, where it was before."""
    if _mended:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_mended = _is_command()
if _mended:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
