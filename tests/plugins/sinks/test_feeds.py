"""Sinks that fail and hang, beside one that works."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks import feeds
from genkidama.plugins.sinks.feeds import Feeds, feeding
from genkidama.plugins.sinks.points import Point
from genkidama.plugins.sinks.registry import RunInfo
from genkidama.runs.directory import Run
from genkidama.server.events import as_lines
from tests.helpers import small
from tests.stories import exchange


class Noting:
    """Keeps what it is given."""

    def __init__(self, about: RunInfo) -> None:
        self.name = about.name
        self.points: list[Point] = []
        self.closed = False
        made.append(self)

    def write(self, point: Point) -> None:
        self.points.append(point)

    def close(self) -> None:
        self.closed = True


made: list[Noting] = []


class Failing(Noting):
    def write(self, point: Point) -> None:
        raise RuntimeError("no more")


class Hanging(Noting):
    free = threading.Event()

    def write(self, point: Point) -> None:
        self.free.wait()


def lines(count: int) -> list[dict[str, Any]]:
    events = [exchange(float(t), steps=10 * t) for t in range(count)]
    return [json.loads(line) for line in as_lines(events).splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made.clear()
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "experiment.toml").write_text(small().to_toml())
    return Run(tmp_path / "first")


def test_a_sink_that_fails_is_said_once_and_the_others_go_on(run: Run) -> None:
    said: list[str] = []
    watched: list[dict[str, Any]] = []
    with Feeds([Failing, Noting], said.append) as found:
        with feeding(found, None) as same:  # `train` enters what the command has made
            told = same.begin(run, watched.append)
            assert told is not None
        for line in lines(20):
            told(line)
    failing, noting = sorted(made, key=lambda sink: type(sink).__name__)
    (words,) = said
    assert words.startswith("sink 'Failing' is dropped, the run goes on: RuntimeError: no more (")
    assert words.endswith(f":{Failing.write.__code__.co_firstlineno + 1}, in write)")
    assert [point.steps for point in noting.points] == [10 * t for t in range(20)]
    assert (noting.name, noting.closed, failing.closed) == ("first", True, False)
    assert (len(watched), found.dropped) == (20, 1)


def test_a_sink_that_hangs_is_dropped_and_holds_nothing_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(feeds, "PATIENCE", 0.05)
    found = Feeds([Hanging], said.append)
    with found:
        found.begin(run, None)
        (first, *others) = lines(500)
        found.take(first)
        for line in others:
            found.take(line)
            if said:
                break
            threading.Event().wait(0.001)  # the clock is what is tested
    Hanging.free.set()
    assert said == ["sink 'Hanging' is dropped, the run goes on: it did nothing for 0 s"]


def test_one_that_hangs_at_the_end_is_not_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_PARTING_SECONDS", 0.05)
    monkeypatch.setattr(feeds, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(Hanging, "free", threading.Event())
    said: list[str] = []
    with Feeds([Hanging], said.append) as found:
        found.begin(run, None)
        for line in lines(3):
            found.take(line)
    Hanging.free.set()
    assert said == [
        "sink 'Hanging' is dropped, the run goes on: it did not end in time, and has 3 points left"
    ]


def test_without_sinks_nothing_stands_between(run: Run) -> None:
    watched: list[dict[str, Any]] = []
    with Feeds([]) as found:
        assert found.begin(run, watched.append) == watched.append


def test_a_name_alone_is_no_list() -> None:
    with pytest.raises(ConfigurationError, match=r"sinks = 'wandb': expected a list, as \['wandb'"):
        Feeds("wandb")
