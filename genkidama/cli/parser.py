"""The verbs of the core with their options, as data, and the parser of the command."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from genkidama._version import __version__
from genkidama.cli.options import (
    ALLOW,
    BROWSERS,
    CREDENTIALS,
    DEMONSTRATIONS,
    DETERMINISTIC,
    EPISODES,
    HOST,
    JSON,
    LISTEN,
    OUT,
    QR,
    SEED,
    WEIGHTS,
    WEIGHTS_FROM,
    Verb,
    file,
    flag,
    number,
    option,
    path,
    setting,
)
from genkidama.config import plugin
from genkidama.runtime.log import Parser

#: Help fits a terminal of 80 columns. `argparse` wraps the help of options, and nothing else.
_WIDTH = 79

#: The verbs of the core.
VERBS = {
    "train": Verb(
        "train a whole cluster on this machine",
        "Trains a whole cluster on this machine.",
        (
            file("the experiment (may be left out with --resume)"),
            number("--children", "child processes (default: 2)"),
            number(
                "--cores",
                "core processes of each child (default: all CPU cores, divided among the children)",
            ),
            number("--shards", "parent processes, each with a slice of the vector (default: 1)"),
            number("--updates", "stop after N exchanges per child (stop.updates)"),
            SEED,
            OUT,
            path("--resume", "continue this run"),
            WEIGHTS_FROM,
            DEMONSTRATIONS,
            BROWSERS,
            ALLOW,
            setting("child.exchange=free"),
            EPISODES,
            JSON,
        ),
        (
            ("genkidama train lunarlander", "an example, by its name (genkidama examples)"),
            (
                "genkidama train mine.toml --set stop.seconds=60 --out runs/first",
                "your own experiment (genkidama init), for a minute",
            ),
            ("genkidama train --resume runs/first", "continue that run"),
            ("genkidama train --from runs/first", "a new run that begins with its weights"),
        ),
        run="genkidama.cli.verbs:run_train",
        starts_run=True,
    ),
    "evaluate": Verb(
        "play episodes with a run's or a checkpoint's weights",
        "Plays episodes.",
        (
            path(
                "targets",
                "a run directory (its best checkpoint is taken), a search's (its best trial is), "
                "a file, or zoo:NAME; of several, the mean",
                metavar="DIR_OR_CHECKPOINT",
                nargs="+",
            ),
            number("--episodes", "number of episodes (default: 500, of a device 10)"),
            DETERMINISTIC,
            *WEIGHTS,
            number("--seed", "seed of the episodes (default: 0)", default=0),
            option(
                "--environment",
                "the environment to play (default: the experiment's; of EnvPool's, "
                "Gymnasium's of the same id)",
                metavar="ID",
            ),
            option(
                "--starts",
                "begin after up to N null actions, or where a file of recorded starts "
                "leads (docs/evaluation.md)",
                metavar="noop:N|FILE",
            ),
            number(
                "--choose",
                "of a run, judge each checkpoint by N episodes first and take the best",
                default=0,
            ),
            ALLOW,
            flag("--json", "print one JSON object on standard output and nothing else"),
        ),
        (
            ("genkidama evaluate runs/first", "500 episodes with the best weights of a run"),
            (
                "genkidama evaluate runs/first --episodes 20 --deterministic --json",
                "few episodes, the most probable actions, a result for programs",
            ),
        ),
        run="genkidama.cli.verbs:run_evaluate",
    ),
    "parent": Verb(
        "hold the weights for children on other machines",
        "Holds the weights for children on other machines, with TLS and tokens. "
        "At its first start it makes both, and prints the command to run on each other machine.",
        (
            path("file", "the experiment", metavar="FILE.toml|EXAMPLE"),
            LISTEN,
            HOST,
            CREDENTIALS,
            QR,
            BROWSERS,
            path("--out", "the run's directory; a run in it is resumed (default: a new one)"),
            DEMONSTRATIONS,
            setting("child.exchange=free"),
        ),
        (
            ("genkidama parent lunarlander --out runs/shelf", "an example, by its name"),
            (
                "genkidama parent mine.toml --host shelf.example --listen 0.0.0.0:9000",
                "children reach it by this name, on another port",
            ),
        ),
        run="genkidama.cli.access:parent",
    ),
    "join": Verb(
        "train on this machine for a parent elsewhere",
        "Trains on this machine for the parent of a join string.",
        (
            option(
                "string",
                "the output of `genkidama parent` or `genkidama token`; - reads it "
                "from standard input (default: $GENKIDAMA_JOIN)",
                nargs="?",
            ),
            option("--name", "this child's name", default=""),
            number("--cores", "core processes (default: as the experiment says)"),
            path("--state", "directory for this child's own state"),
            flag("--stay", "when a run is over, wait for the next one at the same address"),
            option(
                "--allow",
                "a module of yours that this child may import for the parent; "
                "repeatable, '*' for all (default: none)",
                metavar="MODULE",
                action="append",
                default=[],
            ),
        ),
        (
            (
                "genkidama join 'wss://*:TOKEN@HOST:8765#FINGERPRINT' --cores 2",
                "what the parent printed, with two cores of this machine",
            ),
            ("genkidama join - < join.txt", "the string is in no list of processes"),
        ),
        run="genkidama.cli.access:join",
    ),
    "token": Verb(
        "admit a machine, or exclude it",
        "Makes a token, writes its hash into the parent's tokens, and prints a join string. "
        "The parent reads its tokens at every handshake, so it need not be restarted.",
        (
            option(
                "name",
                "the name that it admits (default: * for any)",
                nargs="?",
                default="*",
                metavar="NAME",
            ),
            number("--days", "the token expires after N days (default: never)"),
            number(
                "--rotate",
                "the name's other tokens expire after N days (default of N: 7)",
                nargs="?",
                const=7,
            ),
            flag("--viewer", "a token that shows the run, and a link; it admits no child"),
            flag("--owner", "the same, which may also stop and steer the run (page, top)"),
            flag("--browser", "a child's token as a link, which makes a browser a child"),
            flag("--revoke", "remove the name's tokens, and make none"),
            flag("--list", "list the names with tokens, and make none"),
            LISTEN,
            HOST,
            CREDENTIALS,
            QR,
            path("--tokens-file", "the parent's tokens, if they are elsewhere", metavar="FILE"),
            path("--certificate-file", "its certificate, if it is elsewhere", metavar="FILE"),
        ),
        (
            ("genkidama token pi-01 --days 30", "for one machine, for a month"),
            ("genkidama token --viewer --qr", "a link to the run's page, for a phone's camera"),
            ("genkidama token pi-01 --revoke", "that machine may no longer join"),
        ),
        run="genkidama.cli.access:token",
    ),
    "signature": Verb(
        "print the digest of an experiment's network",
        "Prints the digest of an experiment's network, for parent.signature, and its parts.",
        (
            path("file", "the experiment", metavar="FILE.toml|EXAMPLE"),
            ALLOW,
            setting("network.hidden=[32]"),
        ),
        (("genkidama signature mine.toml", "the value for parent.signature"),),
        run="genkidama.cli.access:signature",
    ),
    "init": Verb(
        "write a first experiment, with comments",
        "Writes an experiment with comments, to be changed.",
        (
            path(
                "file",
                "the file to write (default: experiment.toml)",
                metavar="FILE.toml",
                nargs="?",
                default=Path("experiment.toml"),
            ),
            option(
                "--environment",
                "the environment to learn (default: LunarLander-v3)",
                metavar="ID",
                default="LunarLander-v3",
            ),
            option(
                "--way",
                "how children cooperate: they only act for one learner, average their weights, or "
                "do as in the thesis (default: act)",
                choices=("act", "average", "thesis"),
                default="act",
            ),
            option(
                "--period",
                "step duration in seconds of an environment that cannot be paused, such as a "
                "robot; init then builds it without playing it",
                metavar="SECONDS",
                type=float,
                default=0.0,
            ),
            option("--example", "copy an example instead", metavar="NAME"),
        ),
        (
            (
                "genkidama init mine.toml --environment my_env:Mine-v0",
                "for a module of this folder",
            ),
            ("genkidama init mine.toml --example lunarlander", "an example to change"),
        ),
        run="genkidama.cli.init:init",
    ),
    "examples": Verb(
        "list the examples",
        "Lists the examples, which can be trained by their names.",
        (option("name", "print this one", nargs="?", metavar="NAME"),),
        (("genkidama examples lunarlander > mine.toml", "a copy to change"),),
        run="genkidama.cli.init:list_examples",
    ),
    "completion": Verb(
        "print a script that completes this command in a shell",
        "Prints a script that completes this command in a shell.",
        (option("shell", "the shell", choices=("bash", "zsh", "fish")),),
        (
            (
                "echo 'eval \"$(genkidama completion bash)\"' >> ~/.bashrc",
                "bash, in every new shell",
            ),
            ("genkidama completion zsh > ~/.zfunc/_genkidama", "zsh, where ~/.zfunc is in fpath"),
            ("genkidama completion fish > ~/.config/fish/completions/genkidama.fish", "fish"),
        ),
        run="genkidama.cli.init:completion",
    ),
}

_EPILOG = """\
the first hour:
  genkidama train lunarlander        train an example on this machine
  genkidama init                     write your own experiment
  genkidama COMMAND --help           all options of a command, with examples
"""


def all_verbs() -> dict[str, Verb]:
    """The verbs of the core and of the built-in plug-ins, by name."""
    return {**VERBS, **{name: verb for name, verb in plugin.every("verbs") if name not in VERBS}}


def make_parser(
    verbs: dict[str, Verb] | None = None, only: str | None = None
) -> argparse.ArgumentParser:
    """The command's parser; the namespace that it returns has the name of its verb as `verb`.

    Args:
        verbs: the verbs by name; those of `all_verbs` by default.
        only: the one verb that gets its options, which saves half of the command's start.
    """
    parser = Parser(
        prog="genkidama",
        description="Trains one policy on many small machines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"genkidama {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    followers = [follower for _, follower in plugin.every("followers")]
    for name, verb in (all_verbs() if verbs is None else verbs).items():
        if only not in (None, name):
            commands.add_parser(name, help=verb.help, add_help=False)
            continue
        command = commands.add_parser(
            name,
            help=verb.help,
            description=textwrap.fill(verb.description, _WIDTH),
            epilog=verb.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for word, more in verb.options:
            command.add_argument(word, **more)
        for follower in followers:
            if verb.starts_run or (follower.of_parents and name == "parent"):
                for word, more in follower.options:
                    command.add_argument(word, **more)
        command.set_defaults(verb=name)
    return parser
