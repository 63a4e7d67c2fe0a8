"""Signals: during work that must not be left half done, and while a command imports.

Ctrl-C while a command imports what it needs ends it at once, and prints no traceback.
`python -m genkidama…` imports this module before all else. In any other program it does nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def _is_command() -> bool:
    """True if this program is one of ours, and would answer Ctrl-C by a traceback."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    ours = spec is not None and spec.name.startswith("genkidama.")
    return ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def exit_on_interrupt() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again, where it was before."""
    if _mended:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_mended = _is_command()
if _mended:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def kept() -> Iterator[None]:
    """Ctrl-C and SIGTERM are handled after this as before, whatever handlers an environment has
    set within. In other threads than the main one it does nothing: none can be set there."""
    before = {number: signal.getsignal(number) for number in _ENDING}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Ctrl-C and SIGTERM that come within are heard at its end.

    A program that turns them into exceptions may raise one as soon as a process has been forked,
    before anybody knows its number. What is started within has the handlers of a new program.

    In other threads than the main one it does nothing: no exception is raised in them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    heard = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in heard:
            signal.signal(number, lambda which, frame: came.append(which))
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
        for which in came:
            signal.raise_signal(which)
