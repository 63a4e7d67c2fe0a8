"""Addresses: what one reader of them takes, all take, and read alike."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genkidama.child.transport import Transport
from genkidama.config.parent_address import Url, host_and_port, parent_url, parse_url
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError, redacted
from genkidama.plugins.dashboard.top import _uplink
from genkidama.plugins.doctor.measurements import parse_target
from genkidama.protocol.tokens import Invitation
from genkidama.runtime.address import parse_listen

TOKEN = "a-secret_of/sixteen"
PRINT = "0123456789abcdef" * 4

hosts = st.sampled_from(["10.0.0.1", "parent.local", "[fe80::1]", "[fe80::1%eth0]", "größe", "a"])
parts = [":", "/", "@", "#", "?", ",", "[", "]", " ", "\n", "x", "1", "99999", "ws://", "[::1]"]
texts = st.lists(st.sampled_from(parts), max_size=7).map("".join)


@pytest.mark.parametrize(
    ("text", "url", "secure", "place"),
    [
        ("ws://pi:8765", Url("ws", "", "", "pi", 8765, "", ""), False, "pi:8765"),
        ("wss://pi:65535/", Url("wss", "", "", "pi", 65535, "/", ""), True, "pi:65535"),
        ("http://[::1]/x", Url("http", "", "", "::1", None, "/x", ""), False, "[::1]/x"),
        (
            f"https://ada:{TOKEN}@[fe80::1]:1/join#{PRINT}",
            Url("https", "ada", TOKEN, "fe80::1", 1, "/join", PRINT),
            True,
            "[fe80::1]:1/join",
        ),
    ],
)
def test_an_address_has_parts(text: str, url: Url, secure: bool, place: str) -> None:
    assert parse_url(text) == url
    assert (url.secure, url.place) == (secure, place)


@pytest.mark.parametrize("text", ["pi:65535", "pi:65536", "[::1]:65536", "pi:99999"])
def test_a_port_has_16_bits(text: str) -> None:
    fits = text == "pi:65535"
    assert host_and_port(text) == (("pi", 65535) if fits else None)
    assert (parse_url(f"ws://{text}") is not None) == fits


@pytest.mark.parametrize(
    ("text", "join"),
    [
        ("pi:1", False),
        ("http://pi:1", False),
        ("ws://pi:65536", False),
        (f"wss://pi:1#{PRINT}", True),
        (f"https://ada:{TOKEN}@pi:1", True),
    ],
)
def test_what_is_no_address_of_a_child_says_what_it_is(text: str, join: bool) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parent_url(text)
    hint = ": that is a join string, which `genkidama join` takes" * join
    assert str(caught.value) == (
        f"parent = {redacted(text)!r}: expected ws://HOST:PORT or wss://HOST:PORT, with a port up "
        f"to 65535{hint}"
    )


@given(hosts, st.integers(1, 65535), st.booleans())
def test_all_readers_of_an_address_read_the_same(host: str, port: int, tls: bool) -> None:
    scheme, there, bare = ("wss" if tls else "ws"), f"{host}:{port}", host.strip("[]")
    assert host_and_port(there) == (bare, port)
    assert parse_listen(there) == {"host": bare, "port": port}
    url = f"{scheme}://{there}"
    assert Role.from_dict({"parent": url}).parent == url
    fingerprint = PRINT if tls else ""  # with one, no authority's certificates are read
    assert Transport(url, fingerprint=fingerprint).host == bare
    assert parse_target(url) == (bare, port, tls)
    invitation = Invitation(url, "pi", TOKEN, fingerprint)
    assert Invitation.parse(str(invitation)) == invitation
    link = _uplink(str(invitation).replace("ws", "http", 1))
    assert (link.host, link.secure, link.parent) == (bare, tls, f"{url}/watch")


@given(texts)
@example("::1:8765")
@example("pi:1\n")
@example("[10.0.0.1]")
@example("pi:1 x")
def test_what_one_reader_refuses_none_takes(there: str) -> None:
    url = f"ws://{there}"
    if parse_url(url) is None:
        # Blanks around a join string are of a terminal.
        strict = (Invitation.parse,) if parse_url(url.strip()) is None else ()
        for read in (Transport, parse_target, _uplink, *strict):
            with pytest.raises(ConfigurationError):
                read(url)
        with pytest.raises(ConfigurationError):
            Role.from_dict({"parent": url})
    else:
        assert Role.from_dict({"parent": url}).parent == url
    if host_and_port(there) is None:
        with pytest.raises(ConfigurationError):
            parse_listen(there)


def test_a_join_string_is_no_address_of_a_child_and_its_token_is_not_shown() -> None:
    text = f"ws://pi:{TOKEN}@host:8765"
    for read in (Transport, parse_target):
        with pytest.raises(ConfigurationError, match="which `genkidama join` takes") as caught:
            read(text)
        assert TOKEN not in str(caught.value)
    assert TOKEN not in redacted(text)
