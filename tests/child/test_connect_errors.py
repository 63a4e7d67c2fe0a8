"""Why there is no connection, in words: errors that real servers cause, and a few others."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from genkidama.child.connect_errors import explain
from genkidama.child.transport import FAILURES, Transport
from genkidama.parent import Parent
from tests.certificates import Authority, Signed, needs_openssl
from tests.child.talking import OTHER
from tests.helpers import constant, running, url


def over_tls(parent: Parent, host: str = "127.0.0.1") -> str:
    return f"wss://{host}:{parent.address[1]}"


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
