"""Addresses of a parent: one grammar for all who read or write one. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from genkidama.errors import ConfigurationError

_HOST = r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\s:@/#?,\[\]]+)"
_HOST_PORT = re.compile(rf"({_HOST}):(\d{{1,5}})", re.ASCII)
_REST = (
    rf"(?:([^\s:@/#]+):([^\s:@#]+)@)?({_HOST})(?::(\d{{1,5}}))?"
    r"((?:/[^\s:@#?,]*)?)(?:#([0-9a-f]{64}))?"
)
_URL = re.compile(rf"(https?|wss?)://{_REST}", re.ASCII)

#: A regular expression of one address of a parent, or several with commas in between.
PARENT = rf"wss?://{_REST}(,\s*wss?://{_REST})*"


class Url(NamedTuple):
    """The parts of `SCHEME://NAME:TOKEN@HOST:PORT/PATH#FINGERPRINT`; those that are absent are
    empty."""

    #: `ws`, `wss`, `http` or `https`.
    scheme: str
    name: str
    token: str
    #: Without brackets.
    host: str
    port: int | None
    path: str
    #: SHA-256 of a certificate.
    fingerprint: str

    @property
    def secure(self) -> bool:
        """True with TLS."""
        return self.scheme in ("wss", "https")

    @property
    def place(self) -> str:
        """`HOST:PORT` or `[IPV6]:PORT`, with the path."""
        port = "" if self.port is None else f":{self.port}"
        return bracketed(self.host) + port + self.path.rstrip("/")


def bracketed(host: str) -> str:
    """A host as it stands in front of a port: an address of IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def host_and_port(text: str) -> tuple[str, int] | None:
    """The parts of `HOST:PORT` or `[IPV6]:PORT`; None for any other text."""
    found = _HOST_PORT.fullmatch(text)
    if found is None or int(found[2]) > 65535:
        return None
    return found[1].strip("[]"), int(found[2])


def parse_url(text: str) -> Url | None:
    """The parts of an address with a scheme; None for any other text."""
    found = _URL.fullmatch(text)
    if found is None or int(found[5] or 0) > 65535:
        return None
    scheme, name, token, host, port, path, fingerprint = found.groups(default="")
    return Url(
        scheme, name, token, host.strip("[]"), int(port) if port else None, path, fingerprint
    )


def parent_url(text: str) -> Url:
    """The parts of `ws://HOST:PORT` or `wss://HOST:PORT`, as a child takes it."""
    url = parse_url(text)
    if url is None or url.scheme not in ("ws", "wss") or url.token or url.fingerprint:
        joins = url is not None and (url.token or url.fingerprint)
        way = ": that is a join string, which `genkidama join` takes" if joins else ""
        raise ConfigurationError(
            f"parent = {text!r}: expected ws://HOST:PORT or wss://HOST:PORT, with a port up to "
            f"65535{way}"
        )
    return url
