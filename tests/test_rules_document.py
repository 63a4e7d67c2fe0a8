"""docs/rules.md: the rule in it, taken from the page and put to work."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.parent import Parent
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules.blend import Rule, Update
from tests.helpers import ROOT, running
from tests.parent.fake_child import FakeChild, vector
from tests.server.rules import check_rule, contribution
from tests.texts import code_block

PAGE = "docs/rules.md"
DOCUMENT = (ROOT / PAGE).read_text()
EXPERIMENT = Experiment.from_dict(tomllib.loads(code_block(PAGE, "toml", "[parent]")))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `stale.py`, from which everybody can import it."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "stale.py").write_text(code_block(PAGE, "python", "class Stale"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("stale", None)


def rule() -> Rule:
    return Parent(EXPERIMENT).server.trials.rule


def test_it_keeps_the_promises_of_every_rule() -> None:
    check_rule(type(rule()))


def test_a_table_names_each_field_of_a_contribution_and_each_method_of_a_rule() -> None:
    methods = [name for name in vars(Rule) if callable(getattr(Rule, name)) and name[0] != "_"]
    for name in [*Update.__struct_fields__, *methods]:
        assert re.search(rf"^\| `{name}[`(]", DOCUMENT, re.MULTILINE), name


def test_a_stale_push_counts_less_and_the_momentum_goes_on() -> None:
    subject = rule()
    parent = np.zeros(1, DTYPE)
    subject.apply(parent, contribution(np.full(1, 8.0, DTYPE), staleness=3))
    assert parent.tolist() == [2.0]  # α = 0.5 · 4^−0.5
    subject.apply(parent, contribution(np.full(1, 2.0, DTYPE)))
    assert parent.tolist() == [2.5]  # nothing is taken, and 0.25 · 2 is the momentum


async def test_a_parent_that_is_started_again_goes_on_with_it(tmp_path: Path) -> None:
    async with running(EXPERIMENT, tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        np.testing.assert_array_equal(await child.pushed(0.0), vector(0.0))
        np.testing.assert_array_equal(await child.pushed(8.0), vector(4.0))
    async with running(EXPERIMENT, tmp_path) as parent, FakeChild(parent.address, "b") as child:
        await child.enter()
        np.testing.assert_array_equal(await child.pushed(4.0), vector(5.0))


def test_a_wrong_option_is_told_in_one_line() -> None:
    wrong = EXPERIMENT.with_settings({"parent.rule_options": {"momentum": 1.0}})
    with pytest.raises(ConfigurationError, match="momentum at least 0 and below 1") as caught:
        Parent(wrong)
    assert "\n" not in str(caught.value)
