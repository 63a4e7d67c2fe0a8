"""How a child reaches its parent: one connection, opened and greeted, and one request with its one reply.

Laws of this file:
- A parent that is not there is waited for, with jittered backoff: children that lost the same parent do not return all at once.
- A reply that does not come in time, or makes no sense, is the connection's failure, never the child's.
- A parent that does not know the child's token, or whose certificate cannot be verified, is tried again like one that is not there:
  people and clocks come right later. Why it is waited for is said once, with the way out, and again when the reason is another.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import ssl
import stat
import time
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import structlog
import websockets
from websockets.asyncio.client import ClientConnection, connect

import genkidama
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError, ProtocolError
from genkidama.messages import (
    HANDSHAKE_LIMIT,
    PROTOCOL,
    Hello,
    Join,
    Refusal,
    Reply,
    Request,
    Weights,
    Welcome,
    decode_reply,
    encode,
    size_limit,
)
from genkidama.role import Role
from genkidama.tokens import TOKEN, is_loopback, is_token
from genkidama.weights import Signature, is_finite

__all__ = [
    "BACKOFF_SECONDS",
    "FAILURES",
    "REPLY_SECONDS",
    "Refused",
    "Uplink",
    "ask",
    "check",
    "explain",
    "join",
    "read_token",
]

#: A token here goes before one in a file.
TOKEN_VARIABLE = "GENKIDAMA_TOKEN"

#: Pings find a parent that vanished without a word. Training never delays the answer, because this
#: process does not train; a minute forgives a busy Pi and a bad Wi-Fi.
_PING_SECONDS = 60.0

#: How long a reply may take before the connection is given up; the cores of an `"episode"` child wait for it.
REPLY_SECONDS = 30.0

#: The first wait before reconnecting, and the longest; each wait is a random part of its doubling.
BACKOFF_SECONDS = (0.5, 30.0)

#: What a connection can fail with. The child trains on, and tries again.
FAILURES = (OSError, websockets.WebSocketException, TimeoutError, ProtocolError)

log = structlog.get_logger()


class Refused(GenkidamaError):
    """The parent does not want this child, and says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the parent refuses this child: {refusal.reason}")
        self.code = refusal.code


class Uplink:
    """Opens connections to one parent, under one name.

    Args:
        parent: `ws://HOST:PORT` or `wss://HOST:PORT`.
        name: unique among the parent's children; the machine's name if empty, numbered if that is taken.
        token: by which the parent knows this child; empty for none.
        ca_file: PEM certificates of the authority that signed the parent's certificate; None or empty means the system's.

    Raises:
        ConfigurationError: the address is none or, with `wss://`, the authority's certificates cannot be read.
    """

    def __init__(
        self, parent: str, name: str = "", *, token: str = "", ca_file: str | None = None
    ) -> None:
        try:
            address = urlsplit(parent)
            self.secure, self.host = address.scheme == "wss", address.hostname or ""
        except ValueError as error:
            raise _no_address(parent, error) from None
        self.parent = parent
        self.name = name or _machine_name()
        self.ca_file = ca_file or ""
        #: Why the parent is waited for at present; empty while it is not.
        self.problem = ""
        self.has_token = bool(token)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._context = _make_context(self.ca_file) if self.secure else None
        self._warned = False
        self._numbered = 0 if name else 1
        self._session = secrets.token_hex(8)

    def rename(self) -> bool:
        """Takes the next number behind the machine's name; False if people have chosen the name, which then stays."""
        if not self._numbered:
            return False
        self._numbered += 1
        self.name = f"{_machine_name()}-{self._numbered}"
        return True

    async def connect(self, trial: int | None = None) -> tuple[ClientConnection, Welcome]:
        """A connection that has said hello, however long it takes.

        Args:
            trial: in a search, the trial that is being trained.

        Raises:
            Refused: the parent does not want this child.
            GenkidamaError: the address is none, or the parent speaks another protocol.
        """
        wait, longest = BACKOFF_SECONDS
        self._warn_of_readable_token()
        while True:
            try:
                connection = await self.open()
                try:
                    welcome = await self.greet(connection, trial)
                except BaseException:
                    await connection.close()
                    raise
                log.info("connected", child=self.name, parent=self.parent, run=welcome.run)
                self.problem = ""
                return connection, welcome
            except FAILURES as error:
                if (reason := explain(error, self)) != self.problem:
                    self.problem = reason
                    log.warning(
                        "parent not reachable, trying on",
                        child=self.name,
                        parent=self.parent,
                        reason=reason,
                    )
                await asyncio.sleep(random.uniform(0.1, 1.0) * wait)
                wait = min(longest, wait * 2)

    async def greet(self, connection: ClientConnection, trial: int | None = None) -> Welcome:
        """Says hello; errors as `connect`."""
        hello = Hello(
            protocol=PROTOCOL,
            name=self.name,
            session=self._session,
            software=genkidama.__version__,
            trial=trial,
        )
        reply = await ask(connection, hello)
        if isinstance(reply, Refusal):
            raise Refused(reply)
        if not isinstance(reply, Welcome):
            raise ProtocolError("order", f"the parent answers hello with {type(reply).__name__}")
        if reply.protocol != PROTOCOL:
            raise EnvironmentFailure(
                f"{self.parent} speaks protocol {reply.protocol}, this child {PROTOCOL}; install the same version"
            )
        return reply

    async def open(self) -> ClientConnection:
        """A websocket on which nothing has been said yet; the headers of the parent's HTTP answer are its `response.headers`.

        Raises:
            OSError, WebSocketException, TimeoutError: there is none; `explain` says why in words.
            ConfigurationError: the address is none.
        """
        try:
            opening = connect(
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
            return await opening
        except UnicodeError as error:  # what Python's IDNA codec says of a host like "a..b"
            raise _no_address(self.parent, error) from None

    def _warn_of_readable_token(self) -> None:
        if self.has_token and not self._warned and not self.secure and not is_loopback(self.host):
            self._warned = True
            log.warning(
                "the token travels readable; use wss://", child=self.name, parent=self.parent
            )


async def ask(connection: ClientConnection, request: Request) -> Reply:
    """One request and its one reply.

    Raises:
        TimeoutError, ProtocolError, OSError, WebSocketException: there is none, or it makes no sense.
    """
    async with asyncio.timeout(REPLY_SECONDS):
        await connection.send(encode(request))
        frame = await connection.recv(decode=False)
    return decode_reply(frame)


async def join(connection: ClientConnection, signature: Signature) -> Weights:
    """Says what the vectors on this connection mean; the parent's weights.

    Raises:
        Refused: the parent has another network.
    """
    # The installed websockets has no public way to raise the limit of an open connection.
    connection.protocol.max_message_size = size_limit(signature.size)
    reply = await ask(
        connection, Join(signature=[(name, list(shape)) for name, shape in signature.entries])
    )
    if isinstance(reply, Refusal):
        raise Refused(reply)
    if not isinstance(reply, Weights):
        raise ProtocolError("order", f"the parent answers a join with {type(reply).__name__}")
    check(reply, signature)
    return reply


def check(weights: Weights, signature: Signature) -> None:
    """That the parent's vector, if it sends one, is one of this network's.

    Raises:
        ProtocolError: it is not.
    """
    vector = weights.vector
    if vector is not None and len(vector) != signature.size:
        raise ProtocolError(
            "length", f"the parent sends {len(vector)} numbers, expected {signature.size}"
        )
    if vector is not None and not is_finite(vector):
        raise ProtocolError("finite", "the parent sends NaN or infinity")


def read_token(role: Role) -> str:
    """The token by which the parent knows this child, from the environment or from `role.token_file`; empty if neither has one.

    Raises:
        ConfigurationError: the file cannot be read, or what is found is no token.
    """
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    where = TOKEN_VARIABLE
    if not token and not role.token_file:
        return ""
    if not token:
        where = f"token_file = {role.token_file!r}"
        try:
            with Path(role.token_file).open(encoding="utf-8") as file:
                mode, token = os.fstat(file.fileno()).st_mode, file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
            raise ConfigurationError(
                f"{where}: cannot be read: {reason}; put this child's token there, or take the setting out"
            ) from None
        if mode & stat.S_IROTH:
            path = role.token_file
            log.warning(
                "everybody on this machine may read the token",
                file=path,
                way_out=f"chmod o-r {path}",
            )
    if not is_token(token):
        raise ConfigurationError(f"{where}: holds no token: expected {TOKEN}, and nothing else")
    return token


def explain(error: BaseException, uplink: Uplink) -> str:
    """Why there is no connection to the parent, in a sentence with the way out."""
    match error:
        case websockets.InvalidStatus():
            return _explain_status(error.response.status_code, uplink.has_token)
        case ssl.SSLCertVerificationError():
            return _explain_certificate(error, uplink.host, uplink.ca_file)
        case ssl.SSLError():
            return f"no TLS 1.3 with {uplink.parent}: {error.reason or error}; if that parent has no certificate, use ws://"
        case ConnectionResetError() if uplink.secure:
            return (
                f"{uplink.parent} ends the connection: if that parent has no certificate, use ws://"
            )
        case websockets.InvalidMessage() if not uplink.secure:
            return f"{uplink.parent} gives no HTTP answer: if that parent has a certificate, use wss://"
        case ConnectionRefusedError():
            return f"nobody listens at {uplink.parent}: is the parent started, and are host and port right?"
        case socket.gaierror():
            return f"{uplink.host} is no known name: {error.strerror}; check the name, or give the parent's IP address"
    return str(error) or type(error).__name__


def _explain_status(status: int, has_token: bool) -> str:
    match status:
        case HTTPStatus.UNAUTHORIZED if has_token:
            return "the parent does not know this child's token: compare the child's token_file with the parent's tokens_file"
        case HTTPStatus.UNAUTHORIZED:
            return "the parent asks for a token and this child has none: give it one with token_file, and the parent a line in tokens_file"
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return "the parent is shutting down"
    return f"the answer is HTTP {status}, and a parent's would be 101: does a parent listen at this address?"


#: Of OpenSSL's X509_V_ERR codes: what is wrong with the chain's dates, its names, its authority.
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME, _OTHER_ADDRESS = 9, 10, 62, 64
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}


def _explain_certificate(error: ssl.SSLCertVerificationError, host: str, ca_file: str) -> str:
    today = time.strftime("%Y-%m-%d", time.gmtime())
    match error.verify_code:
        case code if code == _NOT_YET_VALID:
            return f"the parent's certificate is not yet valid: is this machine's clock right? It says {today}"
        case code if code == _EXPIRED:
            return f"the parent's certificate has expired: renew it, if this machine's clock, which says {today}, is right"
        case code if code in (_OTHER_NAME, _OTHER_ADDRESS):
            return f"the parent's certificate is for other names than {host}: use one of those, or make a certificate for {host}"
        case code if code in _UNKNOWN_AUTHORITY:
            way = (
                f"does {ca_file} hold the authority that signed it?"
                if ca_file
                else "set ca_file to the authority that signed it"
            )
            return f"the parent's certificate is of an unknown authority: {way}"
    return f"the parent's certificate cannot be verified: {error.verify_message}"


def _make_context(ca_file: str) -> ssl.SSLContext:
    """What a child verifies its parent with: certificate, host name, and TLS 1.3 or later."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError:
        raise ConfigurationError(f"ca_file = {ca_file!r}: holds no PEM certificate") from None
    except OSError as error:
        raise ConfigurationError(
            f"ca_file = {ca_file!r}: cannot be read: {error.strerror}"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _no_address(parent: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"parent = {parent!r}: expected ws://HOST:PORT or wss://HOST:PORT: {error}"
    )


def _machine_name() -> str:
    host = socket.gethostname().partition(".")[0]
    name = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "-"
        for letter in host
    )
    return name.strip("-_")[:48] or "child"
