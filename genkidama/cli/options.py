"""The options of verbs, as data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

__all__ = [
    "ALLOW",
    "CREDENTIALS",
    "EPISODES",
    "HOST",
    "JSON",
    "LISTEN",
    "OUT",
    "SEED",
    "SINKS",
    "WEIGHTS",
    "Option",
    "Verb",
    "file",
    "flag",
    "number",
    "path",
    "setting",
]

#: An option's name, and what else `argparse` is told of it.
Option: TypeAlias = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Verb:
    """A verb: its line in the list, the first sentence of its own help, and its options."""

    help: str
    description: str
    options: tuple[Option, ...]
    #: What one may type, each with what it does.
    examples: tuple[tuple[str, str], ...] = ()

    @property
    def epilog(self) -> str:
        """The examples, for the end of its help."""
        lines = [f"  {typed}\n      {what}" for typed, what in self.examples]
        return "\n".join(["examples:", *lines]) if lines else ""


_BEST = "play a run's best weights by mean training return, if known (default)"


def number(name: str, help: str, **more: Any) -> Option:
    return name, {"type": int, "metavar": "N", "help": help, **more}


def flag(name: str, help: str) -> Option:
    return name, {"action": "store_true", "help": help}


def path(name: str, help: str, metavar: str = "DIR", **more: Any) -> Option:
    return name, {"type": Path, "metavar": metavar, "help": help, **more}


def file(help: str) -> Option:
    return path("file", help, metavar="FILE.toml|EXAMPLE", nargs="?")


def setting(example: str) -> Option:
    more = {"action": "append", "default": [], "metavar": "KEY=VALUE"}
    return "--set", {"help": f"one setting, as {example}; repeatable", **more}


LISTEN = (
    "--listen",
    {
        "metavar": "HOST:PORT",
        "default": "0.0.0.0:8765",
        "help": "where the parent listens (default: 0.0.0.0:8765)",
    },
)
HOST = (
    "--host",
    {
        "metavar": "HOST",
        "help": "by what name or address children reach it (default: this machine's address)",
    },
)
CREDENTIALS = path("--credentials", "certificate, key and tokens (default: ~/.config/genkidama)")
SEED = number("--seed", "the experiment's seed")
OUT = path("--out", "the run directory (default: a new one under runs/)")
SINKS = (
    path(
        "--tensorboard",
        "event files for TensorBoard (default DIR: tensorboard/ in the run's directory)",
        nargs="?",
        const=Path(),
    ),
    (
        "--log",
        {
            "action": "append",
            "default": [],
            "metavar": "SINK",
            "help": "carry the figures to wandb, mlflow, trackio or module:Class; repeatable "
            "(docs/sinks.md)",
        },
    ),
)
EPISODES = number(
    "--episodes", "length of the final evaluation (default: 500; 0 for none)", default=500
)
ALLOW = (
    "--allow",
    {
        "metavar": "MODULE",
        "action": "append",
        "default": [],
        "help": "a module of your own that the settings in that directory or file may have "
        "imported; repeatable, '*' for all (default: none)",
    },
)
JSON = flag("--json", "print one JSON object on standard output at the end")
WEIGHTS = (
    ("--best", {"action": "store_true", "default": True, "help": _BEST}),
    ("--newest", {"action": "store_false", "dest": "best", "help": "play a run's newest weights"}),
)
