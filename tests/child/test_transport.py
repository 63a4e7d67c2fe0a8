"""How a child reaches a real Parent that asks for its token and shows a certificate."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from genkidama.child import transport
from genkidama.child.child import Child
from genkidama.child.connect_errors import explain
from genkidama.child.transport import Transport, ask, retry_after
from genkidama.parent import Parent
from genkidama.protocol.messages import Welcome
from genkidama.protocol.session import Session
from tests.certificates import Authority, Signed, needs_openssl
from tests.child.talking import TOKEN
from tests.helpers import Serving, constant, eventually, history, running, url


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BACKOFF_SECONDS", (0.01, 0.05))
    monkeypatch.delenv("GENKIDAMA_TOKEN", raising=False)


def over_tls(parent: Parent, host: str = "127.0.0.1") -> str:
    return f"wss://{host}:{parent.address[1]}"


def session_of(there: Transport) -> Session:
    return Session("pi", "word", parent=there.parent)


@needs_openssl
async def test_a_child_exchanges_over_tls_with_its_token(
    tmp_path: Path,
    tokens: Path,
    authority: Authority,
    signed: Signed,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = constant(
        parent={"tokens_file": str(tokens), **signed.settings()},
        network={"options": {"size": 1 << 18}},
    )
    async with running(settings, tmp_path / "run") as parent:
        child = Child(over_tls(parent), name="pi", token=TOKEN, ca_file=authority.file)
        async with Serving(child) as serving:
            await serving.exchanged(5)
            assert parent.server.connected == ["pi"]
            assert child.status.startswith("training CartPole-v1 on 1 core, version ")
            assert child.status.endswith(", last exchange 0 s ago")
        assert parent.server.trial.version >= 5
        assert not parent.server.refusals
    assert [line["reason"] for line in history(tmp_path / "run", "leave")] == ["stopped"]
    assert TOKEN not in capsys.readouterr().err


async def test_an_open_uplink_has_said_nothing_yet(tmp_path: Path, tokens: Path) -> None:
    async with running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent:
        there = Transport(url(parent.address), token=TOKEN)
        connection = await there.open()
        assert connection.response is not None
        assert connection.response.headers["Server"].startswith("genkidama/")
        assert not parent.server.children
        assert isinstance(await ask(connection, session_of(there).hello()), Welcome)
        await connection.close()


@needs_openssl
async def test_a_name_is_verified_as_it_is_written(tmp_path: Path, authority: Authority) -> None:
    certificate = authority.sign("DNS:localhost")
    async with running(constant(parent=certificate.settings()), tmp_path / "run") as parent:
        await (
            await Transport(over_tls(parent, "localhost"), ca_file=authority.file).open()
        ).close()
        with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for '127\.0\.0\.1'"):
            await Transport(over_tls(parent), ca_file=authority.file).open()


async def test_a_numbered_name_does_not_fit_the_token(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "pi")
    async with (
        running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent,
        Serving(Child(url(parent.address), token=TOKEN)) as first,
    ):
        await first.exchanged(1)
        second = Child(url(parent.address), token=TOKEN)
        async with Serving(second) as waiting:
            words = (
                f"waiting for ws://127.0.0.1:{parent.address[1]}: the parent refuses this child: "
                "this token is for 'pi', and this child says it is 'pi-2'; "
                "name it 'pi', or give it a token of its own"
            )
            await eventually(lambda: second.status == words)
            first.child.stop()
            await waiting.exchanged(1)  # the name is free
            assert second.name == "pi"


async def test_a_child_comes_again_when_the_parent_says_it_may(tmp_path: Path) -> None:
    """Two children behind one address that may have one connection."""
    async with running(constant(parent={"max_per_address": 1}), tmp_path / "run") as parent:
        url = f"ws://127.0.0.1:{parent.address[1]}"
        first = await Transport(url).open()
        with pytest.raises(InvalidStatus) as refused:
            await Transport(url).open()
        assert 1.0 <= retry_after(refused.value) <= 8.0
        assert explain(refused.value, Transport(url)).startswith(
            "the parent has no room for another"
        )
        await first.close()
