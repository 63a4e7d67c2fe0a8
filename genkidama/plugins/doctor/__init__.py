"""`genkidama doctor`: examines this machine, changes nothing on it, and says what to do.

It may read the machine, start processes and talk to a parent. It leaves nothing behind: no file, no
process, no child at the parent. A check imports packages beyond the standard library only when it
needs them, so the doctor runs on a machine that lacks some, and names them.

`python -m genkidama.plugins.doctor` is the same command without the rest of `genkidama`.
"""

from __future__ import annotations

from pathlib import Path

from genkidama.cli.options import Verb, flag, option, path
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(verbs={"doctor": "genkidama.plugins.doctor:DOCTOR"})

_ROLE = "with --parent-role: "


DOCTOR = Verb(
    "examine this machine and the way to its parent",
    "Examines this machine, and the way to its parent.",
    (
        path(
            "file", "the child's TOML; with --parent-role, the experiment", "FILE.toml", nargs="?"
        ),
        option(
            "--parent",
            "the join string, or an address, ws://HOST:PORT or wss://HOST:PORT "
            "(default: $GENKIDAMA_JOIN)",
            metavar="STRING",
        ),
        option("--cores", "core processes: a number, or auto for one each CPU core", metavar="N"),
        option(
            "--token-file",
            "holds this child's token (or: the environment variable GENKIDAMA_TOKEN)",
            metavar="FILE",
        ),
        option(
            "--ca-file",
            "PEM certificates of the authority that signed the parent's (default: the system's)",
            metavar="FILE",
        ),
        flag("--parent-role", "examine this machine as a parent; torch and Box2D are left out"),
        path("--out", f"{_ROLE}where runs are kept (default: runs)", default=Path("runs")),
        option("--tokens-file", f"{_ROLE}names and tokens of its children", metavar="FILE"),
        option("--certificate-file", f"{_ROLE}the parent's PEM certificate", metavar="FILE"),
        option("--key-file", f"{_ROLE}its PEM private key", metavar="FILE"),
        flag(
            "--bench", "measure this machine for half a minute, and print one line of JSON instead"
        ),
        flag("--json", "print one JSON object on standard output and nothing else"),
    ),
    (
        ("genkidama doctor", "can this machine do its part?"),
        (
            "genkidama doctor --parent 'wss://*:TOKEN@HOST:8765#FINGERPRINT'",
            "and does it reach that parent?",
        ),
        ("genkidama doctor --bench", "and how fast is it?"),
    ),
    run="genkidama.plugins.doctor.__main__:doctor",
)
