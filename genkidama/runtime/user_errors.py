"""Errors of a user's code, in words: the exception and the line that raised it."""

from __future__ import annotations

import os
import signal
import sysconfig
import traceback

from genkidama.errors import GenkidamaError

#: An error's own text is cut after this many characters, so that its place is not.
_LONGEST = 500

#: Code below these folders is no user's.
_OTHERS = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        os.path.dirname(os.path.dirname(__file__)),
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def describe_error(error: BaseException) -> str:
    """As `KeyError: 'my bug' (my_env.py:12, in step)`; without a place if no user's code raised."""
    said = error.msg if isinstance(error, SyntaxError) else error
    text = " ".join(f"{type(error).__name__}: {said}".split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} …"
    place = _place(error)
    return f"{text} ({place})" if place else text


def is_user_error(error: BaseException) -> bool:
    """True if a user's own code has raised it, or its cause."""
    cause: BaseException | None = error
    seen: list[BaseException] = []
    while cause is not None and cause not in seen:
        if _place(cause):
            return True
        seen.append(cause)
        cause = cause.__cause__
    return False


def print_user_traceback(error: BaseException) -> None:
    """Writes the whole traceback to standard error, if a user's own code has a part in it."""
    if is_user_error(error):
        traceback.print_exception(error)


def describe_exit(code: int | None) -> str:
    """The cause of an exit code, in words: `"exit code 3"`, or `"killed (SIGSEGV)"`."""
    if code is None or code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if -code == signal.SIGKILL:
        return f"killed ({name}), perhaps for want of memory"
    return f"killed ({name})"


def _place(error: BaseException) -> str:
    """The innermost line of a user's own code; what we raise says itself what is wrong."""
    if isinstance(error, GenkidamaError):
        return ""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = os.path.realpath(frame.filename)
        if not path.startswith(_OTHERS) and not frame.filename.startswith("<"):
            inside = "" if frame.name == "<module>" else f", in {frame.name}"
            return f"{_short(path)}:{frame.lineno}{inside}"
    return ""


def _short(path: str) -> str:
    """The path below the current folder, or whole."""
    here = os.getcwd() + os.sep
    return os.path.realpath(path).removeprefix(os.path.realpath(here) + os.sep)
