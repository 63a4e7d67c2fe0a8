"""What may be typed behind `genkidama`: each verb with its options, as data."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from genkidama._version import __version__
from genkidama.cli.access_options import ACCESS
from genkidama.cli.options import (
    ALLOW,
    EPISODES,
    JSON,
    OUT,
    SEED,
    SINKS,
    WEIGHTS,
    Verb,
    file,
    flag,
    number,
    path,
    setting,
)
from genkidama.cli.play import PLAY
from genkidama.plugins.doctor.__main__ import add_arguments
from genkidama.runtime.log import Parser

__all__ = ["DOCTOR", "OVER", "VERBS", "make_parser"]

#: Help fits a terminal of 80 columns. `argparse` breaks what it says of options, and nothing else.
_WIDTH = 79

#: The axes of `genkidama.runs.curves`, which imports NumPy.
OVER = ("steps", "seconds", "episodes", "updates")

#: The verbs but `doctor`, which must be there when nothing else is.
VERBS = {
    "train": Verb(
        "train a whole cluster on this machine",
        "Trains a whole cluster on this machine.",
        (
            file("the experiment (may be left out with --resume)"),
            number("--children", "child processes (default: 2)", default=2),
            number("--cores", "core processes of each child (default: the CPU cores, shared out)"),
            number("--shards", "parent processes, each with a slice of the vector (default: 1)"),
            number("--updates", "stop after so many exchanges a child (stop.updates)"),
            SEED,
            OUT,
            path("--resume", "go on with this run"),
            ALLOW,
            setting("child.exchange=free"),
            EPISODES,
            *SINKS,
            JSON,
        ),
        (
            ("genkidama train lunarlander", "an example, by its name (genkidama examples)"),
            (
                "genkidama train mine.toml --set stop.seconds=60 --out runs/first",
                "an experiment of one's own (genkidama init), for a minute",
            ),
            ("genkidama train --resume runs/first", "go on with it"),
        ),
    ),
    "evaluate": Verb(
        "play episodes with a run's or a checkpoint's weights",
        "Plays episodes.",
        (
            path(
                "targets",
                "a run directory (its best checkpoint is taken), a search's (its best trial is), "
                "or a file; of several, the mean",
                metavar="DIR_OR_CHECKPOINT",
                nargs="+",
            ),
            number("--episodes", "how many (default: 500)", default=500),
            flag("--greedy", "take the most probable action instead of a sampled one"),
            *WEIGHTS,
            number("--seed", "the episodes follow from it (default: 0)", default=0),
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
            number(
                "--choose",
                "of a run, judge each checkpoint by so many episodes first and take the best",
                default=0,
            ),
            ALLOW,
            flag("--json", "print one JSON object on standard output and nothing else"),
        ),
        (
            ("genkidama evaluate runs/first", "500 episodes with the best weights of a run"),
            (
                "genkidama evaluate runs/first --episodes 20 --greedy --json",
                "few episodes, the most probable actions, a result for programs",
            ),
        ),
    ),
    "play": PLAY,
    "search": Verb(
        "search for hyperparameters",
        "Searches for hyperparameters with HyperTrick.",
        (
            file("an experiment with a [search] (not needed with --resume)"),
            number(
                "--nodes",
                "child processes on this machine, one trial each (default: 2)",
                default=2,
            ),
            number("--cores", "core processes of each node (default: the CPU cores, shared out)"),
            (
                "--listen",
                {
                    "metavar": "HOST:PORT",
                    "help": "let children on other machines take part, as 0.0.0.0:8765",
                },
            ),
            SEED,
            OUT,
            path("--resume", "go on with this search"),
            ALLOW,
            setting("search.trials=100"),
            *SINKS,
            flag("--no-figures", "draw nothing at the end"),
        ),
        (
            ("genkidama search lunarlander/search", "an example, by its name"),
            (
                "genkidama parent mine.toml --out runs/search",
                "on other machines, each with genkidama join; then genkidama report",
            ),
            ("genkidama search --resume runs/search", "go on with it"),
        ),
    ),
    "launch": Verb(
        "train or search on a Ray cluster",
        "Trains or searches on a Ray cluster.",
        (
            file("the experiment (may be left out with --resume)"),
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
            number("--children", "how many (default: one on each node that has enough CPUs)"),
            number("--cores", "CPUs and core processes of each child (default: all of a node)"),
            (
                "--gpus",
                {
                    "type": float,
                    "default": 0.0,
                    "metavar": "N",
                    "help": "GPUs of each child (default: 0)",
                },
            ),
            SEED,
            path("--out", "the run directory, on this machine (default: a new one under runs/)"),
            path("--resume", "go on with this run"),
            ALLOW,
            setting("child.exchange=free"),
            EPISODES,
            *SINKS,
            JSON,
        ),
        (
            ("genkidama launch lunarlander --ray", "a child on each node of the cluster here"),
            (
                "genkidama launch mine.toml --ray --address ray://HEAD:10001 --children 8",
                "eight children on another cluster",
            ),
        ),
    ),
    **ACCESS,
    "report": Verb(
        "what a search has found, while it runs or afterwards",
        "Reports on a search.",
        (
            path("run", "a search's run directory"),
            path("--figures", "draw the figures there (PNG and SVG)"),
        ),
        (("genkidama report runs/search --figures figures", "the text, and the figures as files"),),
    ),
    "plot": Verb(
        "draw how runs learned",
        "Draws the learning curves and diagnostics of runs, as PNG and SVG; of a single one its "
        "children, too. Runs that differ in their seeds alone are one line with a band.",
        (
            path("runs", "run directories, or one search's", nargs="+"),
            ("--over", {"choices": OVER, "default": "steps", "help": "what is on the axis"}),
            path("--out", "where to (default: figures/ in a single run's directory, or here)"),
        ),
        (
            ("genkidama plot runs/first", "one run: learning, children, diagnostics, returns"),
            ("genkidama plot runs/a-* runs/b-* --over seconds", "two settings, several seeds each"),
        ),
    ),
    "export": Verb(
        "carry a run's figures to TensorBoard, W&B, MLflow or trackio",
        "Carries the figures of a run that has ended, or of what there is of it, to other tools.",
        (path("run", "a run directory"), *SINKS),
        (("genkidama export runs/first --tensorboard", "then: tensorboard --logdir runs"),),
    ),
    "init": Verb(
        "write a first experiment, with comments",
        "Writes an experiment with comments, to be changed.",
        (
            path(
                "file",
                "where to (default: experiment.toml)",
                metavar="FILE.toml",
                nargs="?",
                default=Path("experiment.toml"),
            ),
            (
                "--environment",
                {
                    "metavar": "ID",
                    "default": "LunarLander-v3",
                    "help": "what is learned (default: LunarLander-v3)",
                },
            ),
            ("--example", {"metavar": "NAME", "help": "copy an example instead"}),
        ),
        (
            (
                "genkidama init mine.toml --environment my_env:Mine-v0",
                "for a module of this folder",
            ),
            ("genkidama init mine.toml --example lunarlander", "an example to change"),
        ),
    ),
    "examples": Verb(
        "list the examples",
        "Lists the examples, which can be trained by their names.",
        (("name", {"nargs": "?", "metavar": "NAME", "help": "print this one"}),),
        (("genkidama examples lunarlander > mine.toml", "a copy to change"),),
    ),
    "completion": Verb(
        "print a script that completes this command in a shell",
        "Prints a script that completes this command in a shell.",
        (("shell", {"choices": ("bash", "zsh", "fish"), "help": "for which shell"}),),
        (
            (
                "echo 'eval \"$(genkidama completion bash)\"' >> ~/.bashrc",
                "bash, in every new shell",
            ),
            ("genkidama completion zsh > ~/.zfunc/_genkidama", "zsh, where ~/.zfunc is in fpath"),
            ("genkidama completion fish > ~/.config/fish/completions/genkidama.fish", "fish"),
        ),
    ),
}

#: Its options are its own: it must be there when nothing else is.
DOCTOR = Verb(
    "examine this machine and the way to its parent",
    "Examines this machine, and the way to its parent.",
    (),
    (
        ("genkidama doctor", "can this machine do its part?"),
        ("genkidama doctor --parent wss://HOST:8765", "and does it reach that parent?"),
    ),
)

_EPILOG = """\
the first hour:
  genkidama train lunarlander        train an example on this machine
  genkidama init                     write an experiment of one's own
  genkidama COMMAND --help           all options of a command, with examples
"""


def make_parser() -> argparse.ArgumentParser:
    """The command's parser. What it parses has the name of its verb as `verb`."""
    parser = Parser(
        prog="genkidama",
        description="Trains one policy on many small machines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"genkidama {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, verb in VERBS.items():
        command = commands.add_parser(
            name,
            help=verb.help,
            description=textwrap.fill(verb.description, _WIDTH),
            epilog=verb.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option, more in verb.options:
            command.add_argument(option, **more)
        command.set_defaults(verb=name)
    command = commands.add_parser(
        "doctor",
        help=DOCTOR.help,
        description=DOCTOR.description,
        epilog=DOCTOR.epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(command)
    command.set_defaults(verb="doctor")
    return parser
