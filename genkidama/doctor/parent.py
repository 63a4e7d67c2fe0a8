"""The way to a parent, step by step. Each step is a function that gives its row and what the next one needs.

Laws of this file:
- Nothing is joined, and nobody says hello: of a machine that would be let in, the parent notes nothing.
- The token goes only to a parent whose certificate is verified, and just as a child would send it.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import genkidama
from genkidama.doctor import host, judgements
from genkidama.doctor.judgements import Check
from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.role import Role

__all__ = [
    "SECONDS",
    "Greeting",
    "Target",
    "admit",
    "examine",
    "greet",
    "parse_target",
    "reach",
    "resolve",
    "secure",
]

#: So long each step may take.
SECONDS = 10.0

#: The rows of a parent, in their order.
_ROWS = ("name", "port", "tls", "version", "token")


class Target(NamedTuple):
    """Where a parent listens."""

    host: str
    port: int
    tls: bool


class Greeting(NamedTuple):
    """What a parent answers to `GET /healthz`."""

    status: int
    #: The header by which it names its software.
    server: str
    #: How far this machine's clock is ahead of the parent's, in seconds, to half a second; None if the parent does not say.
    ahead: float | None


def parse_target(url: str) -> Target:
    """The parts of `ws://HOST:PORT` or `wss://HOST:PORT`.

    Raises:
        ConfigurationError: it is neither.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss") or not parts.hostname:
            raise ValueError("no host" if parts.scheme in ("ws", "wss") else "another scheme")
        return Target(
            parts.hostname,
            parts.port or (443 if parts.scheme == "wss" else 80),
            parts.scheme == "wss",
        )
    except ValueError as error:
        raise ConfigurationError(
            f"parent = {url!r}: expected ws://HOST:PORT or wss://HOST:PORT: {error}"
        ) from None


def examine(role: Role | None) -> Iterator[Check]:
    """The rows of the parent that a child with these settings would go to, and the clock's, as they become known.

    Args:
        role: None if there is no parent, or none that could be known.
    """
    seen: set[str] = set()
    ahead, because = None, ""
    for row in _steps(role) if role is not None else ():
        if isinstance(row, Greeting):
            ahead = row.ahead
            continue
        seen.add(row.name)
        because = row.name if row.status == "failed" else because
        yield row
    if role is None:
        yield Check("parent", "skipped", "none is given: --parent ws://HOST:PORT")
    else:
        yield from (
            Check(name, "skipped", f"because of {because}") for name in _ROWS if name not in seen
        )
    yield from host.clock() if ahead is None else [judgements.clock_offset(ahead)]


def _steps(role: Role) -> Iterator[Check | Greeting]:
    """Step by step, as long as each goes well; and what the parent answers, for its clock."""
    target = parse_target(role.parent)
    check = resolve(target)
    yield check
    if check.status == "failed":
        return
    check, connection = reach(target)
    yield check
    if connection is None:
        return
    with closing(connection):
        check, secured = secure(target, connection, role)
    yield check
    if secured is None:
        greeting = _ask_unverified(target)
        if greeting is not None:
            yield greeting
        return
    with closing(secured):
        check, greeting = greet(target, secured)
    yield check
    if greeting is not None:
        yield greeting
    if check.status != "failed":
        yield admit(role)


def resolve(target: Target) -> Check:
    """Whether the parent's name is known."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        return judgements.unknown_name(target.host, "is no valid name")
    except OSError as error:
        return judgements.unknown_name(target.host, error.strerror or str(error))
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    return Check(
        "name",
        "ok",
        target.host if addresses == [target.host] else f"{target.host} is {', '.join(addresses)}",
    )


def reach(target: Target) -> tuple[Check, socket.socket | None]:
    """Whether somebody listens there; a connection, which the caller closes."""
    before = time.monotonic()
    try:
        connection = socket.create_connection((target.host, target.port), SECONDS)
    except OSError as error:
        return judgements.closed_port(
            target.host, target.port, error.errno, error.strerror or str(error)
        ), None
    milliseconds = 1000 * (time.monotonic() - before)
    return Check(
        "port", "ok", f"{target.host}:{target.port} open, after {milliseconds:.1f} ms"
    ), connection


def secure(
    target: Target, connection: socket.socket, role: Role
) -> tuple[Check, socket.socket | None]:
    """Whether the parent is the one that its certificate says; a connection to go on with, which the caller closes."""
    if not target.tls:
        return Check("tls", "skipped", "ws:// is not encrypted"), connection.dup()
    try:  # as `uplink._make_context`, which cannot be imported where websockets is what is broken
        context = ssl.create_default_context(cafile=role.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    except OSError as error:
        what = (
            "holds no PEM certificate"
            if isinstance(error, ssl.SSLError)
            else f"cannot be read: {error.strerror}"
        )
        return Check(
            "tls",
            "failed",
            f"ca_file = {role.ca_file!r}: {what}",
            "copy the authority's certificate there: PEM, readable",
        ), None
    try:
        secured = context.wrap_socket(connection, server_hostname=target.host)
    except OSError as error:
        return Check("tls", "failed", *_explain(error, role)), None
    names, ends = certificate_facts(secured)
    return judgements.certificate(
        "tls", names, ends, time.time(), secured.version() or "no TLS"
    ), secured


def certificate_facts(connection: ssl.SSLSocket | ssl.SSLObject) -> tuple[list[str], float]:
    """The names in the verified certificate of the other end, and when it ends, in Unix seconds."""
    found = connection.getpeercert() or {}
    names = [  # type: ignore[str-unpack]
        str(value)
        for kind, value in found.get("subjectAltName", ())
        if kind in ("DNS", "IP Address")
    ]
    return names, ssl.cert_time_to_seconds(str(found["notAfter"]))


def greet(target: Target, connection: socket.socket) -> tuple[Check, Greeting | None]:
    """Whether it is a parent that answers, and one of our version."""
    try:
        greeting = _ask(target, connection)
    except (OSError, http.client.HTTPException) as error:
        way = (
            "is it a parent's port?"
            if target.tls
            else "is it a parent's port? If the parent has a certificate, use wss://"
        )
        return Check(
            "version", "failed", f"no HTTP answer: {str(error) or type(error).__name__}", way
        ), None
    return judgements.server_header(
        greeting.server, greeting.status == 200, genkidama.__version__, our_protocol()
    ), greeting


def _ask(target: Target, connection: socket.socket) -> Greeting:
    talk = http.client.HTTPConnection(target.host, target.port)
    talk.sock = connection
    before = time.time()
    talk.request("GET", "/healthz")
    answer = talk.getresponse()
    asked = (before + time.time()) / 2
    answer.read(1024)
    ahead = None
    with suppress(ValueError, TypeError):
        ahead = (
            asked - parsedate_to_datetime(answer.headers["Date"]).timestamp() - 0.5
        )  # the header leaves the fraction out
    return Greeting(answer.status, answer.headers.get("Server", ""), ahead)


def _ask_unverified(target: Target) -> Greeting | None:
    """The clock of a parent whose certificate is not believed, since a wrong clock is one reason for that."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((target.host, target.port), SECONDS) as plain,
            context.wrap_socket(plain) as connection,
        ):
            return _ask(target, connection)
    except (OSError, http.client.HTTPException):
        return None


def admit(role: Role) -> Check:
    """Whether the parent opens a websocket to this machine, with its token if it has one."""
    try:
        from genkidama.child.credentials import read_token
        from genkidama.child.explanations import explain
        from genkidama.child.uplink import FAILURES, Uplink
        from genkidama.tokens import is_loopback
    except Exception as error:
        return Check("token", "skipped", f"a package is missing or broken: {error}")

    async def knock(uplink: Uplink) -> None:
        connection = await uplink.open()
        await connection.close()

    try:
        uplink = Uplink(role.parent, token=read_token(role), ca_file=role.ca_file)
        asyncio.run(knock(uplink))
    except ConfigurationError as error:
        return Check("token", "failed", *_split(str(error), "; "))
    except FAILURES as error:
        return Check("token", "failed", *_split(explain(error, uplink), ": "))
    if not uplink.has_token:
        return Check("token", "ok", "not needed")
    if role.parent.startswith("ws:") and not is_loopback(uplink.host):
        return Check(
            "token",
            "warning",
            "accepted, but everybody on the way can read it",
            "give the parent a certificate, and use wss://",
        )
    return Check("token", "ok", "accepted")


def _explain(error: OSError, role: Role) -> tuple[str, str]:
    """What TLS has failed with: found and advice."""
    try:
        from genkidama.child.explanations import explain
        from genkidama.child.uplink import Uplink
    except Exception:
        return str(error), "see docs/doctor.md"
    return _split(explain(error, Uplink(role.parent, ca_file=role.ca_file)), ": ")


def _split(sentence: str, between: str) -> tuple[str, str]:
    """A sentence that says first what is wrong and then the way out."""
    found, _, advice = sentence.partition(between)
    return found, advice or "see docs/doctor.md"


def our_protocol() -> int | None:
    try:
        from genkidama.messages import PROTOCOL
    except Exception:
        return None
    return PROTOCOL
