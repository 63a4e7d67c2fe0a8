"""The `genkidama` command: train · evaluate · search · launch · report · init, parent · join, ….

Only what a verb needs is imported, after it is known which one is meant.
"""

from __future__ import annotations

from genkidama.runtime import signals  # isort: skip  # before all else

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from genkidama.cli.parser import make_parser
from genkidama.errors import GenkidamaError
from genkidama.runtime.log import fail


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        The exit code: 0, 1 (this machine cannot), 2 (the user's mistake), 130 (interrupted).
    """
    signals.exit_on_interrupt()
    if arguments is None and not sys.flags.safe_path:
        # As `python -m` does: an experiment may name modules in the current folder.
        sys.path.insert(0, os.getcwd())
    options = make_parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return _run(options)
    except GenkidamaError as error:
        return fail(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 1


def _run(options: argparse.Namespace) -> int:
    """What the verb does."""
    if options.verb == "doctor":
        # It needs no package, and says what is wrong with them.
        from genkidama.plugins.doctor.__main__ import doctor

        return doctor(options)
    try:
        from genkidama.cli.verbs import RUN
    except Exception as error:  # a package is missing, or too old, or was built for another machine
        words = f"this installation is not complete: {error}; see `genkidama doctor`"
        print(f"error: {words}", file=sys.stderr)
        return 1
    return RUN[options.verb](options)


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
