"""The options of verbs, by what argparse makes of them."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from genkidama.cli.options import Verb, flag, number, path, setting


def test_each_kind_of_option_parses_what_it_says() -> None:
    parser = ArgumentParser()
    for name, more in (
        number("--count", "how many", default=2),
        flag("--loud", "say more"),
        path("--out", "where to"),
        setting("seed=1"),
    ):
        parser.add_argument(name, **more)
    found = parser.parse_args(["--set", "a=1", "--out", "x", "--set", "b=2"])
    assert (found.count, found.loud, found.out, found.set) == (2, False, Path("x"), ["a=1", "b=2"])


def test_examples_stand_at_the_end_of_a_verbs_help() -> None:
    verb = Verb("help", "Helps.", (), (("genkidama help", "what it does"),))
    assert verb.epilog == "examples:\n  genkidama help\n      what it does"
    assert Verb("help", "Helps.", ()).epilog == ""
