"""`genkidama doctor`."""

from __future__ import annotations

from pathlib import Path

from genkidama.cli.options import Verb, path

_ROLE = "with --parent-role: "

DOCTOR = Verb(
    "examine this machine and the way to its parent",
    "Examines this machine, and the way to its parent.",
    (
        path(
            "file", "the child's TOML; with --parent-role, the experiment", "FILE.toml", nargs="?"
        ),
        (
            "--parent",
            {
                "metavar": "URL",
                "help": "where the parent listens: ws://HOST:PORT or wss://HOST:PORT",
            },
        ),
        (
            "--cores",
            {
                "metavar": "N",
                "help": "core processes: a number, or auto for one each CPU core",
            },
        ),
        (
            "--token-file",
            {
                "metavar": "FILE",
                "help": "holds this child's token (or: the environment variable GENKIDAMA_TOKEN)",
            },
        ),
        (
            "--ca-file",
            {
                "metavar": "FILE",
                "help": "PEM certificates of the authority that signed the parent's (default: the "
                "system's)",
            },
        ),
        (
            "--parent-role",
            {
                "action": "store_true",
                "help": "examine this machine as a parent: neither torch nor Box2D is needed",
            },
        ),
        (
            "--out",
            {
                "metavar": "DIR",
                "type": Path,
                "default": Path("runs"),
                "help": f"{_ROLE}where runs are kept (default: runs)",
            },
        ),
        ("--tokens-file", {"metavar": "FILE", "help": f"{_ROLE}names and tokens of its children"}),
        ("--certificate-file", {"metavar": "FILE", "help": f"{_ROLE}the parent's PEM certificate"}),
        ("--key-file", {"metavar": "FILE", "help": f"{_ROLE}its PEM private key"}),
        (
            "--json",
            {
                "action": "store_true",
                "help": "print one JSON object on standard output and nothing else",
            },
        ),
    ),
    (
        ("genkidama doctor", "can this machine do its part?"),
        ("genkidama doctor --parent wss://HOST:8765", "and does it reach that parent?"),
    ),
    run="genkidama.plugins.doctor.__main__:doctor",
)
