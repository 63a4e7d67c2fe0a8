"""Tokens of children and viewers, the file that holds their hashes, and join strings. Pure.

A join string is a parent's address and certificate, and a child's name and token:

    wss://NAME:TOKEN@HOST:PORT#FINGERPRINT

The name is `*` if the token is for any. The fingerprint is the SHA-256 of the parent's certificate,
in 64 hexadecimal digits. It is last, so a string that was cut off is found. With `ws://` there
is none; and without a token, no `NAME:TOKEN@`.

Laws of this file:
- A token is a secret, and so is a join string. No message of ours holds one
  (`genkidama.errors.redacted`). Nor does it hold any word of a line that cannot be read, since the
  word may be a token.
- A file need not hold the token itself: its SHA-256 does. Only that stays in memory, too. Tokens
  that `genkidama token` makes are long and random, so nobody finds one by its hash.
- A token belongs to one name. A name may have several tokens, so that a new one can be given out
  before the old one is withdrawn. A token may end on a day.
- A viewer's token shows the run, and admits no child. It may have a link with a key. The token is
  made from the key and the salt that only this file has, so who has the key alone has no token.
- An owner's token is a viewer's that may also steer the run. No viewer's token becomes one.
- A browser keeps a cookie, which is made of the same two. Neither the token nor the cookie can be
  made of the other, and this file has the hash of both.
- The duration of a comparison does not reveal where two tokens differ.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from genkidama.config.parent_address import parse_url
from genkidama.errors import ConfigurationError

#: In a name's place: every name.
ANY = "*"

#: What a token is, for people.
TOKEN = "16 to 1024 characters of A-Z a-z 0-9 . _ ~ + / = -"  # noqa: S105

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,1024}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: No token has a colon.
_HASHED = re.compile(r"sha256:([0-9a-f]{64})")
_UNTIL = re.compile(r"until=(\d{4}-\d{2}-\d{2})")
_KIND = re.compile(r"(viewer|owner)(?:=([0-9a-f]{32})\.([0-9a-f]{64}))?")


class Entry(NamedTuple):
    """One line of a tokens file."""

    name: str
    #: SHA-256 of the token, hexadecimal.
    digest: str
    #: Unix seconds from which on it is of no use any more.
    until: float = math.inf
    #: `"viewer"` if it shows the run, `"owner"` if it also steers it; empty if it admits a child.
    kind: str = ""
    #: What makes the token out of the key of a viewer's link; empty if there is no link.
    salt: str = ""
    #: SHA-256 of the cookie that the link leaves, hexadecimal; empty if there is no link.
    cookie: str = ""

    @property
    def viewer(self) -> bool:
        """True if it shows the run, and admits no child."""
        return self.kind != ""

    def __repr__(self) -> str:
        return f"Entry({self.name!r}, …)"


def is_token(text: str) -> bool:
    """True if the text has a token's form."""
    return _TOKEN.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """True if a token may be for this name: a child's, or `*`."""
    return text == ANY or _NAME.fullmatch(text) is not None


def parse_tokens(text: str, source: str) -> tuple[Entry, ...]:
    """The entries of a tokens file, which has lines of the form
    `NAME sha256:HASH [until=DAY] [viewer[=SALT.HASH] | owner[=SALT.HASH]]`.

    The name may be `*` for any. In place of the hash the token itself may stand. The day is the
    last one, as 2026-12-31, in UTC. With `viewer` or `owner` it is a token of that kind, and what
    follows is its link's: the salt, and the hash of the cookie. A `#` begins a comment. Errors name
    the source.
    """
    entries: list[Entry] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = _words(line)
        if not words:
            continue
        problem = _problem(words)
        digest = "" if problem else _digest(words[1])
        if not problem and digest in lines:
            problem = f"the token of line {lines[digest]} again; each name needs a token of its own"
        if problem:
            raise ConfigurationError(f"{source}: line {number}: {problem}")
        entries.append(Entry(words[0], digest, _until(words), *_kind(words)))
        lines[digest] = number
    return tuple(entries)


def find_entry(token: str, entries: Iterable[Entry]) -> Entry | None:
    """The entry of this token, which may have ended; None if there is none."""
    return _find(token, entries, lambda entry: entry.digest)


def find_link(key: str, entries: Iterable[Entry]) -> str:
    """The cookie that the link with this key leaves, whose token may have ended; empty if there is
    no such link."""
    left = ""
    for entry in entries:
        cookie = link_cookie(key, entry.salt) if entry.salt else ""
        if cookie and hmac.compare_digest(entry.cookie, _digest_of(cookie)):
            left = cookie
    return left


def find_cookie(cookie: str, entries: Iterable[Entry]) -> Entry | None:
    """The entry whose link has left this cookie, which may have ended; None if there is none."""
    return _find(cookie, entries, lambda entry: entry.cookie)


def _find(secret: str, entries: Iterable[Entry], digest: Callable[[Entry], str]) -> Entry | None:
    """The last entry with this secret's hash; how long that takes reveals nothing."""
    given, match = _digest_of(secret), None
    for entry in entries:
        if hmac.compare_digest(digest(entry), given):
            match = entry
    return match


def link_token(key: str, salt: str) -> str:
    """The viewer's token of a link with this key."""
    return _keyed(salt, key)


def link_cookie(key: str, salt: str) -> str:
    """The cookie that a link with this key leaves in a browser."""
    return _keyed(salt, f"cookie {key}")


def _keyed(salt: str, text: str) -> str:
    return hmac.digest(salt.encode(), text.encode(errors="surrogateescape"), "sha256").hex()


def written(
    name: str,
    token: str,
    last: datetime | None = None,
    salt: str = "",
    cookie: str = "",
    kind: str = "viewer",
) -> str:
    """The line of a tokens file for a token, without the token.

    A viewer's or an owner's has the salt of its link, and the cookie that the link leaves.
    """
    until = "" if last is None else f" until={last:%Y-%m-%d}"
    link = f" {kind}={salt}.{_digest_of(cookie)}" if salt else ""
    return f"{name} sha256:{_digest_of(token)}{until}{link}\n"


def rotated(text: str, name: str, last: datetime | None, kind: str = "") -> str:
    """A tokens file in which the tokens of this name and kind end: a child's without one.

    Their last day is this one, if they do not end sooner; None takes them out. Other lines stay.
    """
    lines = []
    for line in text.splitlines(keepends=True):
        words = _words(line)
        if not words or words[0] != name or _kind(words)[0] != kind:
            lines.append(line)
        elif last is not None:
            end = f"until={last:%Y-%m-%d}"
            if _until(words) > _end(end):
                words = [*words[:2], end, *(word for word in words[2:] if _KIND.fullmatch(word))]
            lines.append(" ".join([words[0], f"sha256:{_digest(words[1])}", *words[2:]]) + "\n")
    return "".join(lines)


def is_loopback(host: str) -> bool:
    """True if the host, a name or an IP address, is this machine: no network is between."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _words(line: str) -> list[str]:
    return line.partition("#")[0].split()


def _digest_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()


def _digest(word: str) -> str:
    """The hash that a line's second word is, or stands for."""
    hashed = _HASHED.fullmatch(word)
    return hashed[1] if hashed else _digest_of(word)


def _until(words: list[str]) -> float:
    return next((_end(word) for word in words[2:] if not _KIND.fullmatch(word)), math.inf)


def _kind(words: list[str]) -> tuple[str, str, str]:
    """The kind of a line's token, the salt of its link, and the hash of its cookie."""
    match = next(filter(None, map(_KIND.fullmatch, words[2:])), None)
    return ("", "", "") if match is None else (match[1], match[2] or "", match[3] or "")


def _end(word: str) -> float:
    """The end of the day of `until=YYYY-MM-DD`; a ValueError if there is none."""
    match = _UNTIL.fullmatch(word)
    if match is None:
        raise ValueError(word)
    day = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
    return (day + timedelta(days=1)).timestamp()


def _problem(words: list[str]) -> str:
    more = [word for word in words[2:] if not _KIND.fullmatch(word)]
    if len(words) < 2 or len(more) > 1 or len(words) - 2 - len(more) > 1:
        return f"expected NAME TOKEN, found {len(words)} word{'s'[: len(words) > 1]}"
    if not is_name(words[0]):
        return (
            "the first word is no name: expected 1 to 64 letters, digits, '.', '_' and '-', "
            "a letter or digit first, or * for any name"
        )
    if _HASHED.fullmatch(words[1]) is None and not is_token(words[1]):
        return f"the second word is no token: expected sha256:HASH, or {TOKEN}"
    try:
        _until(words)
    except (ValueError, OverflowError):
        return "the third word is no day: expected until=YYYY-MM-DD"
    return ""


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
