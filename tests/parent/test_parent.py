"""A Parent's life: where it listens, how a run begins and ends."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from genkidama.config import plugin
from genkidama.config.experiment import Experiment
from genkidama.config.plugin import Plugin
from genkidama.errors import EnvironmentFailure
from genkidama.parent import Parent
from genkidama.parent import parent as parent_module
from genkidama.parent.connections import ConnectionManager
from genkidama.parent.event_log import describe
from genkidama.parent.extensions import Companion, Observer
from genkidama.protocol.messages import Weights, Welcome
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.server.events import Event, Left, as_lines
from tests.helpers import eventually, free_port, history, running
from tests.parent.fake_child import FakeChild, vector
from tests.parent.parents import events, experiment

# How a run begins and ends.


async def test_the_run_ends_when_all_have_left(tmp_path: Path) -> None:
    parent = Parent(experiment(stop={"updates": 2}), out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    async with FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0)
        reply = await child.push(2.0)
        assert isinstance(reply, Weights)
        assert reply.stop == "2 exchanges a child done"
        await child.leave()
    await asyncio.wait_for(serving, parent_module.LEAVE_SECONDS / 2)
    await parent.shutdown()
    assert [event["event"] for event in history(tmp_path)] == [
        "start",
        "join",
        "exchange",
        "exchange",
        "stop",
        "leave",
        "checkpoint",
    ]
    checkpoint = CheckpointFolder(tmp_path / "checkpoints").latest()
    assert checkpoint is not None
    assert checkpoint.snapshot.version == 2
    np.testing.assert_array_equal(checkpoint.vector, vector(1.5))
    assert Experiment.load(tmp_path / "experiment.toml") == parent.experiment


async def test_a_child_that_does_not_leave_is_told_that_the_run_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_module, "LEAVE_SECONDS", 0.1)
    parent = Parent(experiment(stop={"updates": 1}), out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    async with FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0)
        await serving
        await parent.shutdown()
        assert await child.closed() == (1000, "the run is over")


async def test_a_child_that_is_cut_off_at_the_end_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_module, "LEAVE_SECONDS", 0.1)
    monkeypatch.setattr(ConnectionManager, "close_seconds", 0.2)
    parent = Parent(experiment(stop={"updates": 1}), out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    async with FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0)
        child.connection.transport.pause_reading()  # as behind a link that is cut
        await eventually(lambda: not parent.connections.children)
        assert not serving.done()
        async with FakeChild(parent.address) as again:
            reply = await again.hello()
            assert isinstance(reply, Welcome)
            assert reply.stop == "1 exchange a child done"
            await serving
            await parent.shutdown()
        child.connection.transport.resume_reading()


async def test_time_ends_a_run_in_which_nobody_pushes(tmp_path: Path) -> None:
    parent = Parent(experiment(stop={"seconds": 0.2}), out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    async with FakeChild(parent.address) as child:
        await child.enter()
        serving = asyncio.create_task(parent.serve())
        while not (reply := await child.join()).stop:  # type: ignore[union-attr]
            assert isinstance(reply, Weights)
            await asyncio.sleep(0.01)
        await child.leave()
    await serving
    await parent.shutdown()
    assert events(tmp_path, "stop")[0]["reason"] == "0.2 seconds are over"


async def test_a_stopped_parent_says_that_it_may_come_back(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent:
        child = await FakeChild(parent.address).__aenter__()
        await child.enter()
        await child.pushed(1.0)
        parent.stop("tired")
    assert await child.closed() == (1001, "the parent goes away")
    assert events(tmp_path, "stop")[0]["reason"] == "tired"
    assert CheckpointFolder(tmp_path / "checkpoints").versions() == [1]


# Where a parent cannot live.


async def start(out: Path, listen: str) -> None:
    await Parent(experiment(), out=out, listen=listen).startup()


async def test_a_port_in_use(parent: Parent, tmp_path: Path) -> None:
    host, port = parent.address
    with pytest.raises(
        EnvironmentFailure,
        match=f"cannot listen on {host}:{port}: Address already in use; choose another port",
    ):
        await start(tmp_path / "other", f"{host}:{port}")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("listen", ["8.8.8.8:0", "nosuchhost.invalid:0", "a..b:0", "fd://7777"])
async def test_an_address_of_another_machine(tmp_path: Path, listen: str) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot listen on"):
        await start(tmp_path, listen)


async def test_listening_on_ipv6(tmp_path: Path) -> None:
    parent = Parent(experiment(), out=tmp_path, listen="[::1]:0")
    await parent.startup()
    assert parent.address[0] == "::1"
    await parent.shutdown()


async def test_a_clock_that_has_been_set_back_does_not_take_a_run_back(tmp_path: Path) -> None:
    async with running(experiment(), tmp_path) as parent:
        late = parent.now() + 1e6
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(as_lines([Left(time=late, child="pi", reason="left")]))
    async with running(experiment(), tmp_path) as parent:
        assert late <= parent.now() < late + 1e3
    times = [event["time"] for event in history(tmp_path)]
    assert times == sorted(times)


async def test_an_inherited_socket(tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    address = listening.getsockname()
    parent = Parent(experiment(), out=tmp_path, listen=f"fd://{listening.detach()}")
    await parent.startup()
    assert parent.address == address
    async with FakeChild(address) as child:
        await child.enter()
    await parent.shutdown()


# Children that are away when the run ends.


async def test_a_child_that_was_cut_off_is_told_when_it_returns_that_the_run_is_over(
    tmp_path: Path,
) -> None:
    settings = experiment(stop={"updates": 2}, parent={"linger_seconds": 30})
    parent = Parent(settings, out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    async with FakeChild(parent.address, "away") as away:
        await away.enter()
        await away.pushed(1.0)
        away.connection.transport.abort()
    async with FakeChild(parent.address, "here") as here:
        await here.enter()
        await here.push(2.0)
        await here.leave()
    await asyncio.sleep(2 * parent_module.HOUSEKEEPING_SECONDS)
    assert not serving.done()
    async with FakeChild(parent.address, "away") as away:
        welcome = await away.hello()
        assert isinstance(welcome, Welcome)
        assert welcome.stop == "2 exchanges a child done"
    async with asyncio.timeout(parent_module.LEAVE_SECONDS / 2):
        await serving
    await parent.shutdown()
    # Who comes even later is told by a parent that is started again.
    async with (
        running(settings, tmp_path) as again,
        FakeChild(again.address, "away", session="2") as away,
    ):
        await asyncio.sleep(2 * parent_module.HOUSEKEEPING_SECONDS)
        assert describe(again.server, again.now()).endswith("over, waits for 2 cut off")
        welcome = await away.hello()
        assert isinstance(welcome, Welcome)
        assert welcome.stop == "2 exchanges a child done"


@pytest.mark.parametrize("code", [None, 1001, 1000])
async def test_a_child_that_is_greeted_after_the_end_is_waited_for_until_it_knows(
    tmp_path: Path, code: int | None
) -> None:
    settings = experiment(stop={"updates": 1}, parent={"linger_seconds": 30})
    parent = Parent(settings, out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    async with FakeChild(parent.address, "away") as away:
        await away.enter()
        await away.push(1.0)
        away.connection.transport.abort()
    serving = asyncio.create_task(parent.serve())
    async with FakeChild(parent.address, "away") as away:
        await away.hello()  # to whose answer only the code of its close refers
        if code is None:
            away.connection.transport.abort()
        else:
            await away.connection.close(code)
    await eventually(lambda: not parent.connections.children)
    if code != 1000:
        await asyncio.sleep(2 * parent_module.HOUSEKEEPING_SECONDS)
        assert not serving.done()
        async with FakeChild(parent.address, "away") as away:
            await away.hello()
    async with asyncio.timeout(parent_module.LEAVE_SECONDS / 2):
        await serving
    await parent.shutdown()


async def test_a_parent_stays_no_longer_for_a_child_that_was_cut_off_than_it_was_told(
    tmp_path: Path,
) -> None:
    settings = experiment(stop={"updates": 1}, parent={"linger_seconds": 0.5})
    parent = Parent(settings, out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    loop = asyncio.get_running_loop()
    begun, serving = loop.time(), asyncio.create_task(parent.serve())
    async with FakeChild(parent.address, "away") as away:
        await away.enter()
        await away.push(1.0)
        away.connection.transport.abort()
    async with asyncio.timeout(parent_module.LEAVE_SECONDS / 2):
        await serving
    assert loop.time() - begun >= 0.5
    await parent.shutdown()


# Without plug-ins.


async def test_without_plug_ins_plain_http_gets_one_line_and_children_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parent_module, "every", lambda hook, installed: iter(()))
    async with running(experiment(), tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        np.testing.assert_array_equal(await child.pushed(2.0), vector(2.0))
        for path in ("/", "/status", "/watch"):
            reader, writer = await asyncio.open_connection(*parent.address)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 426 ")
            assert body == b"this is a Genkidama parent; children join by websocket\n"
            writer.close()
    assert "listening" in capsys.readouterr().err


def make(parent: Parent) -> Recorder:
    raise NotImplementedError


def decline(parent: Parent) -> None:
    return None


class Recorder(Companion, Observer):
    """Records the calls of a parent."""

    def __init__(self, broken: bool) -> None:
        self.calls: list[str] = []
        self._broken = broken

    async def start(self) -> None:
        self.calls.append("start")
        if self._broken:
            raise EnvironmentFailure("no learner")

    def feed(self) -> None:
        self.calls.append("feed")

    def take(self, events: Sequence[Event]) -> None:
        self.calls += [type(event).__name__ for event in events]

    def end(self) -> None:
        self.calls.append("end")

    async def stop(self) -> None:
        self.calls.append("stop")


@pytest.mark.parametrize("broken", [False, True], ids=["works", "cannot start"])
async def test_companions_and_observers_live_with_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """As of a package that is installed, whose factories may also decline."""
    recorder = Recorder(broken)
    table = {"mine": f"{__name__}:make", "none": f"{__name__}:decline"}
    monkeypatch.setattr(sys.modules[__name__], "make", lambda parent: recorder)
    mine = Plugin(observers=table, companions=table)
    monkeypatch.setattr(plugin, "_installed", lambda: {"mine": mine})
    if broken:
        with pytest.raises(EnvironmentFailure, match="no learner"):
            await start(tmp_path, "127.0.0.1:0")
        assert recorder.calls == ["Started", "start", "stop"]
        return
    async with running(experiment(), tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0)
        assert recorder.calls.count("feed") == 2  # the hello and the push
    assert recorder.calls[:2] == ["Started", "start"]
    order = [call for call in recorder.calls if call in ("Joined", "Stopped", "end", "stop")]
    assert order == ["Joined", "Stopped", "end", "stop"]


class Stubborn(Companion):
    async def stop(self) -> None:
        raise RuntimeError("it does not stop")


async def test_a_companion_that_cannot_stop_costs_no_checkpoint(tmp_path: Path) -> None:
    parent = Parent(experiment(), out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    parent.companions.append(Stubborn())
    async with FakeChild(parent.address) as child:
        await child.enter()
        await child.pushed(1.0)
    last = Recorder(broken=False)
    parent.companions.append(last)
    with pytest.raises(RuntimeError, match="it does not stop"):
        await parent.shutdown()
    assert last.calls == ["stop"]
    assert list((tmp_path / "checkpoints").glob("version-*.safetensors"))


async def test_an_observer_without_links_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a companion that cannot stop does not hide what is wrong."""

    class Lost(Observer):
        def links(self, host: str, port: int) -> dict[str, str]:
            raise EnvironmentFailure("no links")

    parts = {"observers": Lost, "companions": Stubborn}
    monkeypatch.setattr(
        "genkidama.parent.parent.every",
        lambda hook, installed: [("mine", lambda parent: parts[hook]())],
    )
    port = free_port()
    for _ in range(2):
        with pytest.raises(EnvironmentFailure, match="no links"):
            await start(tmp_path, f"127.0.0.1:{port}")


async def test_a_companion_that_fails_ends_the_run(tmp_path: Path) -> None:
    parent = Parent(experiment(), out=tmp_path, listen="127.0.0.1:0")
    await parent.startup()
    serving = asyncio.create_task(parent.serve())
    parent.fail(EnvironmentFailure("the learner died"))
    with pytest.raises(EnvironmentFailure, match="the learner died"):
        await serving
    await parent.shutdown()
