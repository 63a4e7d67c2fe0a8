"""An actor on its node, without Ray."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import genkidama
from genkidama.plugins.ray.child_actor import ChildActor
from tests.helpers import ROOT, until

TOKEN = "a-secret-of-more-than-sixteen-letters"


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    monkeypatch.setitem(sys.modules, "ray.util", util)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made: list[ChildActor] = []

    def make(version: str = genkidama.__version__, name: str = "child-1") -> ChildActor:
        made.append(ChildActor(version, TOKEN, "ws://127.0.0.1:1", name, 1))
        return made[-1]

    yield make
    for each in made:
        each.stop(0)
        assert not each._folder.exists()


def test_a_killed_process_is_started_again_and_its_log_is_read_once(actor: Any) -> None:
    child = actor()
    log = until(lambda: child.poll(0)[2], seconds=30.0)
    assert TOKEN.encode() not in log
    before = child._process.pid
    child._process.kill()
    child._process.wait()
    assert child.poll(0)[:2] == (None, "")
    assert child._process.pid != before
    assert child.poll(len(child._process.log.read_bytes()))[2] == b""


def test_the_error_of_a_process_names_its_node_and_the_log_in_the_run(actor: Any) -> None:
    child = actor(name="bad name")
    code, error, _ = until(lambda: (found := child.poll(0))[0] is not None and found, seconds=30.0)
    assert code == 2 and "bad name" in error and error.endswith(" (node 127.0.0.1)")
    assert str(child._folder) not in error


def test_another_version_starts_nothing(actor: Any) -> None:
    child = actor(version="9.9")
    assert child.poll(0) == (
        1,
        f"node 127.0.0.1 has genkidama {genkidama.__version__}, this program 9.9; "
        "install the same version on all nodes",
        b"",
    )
