"""`python -m genkidama.parent FILE.toml`: runs a parent until its run is over or a signal comes."""

from __future__ import annotations

from genkidama.runtime import signals  # isort: skip  # noqa: F401  # before all else

import argparse
import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from genkidama.config.decoding import parse_settings
from genkidama.config.experiment import Experiment
from genkidama.errors import GenkidamaError
from genkidama.parent.extensions import Observer
from genkidama.parent.parent import Parent
from genkidama.protocol.shard import SECRET, WHOLE, Shard
from genkidama.runs.history import write_fallback
from genkidama.runs.resume import prepare, with_default_stop
from genkidama.runtime.log import Parser, configure_logging, fail, get_logger, stop_at_eof
from genkidama.runtime.machine import keep_large_blocks
from genkidama.server.events import Event

_FILES = ("tokens_file", "certificate_file", "key_file")


class _Display(Observer):
    """Shows the events one by one."""

    def __init__(self, show: Callable[[Event], None]) -> None:
        self._show = show

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            self._show(event)


def main(
    arguments: Sequence[str] | None = None,
    command: str = "",
    display: tuple[Callable[[Event], None], Callable[[str], None]] | None = None,
) -> int:
    """Runs the command.

    Args:
        command: starts this parent again, but for the run's directory; these arguments if empty.
        display: shows an event, and prints a line.

    Returns:
        The exit code: 0, 1 (this machine cannot) or 2 (the user's mistake).
    """
    options = _parser().parse_args(arguments)
    try:
        experiment = Experiment.load(options.experiment).with_settings(parse_settings(options.set))
        typed = ((f"parent.{key}", getattr(options, key)) for key in _FILES)
        given = {key: file for key, file in typed if file is not None}
        experiment = experiment.with_settings(given, source="the command line")
        # A machine that only holds weights needs neither Gymnasium nor the like; its children check
        # the environment.
        checks = find_spec("gymnasium") is not None and not experiment.environment.prefix
        experiment, about_stop = (prepare if checks else with_default_stop)(experiment)
        part = Shard.parse(options.shard)
        parent = Parent(experiment, out=options.out, listen=options.listen, part=part)
        if options.fallback is not None:
            parent.fallback = write_fallback(options.fallback)
        parent.own_children = options.own_children
        parent.command = command or _again(options)
        parent.observers += [] if display is None else [_Display(display[0])]
        parent.server.secret = os.environ.pop(SECRET, "")
        if options.until_eof:
            stop_at_eof()
        configure_logging(named=True, say=None if display is None else display[1])
        # Each push brings a vector, which is freed with its reply. If the system gave and took its
        # memory each time, that would take longer than the blend.
        keep_large_blocks()
        # Nothing of what is there now is ever garbage. A full collection, for which all children
        # wait, then looks through what they have brought alone.
        gc.freeze()
        if about_stop:
            get_logger().info("goal", reason=about_stop)
        parent.run()
    except GenkidamaError as error:
        return fail(error)
    return 0


def _again(options: argparse.Namespace) -> str:
    """The command that was typed, with the run's directory last and still absent."""
    if options.own_children:
        return "genkidama train --resume"
    words = ["python", "-m", "genkidama.parent", str(options.experiment)]
    for key in ("listen", *_FILES):
        if (value := getattr(options, key)) is not None:
            words += [f"--{key.replace('_', '-')}", value]
    if options.shard != str(WHOLE):
        words += ["--shard", options.shard]
    words += [word for change in options.set for word in ("--set", change)]
    return shlex.join([*words, "--out"])


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m genkidama.parent",
        description="Holds the weights of a run and serves its children.",
    )
    parser.add_argument(
        "experiment",
        metavar="FILE.toml",
        type=Path,
        help="the experiment, or the name of an example",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address to listen on, also [IPV6]:PORT or fd://N (default: the experiment's)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="the run's directory; a run in it is resumed (default: a new one under runs/)",
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="one setting, as child.exchange=free; repeatable",
    )
    parser.add_argument(
        "--tokens-file",
        metavar="FILE",
        help="children that may join: lines of NAME TOKEN (default: the experiment's)",
    )
    parser.add_argument(
        "--certificate-file",
        metavar="FILE",
        help="PEM certificate; with --key-file the parent speaks wss://",
    )
    parser.add_argument("--key-file", metavar="FILE", help="its PEM private key")
    parser.add_argument(
        "--shard",
        metavar="I/K",
        default=str(WHOLE),
        help="hold the I-th of K slices of the vector; K such shards are one parent (default: 1/1)",
    )
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--fallback", type=int, help=argparse.SUPPRESS)  # a descriptor
    parser.add_argument("--own-children", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
