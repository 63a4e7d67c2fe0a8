"""Access of viewers and owners to a run: token, link that opens once, the cookie it leaves. Pure.

Laws of this file:
- A viewer's token admits no child, and a child's token no viewer.
- A link opens once, and leaves a cookie, which cannot be made from the link. Opened links are
  remembered by their hashes.
- A cookie is no token, and a token is no cookie.
- Only an owner's token or cookie steers a run. Of a run without tokens the parent makes one itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from genkidama.protocol.tokens import Entry, find_cookie, find_entry, find_link

if TYPE_CHECKING:
    from genkidama.parent.authentication import Authenticator

_HOST = re.compile(r"(?:\[([\dA-Fa-f:.]+(?:%[\w.~-]+)?)\]|([\w.~-]+))(?::(\d{1,5}))?", re.ASCII)


class ViewerCredential(NamedTuple):
    secret: str
    #: Whether it is a cookie; else it is a token.
    is_cookie: bool = False


def host_and_port(host: str) -> tuple[str, str]:
    """The two parts of a `Host` header (RFC 9110 §7.2), in lower case and without brackets; empty
    texts for anything else, or for a port that is absent."""
    found = _HOST.fullmatch(host)
    return ((found[1] or found[2]).lower(), found[3] or "") if found else ("", "")


def cookie_of(host: str) -> str:
    """The cookie's name. Browsers keep the cookies of all ports of a machine together."""
    port = host_and_port(host)[1]
    return f"genkidama-{port}" if port else "genkidama"


class Viewers:
    """Says who may look.

    Args:
        tokens: None lets everybody look.
        names: of this machine, in lower case.
        secure: whether the parent speaks TLS.
        opened: hashes of the links' keys that were opened before.
        remember: is given the hash of one that is opened now.
        owners: the entries of owners where everybody may look.
    """

    def __init__(
        self,
        tokens: Authenticator | None,
        names: frozenset[str] = frozenset(),
        *,
        secure: bool = False,
        opened: frozenset[str] = frozenset(),
        remember: Callable[[str], None] = lambda _: None,
        owners: Sequence[Entry] = (),
    ) -> None:
        self.names = names
        self.secure = secure
        self._tokens = tokens
        self._opened = set(opened)
        self._remember = remember
        self._owners = owners

    @property
    def open(self) -> bool:
        """True if everybody who reaches the parent may look."""
        return self._tokens is None

    def shown(self, headers: Mapping[str, str], cookie: str) -> ViewerCredential:
        """The token or the cookie (of this name) that a request shows, by its headers in lower
        case; its secret is empty if it shows none."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else ""
        if token:
            return ViewerCredential(token)
        return ViewerCredential(_cookie(headers.get("cookie", ""), cookie), True)

    def open_link(self, key: str, now: float) -> tuple[str, str]:
        """The cookie that a key gives, this once; or an empty text, and why it gives none."""
        cookie = find_link(key, self._entries)
        if not cookie:
            return "", "this parent does not know the link"
        problem = self.problem(ViewerCredential(cookie, is_cookie=True), now)
        if problem:
            return "", problem
        digest = hashlib.sha256(key.encode()).hexdigest()
        if digest in self._opened:
            return "", "this link was opened before, and opens once"
        self._opened.add(digest)
        self._remember(digest)
        return cookie, ""

    def problem(self, shown: ViewerCredential, now: float) -> str:
        """The reason for a refusal; empty if it is a viewer's. `now` is in Unix seconds."""
        if self._tokens is None:
            return ""
        if not shown.secret:
            return "this parent asks for a viewer's token, or a viewer's link"
        entry = self._entry(shown)
        if entry is None:
            return f"this parent does not know the {'cookie' if shown.is_cookie else 'token'}"
        if not entry.viewer:
            return "this token is a child's, and admits no viewer"
        if now >= entry.until:
            return f"the token of {entry.name!r} has ended"
        return ""

    def owner(self, shown: ViewerCredential, now: float) -> str:
        """The owner's name; empty if this is no owner's. `now` is in Unix seconds."""
        entry = self._entry(shown)
        owns = entry is not None and entry.kind == "owner" and now < entry.until
        return entry.name if entry is not None and owns else ""

    @property
    def _entries(self) -> Sequence[Entry]:
        return self._owners if self._tokens is None else self._tokens.entries

    def _entry(self, shown: ViewerCredential) -> Entry | None:
        find = find_cookie if shown.is_cookie else find_entry
        return find(shown.secret, self._entries)


def _cookie(header: str, name: str) -> str:
    """The value of one cookie; empty without it. Other programs' cookies may be malformed."""
    for pair in header.split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value.strip('"')
    return ""
