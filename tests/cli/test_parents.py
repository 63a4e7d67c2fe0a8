"""The process of one part of a parent, as a cluster looks after it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from genkidama.cli.parents import HistoryReader, ParentProcess, wait_all
from genkidama.errors import ConfigurationError
from genkidama.protocol.messages import PROTOCOL, Hello, Leave, Welcome
from genkidama.protocol.shard import WHOLE, Shard, end_proof
from genkidama.runs.history import write_fallback
from genkidama.runs.resume import prepare_directory
from tests.helpers import constant, history, until
from tests.parent.fake_child import FakeChild


def test_a_part_that_is_killed_returns_to_its_address(tmp_path: Path) -> None:
    prepare_directory(constant(), tmp_path / "run", None)
    own = tmp_path / "run" / "parts" / "2-of-2"
    part = ParentProcess(tmp_path / "run", Shard(2, 2), "127.0.0.1:0")
    address = part.address
    said: list[str] = []

    def looked() -> bool:
        part.read()
        assert not part.over
        part.poll(said.append)
        return bool(said)

    try:
        part.start([])
        until(lambda: history(own, "start"), "a part that listens")
        part.process.kill()
        until(looked, "what is said of it")
        until(lambda: len(history(own, "start")) == 2, "a part that listens")
        assert said == ["the parent, part 2/2, was killed, and is started again"]
        assert part.address == address
        wait_all([part], 10.0)
        assert part.process.code == 0
        assert [line["reason"] for line in history(own, "stop")] == ["SIGTERM"]
    finally:
        wait_all([part], 2.0)
        part.close(None)


async def test_a_part_ends_by_the_firsts_word_and_it_is_said(tmp_path: Path) -> None:
    experiment = constant(stop={"updates": 2})
    prepare_directory(experiment, tmp_path / "run", None)
    secret = "of all parts"
    part = ParentProcess(tmp_path / "run", Shard(2, 2), "127.0.0.1:0", secret)
    proof = end_proof(secret, experiment.to_dict()["stop"], "2 exchanges a child done")
    said: list[str] = []
    try:
        part.start(["--own-children"])
        host, port = part.address.split(":")
        for reason, shown in (("evil", proof), ("2 exchanges a child done", proof)):
            async with FakeChild((host, int(port))) as child:
                hello = Hello(protocol=PROTOCOL, name="pi", session="1", part="2/2")
                assert isinstance(await child.ask(hello), Welcome)
                await child.join()
                await child.ask(Leave(reason=reason, over=True, proof=shown))
            part.read()
            part.poll(said.append)
            assert not said
        await asyncio.to_thread(part.wait, 10.0)
        part.read()
        for _ in range(2):
            part.poll(said.append)
        assert said == ["the parent, part 2/2, has ended: 2 exchanges a child done"]
    finally:
        wait_all([part], 2.0)
        part.close(None)


@pytest.mark.parametrize("joins", [False, True])
async def test_only_a_parent_that_has_taken_a_child_can_have_lost_something(
    tmp_path: Path, joins: bool
) -> None:
    """One that is stopped while it starts had nothing to write."""
    prepare_directory(constant(), tmp_path / "run", None)
    parent = ParentProcess(tmp_path / "run", WHOLE, "127.0.0.1:0")
    error = KeyboardInterrupt()
    try:
        parent.start(["--own-children"])
        if joins:
            host, port = parent.address.split(":")
            async with FakeChild((host, int(port))) as child:
                await child.enter()
            until(lambda: any(line["event"] == "join" for line in parent.read()), "a join")
            parent.process.kill()
        parent.terminate()
        parent.wait(10.0)
        assert (parent.process.code or 0) < 0
    finally:
        wait_all([parent], 2.0)
        parent.close(error)
    assert bool(getattr(error, "__notes__", [])) == joins


def test_a_part_that_ends_with_an_error_ends_the_cluster(tmp_path: Path) -> None:
    prepare_directory(constant(), tmp_path / "run", None)
    part = ParentProcess(tmp_path / "run", Shard(2, 2), "127.0.0.1:0")
    try:
        part.start(["--tokens-file", str(tmp_path / "none")])
        part.wait(20.0)
        part.read()
        with pytest.raises(ConfigurationError, match="none"):
            part.poll(lambda line: None)
    finally:
        wait_all([part], 2.0)
        part.close(None)


def line(reason: str) -> bytes:
    return json.dumps({"event": "warning", "reason": reason}).encode() + b"\n"


def test_what_was_told_aside_is_not_told_again(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    reader = HistoryReader(path)
    write = write_fallback(reader.fallback.descriptor)
    assert reader.read() == [] and reader.last_reason() == ""
    write(line("full"))
    assert reader.last_reason() == "full"
    assert [event["reason"] for event in reader.read()] == ["full"]
    path.write_bytes(line("full") + line("another"))
    assert [event["reason"] for event in reader.read()] == ["another"]
    assert reader.read() == [] and reader.last_reason() == "full"
    reader.fallback.close()
