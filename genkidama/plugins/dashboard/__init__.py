"""The web page of a run: status, feed, metrics, gallery of finished runs."""

from __future__ import annotations

from typing import Any

from genkidama.cli.options import Verb, flag, option, path
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    observers={"dashboard": "genkidama.plugins.dashboard.endpoint:Dashboard"},
    verbs={"top": "genkidama.plugins.dashboard:TOP", "serve": "genkidama.plugins.dashboard:SERVE"},
)

TOP = Verb(
    "show a run in this terminal, from anywhere",
    "Shows a run in this terminal, from anywhere, and reconnects after the parent was away.",
    (
        option(
            "url",
            "http://HOST:PORT, or what `genkidama token --viewer` or --owner prints; - reads "
            "it from standard input (default: $GENKIDAMA_VIEW)",
            nargs="?",
            metavar="URL",
        ),
        flag("--once", "print the run once, and end"),
        option(
            "--command",
            "with an owner's token: stop, checkpoint, extend, extend=0.2 (by a fifth of each "
            "limit), film, exclude=CHILD or admit=CHILD; and end",
            metavar="COMMAND",
        ),
    ),
    (
        ("genkidama top http://127.0.0.1:8765", "a parent on this machine"),
        ("genkidama top - < runs/first/owner", "the same, with its owner's keys"),
        ("genkidama top - --command stop < runs/first/owner", "ends the run"),
    ),
    run="genkidama.plugins.dashboard.top:top",
)

SERVE = Verb(
    "show runs in a browser, without a parent",
    "Shows runs in directories in a browser on this machine: one run, or several to compare.",
    (
        path("runs", "run directories, or folders of such, as runs/", nargs="+"),
        option(
            "--listen",
            "the page's address, only for this machine (default: 127.0.0.1:8766)",
            metavar="HOST:PORT",
            default="127.0.0.1:8766",
        ),
    ),
    (("genkidama serve runs/", "all runs in this folder, side by side"),),
    run="genkidama.plugins.dashboard:run_serve",
)


def run_serve(options: Any) -> int:
    """Shows runs in directories, in a browser on this machine."""
    from genkidama.plugins.dashboard.run_browser import show

    show(options.runs, options.listen, lambda line: print(line, flush=True))
    return 0
