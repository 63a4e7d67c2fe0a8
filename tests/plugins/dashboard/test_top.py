"""`genkidama top`: a real parent, seen from a process of its own; what can never work is said."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genkidama.__main__ import main
from genkidama.cli.parser import make_parser
from genkidama.errors import GenkidamaError
from genkidama.plugins.dashboard import routes, top
from genkidama.protocol.tokens import written
from genkidama.runtime.log import fail
from genkidama.server import limits
from genkidama.server.events import Stopped
from tests.helpers import constant, eventually, running, starting
from tests.parent.fake_child import FakeChild
from tests.parent.test_authentication import Bearer
from tests.plugins.dashboard.test_viewers import COOKIE, SALT, TOKEN
from tests.stories import BEGAN, as_json, began, told
from tests.terminals import Terminal, in_terminal


async def test_it_shows_a_run_and_ends_with_it(tmp_path: Path) -> None:
    with starting(tmp_path) as start:
        async with (
            running(constant(), tmp_path / "run") as parent,
            FakeChild(parent.address, "pi") as child,
        ):
            await child.enter()
            await child.pushed(2.0)
            host, port = parent.address
            shown = start("genkidama", "top", f"http://{host}:{port}/")
            await eventually(lambda: "CartPole-v1" in shown.out)
            code, once, _ = await asked(f"ws://{host}:{port}", "--once")
            assert code == 0 and "pi" in once and "run run" in once
        await eventually(lambda: shown.popen.poll() is not None)
        assert shown.out.splitlines()[-1].startswith("CartPole-v1 · over")
        assert (shown.popen.returncode, shown.err) == (0, "")


async def asked(*words: str) -> tuple[int, str, str]:
    """`genkidama top` in a thread of this process: its exit code, and what it wrote."""

    def run() -> tuple[int, str, str]:
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            options = make_parser().parse_args(["top", *words])
            try:
                code = top.top(options)
            except GenkidamaError as error:
                code = fail(error)
        said = [line for line in err.getvalue().splitlines(True) if line[0] != "{"]
        return code, out.getvalue(), "".join(said)  # without the log of the parent

    return await asyncio.to_thread(run)


async def test_a_viewers_token_and_no_other(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("* token-of-the-pi-01\n" + written("anna", TOKEN, None, SALT, COOKIE))
    tokens.chmod(0o600)
    settings = constant(parent={"tokens_file": str(tokens)})
    async with (
        running(settings, tmp_path / "run") as parent,
        Bearer(parent.address, "token-of-the-pi-01"),
    ):
        place = f"{parent.address[0]}:{parent.address[1]}"
        code, shown, _ = await asked(f"http://viewer:{TOKEN}@{place}", "--once")
        assert code == 0 and "waiting" in shown
        code, _, error = await asked(f"http://v:token-of-the-pi-01@{place}", "--once")
    assert code == 2 and "token-of-the-pi" not in error
    assert error.startswith("error: this token is a child's, and admits no viewer; on the")


async def test_a_refusal_is_said_in_the_parents_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(constant(), tmp_path / "run") as parent:
        place = f"{parent.address[0]}:{parent.address[1]}"
        with monkeypatch.context() as none:
            none.setattr(limits, "VIEWERS", 0)
            code, _, error = await asked(f"http://{place}", "--once")
        assert (code, error) == (1, "error: 0 viewers watch already; close a page elsewhere\n")
        monkeypatch.setattr(routes, "is_own_host", lambda *_: False)
        code, _, error = await asked(f"http://{place}", "--once")
    assert code == 2
    assert error == f"error: {place!r} is no name of this machine; ask by its address\n"


@pytest.mark.parametrize("url", ["", "ftp://pi:1", "pi:8765", "http://a:b@c@d:1"])
def test_an_address_that_is_none(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["genkidama", "top", url])
    monkeypatch.delenv("GENKIDAMA_VIEW", raising=False)
    assert main(["top", url]) == 2
    assert "expected http://HOST:PORT" in capsys.readouterr().err


def top_of(run: Path) -> str:
    """The address of a run without tokens, with its owner's token."""
    return (run / "owner").read_text().splitlines()[0]


async def test_an_owner_steers_a_run_by_a_command_and_nobody_else(tmp_path: Path) -> None:
    async with running(constant(), tmp_path / "run") as parent:
        plain = f"http://{parent.address[0]}:{parent.address[1]}"
        words = "only the run's owner steers it, by a token of its own"
        assert await asked(plain, "--command", "stop") == (2, "", f"error: {words}\n")
        owners = top_of(tmp_path / "run")
        words = "child = 'pi': no child of this name is excluded"
        assert await asked(owners, "--command", "admit=pi") == (2, "", f"error: {words}\n")
        assert not parent.server.stop
        assert await asked(owners, "--command", "stop") == (0, "stop: done\n", "")
        assert parent.server.stop == "stopped by owner"


async def test_an_owners_keys(tmp_path: Path) -> None:
    shown: list[Terminal] = []

    def typing(process: subprocess.Popen[bytes], terminal: Terminal) -> None:
        shown.append(terminal)

    def look(address: str) -> Terminal:
        command = [sys.executable, "-m", "genkidama", "top", address]
        return in_terminal(command, 100, 30, folder=tmp_path, meanwhile=typing)

    async with (
        running(constant(), tmp_path / "run") as parent,
        FakeChild(parent.address, "pi") as child,
    ):
        await child.enter()
        await child.pushed(2.0)
        ended = asyncio.create_task(asyncio.to_thread(look, top_of(tmp_path / "run")))
        await eventually(lambda: shown and "x exclude a child" in shown[0].text)
        for keys, words in (
            ("c", "checkpoint: done"),
            ("xno-one\r", "there is no child of this name"),
            ("xpo\x7fi\r", "exclude pi: done"),
            ("sn\r", "c checkpoint"),
            ("sy\r", "stop: done"),
        ):
            shown[0].type(keys)
            await eventually(lambda words=words: words in shown[0].text)
            if keys == "sn\r":
                assert not parent.server.stop
    terminal = await ended
    assert terminal.code == 0 and parent.server.stop == "stopped by owner"
    assert parent.server.excluded == {"pi"}


async def test_a_parent_that_was_there_is_soon_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    restarted = [*began("a"), Stopped(time=BEGAN, reason="SIGTERM")]
    document = as_json(told(restarted).document(BEGAN))
    heard: list[Any] = [OSError(), OSError(), document, OSError()]
    waits: list[float] = []

    class Connected(SimpleNamespace):
        async def __aenter__(self) -> None: ...
        async def __aexit__(self, *_: object) -> None: ...

        async def recv(self) -> bytes:
            if isinstance(found := heard.pop(0), OSError):
                raise found
            return json.dumps(found).encode()

    async def opened(self: Any) -> Any:
        return Connected(protocol=SimpleNamespace())

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if not heard:
            raise InterruptedError

    monkeypatch.setattr("genkidama.child.transport.Transport.open", opened)
    monkeypatch.setattr(top, "random", SimpleNamespace(random=lambda: 1.0))
    monkeypatch.setattr(top.asyncio, "sleep", sleep)
    with pytest.raises(InterruptedError):
        await top._Top(top._uplink("http://127.0.0.1:1"), False).run()
    assert waits == pytest.approx([0.5, 1.0, 0.5])


async def test_it_ends_with_a_stopped_parent_that_is_gone_before_it_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def command(*_: object) -> str:
        return "stop: done"

    monkeypatch.setattr(top, "_command", command)
    display = top._Top(top._uplink(f"http://owner:{'t' * 32}@127.0.0.1:1"), False)
    await display._do("stop", "")
    async with asyncio.timeout(5.0):
        await display.run()
