"""The way to real parents, with real certificates, step by step."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

import genkidama
from genkidama.doctor import connection
from genkidama.doctor.judgements.check import Check
from genkidama.parent import channel
from genkidama.system.certificate import fingerprint_of
from tests.certificates import Authority, Signed, needs_openssl
from tests.doctor.parents import examined, secured
from tests.helpers import running, small, url


async def test_another_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "SERVER", "genkidama/9.9 protocol/99")
    async with running(small(), tmp_path / "run") as parent:
        found = await examined(parent=url(parent.address))
    version = found["version"]
    both = f"the parent has 9.9 with protocol 99, this machine {genkidama.__version__}"
    assert version.status == "failed" and both in version.found
    assert version.advice.endswith("genkidama==9.9")
    assert found["token"].status == "skipped"


@needs_openssl
@pytest.mark.parametrize(
    ("names", "days", "words"),
    [
        (
            "DNS:parent.example",
            (-1.0, 1.0),
            "the parent's certificate is for other names than 127.0.0.1",
        ),
        ("IP:127.0.0.1", (-9.0, -1.0), "the parent's certificate has expired"),
        ("IP:127.0.0.1", (1.0, 9.0), "the parent's certificate is not yet valid"),
    ],
)
async def test_a_certificate_that_cannot_be_verified(
    tmp_path: Path, authority: Authority, names: str, days: tuple[float, float], words: str
) -> None:
    signed = authority.sign(names, begins=days[0], ends=days[1])
    async with running(small(parent=signed.settings()), tmp_path / "run") as running_parent:
        address = url(running_parent.address).replace("ws:", "wss:")
        found = await examined(parent=address, ca_file=authority.file)
    assert (found["tls"].status, found["tls"].found) == ("failed", words) and found["tls"].advice
    assert found["clock"].found == "as the parent's, to a second"


async def test_a_certificate_that_is_known_by_its_fingerprint(
    tmp_path: Path, signed: Signed
) -> None:
    known = fingerprint_of(Path(signed.certificate))
    async with secured(tmp_path, signed) as (_, address):
        right = await examined(parent=address, fingerprint=known)
        wrong = await examined(parent=address, fingerprint="0" * 64)
    assert right["tls"] == Check("tls", "ok", "TLSv1.3, with the fingerprint")
    assert right["version"].status == "ok"
    assert (wrong["tls"].status, wrong["version"].status) == ("failed", "skipped")
    assert known in wrong["tls"].found and "genkidama token" in wrong["tls"].advice


async def test_a_parent_without_tls(tmp_path: Path) -> None:
    async with running(small(), tmp_path / "run") as running_parent:
        address = url(running_parent.address)
        secure, plain = await asyncio.gather(
            examined(parent=address.replace("ws:", "wss:")), examined(parent=address)
        )
        assert not running_parent.server.refusals
    assert secure["tls"].status == "failed" and "use ws://" in secure["tls"].advice
    assert secure["version"].found == "because of tls"
    assert plain["tls"] == Check("tls", "skipped", "ws:// is not encrypted")
    assert plain["token"] == Check("token", "ok", "not needed")


@pytest.mark.parametrize(
    ("address", "advice"),
    [("ws://no-such-machine.invalid:1", "IP address"), ("ws://a..b:1", "IP address")],
)
async def test_a_name_that_nobody_has(address: str, advice: str) -> None:
    found = await examined(parent=address)
    assert found["name"].status == "failed" and advice in found["name"].advice
    assert {found[name].status for name in ("port", "tls", "version", "token")} == {"skipped"}


def test_somebody_who_is_no_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = connection.Target("127.0.0.1", server.getsockname()[1], False)
        check, reached = connection.reach(target)
        assert check.status == "ok" and reached is not None
        other, _ = server.accept()
        other.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        other.close()
        with reached:
            found, greeting = connection.greet(target, reached)
    assert (
        found.status == "failed" and found.found.startswith("no HTTP answer: ") and greeting is None
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read: No such file or directory"), ("no PEM", "holds no PEM certificate")],
)
async def test_an_authority_that_cannot_be_used(
    tmp_path: Path, signed: Signed, content: str | None, words: str
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    async with secured(tmp_path, signed) as (_, address):
        found = await examined(parent=address, ca_file=str(file))
    assert (
        found["tls"].status == "failed"
        and found["tls"].found == f"ca_file = {str(file)!r}: {words}"
    )


async def test_a_token_that_cannot_be_read(tmp_path: Path) -> None:
    async with running(small(), tmp_path / "run") as running_parent:
        found = await examined(
            parent=url(running_parent.address), token_file=str(tmp_path / "none")
        )
    assert (
        found["token"].status == "failed"
        and "No such file" in found["token"].found
        and found["token"].advice
    )
