"""What may be typed behind `genkidama doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path

from genkidama.commands.parser import make_parser
from genkidama.doctor.arguments import add_arguments


def test_the_doctor_takes_the_same_words_with_and_without_the_rest_of_genkidama() -> None:
    alone = argparse.ArgumentParser()
    add_arguments(alone)
    words = ["child.toml", "--cores", "2", "--parent-role", "--out", "there", "--json"]
    found = vars(alone.parse_args(words))
    assert found["file"] == Path("child.toml") and found["out"] == Path("there")
    assert (found["cores"], found["parent_role"], found["json"]) == ("2", True, True)
    assert vars(make_parser().parse_args(["doctor", *words])) == found | {"verb": "doctor"}


def test_what_is_not_typed_is_absent_but_the_directory_of_runs() -> None:
    alone = argparse.ArgumentParser()
    add_arguments(alone)
    found = vars(alone.parse_args([]))
    assert found.pop("out") == Path("runs")
    assert not any(found.values())
