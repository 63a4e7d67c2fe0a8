"""Options that several commands on the thesis have."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_episodes", "add_places"]


def add_places(parser: argparse.ArgumentParser, results: Path, work: Path) -> None:
    """`--results` and `--work`."""
    parser.add_argument("--results", type=Path, default=results, help="a line for each run")
    parser.add_argument("--work", type=Path, default=work, help="what is under way")


def add_episodes(parser: argparse.ArgumentParser, default: int, of: str) -> None:
    """`--episodes`, at least 1."""
    text = f"{of} (default {default})"
    parser.add_argument("--episodes", type=_at_least_one, default=default, help=text)


def _at_least_one(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number of at least 1 is needed")
    return value
