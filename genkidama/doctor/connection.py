"""The way to a parent, step by step. Each step gives its row and what the next step needs.

Laws of this file:
- The doctor joins nothing and says no hello. The parent notes nothing of a machine that it would
  let in.
- The token goes only to a parent whose certificate is verified, and just as a child would send it.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from genkidama._version import __version__
from genkidama.doctor import host
from genkidama.doctor.judgements.check import Check
from genkidama.doctor.judgements.connection import (
    judge_certificate,
    judge_clock_offset,
    judge_closed_port,
    judge_page,
    judge_server_header,
    judge_unknown_name,
)
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

#: Each step may take so long.
SECONDS = 10.0

#: The rows of a parent, in their order.
_ROWS = ("name", "port", "tls", "version", "token", "page")


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
    #: Seconds by which this machine's clock is ahead of the parent's, to half a second; None if
    #: the parent does not say.
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
    """Rows of the parent that a child with these settings would go to, and the clock's.

    Each row comes as soon as it is known.

    Args:
        role: None if no parent is given, or the settings could not be read.
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
    yield from host.clock() if ahead is None else [judge_clock_offset(ahead)]


def _steps(role: Role) -> Iterator[Check | Greeting]:
    """One step after another, while each goes well; and what the parent answers, for its clock."""
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
        yield show(target, role)


def resolve(target: Target) -> Check:
    """Whether the parent's name is known."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        return judge_unknown_name(target.host, "is no valid name")
    except OSError as error:
        return judge_unknown_name(target.host, error.strerror or str(error))
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    is_address = addresses == [target.host]
    text = target.host if is_address else f"{target.host} is {', '.join(addresses)}"
    return Check("name", "ok", text)


def reach(target: Target) -> tuple[Check, socket.socket | None]:
    """Whether somebody listens there. The caller closes the connection."""
    before = time.monotonic()
    try:
        connection = socket.create_connection((target.host, target.port), SECONDS)
    except OSError as error:
        reason = error.strerror or str(error)
        return judge_closed_port(target.host, target.port, error.errno, reason), None
    milliseconds = 1000 * (time.monotonic() - before)
    found = f"{target.host}:{target.port} open, after {milliseconds:.1f} ms"
    return Check("port", "ok", found), connection


def secure(
    target: Target, connection: socket.socket, role: Role
) -> tuple[Check, socket.socket | None]:
    """Whether the certificate proves that this is the parent. The caller closes the connection."""
    if not target.tls:
        return Check("tls", "skipped", "ws:// is not encrypted"), connection.dup()
    try:  # as `uplink._make_context`, which cannot be imported where websockets is broken
        context = ssl.create_default_context(cafile=role.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = not role.fingerprint
        context.verify_mode = ssl.CERT_NONE if role.fingerprint else ssl.CERT_REQUIRED
    except OSError as error:
        no_pem = isinstance(error, ssl.SSLError)
        what = "holds no PEM certificate" if no_pem else f"cannot be read: {error.strerror}"
        way = "copy the authority's certificate there: PEM, readable"
        return Check("tls", "failed", f"ca_file = {role.ca_file!r}: {what}", way), None
    try:
        secured = context.wrap_socket(connection, server_hostname=target.host)
    except OSError as error:
        return Check("tls", "failed", *_explain(error, role)), None
    if role.fingerprint:
        found = hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()
        if found == role.fingerprint:
            return Check("tls", "ok", f"{secured.version()}, with the fingerprint"), secured
        secured.close()
        way = "make a new join string on the parent's machine: genkidama token"
        return Check("tls", "failed", f"another certificate, with fingerprint {found}", way), None
    names, ends = certificate_facts(secured)
    protocol = secured.version() or "no TLS"
    return judge_certificate("tls", names, ends, time.time(), protocol), secured


def certificate_facts(connection: ssl.SSLSocket | ssl.SSLObject) -> tuple[list[str], float]:
    """The names in the other end's verified certificate, and when it ends, in Unix seconds."""
    found = connection.getpeercert() or {}
    names = [  # type: ignore[str-unpack]
        str(value)
        for kind, value in found.get("subjectAltName", ())
        if kind in ("DNS", "IP Address")
    ]
    return names, ssl.cert_time_to_seconds(str(found["notAfter"]))


def greet(target: Target, connection: socket.socket) -> tuple[Check, Greeting | None]:
    """Whether a parent answers, and whether it has our version."""
    try:
        greeting = _ask(target, connection)
    except (OSError, http.client.HTTPException) as error:
        way = "is it a parent's port?"
        way += "" if target.tls else " If the parent has a certificate, use wss://"
        found = f"no HTTP answer: {str(error) or type(error).__name__}"
        return Check("version", "failed", found, way), None
    healthy = greeting.status == 200
    check = judge_server_header(greeting.server, healthy, __version__, our_protocol())
    return check, greeting


def show(target: Target, role: Role) -> Check:
    """Whether the parent shows its run's page, to viewers or to everybody."""
    check, connection = reach(target)
    if connection is None:
        return Check("page", "skipped", check.found)
    with closing(connection):
        check, secured = secure(target, connection, role)
    if secured is None:
        return Check("page", "skipped", check.found)
    with closing(secured):
        try:
            status = _ask(target, secured, "/status").status
        except (OSError, http.client.HTTPException) as error:
            status = 0
            reason = str(error) or type(error).__name__
        else:
            reason = f"HTTP {status}"
    scheme = "https" if target.tls else "http"
    return judge_page(status, reason, f"{scheme}://{target.host}:{target.port}/")


def _ask(target: Target, connection: socket.socket, path: str = "/healthz") -> Greeting:
    talk = http.client.HTTPConnection(target.host, target.port)
    talk.sock = connection
    before = time.time()
    talk.request("GET", path)
    answer = talk.getresponse()
    asked = (before + time.time()) / 2
    answer.read(1024)
    ahead = None
    with suppress(ValueError, TypeError):
        theirs = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        ahead = asked - theirs - 0.5  # the header leaves the fraction out
    return Greeting(answer.status, answer.headers.get("Server", ""), ahead)


def _ask_unverified(target: Target) -> Greeting | None:
    """The clock of a parent whose certificate failed: a wrong clock is one reason for that."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
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
    try:  # they import websockets and msgspec
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
        token = read_token(role)
        uplink = Uplink(
            role.parent, token=token, ca_file=role.ca_file, fingerprint=role.fingerprint
        )
        asyncio.run(knock(uplink))
    except ConfigurationError as error:
        return Check("token", "failed", *_split(str(error), "; "))
    except FAILURES as error:
        return Check("token", "failed", *_split(explain(error, uplink), ": "))
    if not uplink.has_token:
        return Check("token", "ok", "not needed")
    if role.parent.startswith("ws:") and not is_loopback(uplink.host):
        way = "give the parent a certificate, and use wss://"
        return Check("token", "warning", "accepted, but everybody on the way can read it", way)
    return Check("token", "ok", "accepted")


def _explain(error: OSError, role: Role) -> tuple[str, str]:
    """What is wrong with TLS, and the way out."""
    try:  # they import websockets
        from genkidama.child.explanations import explain
        from genkidama.child.uplink import Uplink
    except Exception:
        return str(error), "see docs/doctor.md"
    return _split(explain(error, Uplink(role.parent, ca_file=role.ca_file)), ": ")


def _split(sentence: str, between: str) -> tuple[str, str]:
    """The two parts of a sentence that says what is wrong, and then the way out."""
    found, _, advice = sentence.partition(between)
    return found, advice or "see docs/doctor.md"


def our_protocol() -> int | None:
    """The number of our protocol; None if our messages cannot be imported."""
    try:
        from genkidama.messages import PROTOCOL  # msgspec and NumPy
    except Exception:
        return None
    return PROTOCOL
