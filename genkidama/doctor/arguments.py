"""What may be typed behind `genkidama doctor`. Whoever only asks for help imports no check."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Gives a parser the doctor's arguments."""
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE.toml",
        type=Path,
        help="the child's TOML; with --parent-role, the experiment",
    )
    parser.add_argument(
        "--parent",
        metavar="URL",
        help="where the parent listens: ws://HOST:PORT or wss://HOST:PORT",
    )
    parser.add_argument(
        "--cores", metavar="N", help="core processes: a number, or auto for one each CPU core"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="holds this child's token (or: the environment variable GENKIDAMA_TOKEN)",
    )
    parser.add_argument(
        "--ca-file",
        metavar="FILE",
        help="PEM certificates of the authority that signed the parent's (default: the system's)",
    )
    parser.add_argument(
        "--parent-role",
        action="store_true",
        help="examine this machine as a parent: neither torch nor Box2D is needed",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("runs"),
        help="with --parent-role: where runs are kept (default: runs)",
    )
    parser.add_argument(
        "--tokens-file", metavar="FILE", help="with --parent-role: names and tokens of its children"
    )
    parser.add_argument(
        "--certificate-file",
        metavar="FILE",
        help="with --parent-role: the parent's PEM certificate",
    )
    parser.add_argument(
        "--key-file", metavar="FILE", help="with --parent-role: its PEM private key"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object on standard output and nothing else",
    )
