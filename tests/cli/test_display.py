"""Displays on real pseudo-terminals, read by pyte, and below a notebook's cell."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import types
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from genkidama.cli import progress as module
from genkidama.cli.display import evaluation_frame, frame
from genkidama.cli.progress import EvaluationProgress, Progress
from genkidama.protocol.diagnostics import DIAGNOSTICS
from genkidama.runs.status import Facts, RunStatus
from genkidama.server.events import Left, PushesRefused, Started, Stopped
from tests.helpers import ROOT, small
from tests.stories import PLAN, as_json, assigned, exchange, join, leave, lines, measures, report
from tests.terminals import Terminal, in_terminal

#: A run of thirty children whose display is drawn at each event, and what is said meanwhile; or a
#: search, or an evaluation. Each that is asked for, one after the other.
STORY = """
import sys
from genkidama.config.experiment import Experiment
from genkidama.server.events import Measures, Started, Stopped
from genkidama.cli.progress import EvaluationProgress, Progress
from tests.stories import PLAN, assigned, exchange, join

def evaluation():
    with EvaluationProgress(8) as progress:
        for number in range(8):
            progress(float(number))
            progress._surface._live.refresh()

def run(search):
    cart = {"environment": {"id": "CartPole-v1"}}
    goal = {"search": PLAN} if search else {"stop": {"updates": 400, "mean_return": 195}}
    progress = Progress(Experiment.from_dict(cart | goal))
    progress.take(Started(time=0.0, run="small-20261122-120000", software="1"))
    names = [f"child-{number}" for number in range(30)]
    for number, name in enumerate(names):
        progress.take(join(1.0, name))
        if search:
            progress.take(assigned(1.0, number % 4, name))
    for turn in range(1, 7):
        steps, episodes = 12345678 * turn, 9876 * turn
        event = exchange(1.0 + turn, turn, steps, episodes, 30.0 * turn, names[turn % 30])
        if search:
            event.trial = turn % 4
        progress.take(event)
        figures = {"pps": 29504.3, "tps": 5904.2, "lag": 1.24, "entropy": 0.53, "loss": -0.0123}
        progress.take(Measures(time=1.0 + turn, backend="ga3c", child=names[0], figures=figures))
        if progress._surface._live:
            progress._surface._live.refresh()
        if turn == 3:
            progress.say("something to know")
    progress.take(Stopped(time=14.0, reason="all is done"))
    progress.close()
    progress.say("ended: all is done")

for what in sys.argv[1:]:
    run(what == "search") if what != "evaluation" else evaluation()
    print("\\x1e", end="", file=sys.stderr, flush=True)
"""


@cache
def played(size: tuple[int, int], *what: str) -> dict[str, Terminal]:
    """What a terminal of this size gets of each, from one process."""
    found = in_terminal([sys.executable, "-c", STORY, *what], *size, folder=ROOT)
    assert found.code == 0, found.text
    parts = b"".join(found.pieces).split(b"\x1e")
    return {
        name: replace(found, pieces=[part]) for name, part in zip(what, parts[:-1], strict=True)
    }


def on_the_smallest(what: str) -> Terminal:
    return played((80, 24), "run", "search", "evaluation")[what]


def fitting(found: Terminal, drawn: int) -> list[str]:
    """Its lines: none of the display is wrapped, and none is left behind.

    A terminal with one column more would show the very same lines, so none was broken at the edge
    of this one.
    """
    lines = found.lines
    wider = found.read(found.columns + 1)
    assert [line for line in lines if line] == [line for line in wider if line]
    titles = [line for line in lines if "CartPole-v1 · " in line or "evaluating" in line]
    assert len(titles) == 1, lines
    assert found.text.count("\x1b[2K") >= drawn  # so many rows were written over
    assert found.text.count("\x1b[?25l") == found.text.count("\x1b[?25h") == 1  # the cursor
    return lines


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=str)
def test_a_display_is_drawn_over_and_over_in_its_place(size: tuple[int, int]) -> None:
    found = on_the_smallest("run") if size == (80, 24) else played(size, "run")["run"]
    shown = fitting(found, drawn=100)
    text = "\n".join(shown)
    assert text.count("something to know") == text.count("ended: all is done") == 1
    assert len([line for line in shown if line]) <= size[1] + 3
    assert re.search(r"^return +180\.0, goal 195  ▁.*█$", text, re.MULTILINE)
    assert ("and 16 more" in text) == (size[1] == 24)
    assert "loss -0.0123" in text


def test_a_search_is_drawn_in_its_place() -> None:
    fitting(on_the_smallest("search"), drawn=50)


def test_an_evaluation_is_drawn_in_its_place() -> None:
    shown = fitting(on_the_smallest("evaluation"), drawn=15)
    assert shown[0] == "evaluating 8 of 8 episodes"
    assert shown[2] == "return   3.5 ± 2.3 · minimum 0.0"


@pytest.mark.slow
def test_a_real_run_on_a_real_terminal(tmp_path: Path) -> None:
    (tmp_path / "cart.toml").write_text(small(stop={"seconds": 4.0}).to_toml())
    command = [sys.executable, "-m", "genkidama", "train", "cart.toml", "--episodes", "5"]
    found = in_terminal(command, 80, 24, folder=tmp_path)
    assert found.code == 0, found.text
    said = [line for line in found.lines if line]
    display = [line for line in said if line.startswith(("CartPole-v1 · ", "child-", "return"))]
    assert len(display) == len(set(display))
    assert "ended: 4 seconds are over" in said
    assert max(len(line) for frame in found.frames for line in frame) <= 80


@pytest.mark.slow
def test_interrupted_it_gives_the_cursor_back(tmp_path: Path) -> None:
    (tmp_path / "cart.toml").write_text(small().to_toml())
    told: list[int] = []

    def interrupt(process: subprocess.Popen[bytes], terminal: Terminal) -> None:
        if not told and "steps/s" in terminal.text:
            told.append(1)
            process.send_signal(signal.SIGINT)

    command = [sys.executable, "-m", "genkidama", "train", "cart.toml"]
    found = in_terminal(command, 80, 24, folder=tmp_path, meanwhile=interrupt)
    assert (told, found.code) == ([1], 130)
    assert found.text.count("\x1b[?25l") == found.text.count("\x1b[?25h") == 1


def test_in_a_notebook_one_cell_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            shown.append(content)

    def show(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append(content)
        return Handle()

    python = types.ModuleType("IPython")
    python.get_ipython = lambda: types.SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    python.display = types.SimpleNamespace(display=show)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", python)
    assert module._kind_of(None) == "notebook"
    progress = Progress(small(stop={"updates": 10}))
    story: list[Any] = lines(join(0.0), exchange(1.0), exchange(2.0, 5.0), measures(2.0, loss=0.5))
    for line in story:
        progress(line)
    progress.close()
    assert len(shown) == 2  # the first at once, others only after a while, and the end
    assert "<pre>" in shown[-1]["text/html"] and "exchange 5" in shown[-1]["text/html"]
    assert " 50% · " in shown[-1]["text/plain"]


# Frames.


def drawn(status: RunStatus, now: float, width: int, height: int, *notes: str) -> list[str]:
    return printed(frame(as_json(status.snapshot(now)), width, height, notes), width, height)


def printed(found: RenderableType, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(found)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def run(children: int = 3, name: str = "child", **figures: float) -> RunStatus:
    status = RunStatus(small(stop={"updates": 100, "mean_return": 195}))
    status.take([Started(time=0.0, run="small-20261122-120000", software="1")])
    names = [f"{name}-{number}" for number in range(1, children + 1)]
    status.take(join(1.0, child) for child in names)
    for turn in range(1, 41):
        child = names[turn % children]
        status.take([exchange(1.0 + turn, turn, 1000 * turn, 9 * turn, 3.0 * turn, child)])
    if figures:
        status.take([measures(41.0, names[0], **figures)])
    return status


def search(nodes: int = 2) -> RunStatus:
    status = RunStatus(small(search=PLAN))
    for number in range(nodes):
        status.take([join(0.0, f"node-{number}"), assigned(0.0, number, f"node-{number}")])
    status.take([report(30.0, 0, 7.0), report(60.0, 1, 9.0)])
    return status


def test_a_run_on_the_smallest_terminal() -> None:
    status = run(2, pps=2950.0, lag=1.25, kl=0.5, too_old=3.0)
    status.take([Left(time=41.5, child="child-2", reason="closed with 1006 " + "very " * 40)])
    rows = drawn(status, 42.0, 80, 24)
    assert rows[0] == "CartPole-v1 · a3c · blend · run small-20261122-120000 · training"
    assert rows[1].startswith("███") and rows[1].endswith("░  40% · 0:41 · at most 1:03 left")
    assert len(rows[1]) == 80
    assert rows[2].startswith("return   120.0, goal 195  ▁") and rows[2].endswith("█")
    assert rows[3] == "speed    1,000 steps/s · 40,000 steps · 360 episodes · exchange 40"
    assert rows[4] == "measures PPS 2,950 · lag 1.25 · KL of children 0.5 · too old 3"
    assert rows[5] == ""
    assert rows[6].split() == ["child", "state", "exchanged", "staleness", "steps/s"]
    assert rows[7].split() == ["child-1", "training", "1.0", "s", "ago", "0", "500"]
    assert rows[8].startswith("child-2  away: closed with 1006 very very ")
    assert "… " in rows[8]
    assert len(rows) == 9


def test_children_are_done_when_their_run_is() -> None:
    status = run(2)
    status.take([Left(time=41.5, child="child-2", reason="closed")])
    status.take([Stopped(time=42.0, reason="the goal is reached")])
    rows = drawn(status, 42.0, 80, 24)
    assert [row.split()[1] for row in rows[-2:]] == ["done", "away:"]
    assert rows[1].endswith(" · 0:41 · ended")


def test_a_wide_terminal_shows_what_each_child_measures() -> None:
    rows = drawn(run(2, loss=-0.0123, pps=2950.0), 42.0, 200, 60)
    assert rows[4:6] == ["learning loss -0.0123", "measures PPS 2,950"]
    assert rows[7].split()[-3:] == ["steps", "exchanges", "measures"]
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


def test_a_search_shows_its_trials() -> None:
    status = search()
    status.take([leave(60.5, "node-0")])
    rows = drawn(status, 61.0, 80, 24)
    assert rows[0] == "CartPole-v1 · a3c · HyperTrick · training"
    assert rows[2] == "trials   2 of 4 trials · 2 running"
    assert rows[3].startswith("best     9.0 (trial 1)  ▁")
    assert rows[6].split() == ["trial", "state", "node", "return", "score", "phases", "settings"]
    assert rows[7].split() == ["1", "running", "pi", "–", "9.0", "1", "of", "2"]


def test_a_search_shows_how_its_leading_trial_learns() -> None:
    status = search()
    for number, value in ((0, 3.0), (1, 5.0)):
        events = [
            exchange(61.0, mean=value, child=f"node-{number}"),
            measures(61.0, f"node-{number}", entropy=value / 8, approximate_kl=0.25, samples=9.0),
        ]
        for event in events:
            event.trial = number
        status.take(events)
    rows = drawn(status, 61.0, 80, 24)
    assert rows[5] == "learning trial 1 · entropy 0.625 · KL 0.25"
    assert rows[8].split()[:5] == ["1", "running", "pi", "5.0", "9.0"]
    status.take([assigned(62.0, 2, "node-1")])  # of which nothing is known yet
    rows = drawn(status, 62.0, 80, 24)
    assert rows[5].startswith("learning trial 0 · entropy 0.375")
    assert rows[8].split() == ["2", "running", "node-1", "–", "–", "0", "of", "2"]
    status.take([leave(63.0, "node-1")])
    assert drawn(status, 63.0, 80, 24)[8].split()[2:4] == ["node-1", "(away)"]


def test_an_evaluation_shows_how_far_it_is() -> None:
    progress = EvaluationProgress(4, file=io.StringIO())
    for value in (10.0, 20.0):
        progress(value)
    found = progress.document(0.0)
    found["run"] |= {"elapsed": 2.0, "left": 2.0}
    rows = printed(evaluation_frame(found, 80, 24), 80, 24)
    assert rows[0] == "evaluating 2 of 4 episodes"
    assert rows[1].endswith(" 50% · 0:02 · about 0:02 left")
    assert rows[2] == "return   15.0 ± 5.0 · minimum 10.0"


def test_what_only_a_parent_knows_is_shown_too() -> None:
    status = run(2)
    status.take([PushesRefused(time=41.0, child="x", code="token", reason="none", count=3)])
    status.take([PushesRefused(time=41.0, child="vm", code="name", reason="in use")])
    facts = Facts(cores=4, round_trip=0.0012, last_return=7.0, bytes_in=31_000_000, address="::1")
    found = as_json(status.snapshot(42.0, lambda _: facts))
    rows = printed(frame(found, 200, 24, ["the parent is away"]), 200, 24)
    assert rows[4:6] == ["refused  token 3", "the parent is away"]
    for words in ("cores", "1.2 ms", "31 MB", "7.0", "::1"):
        assert words in "\n".join(rows)
    assert "return" in printed(frame(found, 80, 24), 80, 24)[6]


@settings(max_examples=40)
@given(
    width=st.integers(8, 220),
    height=st.integers(2, 60),
    children=st.integers(1, 70),
    searches=st.booleans(),
    name=st.text("a漢-é", min_size=1, max_size=30),
    value=st.floats(allow_nan=True),
)
def test_a_frame_fits_whatever_the_terminal(
    width: int, height: int, children: int, searches: bool, name: str, value: float
) -> None:
    status = search(children) if searches else run(children, name, odd_measure=value, pps=1e9)
    rows = drawn(status, 1e6, width, height)
    assert max(map(cell_len, rows)) <= width
    assert len(rows) <= max(1, height - 1)
