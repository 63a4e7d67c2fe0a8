"""Displays on real pseudo-terminals, read by pyte, and below a notebook's cell."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from genkidama.local import progress as module
from genkidama.local.progress import Progress
from tests.helpers import ROOT, small, untrained
from tests.stories import exchange, join, lines, measures
from tests.terminals import Terminal, in_terminal

SIZES = pytest.mark.parametrize("size", [(80, 24), (120, 24), (200, 50)], ids=str)

#: A run of thirty children whose display is drawn at each event, and what is said meanwhile.
STORY = """
import sys
from genkidama.events import *
from genkidama.local.progress import Progress, SearchProgress, EvaluationProgress
from genkidama.local import screen
from tests.helpers import small
from tests.stories import *

experiment = small(stop={"updates": 400, "mean_return": 195})
if sys.argv[1] == "search":
    progress = SearchProgress(small(search=PLAN))
elif sys.argv[1] == "run":
    progress = Progress(experiment)
else:
    with EvaluationProgress(8) as progress:
        for number in range(8):
            progress(float(number))
            progress._surface._live.refresh()
    sys.exit()
progress.take(Started(time=0.0, run="small-20261122-120000", software="1"))
names = [f"child-{number}" for number in range(30)]
for number, name in enumerate(names):
    progress.take(join(1.0, name))
    if sys.argv[1] == "search":
        progress.take(assigned(1.0, number % 4, name))
for turn in range(1, 13):
    event = exchange(1.0 + turn, turn, 12345678 * turn, 9876 * turn, 15.0 * turn, names[turn % 30])
    if sys.argv[1] == "search":
        event.trial = turn % 4
    progress.take(event)
    figures = {"pps": 29504.3, "tps": 5904.2, "lag": 1.24, "entropy": 0.53, "loss": -0.0123}
    progress.take(Measures(time=1.0 + turn, backend="ga3c", child=names[0], figures=figures))
    if progress._surface._live:
        progress._surface._live.refresh()
    if turn == 6:
        progress.say("something to know")
progress.take(Stopped(time=14.0, reason="all is done"))
progress.close()
progress.say("ended: all is done")
"""


def played(what: str, size: tuple[int, int]) -> Terminal:
    found = in_terminal([sys.executable, "-c", STORY, what], *size, folder=ROOT)
    assert found.code == 0, found.text
    return found


def check_fits(found: Terminal, drawn: int) -> None:
    """No line of the display is wrapped, and none is left behind.

    A wider terminal would show the very same lines, so none was broken at this one's edge.
    """
    assert [line for line in found.lines if line] == [line for line in found.read(400) if line]
    titles = [line for line in found.lines if "CartPole-v1 · " in line or "evaluating" in line]
    assert len(titles) == 1, found.lines
    assert found.text.count("\x1b[2K") >= drawn  # so many rows were written over
    assert found.text.count("\x1b[?25l") == found.text.count("\x1b[?25h") == 1  # the cursor


@SIZES
def test_a_display_is_drawn_over_and_over_in_its_place(size: tuple[int, int]) -> None:
    found = played("run", size)
    check_fits(found, drawn=200)
    text = "\n".join(found.lines)
    assert text.count("something to know") == text.count("ended: all is done") == 1
    assert len([line for line in found.lines if line]) <= size[1] + 3
    assert re.search(r"^return +180\.0 of 195  ▁.*█$", text, re.MULTILINE)
    assert ("and 16 more" in text) == (size[1] == 24)
    assert "loss -0.0123" in text


def test_a_search_is_drawn_in_its_place() -> None:
    check_fits(played("search", (80, 24)), drawn=200)


def test_an_evaluation_is_drawn_in_its_place() -> None:
    found = played("evaluation", (80, 24))
    check_fits(found, drawn=15)
    assert found.lines[0] == "evaluating 8 of 8 episodes"
    assert found.lines[2] == "return   3.5 ± 2.3 · minimum 0.0"


@pytest.mark.slow
def test_a_real_evaluation_on_a_real_terminal(tmp_path: Path) -> None:
    untrained(tmp_path / "run", small())
    command = [sys.executable, "-m", "genkidama", "evaluate", "run", "--episodes", "20"]
    found = in_terminal(command, 80, 24, folder=tmp_path)
    assert found.code == 0, found.text
    check_fits(found, drawn=1)
    assert "evaluating 20 of 20 episodes" in found.lines
    assert any(line.startswith("run: ") and " over 20 episodes" in line for line in found.lines)


@pytest.mark.slow
@SIZES
def test_a_real_run_on_a_real_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "cart.toml").write_text(small(stop={"seconds": 4.0}).to_toml())
    command = [sys.executable, "-m", "genkidama", "train", "cart.toml", "--episodes", "5"]
    found = in_terminal(command, *size, folder=tmp_path)
    assert found.code == 0, found.text
    said = [line for line in found.lines if line]
    display = [line for line in said if line.startswith(("CartPole-v1 · ", "child-", "return"))]
    assert len(display) == len(set(display))
    assert "ended: 4 seconds are over" in said
    assert max(len(line) for frame in found.frames for line in frame) <= size[0]


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
    assert "<pre>" in shown[-1]["text/html"] and "update 5" in shown[-1]["text/html"]
    assert " 50% · " in shown[-1]["text/plain"]
