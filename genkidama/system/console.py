"""What the commands share: log lines on standard error, the one line of an error, the end of standard input."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from genkidama.errors import GenkidamaError

__all__ = ["fail", "make_logger", "stop_at_eof"]


class _StandardError:
    """Standard error as it is at the moment of writing; that nobody reads it any more stops no run."""

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


def make_logger() -> FilteringBoundLogger:
    """A structlog logger to standard error: console lines on a terminal, JSON lines otherwise.

    Nothing global is configured, so a program that embeds a `Parent` or a `Child` keeps its own logging.
    """
    terminal = sys.stderr.isatty()
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        if terminal
        else structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
    ]
    wrapper = structlog.make_filtering_bound_logger(logging.INFO)
    writer = structlog.WriteLogger(_StandardError())  # type: ignore[arg-type]
    logger: FilteringBoundLogger = structlog.wrap_logger(writer, processors, wrapper)
    return logger


def fail(error: GenkidamaError) -> int:
    """Prints a user's error as one line and gives the exit code that belongs to it."""
    print(
        "error:", " ".join(str(error).split("\n")), file=sys.stderr
    )  # what a user's own code says may have several lines
    return error.exit_code


def stop_at_eof() -> None:
    """Sends this process SIGTERM when its standard input closes: its starter is gone, and so it goes too."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="standard-input", daemon=True).start()
