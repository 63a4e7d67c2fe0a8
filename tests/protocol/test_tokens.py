"""Tokens: what a tokens file may say, whom a token is for, and that no message ever shows one."""

from __future__ import annotations

import hashlib
import hmac
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.errors import ConfigurationError
from genkidama.protocol.tokens import (
    ANY,
    Entry,
    Invitation,
    find_cookie,
    find_entry,
    find_link,
    is_loopback,
    is_token,
    link_cookie,
    link_token,
    parse_tokens,
    rotated,
    written,
)

FIRST, SECOND, THIRD = "first-token-0123", "second+token/456=", "third.token_7~89"

tokens = st.text("ABCxyz019._~+/=-", min_size=16, max_size=40)
names = st.builds(str.__add__, st.sampled_from("aZ09"), st.text("aZ09._-", max_size=63)) | st.just(
    ANY
)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def name_of(token: str, entries: tuple[Entry, ...]) -> str | None:
    entry = find_entry(token, entries)
    return None if entry is None else entry.name


def problem(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_tokens(text, "tokens")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_by_values() -> None:
    text = f"# the shelf\n\npi-01 {FIRST}\r\n  pi-02\t{SECOND}   # the second\n* {THIRD}\n"
    assert parse_tokens(text, "tokens") == (
        Entry("pi-01", digest(FIRST)),
        Entry("pi-02", digest(SECOND)),
        Entry(ANY, digest(THIRD)),
    )
    assert parse_tokens("", "tokens") == ()


SALT, COOKIE = "0123456789abcdef" * 2, "a cookie"


@pytest.mark.parametrize("kind", ["viewer", "owner"])
def test_a_line_may_say_a_last_day_and_a_kind_in_any_order(kind: str) -> None:
    link = f"{kind}={SALT}.{digest(COOKIE)}"
    ends = datetime(2027, 2, 1, tzinfo=UTC).timestamp()
    linked = {"kind": kind, "salt": SALT, "cookie": digest(COOKIE)}
    for words, entry in (
        ("", Entry("pi", digest(FIRST))),
        ("until=2027-01-31", Entry("pi", digest(FIRST), ends)),
        (kind, Entry("pi", digest(FIRST), kind=kind)),
        (link, Entry("pi", digest(FIRST), **linked)),
        (f"until=2027-01-31 {link}", Entry("pi", digest(FIRST), ends, **linked)),
        (f"{link} until=2027-01-31", Entry("pi", digest(FIRST), ends, **linked)),
    ):
        assert parse_tokens(f"pi {FIRST} {words}", "tokens") == (entry,)
        assert entry.viewer == (kind in words)
    last = datetime(2027, 1, 31, tzinfo=UTC)
    for day, until in ((None, math.inf), (last, ends)):
        line = written("pi", FIRST, day, SALT, COOKIE, kind)
        assert parse_tokens(line, "tokens") == (Entry("pi", digest(FIRST), until, **linked),)


def test_a_link_leaves_a_cookie_by_which_its_token_is_found() -> None:
    salts = {"anna": "0" * 32, "bob": "1" * 32}
    lines = [
        written(name, link_token(name * 4, salt), None, salt, link_cookie(name * 4, salt))
        for name, salt in salts.items()
    ]
    text = "".join([f"pi {FIRST}\n", *lines, f"eve {SECOND} viewer\n"])
    entries = parse_tokens(text, "tokens")
    for name, salt in salts.items():
        key = name * 4
        token, cookie = link_token(key, salt), link_cookie(key, salt)
        assert token == hmac.new(salt.encode(), key.encode(), "sha256").hexdigest()
        assert find_link(key, entries) == cookie
        assert name_of(token, entries) == name
        assert find_cookie(cookie, entries) == find_entry(token, entries)
        assert find_cookie(token, entries) is find_entry(cookie, entries) is None
    for other in ("", FIRST, "another key"):
        assert find_link(other, entries) == "" and find_cookie(other, entries) is None


def test_a_token_belongs_to_a_name_and_a_name_may_have_several() -> None:
    entries = parse_tokens(f"pi {FIRST}\npi {SECOND}\n* {THIRD}\n", "tokens")
    assert [name_of(token, entries) for token in (FIRST, SECOND, THIRD)] == ["pi", "pi", ANY]
    for other in ("", FIRST[:-1], FIRST + "x", FIRST.upper(), "ü" * 16, "\udcff" * 16):
        assert find_entry(other, entries) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pi", "tokens: line 1: expected NAME TOKEN, found 1 word"),
        (f"# x\npi {FIRST} a b", "tokens: line 2: expected NAME TOKEN, found 4 words"),
        (f"pi {FIRST} viewer owner", "tokens: line 1: expected NAME TOKEN, found 4 words"),
        (
            f"pi {FIRST} viewer until=2027-01-31 owner",
            "tokens: line 1: expected NAME TOKEN, found 5 words",
        ),
        (f"pi {FIRST} more", "tokens: line 1: the third word is no day: expected until=YYYY-MM-DD"),
        (f"pi {FIRST} until=2027-02-30", "tokens: line 1: the third word is no day"),
        (f"pi {FIRST} until=9999-12-31", "tokens: line 1: the third word is no day"),
        ("pi sha256:0123456789abcdef", "tokens: line 1: the second word is no token: "),
        (
            f"-pi {FIRST}",
            "tokens: line 1: the first word is no name: expected 1 to 64 letters, digits, ",
        ),
        (
            f"!pi {FIRST}",
            "tokens: line 1: the first word is no name: expected 1 to 64 letters, digits, ",
        ),
        (
            f"{'p' * 65} {FIRST}",
            "tokens: line 1: the first word is no name: expected 1 to 64 letters, digits, ",
        ),
        (
            "pi xxxxxxxxxxxxxxx",
            "tokens: line 1: the second word is no token: "
            "expected sha256:HASH, or 16 to 1024 characters of A-Z a-z 0-9 . _ ~ + / = -",
        ),
        (f"pi {FIRST}!", "tokens: line 1: the second word is no token: "),
        (f"pi {'x' * 1025}", "tokens: line 1: the second word is no token: "),
        (
            f"a {FIRST}\n\nb {FIRST}",
            "tokens: line 3: the token of line 1 again; each name needs a token of its own",
        ),
        (
            f"a {FIRST}\n" + written("b", FIRST),
            "tokens: line 2: the token of line 1 again; each name needs a token of its own",
        ),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_not_shown(text: str, words: str) -> None:
    assert problem(text).startswith(words)
    assert FIRST not in problem(text)


@given(st.lists(st.tuples(names, tokens), unique_by=lambda entry: entry[1], max_size=8))
def test_what_is_written_is_read(entries: list[tuple[str, str]]) -> None:
    text = "".join(f"{name} {token}\n" for name, token in entries)
    read = parse_tokens(text, "tokens")
    assert [(entry.name, entry.digest) for entry in read] == [
        (name, digest(token)) for name, token in entries
    ]
    assert all(name_of(token, read) == name for name, token in entries)
    hashed = "".join(written(name, token) for name, token in entries)
    assert parse_tokens(hashed, "tokens") == read
    assert not any(token in hashed for _, token in entries)


def test_a_token_ends_with_its_last_day() -> None:
    last = datetime(2027, 1, 31, 15, tzinfo=UTC)
    (entry,) = parse_tokens(written("pi", FIRST, last), "tokens")
    assert entry.until == datetime(2027, 2, 1, tzinfo=UTC).timestamp()
    text = f"# shelf\npi {FIRST}  # old\npi {SECOND} until=2026-12-01\nother {THIRD}\n"
    soon = rotated(text, "pi", last)
    assert FIRST not in soon and SECOND not in soon and THIRD in soon and "# shelf" in soon
    ends = [entry.until for entry in parse_tokens(soon, "tokens")]
    sooner = datetime(2026, 12, 2, tzinfo=UTC).timestamp()
    assert ends == [entry.until, sooner, math.inf]
    assert [name_of(token, parse_tokens(soon, "")) for token in (FIRST, SECOND)] == ["pi", "pi"]
    link = {"salt": "0" * 32, "cookie": FIRST}
    of_anna = written("anna", THIRD, last.replace(month=3), **link)
    assert rotated(of_anna, "anna", last, "viewer") == written("anna", THIRD, last, **link)
    assert rotated(of_anna, "anna", last) == of_anna
    assert rotated(text, "pi", None) == f"# shelf\nother {THIRD}\n"


@pytest.mark.parametrize("kind", ["", "viewer", "owner"])
def test_tokens_of_another_name_or_kind_stay_as_they_are(kind: str) -> None:
    def line(name: str, kind: str, last: datetime | None = None) -> str:
        return written(name, f"{name} {kind}", last, SALT if kind else "", COOKIE, kind)

    kinds = ("", "viewer", "owner")
    text = "".join(line(name, kind) for name in ("ada", "pi", "zoe") for kind in kinds)
    mine, last = line("pi", kind), datetime(2027, 1, 31, tzinfo=UTC)
    assert text.count(mine) == 1
    assert rotated(text, "pi", None, kind) == text.replace(mine, "")
    assert rotated(text, "pi", last, kind) == text.replace(mine, line("pi", kind, last))


@given(st.text(), tokens)
def test_whatever_the_file_says_no_token_is_shown(text: str, token: str) -> None:
    for whole in (
        f"{token} {text}",
        f"{text} {token}",
        f"{token}\n{text}",
        f"a {token}\n{text} {token}",
    ):
        try:
            parse_tokens(whole, "file")
        except ConfigurationError as error:
            assert token not in str(error)
    assert repr(Entry("pi", digest(token))) == "Entry('pi', …)"


@given(st.text())
def test_a_token_has_printable_ascii_only(text: str) -> None:
    assert not is_token(text) or (text.isascii() and text.isprintable() and " " not in text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.1", False),
        ("localhost.example.org", False),
        ("a.example", False),
        ("pi", False),
    ],
)
def test_what_stays_on_this_machine(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


PRINT = "0123456789abcdef" * 4
TOKEN = "a-secret_of.sixteen"

secrets = st.text("ABCxyz019._~+/=-", min_size=16, max_size=40)
hosts = st.sampled_from(["192.168.1.10", "parent.local", "[fe80::1]", "pi-01"])


@given(hosts, st.integers(1, 65535), st.sampled_from(["*", "pi-01", "a"]), secrets, st.booleans())
def test_a_join_string_is_read_as_it_is_written(
    host: str, port: int, name: str, token: str, tls: bool
) -> None:
    scheme = "wss" if tls else "ws"
    there = Invitation(f"{scheme}://{host}:{port}", name, token, PRINT if tls else "")
    assert Invitation.parse(f" {there}\n") == there
    assert token not in repr(there)


def test_by_values() -> None:
    text = f"wss://pi:{TOKEN}@10.0.0.1:8765#{PRINT}"
    assert str(Invitation("wss://10.0.0.1:8765", "pi", TOKEN, PRINT)) == text
    assert Invitation.parse("ws://localhost:1/") == Invitation("ws://localhost:1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is incomplete, or was not in quotes"),
        (f"wss://pi:{TOKEN}@host:1#{PRINT[:-1]}", "it is incomplete"),
        (f"wss://pi:{TOKEN}@host:1", "wss:// ends with a fingerprint"),
        (f"ws://pi:{TOKEN}@host:1#{PRINT}", "ws:// without one"),
        (f"wss://-:{TOKEN}@host:1#{PRINT}", "no name and token"),
        (f"wss://pi:{TOKEN}ü@host:1#{PRINT}", "no name and token"),
        (f"https://pi:{TOKEN}@host:1#{PRINT}", "it is incomplete"),
        (f"wss://pi:{TOKEN}@host#{PRINT}", "it is incomplete"),
        (f"wss://pi:{TOKEN}@host:0#{PRINT}", "it is incomplete"),
        (f"wss://pi:{TOKEN}@host:1/x#{PRINT}", "it is incomplete"),
    ],
)
def test_what_is_none_is_not_shown(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Invitation.parse(text)
    assert words in str(caught.value) and TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)
