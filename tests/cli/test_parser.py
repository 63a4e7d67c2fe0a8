"""What may be typed: the verbs and their options."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train"], {"file": None, "children": None, "cores": None, "set": [], "episodes": None}),
        (
            ["train", "x", "--set", "a=1", "--set", "b=2", "--updates", "3"],
            {"verb": "train", "file": Path("x"), "set": ["a=1", "b=2"], "updates": 3},
        ),
        (["evaluate", "run"], {"targets": [Path("run")], "deterministic": False, "seed": 0}),
        (["search"], {"children": None, "listen": None, "no_figures": False}),
        (["launch", "--ray"], {"ray": True, "address": None, "children": None, "gpus": 0.0}),
        (["report", "run", "--figures", "x"], {"run": Path("run"), "figures": Path("x")}),
        (["plot", "a", "b"], {"runs": [Path("a"), Path("b")], "over": "steps", "out": None}),
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
    [["train", "--children", "two"], ["evaluate"], ["launch"], ["report"]],
    ids=" ".join,
)
def test_words_that_fit_no_verb_end_with_its_usage(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        parsed(*words)
    assert exit.value.code == 2
    assert capsys.readouterr().err.startswith("usage: genkidama")
