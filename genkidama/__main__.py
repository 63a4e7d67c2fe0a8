"""The `genkidama` command. It imports only the packages that its verb needs."""

from __future__ import annotations

from genkidama.runtime import signals  # isort: skip  # before all else

import os  # isort: skip

# NumPy starts no threads with this, so a forkserver can be forked from this process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import io
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from genkidama.cli.parser import all_verbs, make_parser
from genkidama.config import plugin
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.runtime.log import fail


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        The exit code: 0, 1 (this machine cannot), 2 (the user's mistake), 130 (interrupted).
    """
    signals.exit_on_interrupt()
    signal.signal(signal.SIGTERM, _terminated)
    if arguments is not None:
        return _answered(arguments)
    _mend_streams()
    if not sys.flags.safe_path:
        # As `python -m` does: an experiment may name modules in the current folder.
        sys.path.insert(0, os.getcwd())
    code = 1
    try:
        code = _answered(sys.argv[1:])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    _leave(code)
    return code


def _mend_streams() -> None:
    """Keeps the numbers of standard streams that are closed from files that are opened later, and
    has characters that the terminal's encoding lacks printed as `?`."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


#: How long threads may go on that the interpreter would wait for, as an environment's.
_PATIENCE_SECONDS = 1.0


def _leave(code: int) -> None:
    """Ends this command's forkserver, and this process if threads would keep it."""
    if (forkserver := sys.modules.get("genkidama.runtime.forkserver")) is not None:
        forkserver.leave_shared()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(_PATIENCE_SECONDS)
            if thread.is_alive():
                sys.stdout.flush()
                os._exit(code)


def _answered(arguments: Sequence[str]) -> int:
    """Runs the verb; its exit code, also of an error."""
    try:
        return _run(list(arguments))
    except GenkidamaError as error:
        return fail(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 1
    except OSError as error:  # a path is too long, or of a folder that this user may not enter
        if error.filename is None:
            raise
        return fail(EnvironmentFailure(f"{error.filename}: {error.strerror}"))


def _run(arguments: list[str]) -> int:
    """Runs the verb; raises `ConfigurationError` if there is none of this name."""
    verbs = all_verbs()
    name = arguments[0] if arguments else ""
    if name and not name.startswith("-") and name not in verbs:
        verb = plugin.find("verbs", name)
        if verb is None:
            import difflib  # a tenth of the start, for a mistake alone

            near = difflib.get_close_matches(name, verbs, 1)
            hint = f"did you mean {near[0]!r}?" if near else "`genkidama --help` lists them"
            raise ConfigurationError(f"unknown verb {name!r}; {hint}")
        verbs[name] = verb
    options = make_parser(verbs, name).parse_args(arguments or ["--help"])
    try:
        run: Callable[[argparse.Namespace], int] = plugin.load(verbs[options.verb].run)
    except Exception as error:  # a package is missing, or too old, or was built for another machine
        words = f"this installation is not complete: {error}; see `genkidama doctor`"
        print(f"error: {words}", file=sys.stderr)
        return 1
    return run(options)


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
