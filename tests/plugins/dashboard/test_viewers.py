"""Who may look: tokens of viewers and of children, links, cookies."""

from __future__ import annotations

from genkidama.plugins.dashboard.viewers import ViewerCredential, Viewers
from genkidama.protocol.tokens import link_cookie, link_token, parse_tokens, written

SALT = "0123456789abcdef" * 2
TOKEN = link_token("the-key-of-a-link", SALT)
COOKIE = link_cookie("the-key-of-a-link", SALT)


class Known:
    """The tokens of a file with this text."""

    def __init__(self, text: str) -> None:
        self.entries = parse_tokens(text, "tokens")


KNOWN = Known(written("anna", TOKEN, salt=SALT, cookie=COOKIE) + "pi token-of-the-pi-01\n")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def said(viewers: Viewers, headers: dict[str, str]) -> str:
    return viewers.problem(viewers.shown(headers, "genkidama"), 0.0)


def test_a_viewers_token_shows_and_a_childs_does_not() -> None:
    viewers = Viewers(KNOWN)
    assert not viewers.open
    assert said(viewers, bearer(TOKEN)) == ""
    for others in ("x=1", "x", "[]={}", 'y="', "ü=1;;", "genkidama-1=z"):  # of other programs
        assert said(viewers, {"cookie": f"{others}; genkidama={COOKIE}"}) == ""
        assert said(viewers, {"cookie": f"genkidama={COOKIE}; {others}"}) == ""
    for headers, words in (
        ({}, "asks for a viewer's token"),
        ({"cookie": f"genkidama-1={COOKIE}"}, "asks for a viewer's token"),
        ({"authorization": f"Basic {TOKEN}"}, "asks for a viewer's token"),
        (bearer("token-of-the-pi-01"), "is a child's, and admits no viewer"),
        (bearer("the-key-of-a-link"), "does not know the token"),
        ({"cookie": "genkidama=of-nobody"}, "does not know the cookie"),
        # Neither is the other: who reads a cookie has no token, nor the other way about.
        ({"cookie": f"genkidama={TOKEN}"}, "does not know the cookie"),
        (bearer(COOKIE), "does not know the token"),
    ):
        assert words in said(viewers, headers)
    ended = Known(f"anna {TOKEN} until=1971-01-01 viewer")
    assert Viewers(ended).problem(ViewerCredential(TOKEN), 9e9) == "the token of 'anna' has ended"


def test_a_link_opens_once_even_after_a_restart() -> None:
    remembered: list[str] = []
    viewers = Viewers(KNOWN, remember=remembered.append)
    assert viewers.open_link("the-key-of-a-link", 0.0) == (COOKIE, "")
    again = Viewers(KNOWN, opened=frozenset(remembered))
    for late in (viewers, again):
        assert late.open_link("the-key-of-a-link", 0.0)[0] == ""
    # Neither a child's token nor a viewer's is a link's key.
    for key in ("token-of-the-pi-01", TOKEN, COOKIE, ""):
        assert viewers.open_link(key, 0.0) == ("", "this parent does not know the link")
    assert "the-key" not in "".join(remembered) and TOKEN not in remembered


def test_without_tokens_everybody_looks() -> None:
    assert Viewers(None).open and said(Viewers(None), {}) == ""
