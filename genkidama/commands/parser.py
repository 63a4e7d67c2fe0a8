"""What may be typed behind `genkidama`: each verb with its options, as data."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import genkidama
from genkidama.doctor.arguments import add_arguments

__all__ = ["VERBS", "Verb", "make_parser"]

#: An option's name, and what else `argparse` is told of it.
Option: TypeAlias = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Verb:
    """A verb: its line in the list, the first sentence of its own help, and its options."""

    help: str
    description: str
    options: tuple[Option, ...]


def _number(name: str, help: str, **more: Any) -> Option:
    return name, {"type": int, "metavar": "N", "help": help, **more}


def _flag(name: str, help: str) -> Option:
    return name, {"action": "store_true", "help": help}


def _path(name: str, help: str, metavar: str = "DIR", **more: Any) -> Option:
    return name, {"type": Path, "metavar": metavar, "help": help, **more}


def _file(help: str) -> Option:
    return _path("file", help, metavar="FILE.toml", nargs="?")


def _setting(example: str) -> Option:
    more = {"action": "append", "default": [], "metavar": "KEY=VALUE"}
    return "--set", {"help": f"one setting, as {example}; repeatable", **more}


_LISTEN = (
    "--listen",
    {
        "metavar": "HOST:PORT",
        "default": "0.0.0.0:8765",
        "help": "where the parent listens (default: 0.0.0.0:8765)",
    },
)
_HOST = (
    "--host",
    {
        "metavar": "HOST",
        "help": "by what name or address children reach it (default: this machine's address)",
    },
)
_CREDENTIALS = _path("--credentials", "certificate, key and tokens (default: ~/.config/genkidama)")
_SEED = _number("--seed", "the experiment's seed")
_OUT = _path("--out", "the run directory (default: a new one under runs/)")
_EPISODES = _number(
    "--episodes", "length of the final evaluation (default: 500; 0 for none)", default=500
)
_JSON = _flag("--json", "print one JSON object on standard output at the end")

#: The verbs but `doctor`, which must be there when nothing else is.
VERBS = {
    "train": Verb(
        "train a whole cluster on this machine",
        "Trains a whole cluster on this machine.",
        (
            _file("the experiment (may be left out with --resume)"),
            _number("--children", "child processes (default: 2)", default=2),
            _number("--cores", "core processes of each child (default: the CPU cores, shared out)"),
            _number("--shards", "parent processes, each with a slice of the vector (default: 1)"),
            _number("--updates", "stop after so many exchanges a child (stop.updates)"),
            _SEED,
            _OUT,
            _path("--resume", "go on with this run"),
            _setting("child.exchange=free"),
            _EPISODES,
            _JSON,
        ),
    ),
    "evaluate": Verb(
        "play episodes with a run's or a checkpoint's weights",
        "Plays episodes.",
        (
            _path(
                "targets",
                "a run directory (its best checkpoint is taken) or a file; of several, the mean",
                metavar="DIR_OR_CHECKPOINT",
                nargs="+",
            ),
            _number("--episodes", "how many (default: 500)", default=500),
            _flag("--greedy", "take the most probable action instead of a sampled one"),
            _number("--seed", "the episodes follow from it (default: 0)", default=0),
            (
                "--environment",
                {
                    "metavar": "ID",
                    "help": "the environment to play (default: the experiment's; of EnvPool's, "
                    "Gymnasium's of the same id)",
                },
            ),
            (
                "--starts",
                {
                    "metavar": "noop:N|FILE",
                    "help": "begin after up to N null actions, or where a file of recorded starts "
                    "leads (docs/gorila.md)",
                },
            ),
            _number(
                "--choose",
                "of a run, judge each checkpoint by so many episodes first and take the best",
                default=0,
            ),
            _flag("--json", "print one JSON object on standard output and nothing else"),
        ),
    ),
    "search": Verb(
        "search for hyperparameters",
        "Searches for hyperparameters with HyperTrick.",
        (
            _file("an experiment with a [search] (not needed with --resume)"),
            _number(
                "--nodes",
                "child processes on this machine, one trial each (default: 2)",
                default=2,
            ),
            _number("--cores", "core processes of each node (default: the CPU cores, shared out)"),
            (
                "--listen",
                {
                    "metavar": "HOST:PORT",
                    "help": "let children on other machines take part, as 0.0.0.0:8765",
                },
            ),
            _SEED,
            _OUT,
            _path("--resume", "go on with this search"),
            _setting("search.trials=100"),
            _flag("--no-figures", "draw nothing at the end"),
            _flag(
                "--simulate",
                "show the rule and its rivals on the paper's toy problem; trains nothing",
            ),
        ),
    ),
    "launch": Verb(
        "train or search on a Ray cluster",
        "Trains or searches on a Ray cluster.",
        (
            _file("the experiment (may be left out with --resume)"),
            (
                "--ray",
                {
                    "action": "store_true",
                    "required": True,
                    "help": "on Ray: the only kind of cluster so far",
                },
            ),
            (
                "--address",
                {
                    "metavar": "ADDRESS",
                    "help": "the cluster's (default: $RAY_ADDRESS, or the one this machine "
                    "belongs to)",
                },
            ),
            _number("--children", "how many (default: one on each node that has enough CPUs)"),
            _number("--cores", "CPUs and core processes of each child (default: all of a node)"),
            (
                "--gpus",
                {
                    "type": float,
                    "default": 0.0,
                    "metavar": "N",
                    "help": "GPUs of each child (default: 0)",
                },
            ),
            _SEED,
            _path("--out", "the run directory, on this machine (default: a new one under runs/)"),
            _path("--resume", "go on with this run"),
            _setting("child.exchange=free"),
            _EPISODES,
            _JSON,
        ),
    ),
    "parent": Verb(
        "hold the weights for children on other machines",
        "Holds the weights for children on other machines, with TLS and tokens. "
        "At its first start it makes both, and prints what to type on each of those machines.",
        (
            _path("file", "the experiment", metavar="FILE.toml"),
            _LISTEN,
            _HOST,
            _CREDENTIALS,
            _path("--out", "the run's directory; a run in it goes on (default: a new one)"),
            _setting("child.exchange=free"),
        ),
    ),
    "join": Verb(
        "train on this machine for a parent somewhere",
        "Trains on this machine for the parent of a join string.",
        (
            (
                "string",
                {
                    "nargs": "?",
                    "help": "what `genkidama parent` or `genkidama token` prints; - reads it from "
                    "standard input (default: $GENKIDAMA_JOIN)",
                },
            ),
            ("--name", {"default": "", "help": "what this child is called"}),
            _number("--cores", "core processes (default: what the experiment says)"),
            _path("--state", "keep this child's own state there"),
            (
                "--allow",
                {
                    "metavar": "MODULE",
                    "action": "append",
                    "default": [],
                    "help": "a module of your own that the parent may have this child import; "
                    "repeatable, '*' for all (default: none)",
                },
            ),
        ),
    ),
    "token": Verb(
        "let a machine join, or no longer",
        "Makes a token, writes its hash into the parent's tokens, and prints a join string. "
        "The parent reads its tokens at every handshake, so it need not be started again.",
        (
            (
                "name",
                {
                    "nargs": "?",
                    "default": "*",
                    "metavar": "NAME",
                    "help": "whose token it is (default: * for any name)",
                },
            ),
            _number("--days", "the token ends after so many days (default: never)"),
            _number(
                "--rotate",
                "the name's other tokens end after so many days (default of N: 7)",
                nargs="?",
                const=7,
            ),
            _flag("--revoke", "take the name's tokens out, and make none"),
            _flag("--list", "show whose tokens there are, and make none"),
            _LISTEN,
            _HOST,
            _CREDENTIALS,
            _path("--tokens-file", "the parent's tokens, if they lie elsewhere", metavar="FILE"),
            _path("--certificate-file", "its certificate, if it lies elsewhere", metavar="FILE"),
        ),
    ),
    "signature": Verb(
        "which network an experiment has",
        "Prints the digest of an experiment's network, for parent.signature, and its parts.",
        (_path("file", "the experiment", metavar="FILE.toml"), _setting("network.hidden=[32]")),
    ),
    "report": Verb(
        "what a search has found, while it runs or afterwards",
        "Reports on a search.",
        (
            _path("run", "a search's run directory"),
            _path("--figures", "draw the figures there (PNG and SVG)"),
        ),
    ),
}


def make_parser() -> argparse.ArgumentParser:
    """The command's parser. What it parses has the name of its verb as `verb`."""
    parser = argparse.ArgumentParser(
        prog="genkidama", description="Trains one policy on many small machines."
    )
    parser.add_argument("--version", action="version", version=f"genkidama {genkidama.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, verb in VERBS.items():
        command = commands.add_parser(name, help=verb.help, description=verb.description)
        for option, more in verb.options:
            command.add_argument(option, **more)
        command.set_defaults(verb=name)
    command = commands.add_parser(
        "doctor",
        help="examine this machine and the way to its parent",
        description="Examines this machine, and the way to its parent.",
    )
    add_arguments(command)
    command.set_defaults(verb="doctor")
    return parser
