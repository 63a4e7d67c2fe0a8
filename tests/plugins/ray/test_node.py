"""What an actor does on its node, without Ray."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import genkidama
from genkidama.plugins.ray import node
from genkidama.plugins.ray.node import ChildActor, ParentActor
from tests.helpers import ROOT, constant, until, untrained

VERSION = genkidama.__version__
TOKEN = "a-secret-of-more-than-sixteen-letters"


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_address_of_this_node", lambda: "127.0.0.1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def hosts() -> Iterator[list[Any]]:
    found: list[Any] = []
    yield found
    for host in found:
        host.close()
        assert not host._folder.exists()


@pytest.mark.usefixtures("_here")
def test_a_parent_goes_on_with_what_it_is_given_and_tells_what_is_new(
    tmp_path: Path, hosts: list[Any]
) -> None:
    run = untrained(tmp_path / "run", constant(), version=7)
    (run.path / "history.jsonl").write_text("{}\n")
    hosts.append(host := ParentActor("run"))
    for path in ("experiment.toml", "history.jsonl", "checkpoints/version-0000000007.safetensors"):
        host.put(path, (run.path / path).read_bytes())
    host.put("logs/experiment.toml", (run.path / "experiment.toml").read_bytes())
    started = host.start(VERSION, TOKEN, 3)
    assert started["code"] is None and re.fullmatch(r"ws://127\.0\.0\.1:\d+", started["url"])
    assert sorted(started["files"]) == [
        "checkpoints/version-0000000007.safetensors",
        "experiment.toml",
    ]
    seen = until(lambda: host.poll(3, 0)["history"])
    assert seen.endswith(b"\n") and json.loads(seen.splitlines()[0])["version"] == 7
    assert (
        host.poll(3, 0)["files"]["experiment.toml"] != started["files"]["experiment.toml"]
    )  # the parent has made it the run's own
    paths = [
        "checkpoints/version-0000000007.safetensors",
        "checkpoints/version-0000000008.safetensors",
    ]
    assert host.read(paths) == {paths[0]: run.final.read_bytes(), paths[1]: None}

    host._process.kill()
    host._process.wait()
    assert host.poll(3, 0)["code"] is None  # started again
    until(lambda: host.poll(3, 0)["history"].count(b'"resume"') == 2)
    stopped = host.stop_parent(3, 0)
    assert (stopped["code"], stopped["error"]) == (0, "")
    assert json.loads(stopped["history"].splitlines()[-1])["reason"] == "SIGTERM"
    assert TOKEN.encode() not in stopped["log"] and b"listening" in stopped["log"]


@pytest.mark.usefixtures("_here")
def test_a_history_that_cannot_be_written_on_the_node_is_told_by_the_fallback(
    hosts: list[Any],
) -> None:
    hosts.append(host := ParentActor("run"))
    host.put("logs/experiment.toml", constant().to_toml().encode())
    (host._run / "history.jsonl").symlink_to("/dev/full")
    host.start(VERSION, TOKEN, 0)
    said = until(lambda: host.poll(0, 0)["fallback"])
    assert "No space left on device" in json.loads(said.splitlines()[0])["reason"]
    assert host.poll(0, 0)["fallback"] == b""


@pytest.mark.usefixtures("_here")
def test_a_parent_that_was_only_just_started_ends_too(tmp_path: Path, hosts: list[Any]) -> None:
    hosts.append(host := ParentActor("run"))
    host.put("logs/experiment.toml", constant().to_toml().encode())
    host.start(VERSION, TOKEN, 0)
    assert host.stop_parent(0, 0)["code"] == 0


@pytest.mark.usefixtures("_here")
def test_what_a_process_ends_with_is_told_with_its_node(tmp_path: Path, hosts: list[Any]) -> None:
    hosts.append(parent := ParentActor("run"))
    parent.put("logs/experiment.toml", b"[algorithm]\ngama = 1")
    parent.start(VERSION, TOKEN, 0)
    told = until(lambda: (found := parent.poll(0, 0))["code"] is not None and found)
    assert (
        told["code"] == 2
        and "algorithm.gama = 1: no such setting" in told["error"]
        and told["error"].endswith(" (node 127.0.0.1)")
    )
    stopped = parent.stop_parent(0, 0)  # so is a last checkpoint that could not be written
    assert (stopped["code"], stopped["error"]) == (2, told["error"])
    hosts.append(child := ChildActor())
    child.start(VERSION, "", "ws://127.0.0.1:1", "bad name", 1, 0)
    told = until(lambda: (found := child.poll(0))["code"] is not None and found)
    assert "bad name" in told["error"]


@pytest.mark.parametrize("host", [ParentActor, ChildActor])
@pytest.mark.usefixtures("_here")
def test_another_version_starts_nothing(host: type[Any], hosts: list[Any]) -> None:
    hosts.append(actor := host("run") if host is ParentActor else host())
    told = (
        actor.start("9.9", TOKEN, 0)
        if host is ParentActor
        else actor.start("9.9", TOKEN, "ws://127.0.0.1:1", "child-1", 1, 0)
    )
    assert told["code"] == 1
    assert (
        told["error"] == f"node 127.0.0.1 has genkidama {VERSION}, this program 9.9; "
        "install the same version on all nodes"
    )


def test_a_database_is_copied_with_what_is_not_yet_in_its_file(tmp_path: Path) -> None:
    path, copy = tmp_path / "study.db", tmp_path / "copy"
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode = wal")
        with database:
            database.execute("create table numbers (n)")
        marks = dict(node.files(tmp_path))
        with database:
            database.execute("insert into numbers values (7)")
        database.execute("insert into numbers values (8)")  # the transaction is not over
        assert dict(node.files(tmp_path)) != marks
        copy.write_bytes(node._database(path))
        with closing(sqlite3.connect(copy)) as copied:
            assert copied.execute("select n from numbers").fetchall() == [(7,)]


def test_logs_tokens_and_what_is_half_written_are_not_copied(tmp_path: Path) -> None:
    run = untrained(tmp_path, constant(), version=3)
    for name in (
        "logs/parent.log",
        "tokens",
        "checkpoints/.version-0000000004.safetensors.tmp",
        "study.db-journal",
        "trials/0001/x.toml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    untrained(tmp_path / "trials" / "0001", constant())
    trial = "trials/0001/"
    expected = ["checkpoints/version-0000000003.safetensors", "experiment.toml"]
    expected += [f"{trial}checkpoints/version-0000000001.safetensors", f"{trial}experiment.toml"]
    assert sorted(dict(node.files(run.path))) == expected
