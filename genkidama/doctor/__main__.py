"""`python -m genkidama.doctor`: the doctor alone, where the `genkidama` command cannot start."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from genkidama.doctor.arguments import add_arguments
from genkidama.doctor.command import doctor
from genkidama.errors import GenkidamaError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code.

    That is 0, 1 (a check has failed), 2 (the user's mistake) or 130 (interrupted).
    """
    parser = argparse.ArgumentParser(
        prog="python -m genkidama.doctor",
        description="Examines this machine, and the way to its parent.",
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    try:
        return doctor(options)
    except GenkidamaError as error:
        print("error:", " ".join(str(error).split("\n")), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
