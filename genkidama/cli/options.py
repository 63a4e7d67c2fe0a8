"""The options of verbs, as data."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

#: The name of an option, and its arguments of `argparse`.
Option: TypeAlias = tuple[str, dict[str, Any]]


class Verb(NamedTuple):
    """A verb: its line in the list, the first sentence of its help, its options, its function."""

    help: str
    description: str
    options: tuple[Option, ...]
    #: Command lines, each with its effect.
    examples: tuple[tuple[str, str], ...]
    #: Import string of `run(options: argparse.Namespace) -> int`, which returns the exit code. The
    #: attribute may be a module's own; only a verb that is run has it imported.
    run: str
    #: Whether it starts a run, so that it takes the options of all followers, too.
    starts_run: bool = False

    @property
    def epilog(self) -> str:
        """The examples, for the end of its help."""
        lines = [f"  {typed}\n      {effect}" for typed, effect in self.examples]
        return "\n".join(["examples:", *lines])


class Follower(NamedTuple):
    """A reader of the history of a run that a verb starts, in addition to the display."""

    #: Each with the follower's name as its `dest`, where it leaves a list.
    options: tuple[Option, ...]
    #: Import string of `open(wanted, say) -> cli.progress.Feed`; none if the parent reads it all.
    open: str = ""
    #: Whether `genkidama parent` takes its options, too.
    of_parents: bool = False


_BEST = "play a run's best weights: train chooses them at its end (default)"


def option(name: str, help: str, **more: Any) -> Option:
    return name, {"help": help, **more}


def number(name: str, help: str, **more: Any) -> Option:
    return option(name, help, type=int, metavar="N", **more)


def flag(name: str, help: str) -> Option:
    return option(name, help, action="store_true")


def path(name: str, help: str, metavar: str = "DIR", **more: Any) -> Option:
    return option(name, help, type=Path, metavar=metavar, **more)


def file(help: str) -> Option:
    return path("file", help, metavar="FILE.toml|EXAMPLE", nargs="?")


def setting(example: str) -> Option:
    words = f"one setting, as {example}; repeatable"
    return option("--set", words, action="append", default=[], metavar="KEY=VALUE")


def shown_steps(options: Namespace) -> dict[str, Any]:
    """The setting of `DEMONSTRATIONS`, with paths that hold in any folder; nothing without it."""
    files: list[Path] | None = getattr(options, "demonstrations", None)  # not all verbs have it
    if files is None:
        return {}
    return {"algorithm.demonstrations": [str(file.absolute()) for file in files]}


LISTEN = option(
    "--listen",
    "the address at which the parent listens (default: 0.0.0.0:8765)",
    metavar="HOST:PORT",
    default="0.0.0.0:8765",
)
HOST = option(
    "--host",
    "name or address by which children reach it (default: this machine's address)",
    metavar="HOST",
)
QR = flag("--qr", "show the string or the link as a QR code on the terminal, too")
CREDENTIALS = path("--credentials", "certificate, key and tokens (default: ~/.config/genkidama)")
SEED = number("--seed", "the experiment's seed")
WEIGHTS_FROM = option(
    "--from",
    "begin a new run with the weights of a run's directory, a checkpoint file, zoo:NAME or a "
    "repository NAME/REPO of the Hugging Face Hub, and with its settings unless a file "
    "is given",
    dest="weights",
    metavar="DIR|FILE|NAME/REPO",
)
DEMONSTRATIONS = path(
    "--demonstrations",
    "files of play --record, to learn from as well (algorithm.demonstrations)",
    metavar="FILE",
    nargs="+",
)
OUT = path("--out", "the run directory (default: a new one under runs/)")
EPISODES = number(
    "--episodes", "length of the final evaluation (default: 500, of a device 10; 0 for none)"
)
ALLOW = option(
    "--allow",
    "a module of yours that the settings in that directory or file may name; "
    "repeatable, '*' for all (default: none)",
    metavar="MODULE",
    action="append",
    default=[],
)
JSON = flag("--json", "print one JSON object on standard output at the end")
DETERMINISTIC = flag("--deterministic", "take the most probable action, not a sampled one")
BROWSERS = flag(
    "--browsers", "admit browsers as children, too (docs/notes/page.md); prints the link"
)
WEIGHTS = (
    option("--best", _BEST, action="store_true", default=True),
    option("--newest", "play a run's newest weights", action="store_false", dest="best"),
)
