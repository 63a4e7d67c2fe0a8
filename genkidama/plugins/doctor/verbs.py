"""`genkidama doctor`."""

from __future__ import annotations

from pathlib import Path

from genkidama.cli.options import Option, Verb, flag, path

_ROLE = "with --parent-role: "


def _text(name: str, metavar: str, help: str) -> Option:
    return name, {"metavar": metavar, "help": help}


DOCTOR = Verb(
    "examine this machine and the way to its parent",
    "Examines this machine, and the way to its parent.",
    (
        path(
            "file", "the child's TOML; with --parent-role, the experiment", "FILE.toml", nargs="?"
        ),
        _text(
            "--parent",
            "STRING",
            "the join string, or an address, ws://HOST:PORT or wss://HOST:PORT "
            "(default: $GENKIDAMA_JOIN)",
        ),
        _text("--cores", "N", "core processes: a number, or auto for one each CPU core"),
        _text(
            "--token-file",
            "FILE",
            "holds this child's token (or: the environment variable GENKIDAMA_TOKEN)",
        ),
        _text(
            "--ca-file",
            "FILE",
            "PEM certificates of the authority that signed the parent's (default: the system's)",
        ),
        flag(
            "--parent-role", "examine this machine as a parent: neither torch nor Box2D is needed"
        ),
        path("--out", f"{_ROLE}where runs are kept (default: runs)", default=Path("runs")),
        _text("--tokens-file", "FILE", f"{_ROLE}names and tokens of its children"),
        _text("--certificate-file", "FILE", f"{_ROLE}the parent's PEM certificate"),
        _text("--key-file", "FILE", f"{_ROLE}its PEM private key"),
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
