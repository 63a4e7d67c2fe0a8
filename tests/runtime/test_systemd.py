"""What systemd hears, on a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator

import pytest

from genkidama.runtime import systemd
from genkidama.runtime.systemd import supervised
from tests.helpers import eventually
from tests.services import Systemd, service_manager

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=["path", "abstract"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    """Systemd, which has started this process with its socket in the environment."""
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("abstract names are Linux'")
    with service_manager(abstract=request.param == "abstract") as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
        yield manager


async def test_what_is_said_arrives(service: Systemd) -> None:
    async with supervised(lambda: "three\nlines of\r\nstatus") as notify:
        notify("READY=1", "STATUS=x\ny")
        await eventually(lambda: len(service.heard) >= 2)
    assert service.heard == ["READY=1\nSTATUS=x y", "STATUS=three lines of status"]


async def test_the_status_is_told_anew(service: Systemd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "STATUS_SECONDS", 0.01)
    numbers = iter(range(1000))
    async with supervised(lambda: f"{next(numbers)}"):
        await eventually(lambda: len(service.heard) >= 3)
    assert service.heard[:3] == ["STATUS=0", "STATUS=1", "STATUS=2"]
    count = len(service.heard)
    await asyncio.sleep(0.05)
    assert len(service.heard) == count


@pytest.mark.parametrize("pid", [None, str(os.getpid())], ids=["nobody named", "this process"])
async def test_the_watchdog_is_fed_twice_in_its_period(
    service: Systemd, monkeypatch: pytest.MonkeyPatch, pid: str | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    loop, now = asyncio.get_running_loop(), 1000.0
    monkeypatch.setattr(loop, "time", lambda: now)
    async with supervised(lambda: ""):
        for beats in range(1, 5):
            for seconds in (0.0, 0.19):
                now += seconds
                for _ in range(3):
                    await asyncio.sleep(0)
                assert service.heard.count("WATCHDOG=1") == beats
            now += 0.011


@pytest.mark.parametrize(
    "variables",
    [
        {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "0"},
        {},
    ],
)
async def test_a_watchdog_of_another_process_or_none_is_not_fed(
    service: Systemd, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    async with supervised(lambda: ""):
        await asyncio.sleep(0.05)
    assert "WATCHDOG=1" not in service.heard


async def test_a_loop_that_hangs_does_not_feed_the_watchdog(
    service: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    async with supervised(lambda: ""):
        await eventually(lambda: service.heard.count("WATCHDOG=1") >= 2)
        count = service.heard.count("WATCHDOG=1")
        time.sleep(0.1)
        assert service.heard.count("WATCHDOG=1") == count


async def test_what_a_service_starts_does_not_know_the_socket(
    service: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "1000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    before = {name: os.environ[name] for name in VARIABLES}
    async with supervised(lambda: ""):
        assert not set(VARIABLES) & set(os.environ)
    assert {name: os.environ[name] for name in VARIABLES} == before


@pytest.mark.parametrize("address", [None, "/nowhere/notify", "vsock:2:1234", "@", "x" * 200])
async def test_without_systemd_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, address: str | None
) -> None:
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    async with supervised(lambda: "idle") as notify:
        notify("READY=1")
        await asyncio.sleep(0.01)


async def test_a_manager_that_does_not_listen_keeps_nobody_waiting(service: Systemd) -> None:
    async with supervised(lambda: "") as notify:
        for _ in range(2000):  # whoever waited for room would wait for ever
            notify("STATUS=x")
    assert 0 < len(service.heard) < 2000
