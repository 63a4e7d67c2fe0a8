"""A child reaches a real Parent with a token and a certificate, or says why not."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from genkidama.child import transport
from genkidama.child.child import Child
from genkidama.child.transport import (
    FAILURES,
    OtherCertificate,
    Transport,
    explain,
    read_token,
    retry_after,
)
from genkidama.cli.access import fingerprint_of
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError
from genkidama.parent import Parent
from tests.certificates import Authority, Signed, needs_openssl
from tests.child.talking import OTHER, TOKEN
from tests.helpers import Serving, constant, eventually, running, url


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "BACKOFF_SECONDS", (0.01, 0.05))
    monkeypatch.delenv("GENKIDAMA_TOKEN", raising=False)


def over_tls(parent: Parent, host: str = "127.0.0.1") -> str:
    return f"wss://{host}:{parent.address[1]}"


@needs_openssl
def test_a_certificate_is_refused_if_any_digit_of_its_fingerprint_differs(signed: Signed) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(signed.certificate, signed.key)

    def shake_hands(fingerprint: str) -> None:
        to_child, to_parent = ssl.MemoryBIO(), ssl.MemoryBIO()
        child = transport._pinning(fingerprint).wrap_bio(to_child, to_parent)
        parent = served.wrap_bio(to_parent, to_child, server_side=True)
        for _ in range(2):
            for end in (child, parent):
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()

    true = fingerprint_of(Path(signed.certificate))
    shake_hands(true)
    for place, digit in enumerate(true):
        other = true[:place] + f"{int(digit, 16) ^ 1:x}" + true[place + 1 :]
        with pytest.raises(OtherCertificate, match=f"{true}, expected {other}"):
            shake_hands(other)


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


async def why_not(address: str, **options: Any) -> str:
    """What a child is told about a parent that it cannot reach."""
    there = Transport(address, **options)
    with pytest.raises(FAILURES) as caught:
        await there.open()
    return explain(caught.value, there)


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
            "is of an unknown authority: give the join string, which knows the certificate, or "
            "set ca_file to the authority that signed it",
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
            == f"{where} gives no HTTP answer: if that parent has a certificate, use wss://; "
            "or it has no room for another connection"
        )


async def test_a_token_that_is_missing_or_unknown(tmp_path: Path, tokens: Path) -> None:
    async with running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent:
        where = url(parent.address)
        assert await why_not(where) == (
            "no token: the parent asks for one; join with the string that genkidama token "
            "prints on its machine, or give token_file"
        )
        unknown = (
            "wrong token: the parent does not know it, or it has ended; make another on the "
            "parent's machine: genkidama token, or a line in parent.tokens_file"
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
            == f"{where} gives no HTTP answer: if that parent has a certificate, use wss://; "
            "or it has no room for another connection"
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


async def test_a_line_that_swallows_everything_is_given_up_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux drops what asks for a connection while a listening socket's queue is full."""
    monkeypatch.setattr(transport, "_DIAL_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        there = Transport(url(address))
        with socket.create_connection(address):
            async with asyncio.timeout(5.0) as patience:
                with pytest.raises(TimeoutError):
                    await there.open()
                assert not patience.expired()


def test_another_error_of_tls_is_told_with_openssls_word_for_it() -> None:
    there = Transport("wss://127.0.0.1:1")
    error = ssl.SSLError(1, "[SSL] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    assert explain(error, there) == (
        "no TLS 1.3 with wss://127.0.0.1:1: WRONG_VERSION_NUMBER; "
        "if that parent has no certificate, use ws://"
    )


def test_another_fault_of_a_certificate_is_told_in_openssls_words() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = 23
    error.verify_message = "certificate revoked"
    assert explain(error, Transport("wss://127.0.0.1:1")) == (
        "the parent's certificate cannot be verified: certificate revoked"
    )


def test_an_end_without_a_word_speaks_of_the_certificate_only_where_one_is_expected() -> None:
    error = ConnectionResetError(104, "Connection reset by peer")
    assert explain(error, Transport("ws://127.0.0.1:1")) == "[Errno 104] Connection reset by peer"
    assert explain(error, Transport("wss://127.0.0.1:1")) == (
        "wss://127.0.0.1:1 ends the connection: if that parent has no certificate, use ws://"
    )


def test_a_parent_that_does_not_answer_is_named() -> None:
    for error in (TimeoutError("timed out during opening handshake"), OSError(110, "timed out")):
        assert explain(error, Transport("ws://10.0.0.1:8765")) == (
            "ws://10.0.0.1:8765 does not answer: does that machine run, is the address right, "
            "and does a firewall let this child through?"
        )


def test_errors_without_words_have_a_name() -> None:
    there = Transport("ws://127.0.0.1:1")
    assert explain(BlockingIOError(), there) == "BlockingIOError"
    assert explain(OSError(5, "no such luck"), there) == "[Errno 5] no such luck"


def written(path: Path, content: str | bytes, mode: int = 0o600) -> Role:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return Role(token_file=str(path))


def test_the_token_is_in_the_file_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_token(Role()) == ""
    role = written(tmp_path / "token", f"{TOKEN}\n")
    assert read_token(role) == TOKEN
    monkeypatch.setenv("GENKIDAMA_TOKEN", f" {OTHER}\n")
    assert read_token(role) == OTHER
    assert read_token(Role()) == OTHER
    monkeypatch.setenv("GENKIDAMA_TOKEN", "")
    assert read_token(role) == TOKEN
    monkeypatch.setenv("GENKIDAMA_TOKEN", "too short")
    with pytest.raises(
        ConfigurationError,
        match=r"^GENKIDAMA_TOKEN: holds no token: expected 16 to 1024 characters of ",
    ):
        read_token(role)


@pytest.mark.parametrize(
    "content",
    ["", "\n", "fifteen-letters", f"pi {TOKEN}", f"{TOKEN}\n{OTHER}\n", f"{TOKEN}ü", b"\xff" * 20],
)
def test_a_file_that_holds_no_token_is_named_and_not_shown(
    tmp_path: Path, content: str | bytes
) -> None:
    role = written(tmp_path / "token", content)
    with pytest.raises(ConfigurationError) as caught:
        read_token(role)
    words = (
        "cannot be read: is no UTF-8 text"
        if isinstance(content, bytes)
        else "holds no token: expected 16 to 1024 characters of "
    )
    assert str(caught.value).startswith(f"token_file = {role.token_file!r}: {words}")
    assert TOKEN not in str(caught.value) and "fifteen" not in str(caught.value)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "token")
    with pytest.raises(ConfigurationError) as caught:
        read_token(Role(token_file=path))
    assert str(caught.value) == (
        f"token_file = {path!r}: cannot be read: No such file or directory; "
        "put this child's token there, or take the setting out"
    )


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_token_that_everybody_may_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, warned: bool
) -> None:
    assert read_token(written(tmp_path / "token", TOKEN, mode)) == TOKEN
    assert ("everybody on this machine may read the token" in capsys.readouterr().err) is warned


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        ("", "holds no PEM certificate"),
        ("no PEM", "holds no PEM certificate"),
    ],
)
def test_an_authority_that_is_none(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        Child.from_role(Role(parent="wss://parent:1", ca_file=str(path)))
    assert str(caught.value) == f"ca_file = '{path}': {words}"


@pytest.mark.parametrize(
    ("address", "port"), [("ws://h/watch", 80), ("wss://h/watch", 443), ("wss://h:9/watch", 9)]
)
async def test_a_post_goes_where_the_websocket_goes(
    address: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def connect(*place: Any, **_: Any) -> None:
        asked.append(place)
        raise ConnectionRefusedError

    monkeypatch.setattr(transport, "_dial", connect)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    there = Transport(address)
    for way in (there.open(), there.post("/control")):
        with pytest.raises(ConnectionRefusedError):
            await way
    assert asked == [("h", port), ("h", port)]


@pytest.mark.parametrize(
    ("path", "target"),
    [("", "/control?a=1"), ("/watch", "/control?a=1"), ("/p/q/watch", "/p/q/control?a=1")],
)
async def test_a_post_without_an_answer_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch, path: str, target: str
) -> None:
    sent = b""
    monkeypatch.setattr(transport, "_PING_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(TimeoutError):
            await Transport(url(silent.getsockname()) + path).post("/control?a=1")
        came, _ = silent.accept()
        with came:
            came.settimeout(5.0)
            while part := came.recv(1024):
                sent += part
                await asyncio.sleep(0)
    assert sent.startswith(f"POST {target} HTTP/1.1\r\n".encode())
    gc.collect()
