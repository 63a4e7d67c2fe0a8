"""docs/coming-from.md: each name of ours on it is one."""

from __future__ import annotations

import re

import msgspec

import genkidama
from genkidama.cli.parser import make_parser
from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.settings import SearchSettings
from tests.helpers import ROOT

PAGE = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")
OURS = [line.split(" | ", 1)[1] for line in PAGE.splitlines() if line.startswith("| `")]


def test_each_setting_exists() -> None:
    experiment = Experiment()
    sections = {name: getattr(experiment, name) for name in experiment.__struct_fields__}
    sections["search"] = SearchSettings
    known = {
        f"{name}.{key}"
        for name, section in sections.items()
        if isinstance(section, msgspec.Struct) or section is SearchSettings
        for key in section.__struct_fields__
    }
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)(?: = [^`]*)?`", " ".join(OURS)))
    named -= {"search.space", "genkidama.train", "genkidama.evaluate"}
    assert len(named) > 30 and named <= known, named - known


def test_each_command_and_each_name_of_python_exists() -> None:
    lines = re.findall(r"`genkidama ([a-z][^`]*)`", PAGE)
    parser = make_parser()
    for line in lines:
        if line != "launch":
            parser.parse_args(re.sub(r"=…", "=1", line).split() + ["x"] * (line == "search"))
    for name in set(re.findall(r"genkidama\.(\w+)", PAGE)):
        assert hasattr(genkidama, name), name
