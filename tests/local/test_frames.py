"""How a standing is laid out on a terminal's columns and rows."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from genkidama.diagnostics import DIAGNOSTICS
from genkidama.events import Left, Started, Stopped
from genkidama.local.frames import frame
from genkidama.local.tries import Tries
from genkidama.standing import Standing
from genkidama.tuning.standing import SearchStanding
from tests.helpers import small
from tests.stories import PLAN, assigned, exchange, join, measures, report


def drawn(standing: Any, now: float, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(frame(standing, now, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def run(children: int = 3, name: str = "child", **figures: float) -> Standing:
    standing = Standing(small(stop={"updates": 100, "mean_return": 195}))
    standing.take(Started(time=0.0, run="small-20261122-120000", software="1"))
    names = [f"{name}-{number}" for number in range(1, children + 1)]
    for child in names:
        standing.take(join(1.0, child))
    for turn in range(1, 41):
        child = names[turn % children]
        standing.take(exchange(1.0 + turn, turn, 1000 * turn, 9 * turn, 3.0 * turn, child))
    if figures:
        standing.take(measures(41.0, names[0], **figures))
    return standing


def search(nodes: int = 2) -> SearchStanding:
    standing = SearchStanding(small(search=PLAN))
    for number in range(nodes):
        standing.take(join(0.0, f"node-{number}"))
        standing.take(assigned(0.0, number, f"node-{number}"))
    standing.take(report(30.0, 0, 7.0))
    standing.take(report(60.0, 1, 9.0))
    return standing


def test_a_run_on_the_smallest_terminal() -> None:
    standing = run(2, pps=2950.0, lag=1.25, kl=0.5, too_old=3.0)
    standing.take(Left(time=41.5, child="child-2", reason="closed with 1006 " + "very " * 40))
    rows = drawn(standing, 42.0, 80, 24)
    assert rows[0] == "CartPole-v1 · a3c · run small-20261122-120000"
    assert rows[1].startswith("███") and rows[1].endswith("░  40% · 0:41 · at most 1:03 left")
    assert len(rows[1]) == 80
    assert rows[2].startswith("return   120.0 of 195  ▁") and rows[2].endswith("█")
    assert rows[3] == "speed    1,000 steps/s · 40,000 steps · 360 episodes · update 40"
    assert rows[4] == "measures PPS 2,950 · lag 1.25 · KL of children 0.5 · too old 3"
    assert rows[5] == ""
    assert rows[6].split() == ["child", "state", "exchanged", "staleness", "steps/s"]
    assert rows[7].split() == ["child-1", "training", "1.0", "s", "ago", "0", "500"]
    assert rows[8].startswith("child-2  away: closed with 1006 very very ")
    assert "… " in rows[8]
    assert len(rows) == 9


def test_children_are_done_when_their_run_is() -> None:
    standing = run(2)
    standing.take(Left(time=41.5, child="child-2", reason="closed"))
    standing.take(Stopped(time=42.0, reason="the goal is reached"))
    assert [row.split()[1] for row in drawn(standing, 42.0, 80, 24)[-2:]] == ["done", "away:"]


def test_a_wide_terminal_shows_what_each_child_measures() -> None:
    rows = drawn(run(2, loss=-0.0123, pps=2950.0), 42.0, 200, 60)
    assert rows[4:6] == ["learning loss -0.0123", "measures PPS 2,950"]
    assert rows[7].split()[-2:] == ["steps", "measures"]
    assert rows[8].endswith("loss -0.0123  PPS 2,950")


def test_diagnostics_take_as_many_rows_as_they_need() -> None:
    names = [name for name in DIAGNOSTICS if name not in ("td_error", "q_mean", "epsilon")]
    figures = dict.fromkeys(names, 0.125) | {"samples": 9.0}
    rows = drawn(run(2, **figures), 42.0, 80, 24)
    assert rows[4].startswith("learning loss 0.125 · policy loss 0.125 · value loss 0.125")
    shown = " · ".join(row[9:].rstrip() for row in rows[4:7]).split(" · ")
    assert len(shown) == len(names) and shown[-1] == "episode length 0.125"
    assert {"KL 0.125", "lr 0.125", "explained variance 0.125"} < set(shown)
    assert rows[7] == "" and not any("samples" in row for row in rows)


def test_children_that_do_not_fit_are_counted() -> None:
    rows = drawn(run(40), 42.0, 80, 24)
    assert len(rows) == 23  # one is the cursor's
    assert rows[-1].split() == ["…", "and", "24", "more"]
    assert sum(row.startswith("child-") for row in rows) == 16


def test_a_search_shows_what_its_nodes_train() -> None:
    rows = drawn(search(), 61.0, 80, 24)
    assert rows[0] == "CartPole-v1 · hypertrick"
    assert rows[2] == "trials   2 of 4 trials · 2 running"
    assert rows[3].startswith("best     9.0 (trial 1)  ▁")
    assert rows[6].split() == ["node", "state", "exchanged", "trial", "phase", "return"]
    assert rows[7].split() == ["node-0", "joined", "–", "0", "1", "of", "2"]


def test_a_search_shows_how_its_leading_trial_learns() -> None:
    standing = search()
    for number, value in ((0, 3.0), (1, 5.0)):
        for event in (
            exchange(61.0, mean=value, child=f"node-{number}"),
            measures(61.0, f"node-{number}", entropy=value / 8, approximate_kl=0.25, samples=9.0),
        ):
            event.trial = number
            standing.take(event)
    rows = drawn(standing, 61.0, 80, 24)
    assert rows[5] == "learning trial 1 · entropy 0.625 · KL 0.25"
    assert rows[8].split() == ["node-0", "training", "0.0", "s", "ago", "0", "1", "of", "2", "3.0"]
    rows = drawn(standing, 61.0, 120, 24)
    assert rows[8].endswith("3.0  entropy 0.375  KL 0.25")
    standing.take(assigned(62.0, 2, "node-1"))  # of which nothing is known yet
    assert drawn(standing, 62.0, 80, 24)[5].startswith("learning trial 0 · entropy 0.375")


def test_an_evaluation_shows_how_far_it_is() -> None:
    tries = Tries(4)
    tries.begin(0.0)
    tries.take(10.0, 1.0)
    tries.take(20.0, 2.0)
    rows = drawn(tries, 2.0, 80, 24)
    assert rows[0] == "evaluating 2 of 4 episodes"
    assert rows[1].endswith(" 50% · 0:02 · about 0:02 left")
    assert rows[2] == "return   15.0 ± 5.0 · minimum 10.0"


def test_the_end_is_said() -> None:
    standing = run()
    standing.take(Stopped(time=42.0, reason="100 updates done"))
    assert drawn(standing, 42.0, 80, 24)[1].endswith(" · 0:41 · ended")


@pytest.mark.parametrize("size", [(80, 24), (120, 24), (200, 60)], ids=str)
@pytest.mark.parametrize("standing", [run(60, loss=1.0), search(60)], ids=["run", "search"])
def test_a_frame_fits(standing: Standing | SearchStanding, size: tuple[int, int]) -> None:
    rows = drawn(standing, 90.0, *size)
    assert max(map(cell_len, rows)) <= size[0] and len(rows) < size[1]


@settings(max_examples=40)
@given(
    width=st.integers(8, 220),
    height=st.integers(2, 60),
    children=st.integers(1, 70),
    name=st.text("a漢-é", min_size=1, max_size=30),
    value=st.floats(allow_nan=True),
)
def test_a_frame_fits_whatever_the_terminal(
    width: int, height: int, children: int, name: str, value: float
) -> None:
    standing = run(children, name, odd_measure=value, pps=1e9)
    rows = drawn(standing, 1e6, width, height)
    assert max(map(cell_len, rows)) <= width
    assert len(rows) <= max(1, height - 1)
