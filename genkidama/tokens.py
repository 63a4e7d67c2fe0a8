"""Who may join: tokens, and what a tokens file says.

Laws of this file:
- A token is a secret. No message of ours holds one. Nor does it hold any word of a line that
  cannot be read, since the word may be a token.
- A token belongs to one name. A name may have several tokens, so that a new one can be given out
  before the old one is withdrawn.
- The time that a comparison takes tells nothing about where two tokens differ.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Iterable
from typing import NamedTuple

from genkidama.errors import ConfigurationError

__all__ = ["ANY", "TOKEN", "Entry", "find_name", "is_loopback", "is_token", "parse_tokens"]

#: In a name's place: every name.
ANY = "*"

#: What a token is, for people.
TOKEN = "16 to 1024 characters of A-Z a-z 0-9 . _ ~ + / = -"

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,1024}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Entry(NamedTuple):
    """One line of a tokens file."""

    name: str
    token: str

    def __repr__(self) -> str:
        return f"Entry({self.name!r}, …)"


def is_token(text: str) -> bool:
    """Whether the text has a token's form."""
    return _TOKEN.fullmatch(text) is not None


def parse_tokens(text: str, source: str) -> tuple[Entry, ...]:
    """The entries of a tokens file: each is a line `NAME TOKEN`, with `*` for any name.

    A `#` begins a comment.

    Args:
        source: the file's name, for the errors.

    Raises:
        ConfigurationError: a line has another form, or two lines have the same token.
    """
    entries: list[Entry] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        problem = _problem(words)
        if not problem and words[1] in lines:
            problem = (
                f"the token of line {lines[words[1]]} again; each name needs a token of its own"
            )
        if problem:
            raise ConfigurationError(f"{source}: line {number}: {problem}")
        entries.append(Entry(*words))
        lines[words[1]] = number
    return tuple(entries)


def find_name(token: str, entries: Iterable[Entry]) -> str | None:
    """The name that this token is for, `*` for any; None if nobody has been given it."""
    given, found = token.encode(errors="surrogateescape"), None
    for entry in entries:
        if hmac.compare_digest(entry.token.encode(), given):
            found = entry.name
    return found


def is_loopback(host: str) -> bool:
    """Whether the host, a name or an IP address, is this machine: nobody reads on the way."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _problem(words: list[str]) -> str:
    if len(words) != 2:
        return f"expected NAME TOKEN, found {len(words)} word{'s'[: len(words) > 1]}"
    if words[0] != ANY and _NAME.fullmatch(words[0]) is None:
        return (
            "the first word is no name: expected 1 to 64 letters, digits, '.', '_' and '-', "
            "a letter or digit first, or * for any name"
        )
    return "" if is_token(words[1]) else f"the second word is no token: expected {TOKEN}"
