"""The searches that are compared: which are wanted, for how long, and what their rows come to."""

from __future__ import annotations

from studies import store
from studies.search.contestants import CONTESTANTS, plan
from studies.search.document import text
from studies.search.measure import _experiment
from tests.helpers import ROOT


def test_every_contestant_is_a_search_that_can_begin() -> None:
    for one in plan(list(CONTESTANTS), [4], None, ["search.phase_steps=2000"]):
        experiment = _experiment(one, 60.0)
        assert experiment.search is not None and experiment.seed == 4
        assert experiment.search.phase_steps == 2000 and experiment.search.seconds == 60.0
        assert experiment.search.sampler == one.sampler
    alike = {one.sampler for one in plan(list(CONTESTANTS), [1, 2, 3], "tpe")}
    assert alike == {"tpe"}


def test_the_page_is_that_of_the_rows() -> None:
    rows = [row for row in store.read(ROOT / "docs/results/search.jsonl") if not row["changes"]]
    assert text(rows) == (ROOT / "docs/results/search.md").read_text()
