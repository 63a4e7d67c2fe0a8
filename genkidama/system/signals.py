"""Signals that come at a moment when nothing may be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["deferred"]

_ENDING = (signal.SIGINT, signal.SIGTERM)


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
