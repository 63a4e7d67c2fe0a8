"""`python -m genkidama.parent` as a real process."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus

from genkidama.config.experiment import Experiment
from genkidama.parent.__main__ import main
from genkidama.runs.checkpoint import CheckpointFolder
from tests.helpers import eventually
from tests.parent.fake_child import FakeChild, vector
from tests.parent.test_authentication import Bearer
from tests.services import service_manager

EXPERIMENT = """
seed = 3
[parent]
checkpoint_updates = 2
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "test.toml"
    path.write_text(EXPERIMENT)
    return path


@asynccontextmanager
async def parent(
    *arguments: str | Path, stdin: int | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, tuple[str, int]]]:
    """A parent process that listens, and where. It is killed at the end if it still lives."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [
            sys.executable,
            "-m",
            "genkidama.parent",
            *map(str, arguments),
            "--listen",
            f"fd://{listening.fileno()}",
        ]
        process = await asyncio.create_subprocess_exec(
            *command, pass_fds=[listening.fileno()], stdin=stdin, stderr=subprocess.PIPE
        )
        address = listening.getsockname()
    try:
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str]:
    """The exit code, which must come within 5 s, and what was written to standard error."""
    async with asyncio.timeout(5):
        _, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, err.decode()


def logged(err: str) -> list[str]:
    return [json.loads(line)["event"] for line in err.splitlines()]


async def test_ctrl_c_leaves_a_final_checkpoint(toml: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    async with parent(toml, "--out", out, "--set", "parent.alpha=0.25") as (process, address):
        async with FakeChild(address) as child:
            await child.enter()
            for value in (0.0, 4.0, 9.0):
                await child.pushed(value)
            process.send_signal(signal.SIGINT)
            assert await child.closed() == (1001, "the parent goes away")
        code, err = await ended(process)
    assert code == 0
    assert "Traceback" not in err
    assert set(logged(err)) == {
        "listening",
        "settings",
        "goal",
        "ended",
        "start",
        "join",
        "leave",
        "checkpoint",
        "stop",
    }
    assert "alpha = 0.25 with beta = 0.5 slows learning" in err
    checkpoint = CheckpointFolder(out / "checkpoints").latest()
    assert checkpoint is not None
    assert checkpoint.snapshot.version == 3
    np.testing.assert_array_equal(checkpoint.vector, vector(3.0))
    settings = Experiment.load(out / "experiment.toml")
    assert (settings.name, settings.seed, settings.parent.alpha) == ("test", 3, 0.25)


async def test_a_shard_names_the_command_that_goes_on(toml: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    async with parent(toml, "--out", out, "--shard", "2/3") as (process, _):
        assert process.stderr is not None
        while json.loads(await process.stderr.readline())["event"] != "listening":
            pass
        process.send_signal(signal.SIGINT)
        _, err = await ended(process)
    (said,) = [line["next"] for line in map(json.loads, err.splitlines()) if "next" in line]
    assert said.endswith(f" --shard 2/3 --out {out}")


async def test_a_killed_parent_goes_on_from_its_checkpoint_until_its_standard_input_ends(
    toml: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    folder = CheckpointFolder(out / "checkpoints")
    async with parent(toml, "--out", out) as (process, address), FakeChild(address) as child:
        await child.enter()
        for value in (1.0, 1.0, 1.0):
            await child.pushed(value, returns=[value])
        async with asyncio.timeout(10):
            while folder.versions() != [2]:
                await asyncio.sleep(0.01)
        process.kill()
        await process.wait()
    async with (
        parent(toml, "--out", out, "--until-eof", stdin=subprocess.PIPE) as (process, address),
        FakeChild(address, session="2") as child,
    ):
        assert (await child.enter()).version == 2
        await child.pushed(3.0)
        assert process.stdin is not None
        process.stdin.close()
        assert await child.closed() == (1001, "the parent goes away")
        assert (await ended(process))[0] == 0
    checkpoint = folder.latest()
    assert checkpoint is not None
    snapshot = checkpoint.snapshot
    assert (snapshot.version, snapshot.exchanges, snapshot.episodes, snapshot.steps) == (
        3,
        3,
        2,
        30,
    )
    assert snapshot.children["pi"] == {"exchanges": 3, "episodes": 2, "steps": 30}
    np.testing.assert_array_equal(checkpoint.vector, vector(2.0))


async def test_who_may_join_is_said_on_the_command_line_and_plays_the_run_to_its_end(
    toml: Path, tmp_path: Path
) -> None:
    out, tokens = tmp_path / "run", tmp_path / "tokens"
    tokens.write_text("another token-of-another\n")
    tokens.chmod(0o600)
    words = (toml, "--out", out, "--tokens-file", tokens, "--set", "stop.updates=1")
    async with parent(*words) as (process, address):
        with pytest.raises(InvalidStatus, match="401"):
            await FakeChild(address).__aenter__()
        async with Bearer(address, "token-of-another", "another") as child:
            await child.enter()
            await child.pushed(1.0)
            assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
            await child.leave()
            assert (await ended(process))[0] == 0
    assert Experiment.load(out / "experiment.toml").parent.tokens_file == str(tokens)


async def test_a_second_signal_ends_the_process_at_once(toml: Path, tmp_path: Path) -> None:
    async with (
        parent(toml, "--out", tmp_path / "run") as (process, address),
        FakeChild(address) as child,
    ):
        await child.enter()
        # So that the parent waits for the closing handshake.
        child.connection.transport.pause_reading()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while json.loads(await process.stderr.readline())["event"] != "stop":
            pass
        process.send_signal(signal.SIGTERM)
        assert (await ended(process))[0] == -signal.SIGTERM
        child.connection.transport.resume_reading()


async def test_systemd_is_told_how_it_goes_and_its_signal_leaves_a_final_checkpoint(
    toml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_manager() as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        arguments = (toml, "--out", tmp_path / "run", "--set", "stop.updates=100")
        async with parent(*arguments) as (process, address), FakeChild(address) as child:
            await child.enter()
            await eventually(lambda: "READY=1" in manager.heard)
            for value in range(10):
                await child.pushed(float(value), returns=[2.0])
            status = "STATUS=1 child, version 10, mean return 2.0, 10 %"
            await eventually(
                lambda: status in manager.heard and manager.heard.count("WATCHDOG=1") >= 3
            )
            process.send_signal(signal.SIGTERM)
            assert (await ended(process))[0] == 0
        said = [line for line in manager.heard if line != "WATCHDOG=1"]
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").versions()[-1] == 10
    assert said.index("READY=1") < said.index(status) < said.index("STOPPING=1")


def fails(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = main([*map(str, arguments)])
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("{")]
    assert out == ""
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return code, lines[0]


def test_mistakes_in_the_experiment(toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails(capsys, "nowhere.toml") == (
        2,
        "error: nowhere.toml: no such file; `genkidama init nowhere.toml` writes one, "
        "and `genkidama examples` lists some",
    )
    code, line = fails(capsys, toml, "--set", "environment.id=Nowhere-v0")
    assert code == 2
    assert "environment.id = 'Nowhere-v0'" in line


def test_a_parent_needs_no_envpool(
    toml: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    moon = ("--set", "environment.id=envpool:LunarLander-v3")
    code, line = fails(capsys, toml, *moon, "--listen", "nowhere")
    assert code == 2
    assert line.startswith("error: parent.listen = 'nowhere'")  # so the experiment has passed


def test_what_this_machine_cannot_do(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, line = fails(capsys, toml, "--listen", "127.0.0.1:0", "--out", toml / "run")
    assert code == 1
    assert "Not a directory" in line
