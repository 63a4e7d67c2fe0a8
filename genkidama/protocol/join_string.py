"""A join string: a parent's address and certificate, and a child's name and token. Pure.

    wss://NAME:TOKEN@HOST:PORT#FINGERPRINT

The name is `*` if the token is for any. The fingerprint is the SHA-256 of the parent's certificate,
in 64 hexadecimal digits. It is last, so a string that was cut off is found. With `ws://` there
is none; and without a token, no `NAME:TOKEN@`.

A join string is a secret, as its token is: no message of ours holds one
(`genkidama.errors.redacted`).
"""

from __future__ import annotations

from typing import NamedTuple

from genkidama.config.parent_address import parse_url
from genkidama.errors import ConfigurationError
from genkidama.protocol.tokens import ANY, is_name, is_token


class Invitation(NamedTuple):
    """The content of a join string."""

    #: `ws://HOST:PORT` or `wss://HOST:PORT`.
    parent: str
    #: The name that the token is for, `*` for any.
    name: str = ANY
    #: Empty for none.
    token: str = ""
    #: SHA-256 of the parent's certificate; empty for `ws://`.
    fingerprint: str = ""

    def __repr__(self) -> str:
        return f"Invitation({self.parent!r}, {self.name!r}, …)"

    def __str__(self) -> str:
        scheme, _, address = self.parent.partition("://")
        who = f"{self.name}:{self.token}@" if self.token else ""
        return f"{scheme}://{who}{address}" + (f"#{self.fingerprint}" if self.fingerprint else "")

    @classmethod
    def parse(cls, text: str) -> Invitation:
        """Reads a join string; an error does not show it."""
        url = parse_url(text.strip())
        if url is None or url.scheme not in ("ws", "wss") or not url.port or url.path.strip("/"):
            raise _unreadable("it is incomplete, or was not in quotes")
        if url.token and not (is_name(url.name) and is_token(url.token)):
            raise _unreadable("what stands before the @ is no name and token")
        if url.secure != bool(url.fingerprint):
            raise _unreadable("wss:// ends with a fingerprint, and ws:// without one")
        return cls(f"{url.scheme}://{url.place}", url.name or ANY, url.token, url.fingerprint)


def _unreadable(problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"this is no join string: {problem}; "
        "expected wss://NAME:TOKEN@HOST:PORT#FINGERPRINT, as `genkidama token` prints it"
    )
