"""Event files, read back record by record."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from genkidama.cli.parser import make_parser
from genkidama.cli.tracking import export
from genkidama.server.events import as_lines
from tests.helpers import small
from tests.stories import exchange, join, measures

pytest.importorskip("tensorboardX", reason="genkidama[tensorboard] is not installed")


def records(folder: Path) -> Iterator[Any]:
    """The events of all files: u64 length, its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in folder.glob("events.out.tfevents.*"):
        data = path.read_bytes()
        place = 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            yield Event.FromString(data[place + 12 : place + 12 + length])
            place += 16 + length


@pytest.mark.parametrize("folder", [None, "elsewhere"])
def test_a_finished_run_is_exported(tmp_path: Path, folder: str | None) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "experiment.toml").write_text(small().to_toml())
    events = [join(0.0, "a"), exchange(1.5, 2.0, 100, 4, 21.25, "a"), measures(2.5, "a", kl=0.125)]
    (run / "history.jsonl").write_bytes(as_lines(events))
    words = [] if folder is None else [str(tmp_path / folder)]
    options = make_parser().parse_args(["export", str(run), "--tensorboard", *words])
    assert export(options) == 0
    found = {
        (value.tag, event.step, event.wall_time, value.simple_value)
        for event in records(run / "tensorboard" if folder is None else tmp_path / folder)
        for value in event.summary.value
        if not value.tag.startswith("experiment")
    }
    assert found == {
        ("run/episodes", 100, 1.5, 4.0),
        ("run/updates", 100, 1.5, 2.0),
        ("run/mean_return", 100, 1.5, 21.25),
        ("a/staleness", 100, 1.5, 0.0),
        ("a/kl", 100, 2.5, 0.125),
    }
    assert json.loads(as_lines(events[1:2]))["mean_return"] == 21.25
