"""The `genkidama` command: train · evaluate · search · launch · report · doctor."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from genkidama.doctor.__main__ import main as doctor_alone
from genkidama.errors import GenkidamaError

#: Why the verbs cannot work; None if they can. The doctor needs none of their imports, and says
#: what is wrong with them.
_BROKEN: Exception | None = None
try:
    from genkidama.commands import verbs
    from genkidama.commands.parser import make_parser
    from genkidama.system.console import fail
except Exception as error:  # a package is missing, or too old, or was built for another machine
    _BROKEN = error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns:
        The exit code: 0, 1 (this machine cannot), 2 (the user's mistake), 130 (interrupted).
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if _BROKEN is not None:
        if arguments[:1] == ["doctor"]:
            return doctor_alone(arguments[1:])
        print(
            f"error: this installation is not complete: {_BROKEN}; see `genkidama doctor`",
            file=sys.stderr,
        )
        return 1
    options = make_parser(verbs.RUN).parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return options.command(options)  # type: ignore[no-any-return]
    except GenkidamaError as error:
        return fail(error)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 1


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
