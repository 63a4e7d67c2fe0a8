"""Sinks by name, points of lines, and sinks that fail and hang beside one that works."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from genkidama.cli.parser import make_parser
from genkidama.cli.progress import Feed, feeding
from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks import feeds
from genkidama.plugins.sinks import run_sync as sync
from genkidama.plugins.sinks.feeds import SINKS, Feeds, Points, sink_maker
from genkidama.plugins.sinks.services import Point, RunInfo
from genkidama.runs.run import Run
from genkidama.server.events import Event, as_lines
from tests.helpers import ROOT, small
from tests.stories import PLAN, exchange, join, measures, report


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
    """It takes one point."""

    free = threading.Event()

    def write(self, point: Point) -> None:
        if self.points:
            self.free.wait()
        super().write(point)


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


@pytest.mark.parametrize("wait", [False, True])
def test_a_sink_that_is_slower_than_the_run_misses_points_unless_it_is_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    monkeypatch.setattr(feeds, "_MOST_WAITING", 2)
    monkeypatch.setattr(feeds, "_POLL_SECONDS", 0.001)
    full, said = threading.Event(), list[str]()

    class Slow(Noting):
        def write(self, point: Point) -> None:
            if not wait:
                full.wait()
            super().write(point)

    with Feeds([Slow], said.append) as found:
        found.begin(run, None)
        for line in lines(6):
            found.take(line, wait)
        full.set()
    (sink,) = made
    assert [point.steps for point in sink.points] == [10 * t for t in range(6 if wait else 2)]
    words = "sink 'Slow' is slower than the run, and misses some points"
    assert said == ([] if wait else [words]) and sink.closed


def test_one_that_hangs_at_the_end_is_not_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_PARTING_SECONDS", 0.05)
    monkeypatch.setattr(feeds, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(Hanging, "free", threading.Event())
    said: list[str] = []
    with Feeds([Hanging], said.append) as found:
        found.begin(run, None)
        for line in lines(4):
            found.take(line)
    Hanging.free.set()
    assert said == [
        "sink 'Hanging' is dropped, the run goes on: it did not end in time, and has 3 points left"
    ]


def test_one_that_is_long_in_coming_is_waited_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_PARTING_SECONDS", 0.05)
    monkeypatch.setattr(feeds, "_POLL_SECONDS", 0.02)

    class LoggingIn(Noting):
        def __init__(self, about: RunInfo) -> None:
            threading.Event().wait(0.3)
            super().__init__(about)

    said: list[str] = []
    with Feeds([LoggingIn], said.append) as found:
        found.begin(run, None)
        for line in lines(3):
            found.take(line)
    assert (len(made[0].points), said) == (3, [])


def test_without_sinks_nothing_stands_between(run: Run) -> None:
    watched: list[dict[str, Any]] = []
    with Feeds([]) as found:
        assert found.begin(run, watched.append) == watched.append


def test_a_name_alone_is_no_list() -> None:
    with pytest.raises(ConfigurationError, match=r"sinks = 'wandb': expected a list, as \['wandb'"):
        Feeds("wandb")


def points_of(*events: Event, **sections: object) -> list[Point]:
    points = Points(small(**sections))
    lines = as_lines(events).splitlines()
    return [point for line in lines if (point := points.of(json.loads(line))) is not None]


def test_the_values_are_those_of_the_history() -> None:
    found = points_of(
        join(0.0, "a"),
        join(0.0, "b"),
        exchange(1.0, 2.5, 100, 4, None, "a"),
        measures(1.0, "a", entropy=1.0, samples=300.0),
        exchange(2.0, 3.0, 150, 5, 21.0, "b"),
        measures(2.0, "b", entropy=0.2, samples=100.0, lag=2.0),
        measures(2.9, "a", entropy=1.0),
        measures(0.5, "a", entropy=1.0),
    )
    assert found == [
        Point(100, 1.0, {"run/episodes": 4, "run/updates": 2.5, "a/staleness": 0}),
        Point(100, 1.0, {"a/entropy": 1.0, "a/samples": 300.0, "learning/entropy": 1.0}),
        Point(
            150,
            2.0,
            {"run/episodes": 5, "run/updates": 3.0, "run/mean_return": 21.0, "b/staleness": 0},
        ),
        Point(
            150,
            2.0,
            {"b/entropy": 0.2, "b/samples": 100.0, "b/lag": 2.0, "learning/entropy": 0.8},
        ),
        Point(150, 2.9, {"a/entropy": 1.0}),  # means come once a second
        Point(150, 0.5, {"a/entropy": 1.0, "learning/entropy": 0.8}),  # the clock was set
    ]


def test_a_trial_of_a_search_has_its_own_figures_and_steps() -> None:
    found = points_of(report(3.0, 7, 12.5), report(4.0, 8, None), search=PLAN)
    assert found == [Point(10, 3.0, {"trial-7/metric": 12.5})]


def test_each_name_has_an_extra_that_installs_its_package() -> None:
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, (package, _) in SINKS.items():
        (line,) = [one for one in extras.splitlines() if one.startswith(f"{name} = ")]
        assert f'"{package}>=' in line


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, (package, _) in SINKS.items():
        with pytest.raises(ConfigurationError) as caught:
            sink_maker(name)
        assert str(caught.value) == (
            f"sink {name!r}: needs {package}, which is not installed: "
            f"pip install 'genkidama-rl[{name}]'"
        )


def test_ones_own_is_named_by_an_import_string_or_given_itself() -> None:
    name = f"{Noting.__module__}:Noting"
    assert sink_maker(name) == (name, Noting)
    assert sink_maker(Noting) == ("Noting", Noting)
    with pytest.raises(ConfigurationError, match="expected one of tensorboard, wandb, mlflow, t"):
        sink_maker("weights")


def test_a_sink_is_told_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text(small(optimizer={"learning_rate": 0.5}).to_toml())
    about = RunInfo(Run(tmp_path))
    assert (about.name, about.folder) == (tmp_path.name, tmp_path)
    settings = about.settings
    assert (settings["name"], settings["optimizer.learning_rate"]) == ("small", 0.5)
    assert not any(isinstance(value, dict) for value in settings.values())
    options = small(algorithm={"options": {"a": {"b": 1}}})
    (tmp_path / "experiment.toml").write_text(options.to_toml())
    assert RunInfo(Run(tmp_path)).settings["algorithm.options.a.b"] == 1


NOTING, FAILING = (f"{kind.__module__}:{kind.__name__}" for kind in (Noting, Failing))


def asked(*words: str) -> Feed:
    return feeding(make_parser().parse_args(words).sinks, None)


def test_train_search_and_launch_take_sinks(tmp_path: Path) -> None:
    for words in (["train", "x"], ["search", "x"], ["launch", "x", "--ray"]):
        assert make_parser().parse_args(words).sinks == []
        found = asked(*words, "--log", NOTING, "--log", FAILING)
        assert isinstance(found, Feeds)
        assert [name for name, _ in found._makers] == [NOTING, FAILING]
    with pytest.raises(ConfigurationError, match="sink 'weights': expected one of tensorboard, w"):
        asked("train", "x", "--log", "weights")


def test_a_finished_run_is_carried_to_a_sink_of_ones_own(tmp_path: Path) -> None:
    made.clear()
    (tmp_path / "experiment.toml").write_text(small().to_toml())
    events = [exchange(float(t), steps=10 * t) for t in range(5)]
    (tmp_path / "history.jsonl").write_bytes(as_lines(events))
    parse = make_parser().parse_args
    assert sync(parse(["sync", str(tmp_path), "--log", NOTING])) == 0
    (sink,) = made
    assert [point.steps for point in sink.points] == [0, 10, 20, 30, 40] and sink.closed
    assert sync(parse(["sync", str(tmp_path), "--log", FAILING])) == 1
    with pytest.raises(ConfigurationError, match="sync: where to"):
        sync(parse(["sync", str(tmp_path)]))
