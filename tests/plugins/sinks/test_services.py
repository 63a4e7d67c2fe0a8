"""Each service, read back from its files."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from genkidama.cli.parser import make_parser
from genkidama.plugins.sinks import run_sync
from genkidama.plugins.sinks.services import MLflow, Point, RunInfo, Trackio, WandB
from genkidama.runs.run import Run
from genkidama.server.events import as_lines
from tests.helpers import small
from tests.stories import exchange, join, measures

# It is read when trackio is imported.
FOLDER = Path(os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-")))


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
    pytest.importorskip("tensorboardX")
    options = make_parser().parse_args(["sync", str(run), "--tensorboard", *words])
    assert run_sync(options) == 0
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


def test_runs_of_one_name_stay_apart_and_one_that_goes_on_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb, tracking, trackio = MagicMock(), MagicMock(), MagicMock()
    packages = {"wandb": wandb, "mlflow.tracking": tracking, "trackio": trackio}
    for name, package in {
        **packages,
        "mlflow": MagicMock(),
        "mlflow.entities": MagicMock(),
    }.items():
        monkeypatch.setitem(sys.modules, name, package)
    client = tracking.MlflowClient()
    client.search_runs.return_value = []
    for folder in ("one", "one", "other"):
        path = tmp_path / folder / "first"
        path.mkdir(parents=True, exist_ok=True)
        (path / "experiment.toml").write_text(small().to_toml())
        for sink in (WandB, MLflow, Trackio):
            sink(RunInfo(Run(path)))
    begun = [call.kwargs for call in wandb.init.call_args_list]
    first, again, other = (each["id"] for each in begun)
    assert first == again != other and {each["name"] for each in begun} == {"first"}
    names = [call.kwargs["name"] for call in trackio.init.call_args_list]
    assert names == [f"first-{identity}" for identity in (first, again, other)]
    made = [call.kwargs for call in client.create_run.call_args_list]
    asked = [call.args[1] for call in client.search_runs.call_args_list]
    for identity, new, query in zip((first, again, other), made, asked, strict=True):
        assert new == {"tags": {"genkidama_identity": identity}, "run_name": "first"}
        assert query == f"tags.genkidama_identity = '{identity}'"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_that_goes_on_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="genkidama-rl[mlflow] is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    from mlflow.tracking import MlflowClient

    for folder, steps in (("one", 100), ("other", 300), ("one", 200)):
        path = tmp_path / folder / "first"
        path.mkdir(parents=True, exist_ok=True)
        (path / "experiment.toml").write_text(small().to_toml())
        sink = MLflow(RunInfo(Run(path)))
        sink.write(Point(steps, 1.5, {"run/mean_return": steps / 8}))
        sink.close()
    client = MlflowClient()
    experiment = client.get_experiment_by_name("genkidama")
    _, run = client.search_runs([experiment.experiment_id], order_by=["start_time DESC"])
    found = client.get_metric_history(run.info.run_id, "run/mean_return")
    assert [(one.step, one.value, one.timestamp) for one in found] == [
        (100, 12.5, 1500),
        (200, 25.0, 1500),
    ]
    assert (run.data.params["name"], run.info.status) == ("small", "FINISHED")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_points_are_in_the_offline_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="genkidama-rl[wandb] is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "experiment.toml").write_text(small().to_toml())
    sink = WandB(RunInfo(Run(tmp_path)))
    sink.write(Point(100, 1.5, {"run/mean_return": 21.25}))
    sink.close()
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"mean_return" in file.read_bytes() and b"21.25" in file.read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_points_are_in_the_projects_database(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="genkidama-rl[trackio] is not installed")
    (tmp_path / "experiment.toml").write_text(small().to_toml())
    sink = Trackio(RunInfo(Run(tmp_path)))
    sink.write(Point(100, 1.5, {"run/mean_return": 21.25}))
    sink.close()
    (file,) = FOLDER.rglob("genkidama*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    assert any(step == 100 and "21.25" in str(metrics) for step, metrics in rows)


#: Lines that no parent writes.
HOSTILE = [
    b'{"event":"exchange"}',
    b'{"event":"measures","time":1.0,"child":"a","backend":"b","kl":"x"}',
    b'{"event":"measures","time":1.0,"child":"../\\u0000\\n%s","backend":"b","kl":1e308}',
    b'{"event":"measures","time":1e300,"child":"a","backend":"b","kl":1.0}',
    b'{"event":"measures","time":-1.0,"child":"a","backend":"b","kl":1.0}',
    b'{"event":"measures","time":1.0,"child":"a","backend":"b","' + b"k" * 4000 + b'":1.0}',
    b'{"event":"measures","time":1.0,"child":"a","backend":"b","":1.0,"\\ud83d\\ude00 $(x)":2}',
    as_lines([exchange(2.0, 1.0, 7, 4, 1.0, "a")]).strip().replace(b":7", b":" + b"9" * 300),
    as_lines([exchange(2.0, 1.0, 7, 4, 1.0, "a")]).strip().replace(b":7", b":-7"),
    as_lines([exchange(2.0, 1.0, 8, 4, 1.0, "a")]).strip().replace(b":4", b":" + b"9" * 400),
]


def test_lines_that_no_parent_writes_stop_no_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX")
    run = tmp_path / "it's #1 %s"
    run.mkdir()
    (run / "experiment.toml").write_text(small().to_toml())
    good = as_lines([exchange(3.0, 2.0, 200, 5, 2.5, "a")])
    (run / "history.jsonl").write_bytes(b"\n".join([*HOSTILE, good]))
    assert run_sync(make_parser().parse_args(["sync", str(run), "--tensorboard"])) == 0
    found = {value.tag: event.step for event in records(run / "tensorboard")
             for value in event.summary.value}  # fmt: skip
    assert found["run/mean_return"] == 200
    assert all(name.isascii() and name.isprintable() and len(name) <= 200 for name in found)
    assert capsys.readouterr().err == ""
