"""How a child reaches a real Parent that asks for its token and shows a certificate.

And what it says when it cannot.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from genkidama.child import uplink
from genkidama.child.client import Child
from genkidama.child.conversation import Conversation
from genkidama.child.explanations import explain
from genkidama.child.uplink import FAILURES, Uplink, ask
from genkidama.decisions import Refused
from genkidama.messages import Welcome
from genkidama.parent import Parent
from genkidama.session import Session
from tests.certificates import Authority, Signed, needs_openssl
from tests.helpers import PATIENCE, Serving, constant, eventually, history, running, url

TOKEN, OTHER = "token-of-the-pi-01", "token-of-the-pi-02"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink, "BACKOFF_SECONDS", (0.01, 0.05))
    monkeypatch.delenv("GENKIDAMA_TOKEN", raising=False)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"pi {TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.fixture(scope="module")
def signed(authority: Authority) -> Signed:
    return authority.sign("IP:127.0.0.1", "DNS:localhost")


def over_tls(parent: Parent, host: str = "127.0.0.1") -> str:
    return f"wss://{host}:{parent.address[1]}"


def session_of(there: Uplink) -> Session:
    return Session("pi", "word", parent=there.parent)


async def why_not(address: str, **options: Any) -> str:
    """What a child is told about a parent that it cannot reach."""
    there = Uplink(address, **options)
    with pytest.raises(FAILURES) as caught:
        await there.open()
    return explain(caught.value, there)


class Said:
    """The log lines of an event, in their order, as they are written."""

    def __init__(self, capsys: pytest.CaptureFixture[str], event: str) -> None:
        self._capsys, self._event = capsys, event
        self._lines: list[dict[str, Any]] = []

    def reasons(self) -> list[str]:
        found = [json.loads(line) for line in self._capsys.readouterr().err.splitlines()]
        self._lines += [line for line in found if line["event"] == self._event]
        return [line.get("reason", "") for line in self._lines]


# The whole way.


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
        there = Uplink(url(parent.address), token=TOKEN)
        connection = await there.open()
        assert connection.response is not None
        assert connection.response.headers["Server"].startswith("genkidama/")
        assert not parent.server.children
        assert isinstance(await ask(connection, session_of(there).hello()), Welcome)
        await connection.close()


# A parent that does not let it in is tried again.


async def test_a_child_whose_token_is_not_known_yet_is_let_in_when_it_is(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens.write_text(f"another {OTHER}\n")
    said = Said(capsys, "parent not reachable, still trying")
    async with running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent:
        child = Child(url(parent.address), name="pi", token=TOKEN)
        async with Serving(child) as serving:
            await eventually(lambda: parent.server.refusals["token"] >= 3)
            reason = (
                "the parent does not know this child's token: "
                "compare the child's token_file with the parent's tokens_file"
            )
            assert said.reasons() == [reason]
            assert child.status == f"waiting for {child.parent}: {reason}"
            tokens.write_text(f"another {OTHER}\npi {TOKEN}\n")
            await serving.exchanged(2)
            assert parent.server.connected == ["pi"]
    assert said.reasons() == [reason]


@needs_openssl
async def test_a_child_is_let_in_when_the_certificate_is_right_and_says_what_is_wrong_until_then(
    tmp_path: Path, authority: Authority, signed: Signed, capsys: pytest.CaptureFixture[str]
) -> None:
    said = Said(capsys, "parent not reachable, still trying")
    today = time.strftime("%Y-%m-%d", time.gmtime())
    reasons = [
        "the parent's certificate has expired: "
        f"renew it, if this machine's clock, which says {today}, is right",
        "the parent's certificate is for other names than 127.0.0.1: "
        "use one of those names, or make a certificate for 127.0.0.1",
    ]
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    child = Child(f"wss://{listen}", name="pi", ca_file=authority.file)
    serving = Serving(child)
    wrong = authority.sign("IP:127.0.0.1", begins=-2, ends=-1), authority.sign("DNS:elsewhere")
    for certificate, reason in zip(wrong, reasons, strict=True):
        async with running(constant(parent=certificate.settings()), tmp_path / "run", listen):
            if certificate is wrong[0]:
                await serving.__aenter__()
            await eventually(lambda reason=reason: child.status.endswith(reason))
    async with running(constant(parent=signed.settings()), tmp_path / "run", listen):
        await serving.exchanged(2)
        await serving.__aexit__(None, None, None)
    found = said.reasons()
    assert [reason for reason in found if reason in reasons] == reasons
    nobody = (
        f"nobody listens at wss://{listen}: is the parent started, and are host and port right?"
    )
    assert set(found) <= {
        nobody,
        *reasons,
        f"wss://{listen} ends the connection: if that parent has no certificate, use ws://",
    }


# What is wrong, in words.


@needs_openssl
async def test_a_certificate_that_cannot_be_trusted(tmp_path: Path, authority: Authority) -> None:
    today = time.strftime("%Y-%m-%d", time.gmtime())
    stranger = Authority(tmp_path / "stranger").file
    here, trusted = "IP:127.0.0.1", {"ca_file": authority.file}
    expired, future = (
        authority.sign(here, begins=-2, ends=-1),
        authority.sign(here, begins=1, ends=2),
    )
    for certificate, options, words in (
        (
            expired,
            trusted,
            f"has expired: renew it, if this machine's clock, which says {today}, is right",
        ),
        (future, trusted, f"is not yet valid: is this machine's clock right? It says {today}"),
        (
            authority.sign("DNS:parent.local", "IP:127.0.0.2"),
            trusted,
            "is for other names than 127.0.0.1: "
            "use one of those names, or make a certificate for 127.0.0.1",
        ),
        (
            authority.sign(here),
            {},
            "is of an unknown authority: set ca_file to the authority that signed it",
        ),
        (
            authority.sign(here),
            {"ca_file": stranger},
            f"is of an unknown authority: does {stranger} hold the authority that signed it?",
        ),
    ):
        async with running(constant(parent=certificate.settings()), tmp_path / "run") as parent:
            assert await why_not(over_tls(parent), **options) == f"the parent's certificate {words}"
            assert not parent.server.children


@needs_openssl
async def test_a_name_is_verified_as_it_is_written(tmp_path: Path, authority: Authority) -> None:
    certificate = authority.sign("DNS:localhost")
    async with running(constant(parent=certificate.settings()), tmp_path / "run") as parent:
        await (await Uplink(over_tls(parent, "localhost"), ca_file=authority.file).open()).close()
        assert "is for other names than 127.0.0.1" in await why_not(
            over_tls(parent), ca_file=authority.file
        )


@needs_openssl
async def test_wss_where_there_is_no_certificate_and_ws_where_there_is_one(
    tmp_path: Path, authority: Authority, signed: Signed
) -> None:
    async with running(constant(), tmp_path / "run") as parent:
        where = over_tls(parent)
        assert (
            await why_not(where, ca_file=authority.file)
            == f"{where} ends the connection: if that parent has no certificate, use ws://"
        )
    async with running(constant(parent=signed.settings()), tmp_path / "run") as parent:
        where = url(parent.address)
        assert (
            await why_not(where)
            == f"{where} gives no HTTP answer: if that parent has a certificate, use wss://"
        )


async def test_a_token_that_is_missing_or_unknown(tmp_path: Path, tokens: Path) -> None:
    async with running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent:
        where = url(parent.address)
        assert await why_not(where) == (
            "the parent asks for a token and this child has none: "
            "give it one with token_file, and the parent a line in tokens_file"
        )
        unknown = (
            "the parent does not know this child's token: "
            "compare the child's token_file with the parent's tokens_file"
        )
        assert await why_not(where, token=OTHER) == unknown


@asynccontextmanager
async def speaking(answer: bytes) -> AsyncIterator[str]:
    """A server that answers this to whatever it hears."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        yield url(server.sockets[0].getsockname())


async def test_somebody_else_listens_there() -> None:
    async with speaking(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as where:
        assert await why_not(where) == (
            "the answer is HTTP 404, and a parent's would be 101: "
            "does a parent listen at this address?"
        )
    async with speaking(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n") as where:
        assert await why_not(where) == "the parent is shutting down"
    async with speaking(b"SSH-2.0-OpenSSH\r\n") as where:
        assert (
            await why_not(where)
            == f"{where} gives no HTTP answer: if that parent has a certificate, use wss://"
        )


async def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = url(free.getsockname())
    assert (
        await why_not(where)
        == f"nobody listens at {where}: is the parent started, and are host and port right?"
    )
    words = await why_not("ws://nowhere.invalid:1")
    assert words.startswith("nowhere.invalid is no known name: ") and words.endswith(
        "; check the name, or give the parent's IP address"
    )


def test_errors_without_words_have_a_name() -> None:
    there = Uplink("ws://127.0.0.1:1")
    assert explain(TimeoutError(), there) == "TimeoutError"
    assert explain(OSError(5, "no such luck"), there) == "[Errno 5] no such luck"


# Names.


async def test_a_numbered_name_does_not_fit_the_token(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "pi")
    async with (
        running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent,
        Serving(Child(url(parent.address), token=TOKEN)) as first,
    ):
        await first.exchanged(1)
        with pytest.raises(Refused) as caught:
            await Child(url(parent.address), token=TOKEN).serve()
    assert caught.value.code == "token"
    assert str(caught.value) == (
        "the parent refuses this child: "
        "this token is for 'pi', and this child says it is 'pi-2'; "
        "name it 'pi', or give it a token of its own"
    )


# A token that anybody on the way can read.


@pytest.mark.parametrize(
    ("host", "token", "warned"),
    [("0.0.0.0", TOKEN, True), ("0.0.0.0", "", False), ("127.0.0.1", TOKEN, False)],
)
async def test_a_token_that_leaves_the_machine_unencrypted_is_spoken_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str, token: str, warned: bool
) -> None:
    said = Said(capsys, "the token travels readable; use wss://")
    async with running(constant(), tmp_path / "run") as parent:
        # A connection to 0.0.0.0 is one to this machine.
        there = Uplink(f"ws://{host}:{parent.address[1]}", token=token)
        talk = Conversation(there, session_of(there), lambda: None)
        for _ in range(2):
            async with asyncio.timeout(PATIENCE):
                await talk.begin()
            await talk.close()
            await eventually(lambda: not parent.server.connected)
    assert len(said.reasons()) == warned


# What systemd is told.


async def test_what_a_child_is_doing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said(capsys, "parent not reachable, still trying")
    settings = constant()
    async with running(settings, tmp_path / "run") as parent:
        where = url(parent.address)
        child = Child(where, name="pi")
        assert child.status == f"waiting for {where}"
        serving = Serving(child)
        await serving.__aenter__()
        await serving.exchanged(3)
        await eventually(
            lambda: (
                child.status == "training CartPole-v1 on 1 core, "
                f"version {parent.server.trial.version}, last exchange 0 s ago"
            )
        )
        version = parent.server.trial.version
    await eventually(lambda: "nobody listens" in child.status)
    assert child.status.startswith("training CartPole-v1 on 1 core, version ")
    assert f", waiting for {where}: nobody listens at {where}: " in child.status
    assert int(child.status.split("version ")[1].split(",")[0]) >= version
    async with running(settings, tmp_path / "run", where.removeprefix("ws://")):
        await eventually(lambda: child.status.endswith("last exchange 0 s ago"))
    await eventually(lambda: "nobody listens" in child.status)
    await serving.__aexit__(None, None, None)
    assert (
        said.reasons()
        == [f"nobody listens at {where}: is the parent started, and are host and port right?"] * 2
    )
