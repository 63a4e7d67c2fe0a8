"""Who is let in by a Parent on a real socket: tokens, certificates, plain HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode

import genkidama
from genkidama.errors import ConfigurationError
from genkidama.parent import Parent
from genkidama.parent.authentication import Authenticator, make_context
from genkidama.parent.connections import ConnectionManager
from genkidama.protocol.messages import PROTOCOL, Refusal, Weights, Welcome
from genkidama.protocol.tokens import ANY, find_entry, written
from tests.certificates import Authority, Signed, needs_openssl
from tests.helpers import PATIENCE, constant, eventually, history, running
from tests.parent.fake_child import FakeChild, vector

PI, OTHER, ANYBODY = "token-of-the-pi-01", "token-of-the-pi-02", "token-for-anybody"
SERVER = f"genkidama/{genkidama.__version__} protocol/{PROTOCOL}"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"pi {PI}\n* {ANYBODY}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
async def parent(tmp_path: Path, tokens: Path) -> AsyncIterator[Parent]:
    async with running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent:
        yield parent


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Bearer(FakeChild):
    """A fake child that shows a token, over TLS if it is told whom to trust."""

    def __init__(
        self, address: tuple[str, int], token: str, name: str = "pi", trusts: str = ""
    ) -> None:
        super().__init__(address, name)
        self._headers = bearer(token) if token else {}
        self._context = ssl.create_default_context(cafile=trusts) if trusts else None
        self.url = self.url.replace("ws://", "wss://") if trusts else self.url

    async def __aenter__(self) -> Bearer:
        self.connection: ClientConnection = await connect(
            self.url,
            additional_headers=self._headers,
            compression=None,
            max_size=None,
            ssl=self._context,
        )
        return self


@asynccontextmanager
async def http(
    address: tuple[str, int], context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Any, Any]]:
    reader, writer = await asyncio.open_connection(*address, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.close()


async def get(
    address: tuple[str, int], request: str, context: ssl.SSLContext | None = None
) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of the answer to a request's first lines."""
    async with http(address, context) as (reader, writer):
        writer.write(f"{request}\r\nHost: parent\r\n\r\n".encode())
        async with asyncio.timeout(PATIENCE):
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


def warnings(err: str, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    return [line for line in lines if line["level"] == "warning" and line["event"] == event]


# Tokens.


async def test_a_token_whose_day_is_over_lets_nobody_in(parent: Parent, tokens: Path) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    tokens.write_text(written("pi", PI, yesterday) + written("pi", OTHER, datetime.now(UTC)))
    with pytest.raises(InvalidStatus) as raised:
        async with Bearer(parent.address, PI):
            pass
    assert raised.value.response.status_code == 401
    assert raised.value.response.body == b"the token of 'pi' has ended\n"
    async with Bearer(parent.address, OTHER) as child:
        assert isinstance(await child.hello(), Welcome)


async def test_a_token_lets_in_the_child_whose_name_it_is_for(parent: Parent) -> None:
    async with (
        Bearer(parent.address, PI) as child,
        Bearer(parent.address, ANYBODY, "another") as another,
    ):
        for each in (child, another):
            await each.enter()
        await child.pushed(1.0)
        np.testing.assert_array_equal(await another.pushed(3.0), vector(2.0))
        assert sorted(parent.server.connected) == ["another", "pi"]
    assert not parent.server.refusals


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "this parent asks for a token: Authorization: Bearer TOKEN\n"),
        (
            {"Authorization": "Basic cGk6cGk="},
            "this parent asks for a token: Authorization: Bearer TOKEN\n",
        ),
        (
            {"Authorization": "Bearer"},
            "this parent asks for a token: Authorization: Bearer TOKEN\n",
        ),
        (bearer(OTHER), "this parent does not know the token\n"),
        (bearer("*"), "this parent does not know the token\n"),
        (bearer("\xff" * 20), "this parent does not know the token\n"),
        (
            [("Authorization", f"Bearer {PI}")] * 2,
            "this parent asks for a token: Authorization: Bearer TOKEN\n",
        ),
    ],
)
async def test_without_a_token_that_the_parent_knows_there_is_no_websocket(
    parent: Parent, capsys: pytest.CaptureFixture[str], headers: Any, words: str
) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await connect(
            f"ws://{parent.address[0]}:{parent.address[1]}",
            additional_headers=headers,
            compression=None,
        )
    response = caught.value.response
    assert (response.status_code, (response.body or b"").decode()) == (401, words)
    assert (response.headers["Server"], response.headers["WWW-Authenticate"]) == (SERVER, "Bearer")
    assert response.headers["Date"]
    assert parent.server.refusals == {"token": 1}
    parent.stop()
    await parent.shutdown()
    assert [line["reason"] for line in history(parent.out, "refused")] == [words.strip()]  # type: ignore[arg-type]
    assert OTHER not in capsys.readouterr().err


async def test_a_scheme_is_written_as_one_likes(parent: Parent) -> None:
    async with connect(
        f"ws://{parent.address[0]}:{parent.address[1]}",
        additional_headers={"authorization": f"bearer  {PI} "},
    ):
        pass


async def test_a_token_of_another_name_is_refused(parent: Parent) -> None:
    async with Bearer(parent.address, PI, "pi-2") as child:
        reply = await child.hello()
        assert isinstance(reply, Refusal)
        assert reply.code == "token"
        assert reply.reason == (
            "this token is for 'pi', and this child says it is 'pi-2'; "
            "name it 'pi', or give it a token of its own"
        )
        assert (await child.closed())[0] == 1008
    assert parent.server.refusals == {"token": 1}
    assert not parent.server.children


async def test_a_machine_that_has_started_again_takes_its_name_over_by_its_token(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConnectionManager, "pong_seconds", 0.2)
    async with (
        Bearer(parent.address, PI) as before,
        Bearer(parent.address, PI) as after,
        Bearer(parent.address, ANYBODY) as stranger,
    ):
        before.session, after.session, stranger.session = "first", "second", "third"
        assert isinstance(await before.hello(), Welcome)
        before.connection.transport.pause_reading()  # its plug is pulled: it answers no ping
        refusal = await stranger.hello()
        # A token for any name proves none.
        assert isinstance(refusal, Refusal) and refusal.code == "name"
        assert isinstance(await after.hello(), Welcome)
        assert isinstance(await after.join(), Weights)
        before.connection.transport.resume_reading()
        await eventually(lambda: before.connection.close_code == CloseCode.POLICY_VIOLATION)
    assert parent.server.refusals == {"name": 1}


async def test_of_two_machines_with_the_same_token_the_first_stays(parent: Parent) -> None:
    async with Bearer(parent.address, PI) as first, Bearer(parent.address, PI) as second:
        first.session, second.session = "first", "second"
        assert isinstance(await first.hello(), Welcome)
        refusal = await second.hello()
        assert isinstance(refusal, Refusal) and refusal.code == "name"
        assert isinstance(await first.join(), Weights)


async def test_a_token_that_is_added_holds_at_once_and_one_that_is_taken_away_no_more(
    parent: Parent, tokens: Path
) -> None:
    async with Bearer(parent.address, PI) as child:
        await child.enter()
        for _ in range(2):
            with pytest.raises(InvalidStatus):
                await Bearer(parent.address, OTHER, "pi-02").__aenter__()
        tokens.write_text(f"pi-02 {OTHER}\n")
        async with Bearer(parent.address, OTHER, "pi-02") as another:
            assert isinstance(await another.hello(), Welcome)
        with pytest.raises(InvalidStatus):
            await Bearer(parent.address, PI).__aenter__()
        await child.pushed(1.0)  # who is in stays in


@pytest.mark.parametrize("damage", ["malformed", "missing", "binary", "directory"])
async def test_a_file_that_is_damaged_leaves_the_last_tokens_and_one_warning(
    parent: Parent, tokens: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    def damaged() -> None:
        tokens.unlink()
        if damage == "malformed":
            tokens.write_text(f"pi {PI}\n{OTHER}\n")
        elif damage == "binary":
            tokens.write_bytes(b"\xff\xfe")
        elif damage == "directory":
            tokens.mkdir()

    async def enter() -> None:
        async with Bearer(parent.address, PI) as child:
            assert isinstance(await child.hello(), Welcome)

    words = {
        "malformed": f"{tokens}: line 2: expected NAME TOKEN, found 1 word",
        "missing": f"parent.tokens_file = '{tokens}': cannot be read: No such file or directory",
        "binary": f"parent.tokens_file = '{tokens}': cannot be read: is no UTF-8 text",
        "directory": f"parent.tokens_file = '{tokens}': cannot be read: Is a directory",
    }
    damaged()
    for _ in range(3):
        await enter()
    said = warnings(
        capsys.readouterr().err, "tokens file cannot be used, the tokens read last stay"
    )
    assert [line["reason"] for line in said] == [words[damage]]
    if damage == "directory":
        tokens.rmdir()
    tokens.write_text(f"pi {PI}\n")
    tokens.chmod(0o600)
    await enter()
    assert not warnings(
        capsys.readouterr().err, "tokens file cannot be used, the tokens read last stay"
    )
    damaged()
    await enter()
    assert (
        len(
            warnings(
                capsys.readouterr().err, "tokens file cannot be used, the tokens read last stay"
            )
        )
        == 1
    )


def test_a_file_that_everybody_may_read_is_spoken_of_once(
    tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens.chmod(0o644)
    admission = Authenticator(str(tokens), structlog.get_logger())
    entry = find_entry(ANYBODY, admission.entries)
    assert entry is not None and entry.name == ANY
    (said,) = warnings(capsys.readouterr().err, "everybody on this machine may read the tokens")
    assert (said["file"], said["way_out"]) == (str(tokens), f"chmod o-r {tokens}")
    tokens.chmod(0o640)
    assert find_entry(PI, admission.entries) is not None
    assert capsys.readouterr().err == ""


async def test_tokens_that_cannot_be_read_at_the_start_are_the_users_mistake(
    tmp_path: Path, tokens: Path
) -> None:
    with socket.create_server(
        ("127.0.0.1", 0)
    ) as taken:  # nothing is bound before: this address is in use
        for content, words in (
            (f"pi {PI} x y", f"{tokens}: line 1: expected NAME TOKEN, found 4 words"),
            (None, "cannot be read: No such file"),
        ):
            tokens.unlink(missing_ok=True)
            if content is not None:
                tokens.write_text(content)
            parent = Parent(
                constant(parent={"tokens_file": str(tokens)}),
                out=tmp_path / "run",
                listen=f"127.0.0.1:{taken.getsockname()[1]}",
            )
            with pytest.raises(ConfigurationError, match=words):
                await parent.startup()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("listen", "warned"), [("127.0.0.1:0", False), ("0.0.0.0:0", True)])
async def test_a_parent_that_everybody_may_join_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], listen: str, warned: bool
) -> None:
    async with running(constant(parent={"open": warned}), tmp_path / "run", listen):
        pass
    said = warnings(capsys.readouterr().err, "no tokens")
    assert len(said) == warned
    assert all("give parent.tokens_file" in line["reason"] for line in said)


# Plain HTTP.


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /child HTTP/1.1", 426),
        (f"GET /child HTTP/1.1\r\nAuthorization: Bearer {PI}", 426),
        (f"GET /{'x' * 9000} HTTP/1.1", 414),
        (f"GET / HTTP/1.1\r\nX: {'x' * 9000}", 431),
        ("GET /child HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade", 401),
        (
            "GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Authorization: Bearer {PI}",
            400,
        ),
    ],
)
async def test_every_answer_says_who_answers(
    parent: Parent, request_line: str, status: int
) -> None:
    answered, headers, _ = await get(parent.address, request_line)
    assert (answered, headers["Server"]) == (status, SERVER)
    assert headers["Date"]


async def test_the_answer_to_a_child_says_who_answers(parent: Parent) -> None:
    async with Bearer(parent.address, PI) as child:
        assert child.connection.response is not None
        assert child.connection.response.headers["Server"] == SERVER
        assert child.connection.response.headers["Date"]


# Certificates.


@needs_openssl
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_push_over_tls_is_answered_where_it_arrives(
    tmp_path: Path,
    tokens: Path,
    authority: Authority,
    signed: Signed,
    loop: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = []

    def observed(*arguments: Any) -> bytes | None:
        short.append(answer(*arguments))
        return short[-1]

    async def exchange() -> None:
        settings = constant(parent={"tokens_file": str(tokens), **signed.settings()})
        async with (
            running(settings, tmp_path / "run") as parent,
            Bearer(parent.address, PI, trusts=authority.file) as child,
        ):
            await child.enter()
            np.testing.assert_array_equal(await child.pushed(2.0), vector(2.0))
            np.testing.assert_array_equal(await child.pushed(4.0), vector(3.0))
            encrypted = child.connection.transport.get_extra_info("ssl_object")
            assert encrypted.version() == "TLSv1.3"
            context = ssl.create_default_context(cafile=authority.file)
            assert (await get(parent.address, "GET /healthz HTTP/1.1", context))[0::2] == (
                200,
                "ok\n",
            )
            await child.leave()

    answer = ConnectionManager._answer_at_once
    monkeypatch.setattr(ConnectionManager, "_answer_at_once", observed)
    factory = (
        pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    )
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(exchange())
    assert [reply is not None for reply in short] == [True, True, False]


@needs_openssl
async def test_tls_before_1_3_is_not_spoken(
    tmp_path: Path, authority: Authority, signed: Signed
) -> None:
    async with running(constant(parent=signed.settings()), tmp_path / "run") as parent:
        context = ssl.create_default_context(cafile=authority.file)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(*parent.address, ssl=context)


@needs_openssl
def test_files_that_are_no_certificate_and_key(
    tmp_path: Path, authority: Authority, signed: Signed
) -> None:
    other = authority.sign("DNS:other")
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.touch()
    encrypted = authority.encrypt(signed.key)
    both = f"parent.certificate_file = '{signed.certificate}', parent.key_file = "
    for certificate, key, words in (
        (
            signed.certificate,
            "",
            f"{both}'': wss:// needs both; give the other one too, or neither for ws://",
        ),
        (
            "",
            signed.key,
            f"parent.certificate_file = '', parent.key_file = '{signed.key}': wss:// needs both",
        ),
        (
            str(missing),
            signed.key,
            f"parent.certificate_file = '{missing}': cannot be read: No such file or directory",
        ),
        (
            signed.certificate,
            str(missing),
            f"parent.key_file = '{missing}': cannot be read: No such file or directory",
        ),
        (
            str(tmp_path),
            signed.key,
            f"parent.certificate_file = '{tmp_path}': cannot be read: Is a directory",
        ),
        (str(empty), signed.key, f"parent.certificate_file = '{empty}': holds no PEM certificate"),
        (
            signed.key,
            signed.key,
            f"parent.certificate_file = '{signed.key}': holds no PEM certificate",
        ),
        (signed.certificate, str(empty), f"parent.key_file = '{empty}': holds no PEM private key"),
        (
            signed.certificate,
            signed.certificate,
            f"parent.key_file = '{signed.certificate}': holds no PEM private key",
        ),
        (
            signed.certificate,
            encrypted,
            f"parent.key_file = '{encrypted}': is encrypted, and nobody types its password; "
            "decrypt it with",
        ),
        (
            signed.certificate,
            other.key,
            f"{both}'{other.key}': the key is not the certificate's; give the key that",
        ),
    ):
        with pytest.raises(ConfigurationError) as caught:
            make_context(certificate, key)
        assert str(caught.value).startswith(words)
        assert "\n" not in str(caught.value)
    assert make_context("", "") is None


@needs_openssl
async def test_a_certificate_that_cannot_be_used_leaves_nothing_behind(
    tmp_path: Path, signed: Signed
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = constant(parent={"certificate_file": signed.certificate})
        parent = Parent(
            settings, out=tmp_path / "run", listen=f"127.0.0.1:{taken.getsockname()[1]}"
        )
        with pytest.raises(ConfigurationError, match="needs both"):
            await parent.startup()
    assert not (tmp_path / "run").exists()


# What a web page asks for.


async def test_a_web_page_in_somebodys_browser_cannot_join(tmp_path: Path) -> None:
    async with running(constant(), tmp_path) as parent:
        host, port = parent.address
        for origin in ("https://example.org", "null", f"http://{host}:{port}"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://{host}:{port}", origin=origin)
            assert refused.value.response.status_code == 403
        assert parent.server.refusals == {"origin": 3}
        status, _, body = await get(parent.address, "GET /healthz HTTP/1.1\r\nOrigin: null")
        assert (status, body) == (200, "ok\n")
