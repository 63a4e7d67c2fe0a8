"""Authentication of connections, before the protocol begins: certificates and tokens.

Laws of this file:
- The tokens file is read at every handshake. Adding a child needs no restart, and a child whose
  token was revoked cannot return.
- A tokens file that has become invalid changes nothing: the last valid entries stay, and the log
  says so once.
- A request from a web page is refused, because a browser can reach the loopback of its machine.
  With `parent.browsers` one from the parent's own page is not; without tokens that page must have
  been asked for by an address, so no foreign name that points here (DNS rebinding) counts as ours.
- A child's token is read from the `Authorization` header only, and of a browser, which cannot send
  one, from the offered subprotocols. It is never written anywhere.
"""

from __future__ import annotations

import ipaddress
import ssl
import time
from http import HTTPStatus
from pathlib import Path

from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from genkidama.errors import ConfigurationError
from genkidama.protocol.tokens import ANY, Entry, find_entry, parse_tokens
from genkidama.runtime.files import read_secret
from genkidama.runtime.log import FilteringBoundLogger


class Authenticator:
    """Reads the entries of a tokens file, and logs problems with it."""

    def __init__(self, path: str, log: FilteringBoundLogger) -> None:
        self._path = path
        self._log = log
        self._entries: tuple[Entry, ...] = ()
        self._text: str | None = None
        self._problem = ""
        self._readable = False
        self._read()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries of the file now, or those read last."""
        try:
            self._read()
        except ConfigurationError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                self._log.warning(
                    "tokens file cannot be used, the tokens read last stay", reason=self._problem
                )
        return self._entries

    def _read(self) -> None:
        text, readable = read_secret(self._path, f"parent.tokens_file = {self._path!r}")
        if text != self._text:
            self._entries = parse_tokens(text, self._path)
            self._text = text
        self._problem = ""
        if readable and not self._readable:
            self._log.warning(
                "everybody on this machine may read the tokens",
                file=self._path,
                way_out=f"chmod o-r {self._path}",
            )
        self._readable = readable


def answer(
    connection: ServerConnection,
    request: Request,
    authenticator: Authenticator | None,
    browsers: bool = False,
) -> tuple[str, Response | None]:
    """The name that a connection may use, and the HTTP response if it becomes no websocket.

    The name is that of its token, `*` for any, and empty with a response. Without an authenticator
    everybody may come in.
    """
    if "Upgrade" not in request.headers:  # websockets answers that by 426
        return ANY, None
    token = _bearer(request)
    if "Origin" in request.headers:  # only browsers send it, whatever the page in them wants
        if not (browsers and _is_own_page(request, authenticator is None)):
            return "", connection.respond(HTTPStatus.FORBIDDEN, "no web page may join a run\n")
        connection.protocol.available_subprotocols = [_SUBPROTOCOL]
        token = _offered(request)
    if authenticator is None:
        return ANY, None
    entry = find_entry(token, authenticator.entries) if token else None
    if entry is not None and time.time() < entry.until and not entry.viewer:
        return entry.name, None
    words = "this parent asks for a token: Authorization: Bearer TOKEN"
    if entry is not None and entry.viewer:
        article = "an" if entry.kind == "owner" else "a"
        words = f"this token is {article} {entry.kind}'s, and admits no child"
    elif entry is not None:
        words = f"the token of {entry.name!r} has ended"
    elif token:
        words = "this parent does not know the token"
    response = connection.respond(HTTPStatus.UNAUTHORIZED, f"{words}\n")
    response.headers["WWW-Authenticate"] = "Bearer"
    return "", response


#: A browser offers it, and beside it `token.TOKEN`.
_SUBPROTOCOL = Subprotocol("genkidama")


def _is_own_page(request: Request, numbered: bool) -> bool:
    """True if a page of this very parent sends the request; `numbered`: and the parent is named by
    an address or as `localhost`."""
    hosts, origins = request.headers.get_all("Host"), request.headers.get_all("Origin")
    host = hosts[0] if len(hosts) == 1 else ""
    if len(origins) != 1 or origins[0] not in (f"http://{host}", f"https://{host}"):
        return False
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return not numbered or name.lower() == "localhost"
    return True


def _offered(request: Request) -> str:
    """The token among the subprotocols that a browser offers, empty if there is none."""
    offered = ",".join(request.headers.get_all("Sec-WebSocket-Protocol")).split(",")
    tokens = [each.strip()[6:] for each in offered if each.strip().startswith("token.")]
    return tokens[0] if len(tokens) == 1 else ""


def _bearer(request: Request) -> str:
    """The token of the request, empty if there is none."""
    headers = request.headers.get_all("Authorization")
    scheme, _, token = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else ""


def make_context(certificate_file: str, key_file: str) -> ssl.SSLContext | None:
    """The context of a parent's TLS, 1.3 or later; None if both files are empty."""
    if not certificate_file and not key_file:
        return None
    given = f"parent.certificate_file = {certificate_file!r}, parent.key_file = {key_file!r}"
    if not (certificate_file and key_file):
        raise ConfigurationError(
            f"{given}: wss:// needs both; give the other one too, or neither for ws://"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    _check_readable("parent.certificate_file", certificate_file)
    _check_readable("parent.key_file", key_file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate_file)
    except ssl.SSLError:
        raise ConfigurationError(
            f"parent.certificate_file = {certificate_file!r}: holds no PEM certificate"
        ) from None
    encrypted = ConfigurationError(
        f"parent.key_file = {key_file!r}: is encrypted, and nobody types its password; "
        "decrypt it with openssl pkey -in … -out …"
    )

    def refuse() -> str:
        raise encrypted

    try:
        context.load_cert_chain(certificate_file, key_file, refuse)
    except ssl.SSLError as error:
        problem = f"parent.key_file = {key_file!r}: holds no PEM private key"
        if error.reason == "KEY_VALUES_MISMATCH":
            problem = (
                f"{given}: the key is not the certificate's; "
                "give the key that the certificate was made for"
            )
        raise ConfigurationError(problem) from None
    return context


def _check_readable(key: str, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigurationError(f"{key} = {path!r}: cannot be read: {error.strerror}") from None
