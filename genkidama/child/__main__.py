"""`python -m genkidama.child`: train on this machine for a parent elsewhere."""

from __future__ import annotations

from genkidama.runtime import signals  # isort: skip  # noqa: F401  # before all else

import os  # isort: skip

# NumPy starts no threads with this, so a forkserver can be forked from this process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import shlex
import sys

import msgspec

from genkidama.child.child import Child
from genkidama.child.orchestrator import inherit
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.runtime.forkserver import prefork
from genkidama.runtime.log import Parser, configure_logging, fail, stop_at_eof
from genkidama.runtime.machine import loop_factory


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = Parser(
        prog="python -m genkidama.child",
        description="Trains the experiment of a parent on this machine.",
    )
    parser.add_argument(
        "file", nargs="?", help="the child's TOML (child/child.toml explains every setting)"
    )
    parser.add_argument("--parent", help="address of the parent: ws://HOST:PORT or wss://HOST:PORT")
    parser.add_argument(
        "--cores",
        help="core processes: a number, or auto: as many as CPU and memory allow "
        "(default: as the experiment says)",
    )
    parser.add_argument(
        "--name", help="unique among the parent's children (default: this machine's name)"
    )
    parser.add_argument(
        "--role",
        choices=("experiment", "bundle", "act", "learn"),
        help="its role if all children share a replay (default: as the parent says)",
    )
    parser.add_argument(
        "--state",
        metavar="DIR",
        help="directory for this child's own state, so that it resumes after a restart",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file with this child's token; GENKIDAMA_TOKEN takes precedence",
    )
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        help="certificates of the authority that signed the parent's (default: the system's)",
    )
    parser.add_argument(
        "--fingerprint",
        metavar="HEX",
        help="SHA-256 of the parent's certificate: only that one is trusted",
    )
    parser.add_argument(
        "--allow",
        metavar="MODULE",
        action="append",
        help="a module of yours that this child may import for the parent; repeatable, "
        "'*' for all (default: none)",
    )
    parser.add_argument(
        "--stay",
        action="store_const",
        const=True,
        help="when a run is over, wait for the next one at the same address",
    )
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--first-core", help=argparse.SUPPRESS)  # `orchestrator.inherit`
    options = parser.parse_args(argv)
    try:
        keys, typed = Role.__struct_fields__, vars(options).items()
        given = {key: value for key, value in typed if key in keys and value is not None}
        if not options.file and not options.parent:
            raise ConfigurationError(
                "where is the parent? give --parent ws://HOST:PORT or a child's TOML"
            )
        if given.get("cores", "").isdecimal():
            given["cores"] = int(given["cores"])
        role = msgspec.to_builtins(Role.load(options.file)) if options.file else {}
        child = Child.from_role(Role.from_dict({**role, **given}, source="the command line"))
        words = sys.argv[1:] if argv is None else argv
        child.command = shlex.join(["python", "-m", "genkidama.child", *words])
        if options.first_core:
            inherit(options.first_core)
        if options.until_eof:
            stop_at_eof()
        configure_logging(named=True)
        child.run()
    except GenkidamaError as error:
        return fail(error)
    return 0


if __name__ == "__main__":
    loop_factory()  # imports uvloop
    prefork()
    sys.exit(main())
