"""Which sinks the command line asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.cli.parser import make_parser
from genkidama.cli.progress import Feed, feeding
from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks.feeds import Feeds
from genkidama.plugins.sinks.verbs import run_export as export
from genkidama.server.events import as_lines
from tests.helpers import small
from tests.plugins.sinks.test_feeds import Failing, Noting, made
from tests.stories import exchange

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
    assert export(parse(["export", str(tmp_path), "--log", NOTING])) == 0
    (sink,) = made
    assert [point.steps for point in sink.points] == [0, 10, 20, 30, 40] and sink.closed
    assert export(parse(["export", str(tmp_path), "--log", FAILING])) == 1
    with pytest.raises(ConfigurationError, match="export: where to"):
        export(parse(["export", str(tmp_path)]))
