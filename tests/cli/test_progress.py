"""Following a run: what is said in a log, and beside a display."""

from __future__ import annotations

import io
import math
import os
import pty
import queue
from contextlib import suppress
from typing import Any

import pytest

from genkidama.cli import progress as module
from genkidama.cli.progress import EvaluationProgress, Progress, following
from genkidama.cli.verbs import say_reason
from genkidama.server.events import (
    Event,
    PushesRefused,
    Resumed,
    Started,
    Stopped,
    TrialFailed,
    Warned,
)
from tests.helpers import small
from tests.stories import PLAN, assigned, exchange, join, lines, measures, report


def told(*events: Event | dict[str, Any], **stop: Any) -> tuple[Progress, io.StringIO]:
    file = io.StringIO()
    progress = Progress(small(stop=stop), file)
    for line in lines(*events):
        progress(line)
    return progress, file


def test_the_start_and_refusals_are_lines_of_their_own() -> None:
    _, file = told(
        Started(time=0.0, run="first", software="1"),
        Resumed(time=1.0, run="first", software="1", version=7),
        PushesRefused(time=2.0, child="", code="silent", reason="no hello"),
        PushesRefused(time=2.0, child="vm", code="name", reason="in use"),  # the next is vm-2
        {"time": 3.0, "event": "something new"},
    )
    assert file.getvalue().splitlines() == [
        "training CartPole-v1 with a3c: run first",
        "every child learns, and the parent blends their weights: hardly faster than one",
        "training CartPole-v1 with a3c: run first resumes from version 7",
        "refused a connection: no hello",
    ]


def test_a_log_that_takes_no_lines_ends_nothing() -> None:
    full = open("/dev/full", "w")  # noqa: SIM115
    progress = Progress(small(), full)
    for line in lines(Started(time=0.0, run="first", software="1")):
        progress(line)
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_terminal_that_is_gone_ends_nothing() -> None:
    ours, theirs = pty.openpty()
    terminal = open(theirs, "w")  # noqa: SIM115
    progress = Progress(small(), terminal)
    assert progress.drawn
    os.close(ours)
    for line in lines(Started(time=0.0, run="first", software="1")):
        progress(line)
    progress.refresh()
    progress.say("a child died")
    progress.close()
    with suppress(OSError):
        terminal.close()


def test_the_last_line_has_the_energy_if_machines_tell_their_power() -> None:
    begun, over = (join(0.0), exchange(1.0)), Stopped(time=20.0, reason="20 seconds are over")
    for watts, words in (({"watts": 360.0}, ", with 2 Wh"), ({}, "")):
        progress, file = told(*begun, measures(10.0, **watts), over)
        say_reason(progress)
        assert file.getvalue().splitlines()[-1] == f"ended: 20 seconds are over{words}"


def test_in_a_log_lines_are_rare_and_the_last_one_is_there() -> None:
    progress, file = told(
        join(0.0), *(exchange(float(t), update=t) for t in range(1, 50)), updates=100
    )
    progress.say("by the way")
    progress.close()
    progress.close()
    found = file.getvalue().splitlines()
    assert len(found) == 3 and found[1] == "by the way"
    assert "exchange 49" in found[-1]
    assert all(map(str.isprintable, found)), "no sign moves a cursor"
    progress, file = told(join(0.0))
    progress.close()
    assert file.getvalue() == "", "a run without an exchange leaves nothing"


def test_what_a_person_should_know_of_a_search_is_a_line_of_its_own() -> None:
    file = io.StringIO()
    progress = Progress(small(search=PLAN), file)
    for line in lines(
        Started(time=0.0, run="first", software="1"),
        Resumed(time=1.0, run="first", software="1", trials=3, reports=1),
        PushesRefused(time=2.0, child="pi", code="order", reason="too early"),
        Warned(time=3.0, reason="the disk is full"),
        TrialFailed(time=4.0, trial=1, child="pi", reason="no memory"),
        join(4.5),
        assigned(5.0, 0),
        report(6.0, 0, 1.0),
    ):
        progress(line)
    progress.close()
    said = file.getvalue().splitlines()
    assert [line for line in said if not line.startswith("CartPole-v1 ")] == [
        "searching CartPole-v1 with hypertrick: run first",
        "each child trains trials of its own",
        "searching CartPole-v1 with hypertrick: run first resumes after 1 report",
        "refused pi: too early",
        "warning: the disk is full",
        "trial 1 failed on pi: no memory",
    ]
    assert said[-1].startswith("CartPole-v1 29% · 1 of 4 trials · 1 running · best 1.0 (trial 0)")


def test_a_short_evaluation_says_nothing_in_a_log_and_a_long_one_how_far_it_is() -> None:
    file = io.StringIO()
    with EvaluationProgress(2, file=file) as progress:
        progress(1.0)
    assert file.getvalue() == ""
    with EvaluationProgress(2, file=file, first=0.0) as progress:
        progress(1.0)
    assert "evaluating 1 of 2 episodes · mean return 1.0 ± 0.0 · 0:00\n" in file.getvalue()
    with EvaluationProgress(60, 3, file, first=0.0) as progress:
        progress(1.0)
    assert "comparing 3 checkpoints, 1 of 60 episodes · mean return" in file.getvalue()


def test_a_log_hears_of_an_evaluation_whose_first_episode_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LOG_SECONDS", 0.01)
    said = queue.SimpleQueue[str]()
    file = io.StringIO()
    monkeypatch.setattr(file, "write", said.put)
    with EvaluationProgress(500, file=file, first=0.0):
        for _ in range(3):
            assert said.get(timeout=30.0).startswith("evaluating 0 of 500 episodes · 0:")
            assert said.get(timeout=30.0) == "\n"


def test_an_evaluation_knows_its_mean_its_spread_and_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((100.0, 105.0))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock, 107.0))
    progress = EvaluationProgress(4, file=io.StringIO(), first=1e9)
    progress._began = 100.0
    for value in (10.0, 20.0, math.inf):
        progress(value)
        if value == 10.0:
            # It took 5 s to start, and how long an episode takes is unknown.
            assert progress.document(106.0)["run"]["left"] is None
        if value == 20.0:
            assert progress.line() == (
                "evaluating 2 of 4 episodes · mean return 15.0 ± 5.0 · 0:07 · about 0:04 left"
            )
    assert progress.document(108.0)["mean"] == math.inf


def test_progress_and_watch_both_get_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, Any]] = []
    story = lines(join(0.0), exchange(1.0))
    with following(small(), True, seen.append) as watch:
        for line in story:
            assert watch is not None
            watch(line)
    assert seen == story
    assert "exchange 1 · " in capsys.readouterr().err
    with following(small(), False, None) as nothing:
        assert nothing is None


def test_a_file_that_is_no_terminal_or_a_dumb_one_gets_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert module._kind_of(Terminal()) == "terminal"
    assert module._kind_of(io.StringIO()) == "lines"
    monkeypatch.setenv("TERM", "dumb")
    assert module._kind_of(Terminal()) == "lines"
