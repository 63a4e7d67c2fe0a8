"""`python -m genkidama.child` as a process: what it says, how it ends, what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genkidama.child.__main__ import main
from genkidama.config.experiment import Experiment
from tests.certificates import Authority, needs_openssl
from tests.helpers import (
    Started,
    constant,
    eventually,
    free_port,
    running,
    small,
    starting,
    until,
    url,
)
from tests.services import service_manager

Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path) as start:
        yield lambda *arguments: start("genkidama.child", *arguments, "--allow", "tests")


def faulty(**options: object) -> Experiment:
    return small(environment={"id": "tests.tiny:Faulty", "options": options})


async def ended(child: Started) -> int:
    return await asyncio.to_thread(child.wait)


async def vanished(child: Started, seconds: float = 5.0) -> None:
    await asyncio.to_thread(child.vanish, seconds)


# What is typed wrong.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "error: where is the parent? give --parent ws://HOST:PORT or a child's TOML\n"),
        (
            ["--parent", "ws://pi:1", "--cores", "²"],
            "error: the command line: cores = '²': "
            "expected one of 'auto', 'experiment', or int >= 1\n",
        ),
        (
            ["--parent", "ws://pi:1", "--token-file", "nowhere"],
            "error: token_file = 'nowhere': cannot be read: No such file or directory; ",
        ),
        (["nowhere.toml"], "error: nowhere.toml: no such file\n"),
    ],
)
def test_a_wrong_option_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(words) and said.err.count("\n") == 1


# How it ends.


async def test_its_own_file_says_where_the_parent_is_and_the_command_line_what_differs(
    tmp_path: Path, start: Start
) -> None:
    async with running(constant(stop={"updates": 3}), tmp_path / "run") as parent:
        (tmp_path / "child.toml").write_text(
            f"parent = '{url(parent.address)}'\nname = 'file'\nstate = 'state'\n"
        )
        child = start("child.toml", "--name", "line")
        assert await ended(child) == 0
        assert list(parent.server.children) == ["line"]
    assert (tmp_path / "state" / "line.safetensors").exists()
    assert child.out == ""


def test_it_keeps_trying_where_nobody_listens_until_it_is_told_to_stop(start: Start) -> None:
    child = start("--parent", "ws://127.0.0.1:9", "--name", "pi")
    until(lambda: "not reachable, still trying" in child.err)
    child.signal(signal.SIGTERM)
    child.vanish(5.0)
    assert child.wait() == 0
    assert "Traceback" not in child.err


async def test_a_name_in_use_is_waited_for(tmp_path: Path, start: Start) -> None:
    settings = constant(network={"options": {"seconds": 0.05}})
    async with running(settings, tmp_path / "run") as parent:
        first = start("--parent", url(parent.address), "--name", "pi")
        await eventually(lambda: parent.server.joined == {"pi"})
        second = start("--parent", url(parent.address), "--name", "pi")
        words = "the name 'pi' is in use by another child; give this one another name"
        await eventually(lambda: words in second.err)
        version = parent.server.trial.version
        await eventually(lambda: parent.server.trial.version > version)
        first.signal(signal.SIGINT)
        assert await ended(first) == 0
        await eventually(lambda: parent.server.joined == {"pi"})
        assert second.err.count("refused, still trying") == 1
        second.signal(signal.SIGINT)
        assert await ended(second) == 0
    assert "Traceback" not in second.err


async def test_an_environment_that_cannot_be_built_ends_it(tmp_path: Path, start: Start) -> None:
    async with running(faulty(fault="raise", where="construct"), tmp_path / "run") as parent:
        child = start("--parent", url(parent.address), "--name", "pi")
        assert await ended(child) == 2
        await vanished(child)
    last = child.err.splitlines()[-1]
    assert last.startswith("error: ") and "tests.tiny:Faulty" in last
    assert child.err.count("Traceback") == 2  # its own, and ours


# As a service, with a token, over TLS.


@needs_openssl
async def test_a_service_with_a_token_over_tls(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a shelf does, in real processes. Systemd is told, by no process but the child's own."""
    authority = Authority(tmp_path / "authority")
    signed, token = authority.sign("IP:127.0.0.1"), "token-of-the-pi-01"
    for name, content in (("tokens", f"pi {token}\n"), ("token", f"{token}\n")):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o600)
    listen = f"127.0.0.1:{free_port()}"
    settings = faulty(fault="slow").with_settings(
        {"parent.tokens_file": str(tmp_path / "tokens"), **prefixed(signed.settings())}
    )
    with service_manager() as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        child = start(
            "--parent",
            f"wss://{listen}",
            "--name",
            "pi",
            "--cores",
            2,
            "--token-file",
            "token",
            "--ca-file",
            authority.file,
        )
        # At once, so that it has not learned yet to wait long.
        await eventually(lambda: "not reachable, still trying" in child.err)
        await eventually(lambda: "READY=1" in manager.heard)
        async with running(settings, tmp_path / "run", listen) as parent:
            await eventually(lambda: parent.server.trial.version >= 2)
            training = "STATUS=training tests.tiny:Faulty on 2 cores, version "
            await eventually(lambda: any(line.startswith(training) for line in manager.heard))
            for process in child.family():
                assert process.pid == child.pid or "NOTIFY_SOCKET" not in process.environ()
            child.signal(signal.SIGTERM)
            assert await ended(child) == 0
            await vanished(child)
            await eventually(lambda: not parent.server.connected)
        assert manager.heard.count("WATCHDOG=1") >= 3
        assert manager.heard[-1] in ("STOPPING=1", "WATCHDOG=1") and "STOPPING=1" in manager.heard
    assert token not in child.err + child.out
    assert "Traceback" not in child.err
    assert '"event": "left"' in child.err


def prefixed(settings: dict[str, str]) -> dict[str, str]:
    return {f"parent.{key}": value for key, value in settings.items()}


# Signals, at any moment, and what is left.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_stopped_while_the_nursery_warms_up_it_leaves_nothing(
    tmp_path: Path, start: Start, number: int
) -> None:
    """The environment takes a minute to build. As with Ctrl-C, SIGINT reaches the whole group."""
    async with running(faulty(fault="sleep", where="construct"), tmp_path / "run") as parent:
        child = start("--parent", url(parent.address), "--name", "pi")
        await eventually(lambda: parent.server.connected)
        assert any("forkserver" in " ".join(process.cmdline()) for process in child.family())
        if number == signal.SIGINT:
            os.killpg(child.pid, number)
        else:
            child.signal(number)
        await vanished(child)
        assert child.wait() == 0, child.err
    assert "Traceback" not in child.err


async def test_stopped_while_it_trains_it_says_goodbye_and_leaves_nothing(
    tmp_path: Path, start: Start
) -> None:
    """A service manager may send SIGTERM to the whole group, the cores and the nursery included.

    `test_a_service_with_a_token_over_tls` sends it to the child alone.
    """
    async with running(faulty(fault="slow"), tmp_path / "run") as parent:
        child = start("--parent", url(parent.address), "--name", "pi", "--cores", 2)
        await eventually(lambda: parent.server.trial.version >= 2)
        assert len(child.family()) >= 4  # this process, the nursery, two cores
        os.killpg(child.pid, signal.SIGTERM)
        await vanished(child)
        assert child.wait() == 0
        await eventually(lambda: not parent.server.connected)
        assert [event for event in parent.server.children.values() if event.connected] == []
    assert "Traceback" not in child.err
    assert '"event": "left"' in child.err
