"""What may be typed: the verbs and their options."""

from __future__ import annotations

import re
import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest

from genkidama.cli.options import Verb, flag, number, path, setting
from genkidama.cli.parser import all_verbs, make_parser
from genkidama.config import plugin

VERBS = all_verbs()


def parsed(*words: str) -> Namespace:
    return make_parser().parse_args(words)


def test_every_verb_has_a_function_and_an_explanation_of_each_option() -> None:
    for verb in VERBS.values():
        assert callable(plugin.load(verb.run))
        assert verb.description.endswith(".")
        assert all(more["help"] for _, more in verb.options)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_that_can_be_typed(verb: str) -> None:
    examples = [typed for typed, _ in VERBS[verb].examples]
    assert any(f"genkidama {verb}" in typed for typed in examples)
    for typed in examples:
        command = typed[typed.index("genkidama") :].partition(")")[0]
        words = shlex.split(re.split(r" [<>]+ ", command)[0])
        assert words[0] == "genkidama"
        make_parser().parse_args(words[1:])


@pytest.mark.parametrize("words", [[], *([verb] for verb in VERBS)], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parsed(*words, "--help")
    said = capsys.readouterr().out
    assert said.startswith("usage: genkidama") and "options:" in said
    assert [line for line in said.splitlines() if len(line) > 80] == []


def test_a_parsed_verb_knows_its_name() -> None:
    options = parsed("train", "cart.toml", "--updates", "3", "--set", "seed=1")
    assert options.verb == "train"
    assert (options.file, options.children, options.episodes) == (Path("cart.toml"), 2, 500)
    assert (options.updates, options.set, options.json) == (3, ["seed=1"], False)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train"], {"file": None, "children": 2, "cores": None, "set": [], "episodes": 500}),
        (["train", "--set", "a=1", "--set", "b=2"], {"set": ["a=1", "b=2"]}),
        (["evaluate", "run"], {"targets": [Path("run")], "greedy": False, "seed": 0}),
        (["search"], {"nodes": 2, "listen": None, "no_figures": False}),
        (["launch", "--ray"], {"ray": True, "address": None, "children": None, "gpus": 0.0}),
        (["report", "run", "--figures", "x"], {"run": Path("run"), "figures": Path("x")}),
        (["plot", "a", "b"], {"runs": [Path("a"), Path("b")], "over": "steps", "out": None}),
        (["doctor"], {}),
    ],
    ids=lambda found: " ".join(found) if isinstance(found, list) else "",
)
def test_what_is_not_typed_has_the_value_that_help_speaks_of(
    words: list[str], expected: dict[str, Any]
) -> None:
    found = vars(parsed(*words))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "words",
    [[], ["train", "--children", "two"], ["evaluate"], ["launch"], ["report"]],
    ids=" ".join,
)
def test_words_that_fit_no_verb_end_with_its_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        parsed(*words)
    assert exit.value.code == 2
    assert capsys.readouterr().err.startswith("usage: genkidama")


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
    verb = Verb("help", "Helps.", (), (("genkidama help", "what it does"),), "x:run")
    assert verb.epilog == "examples:\n  genkidama help\n      what it does"
