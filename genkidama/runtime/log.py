"""The log of commands, their one-line errors, and the end of their standard input."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from genkidama.errors import GenkidamaError, redacted

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger as FilteringBoundLogger
    from structlog.typing import Processor
else:  # without importing structlog
    FilteringBoundLogger = Any

#: What each line of a named process says beside its own words.
_always: dict[str, str] = {}


class _Stream:
    """A display, or else standard error as it is at the moment of writing, as a file. No run stops
    because nobody reads it."""

    def __init__(self, say: Callable[[str], None] | None) -> None:
        self._say = say

    def write(self, text: str) -> None:
        if self._say is not None:
            self._say(text.rstrip())
            return
        with suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()


class Parser(argparse.ArgumentParser):
    """A parser of arguments whose complaints hold no token, and name an option that is near."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, others = super().parse_known_args(args, namespace)
        if others:  # said here, with the usage of the verb that has the options
            known = [name for action in self._actions for name in action.option_strings]
            import difflib  # a tenth of the start, for a mistake alone

            near = difflib.get_close_matches(others[0].partition("=")[0], known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(others)}{hint}")
        return found, others

    def error(self, message: str) -> NoReturn:
        super().error(redacted(message))


def _is_ours() -> bool:
    """True if this process is a command of ours, or started by one."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = os.path.basename(sys.argv[0]) if spec is None else spec.name.partition(".")[0]
    return name == "genkidama" or "GENKIDAMA_SCRIPT" in os.environ


def get_logger() -> FilteringBoundLogger:
    """As structlog's. Our processes have it import no rich, which it needs for tracebacks on a
    terminal: that would take 4 MB and 40 ms of each.
    """
    missing = not {"structlog", "rich"} & sys.modules.keys() and _is_ours()
    if missing:
        sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        if missing:
            del sys.modules["rich"]
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def _redact(logger: object, method: str, event: Any) -> Any:
    return {
        key: redacted(value) if isinstance(value, str) else value for key, value in event.items()
    }


def log_with(**fields: str) -> None:
    """Has every later line of a named process have these fields, as `run`, if it has no others."""
    _always.update({name: value for name, value in fields.items() if value})


def _add_always(logger: object, method: str, event: Any) -> Any:
    return {**event, **{key: value for key, value in _always.items() if key not in event}}


def configure_logging(*, named: bool = False, say: Callable[[str], None] | None = None) -> None:
    """Has every log line go to standard error: console lines on a terminal, JSON lines otherwise.

    In a named process each line says what `log_with` was given: which run, and which child. One
    with a display gives it the warnings, by `say`.

    Only commands call this. The library asks structlog for its loggers and configures none, so a
    program that embeds a `Parent` or a `Child` keeps its own logging.
    """
    get_logger()
    import logging

    import structlog  # a command that logs nothing does without it

    processors: list[Processor] = [_add_always] if named else []
    processors += [_redact, structlog.processors.add_log_level]
    if sys.stderr.isatty():
        processors.append(structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False))
        processors.append(structlog.dev.ConsoleRenderer(colors=say is None))
    else:
        processors.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
        processors.append(structlog.processors.JSONRenderer())
    level = logging.INFO if say is None else logging.WARNING
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(_Stream(say)),  # type: ignore[arg-type]
    )


def fail(error: GenkidamaError) -> int:
    """Prints a user's error as one line and gives the exit code that belongs to it."""
    # What a user's own code says may have several lines.
    print("error:", " ".join(str(error).split("\n")), file=sys.stderr)
    return error.exit_code


def stop_at_eof() -> None:
    """Sends this process SIGTERM when its standard input closes, since its starter is gone then."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="standard-input", daemon=True).start()
