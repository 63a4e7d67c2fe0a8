"""Transport: a child's way to its parent by token, TLS and websocket, and the reasons for failures.

Laws of this file:
- A reply that is late or makes no sense is a failure of the connection, never of the child.
- Nothing is sent, not even the token, before the parent's certificate is verified.
- Each error is a sentence with the fix. It is reported once, and again when the reason changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import random
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

import websockets
from websockets.asyncio.client import ClientConnection, connect

from genkidama.config.parent_address import parent_url
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError, ProtocolError
from genkidama.protocol.messages import HANDSHAKE_LIMIT, SLOWEST_LINK, size_limit
from genkidama.protocol.tokens import TOKEN, is_loopback, is_token
from genkidama.protocol.vector import DTYPE
from genkidama.runtime.files import read_secret
from genkidama.runtime.log import get_logger
from genkidama.runtime.machine import set_tcp_timeouts
from genkidama.runtime.pacing import Backoff, Once

if TYPE_CHECKING:
    from genkidama.protocol.session import RequestRefused

log = get_logger()

#: A token, or what reads it.
Token: TypeAlias = str | Callable[[], str]

#: A token in this variable goes before one in a file.
TOKEN_VARIABLE = "GENKIDAMA_TOKEN"  # noqa: S105

#: Pings detect a parent that vanished. Training never delays the answer, because this process does
#: not train; a minute forgives a busy Pi and a bad Wi-Fi. A large vector on the way takes longer.
_PING_SECONDS = 60.0

#: The longest wait for a reply before the connection is given up, unless its bytes take longer; the
#: cores of an `"episode"` child wait for it.
REPLY_SECONDS = 30.0

#: The bounds of the wait before reconnecting, as `Backoff` takes them, and its early tries: after a
#: cut of a minute or two it takes two seconds at most.
BACKOFF_SECONDS = (0.5, 30.0)
_EARLY_TRIES = 30

#: Seconds for a TCP connection. The kernel repeats its first packet ever more rarely, so a new
#: attempt finds a link that is mended sooner.
_DIAL_SECONDS = 3.5

#: Errors of a connection. The child continues to train, and tries again.
FAILURES = (OSError, websockets.WebSocketException, TimeoutError, ProtocolError)

#: OpenSSL's X509_V_ERR codes: a certificate's dates, its names or its authority are wrong.
_NOT_YET_VALID = 9
_EXPIRED = 10
_OTHER_NAMES = {62, 64}
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}


class _Connect(connect):
    """websockets' `connect` over a TCP connection that is given up soon."""

    async def open_tcp_connection(self) -> ClientConnection:
        options = self.create_connection_kwargs
        options["sock"] = await _dial(self.ws_uri.host, self.ws_uri.port)
        try:
            return await super().open_tcp_connection()
        finally:
            del options["sock"]  # a redirection needs another one


async def _dial(host: str, port: int) -> socket.socket:
    """A TCP connection to the first of the host's addresses that answers, or else the OSError of
    the last one."""
    loop = asyncio.get_running_loop()
    for *kind, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        line = socket.socket(*kind)
        try:
            line.setblocking(False)
            async with asyncio.timeout(_DIAL_SECONDS):
                await loop.sock_connect(line, address)
            return line
        except BaseException as error:
            line.close()
            if not isinstance(error, OSError):
                raise
            failure = error
    raise failure


class Transport:
    """Opens connections to one parent.

    Args:
        parent: `ws://HOST:PORT` or `wss://HOST:PORT`.
        token: the parent knows this child by it; empty for none. A function is called again after
            the parent has not known what it returned.
        ca_file: PEM certificates of the authority that signed the parent's certificate; None or
            empty means the system's.
        fingerprint: SHA-256 of the parent's certificate, instead of an authority.

    Raises:
        ConfigurationError: the address is invalid or, with `wss://`, the authority's certificates
            cannot be read; or a fingerprint is given with `ws://` or with an authority.
    """

    def __init__(
        self, parent: str, *, token: Token = "", ca_file: str | None = None, fingerprint: str = ""
    ) -> None:
        url = parent_url(parent)
        self.host = url.host
        self.parent = parent
        self.secure = url.secure
        self.ca_file = ca_file or ""
        self._token = token
        self._read_token()
        if fingerprint and (self.ca_file or not self.secure):
            raise ConfigurationError(
                f"parent = {parent!r} with a fingerprint and ca_file = {self.ca_file!r}: "
                "a fingerprint stands alone, and with wss://"
            )
        self._context = None
        if self.secure:
            self._context = _pinning(fingerprint) if fingerprint else make_context(self.ca_file)

    @property
    def has_token(self) -> bool:
        return bool(self._headers)

    def _read_token(self) -> None:
        token = self._token() if callable(self._token) else self._token
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def open(self) -> ClientConnection:
        """A websocket on which nothing has been said yet. Its `response.headers` are those of the
        parent's HTTP answer.

        Raises:
            OSError, WebSocketException, TimeoutError: there is none; `explain` says why in words.
            ConfigurationError: the address is invalid.
        """
        try:
            opening = _Connect(
                self.parent,
                additional_headers=self._headers,
                compression=None,
                max_size=HANDSHAKE_LIMIT,
                ping_timeout=_PING_SECONDS,
                proxy=None,
                close_timeout=1,
                ssl=self._context,
            )
        except (websockets.InvalidURI, ValueError) as error:
            raise _no_address(self.parent, error) from None
        try:
            connection = await opening
        except websockets.InvalidStatus as refused:
            if refused.response.status_code == HTTPStatus.UNAUTHORIZED:
                with suppress(ConfigurationError):  # its file may be replaced at this moment
                    self._read_token()
            raise
        except UnicodeError as error:  # what Python's IDNA codec says of a host like "a..b"
            raise _no_address(self.parent, error) from None
        set_tcp_timeouts(connection.transport)
        return connection

    async def post(self, target: str) -> tuple[int, str]:
        """The status and the text of the parent's answer to a `POST` of this path and query. The
        path is beside the address's: `/x/control` for `/control` and `ws://HOST:PORT/x/watch`.

        Raises:
            OSError, TimeoutError: there is no answer; `explain` says why in words.
        """
        place = self.parent.partition("://")[2].partition("/")[0]
        fields = {"Host": place, "Content-Length": "0", "Connection": "close", **self._headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        async with asyncio.timeout(_PING_SECONDS):
            url = parent_url(self.parent)
            port = url.port or (443 if self.secure else 80)
            target = url.path.rpartition("/")[0] + target
            name = self.host if self.secure else None
            reader, writer = await asyncio.open_connection(
                self.host, port, ssl=self._context, server_hostname=name
            )
            with closing(writer):
                writer.write(f"POST {target} HTTP/1.1\r\n{head}\r\n".encode())
                answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
        status = answer.split(b" ", 2)[1:2]
        if not status:
            raise ConnectionError("the parent closes the connection; it may be an older one")
        return int(status[0]), body.decode(errors="replace").strip()


def backoff() -> Backoff:
    """The waits before connecting again."""
    return Backoff(BACKOFF_SECONDS, random.random, _EARLY_TRIES)


def make_room(connection: ClientConnection, size: int) -> None:
    """Lets messages with a vector of `size` numbers through, however slow the link."""
    # The installed websockets has no public way to raise the limits of an open connection.
    connection.protocol.max_message_size = size_limit(size)
    await_pong(connection, 2 * size * DTYPE.itemsize)


def await_pong(connection: ClientConnection, size: int) -> None:
    """Waits longer for a pong from now on, if a request and its reply have `size` bytes."""
    # A ping waits behind a push, and its answer behind a reply.
    seconds = _PING_SECONDS + size / SLOWEST_LINK
    connection.ping_timeout = max(connection.ping_timeout or 0.0, seconds)


def reply_seconds(size: int) -> float:
    """The longest wait for a reply, where it and its request have `size` bytes together."""
    return max(REPLY_SECONDS, size / SLOWEST_LINK)


def retry_after(error: BaseException) -> float:
    """Seconds after which a parent that has no room wants to be asked again, by the number in
    `Retry-After` (RFC 9110 §10.2.3); 0 if it did not say."""
    if not isinstance(error, websockets.InvalidStatus):
        return 0.0
    said = error.response.headers.get("Retry-After", "")
    return float(said) if said.isascii() and said.isdigit() and len(said) < 10 else 0.0


def _no_address(parent: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"parent = {parent!r}: expected ws://HOST:PORT or wss://HOST:PORT: {error}"
    )


def read_token(role: Role) -> str:
    """The token by which the parent knows this child: from the environment or, if there is none,
    from `role.token_file`; empty if there is none either.

    Raises:
        ConfigurationError: the file cannot be read, or what is found is no token.
    """
    token, where = os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    if not token and (path := role.token_file):
        where = f"token_file = {path!r}"
        way = "; put this child's token there, or take the setting out"
        text, readable = read_secret(path, where, way)
        token = text.strip()
        if readable:
            _warn_of_readable(path)
    elif not token:
        return ""
    if not is_token(token):
        raise ConfigurationError(f"{where}: holds no token: expected {TOKEN}, and nothing else")
    return token


@cache
def _warn_of_readable(path: str) -> None:
    event = "everybody on this machine may read the token"
    log.warning(event, file=path, way_out=f"chmod o-r {path}")


def make_context(ca_file: str) -> ssl.SSLContext:
    """A context that verifies the parent's certificate and host name, with TLS 1.3 or later.

    Args:
        ca_file: PEM certificates of the authority; empty means the system's.

    Raises:
        ConfigurationError: the file cannot be read, or holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise ConfigurationError(f"ca_file = {ca_file!r}: holds no PEM certificate") from None
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise ConfigurationError(f"ca_file = {ca_file!r}: {problem}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class OtherCertificate(ssl.SSLCertVerificationError):
    """The parent shows another certificate than the one whose fingerprint is known."""

    def __str__(self) -> str:
        return str(self.args[0])


def _pinning(fingerprint: str) -> ssl.SSLContext:
    """A context that accepts one certificate by its SHA-256, in 64 hexadecimal digits; the parent
    proves its key in the handshake. Names, dates and authorities do not matter. TLS is 1.3."""

    class Pinned(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            shown = hashlib.sha256(self.getpeercert(binary_form=True) or b"").hexdigest()
            if not hmac.compare_digest(shown, fingerprint):
                raise OtherCertificate(f"its fingerprint is {shown}, expected {fingerprint}")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslobject_class = Pinned
    return context


class ConnectErrors:
    """Logs why a child is not admitted: once, and again when the reason has changed."""

    def __init__(self, transport: Transport) -> None:
        #: The reason for waiting for the parent; empty while the child does not wait.
        self.problem = ""
        self._transport = transport
        self._refusal = Once()
        self._warned = False

    def connected(self) -> None:
        """The parent has answered a hello."""
        self.problem = self._refusal.message

    def admitted(self) -> None:
        """The parent has let the child in."""
        self.problem = ""
        self._refusal.message = ""

    def unreachable(self, child: str, error: Exception) -> None:
        """There is no connection."""
        reason = explain(error, self._transport)
        if reason != self.problem:
            self.problem = reason
            # It was reached, and refuses the token.
            reached = isinstance(error, websockets.InvalidStatus)
            event = "not admitted" if reached else "parent not reachable"
            self._say(f"{event}, still trying", child, reason=reason)

    def refused(self, child: str, refusal: RequestRefused) -> None:
        """The parent refuses the child.

        Raises:
            RequestRefused: waiting does not help.
        """
        if refusal.final:
            raise refusal
        self.problem = str(refusal)
        if self._refusal.is_new(self.problem):
            self._say("refused, still trying", child, reason=self.problem)

    def readable_token(self, child: str) -> None:
        """Warns of a token that everybody on the way can read, if there is one."""
        way = self._transport
        if way.has_token and not (way.secure or is_loopback(way.host) or self._warned):
            self._warned = True
            self._say("the token travels readable; use wss://", child)

    def _say(self, event: str, child: str, **more: str) -> None:
        log.warning(event, child=child, parent=self._transport.parent, **more)


def explain(error: BaseException, transport: Transport) -> str:
    """The reason for having no connection to the parent, with the way out."""
    parent = transport.parent
    match error:
        case websockets.InvalidStatus() if seconds := retry_after(error):
            return f"the parent has no room for another connection, and says: in {seconds:.0f} s"
        case websockets.InvalidStatus():
            return _explain_status(error.response.status_code, transport.has_token)
        case OtherCertificate():
            return (
                f"the parent's certificate is another one: {error}; was it renewed? "
                "Make a new join string on the parent's machine: genkidama token"
            )
        case ssl.SSLCertVerificationError():
            return _explain_certificate(error, transport.host, transport.ca_file)
        case ssl.SSLError():
            return (
                f"no TLS 1.3 with {parent}: {error.reason or error}; "
                "if that parent has no certificate, use ws://"
            )
        case ConnectionResetError() if transport.secure:
            return f"{parent} ends the connection: if that parent has no certificate, use ws://"
        case websockets.InvalidMessage() if not transport.secure:
            return (
                f"{parent} gives no HTTP answer: if that parent has a certificate, use wss://; "
                "or it has no room for another connection"
            )
        case ConnectionRefusedError():
            return (
                f"nobody listens at {parent}: is the parent started, and are host and port right?"
            )
        case TimeoutError():
            return (
                f"{parent} does not answer: does that machine run, is the address right, "
                "and does a firewall let this child through?"
            )
        case socket.gaierror():
            return (
                f"{transport.host} is no known name: {error.strerror}; "
                "check the name, or give the parent's IP address"
            )
    return str(error) or type(error).__name__


def _explain_status(status: int, has_token: bool) -> str:
    match status:
        case HTTPStatus.UNAUTHORIZED if has_token:
            return (
                "wrong token: the parent does not know it, or it has ended; make another on the "
                "parent's machine: genkidama token, or a line in parent.tokens_file"
            )
        case HTTPStatus.UNAUTHORIZED:
            return (
                "no token: the parent asks for one; join with the string that genkidama token "
                "prints on its machine, or give token_file"
            )
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return "the parent is shutting down"
    return (
        f"the answer is HTTP {status}, and a parent's would be 101: "
        "does a parent listen at this address?"
    )


def _explain_certificate(error: ssl.SSLCertVerificationError, host: str, ca_file: str) -> str:
    today = time.strftime("%Y-%m-%d", time.gmtime())
    match error.verify_code:
        case code if code == _NOT_YET_VALID:
            return (
                "the parent's certificate is not yet valid: "
                f"is this machine's clock right? It says {today}"
            )
        case code if code == _EXPIRED:
            return (
                "the parent's certificate has expired: "
                f"renew it, if this machine's clock, which says {today}, is right"
            )
        case code if code in _OTHER_NAMES:
            return (
                f"the parent's certificate is for other names than {host}: "
                f"use one of those names, or make a certificate for {host}"
            )
        case code if code in _UNKNOWN_AUTHORITY and ca_file:
            return (
                "the parent's certificate is of an unknown authority: "
                f"does {ca_file} hold the authority that signed it?"
            )
        case code if code in _UNKNOWN_AUTHORITY:
            return (
                "the parent's certificate is of an unknown authority: "
                "give the join string, which knows the certificate, or set ca_file to the "
                "authority that signed it"
            )
    return f"the parent's certificate cannot be verified: {error.verify_message}"
