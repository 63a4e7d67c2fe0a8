"""What is answered to whom, as values: paths, hosts, origins, headers."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.datastructures import Headers
from websockets.http11 import Request

from genkidama.errors import ProtocolError
from genkidama.plugins.dashboard import routes
from genkidama.plugins.dashboard.broadcast import Page
from genkidama.plugins.dashboard.routes import (
    POLICY,
    HttpRequest,
    HttpResponse,
    answer,
    is_own_host,
    is_watching,
    make_response,
    parse_request,
    read_file,
)
from genkidama.plugins.dashboard.viewers import Viewers, cookie_of, host_and_port
from genkidama.protocol.tokens import link_cookie, link_token, parse_tokens, written
from tests.plugins.dashboard.test_viewers import COOKIE, KNOWN, SALT, TOKEN, Known, bearer

STATIC = Path(routes.__file__).with_name("static")


class Shown(Page):
    """Contents of a few words."""

    browsers = False

    def __init__(self) -> None:
        self.commands: list[tuple[str, str, str, float]] = []

    def status(self) -> bytes:
        return b'{"schema":1}'

    def metrics(self) -> HttpResponse:
        return HttpResponse(200, b"genkidama_children 0\n")

    def unready(self) -> str:
        return ""

    def command(self, by: str, action: str, child: str, share: float) -> None:
        if action == "stop":
            raise ProtocolError("order", "the run is over: 10 steps done")
        self.commands.append((by, action, child, share))


OPEN = Viewers(None, frozenset({"shelf", "shelf.local"}))
CLOSED = Viewers(KNOWN)
HERE = {"host": "127.0.0.1:8765"}


def ask(
    target: str, viewers: Viewers = OPEN, method: str = "GET", **headers: str
) -> HttpResponse | None:
    asked = HttpRequest(target, {**HERE, **headers}, method)
    return answer(asked, Shown(), viewers, 0.0)


class Filmed(Shown):
    """One with a film of ten bytes."""

    policies = SimpleNamespace(film=lambda: b"0123456789")  # type: ignore[assignment]


@given(*[st.integers(0, 12) | st.integers(0, 10**18 - 1)] * 2, st.booleans())
def test_a_film_is_sent_in_the_ranges_that_a_browser_asks_for(
    first: int, last: int, open_end: bool
) -> None:
    asked = f"bytes={first}-{'' if open_end else last}"
    found = answer(HttpRequest("/film", HERE | {"range": asked}), Filmed(), OPEN, 0.0)
    assert found is not None
    wanted = [at for at in range(10) if first <= at and (open_end or at <= last)]
    headers = dict(found.all_headers)
    if wanted:
        assert found.status == 206 and found.body == bytes(b"0123456789"[at] for at in wanted)
        assert headers["Content-Range"] == f"bytes {wanted[0]}-{wanted[-1]}/10"
    else:
        assert found.status == 200 and found.body == b"0123456789"
    assert headers["Content-Length"] == str(len(found.body))


@pytest.mark.parametrize(
    "asked", ["", "bytes=0-1,3-4", "lines=0-1", "bytes=x-", "bytes=-", "bytes=-5"]
)
def test_a_film_is_sent_whole_where_no_single_range_is_asked_for(asked: str) -> None:
    found = answer(HttpRequest("/film", HERE | {"range": asked}), Filmed(), OPEN, 0.0)
    assert found is not None and (found.status, found.body) == (200, b"0123456789")
    assert ("Accept-Ranges", "bytes") in found.all_headers


@pytest.mark.parametrize(
    ("target", "status", "kind", "body"),
    [
        ("/", 200, "text/html", (STATIC / "index.html").read_bytes()),
        ("/static/main.js?v=1", 200, "text/javascript", (STATIC / "main.js").read_bytes()),
        ("/status", 200, "application/json", b'{"schema":1}'),
        ("/metrics", 200, "text/plain", b"genkidama_children 0\n"),
        ("/healthz?probe=1", 200, "text/plain", b"ok\n"),
        ("/readyz", 200, "text/plain", b"ready\n"),
    ],
)
def test_what_lies_where(target: str, status: int, kind: str, body: bytes) -> None:
    found = ask(target)
    assert found is not None and (found.status, found.body) == (status, body)
    headers = dict(found.all_headers)
    assert headers["Content-Type"].startswith(kind)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == POLICY
    assert POLICY.startswith("default-src 'self';") and "unsafe" not in POLICY


@pytest.mark.parametrize("target", ["/more", "/healthz/more", "//status", "/Static/page.js", "*"])
def test_other_paths_are_the_childs(target: str) -> None:
    assert ask(target) is None and ask(target, CLOSED) is None


def test_a_preview_of_a_link_does_not_use_it_up() -> None:
    viewers = Viewers(KNOWN)
    for key in ("the-key-of-a-link", "of-nobody"):
        found = ask(f"/?key={key}", viewers, method="HEAD")
        assert found is not None and "Set-Cookie" not in dict(found.headers)
        assert found.status == 200  # it tells nobody whether there is such a link
    opened = ask("/?key=the-key-of-a-link", viewers)
    assert opened is not None and "Set-Cookie" in dict(opened.headers)


def test_only_get_is_answered() -> None:
    assert ask("/status", method="POST") is None and ask("/status", method="HEAD") is not None


@pytest.mark.parametrize("target", ["/", "/status", "/metrics", "/static/main.js", "/watch"])
def test_a_viewers_token_is_asked_for(target: str) -> None:
    for headers in ({}, bearer("token-of-the-pi-01"), {"cookie": "genkidama-8765=wrong"}):
        refused = ask(target, CLOSED, **headers)
        assert refused is not None and refused.status == 401
        assert bool(refused.why) == bool(headers)
        assert b"schema" not in refused.body
    for headers in (bearer(TOKEN), {"cookie": f"genkidama-8765={COOKIE}"}):
        shown = ask(target, CLOSED, **headers)
        assert (
            (shown is None) if target == "/watch" else (shown is not None and shown.status == 200)
        )
    assert ask("/healthz", CLOSED) is not None


def test_a_link_leaves_a_cookie_that_scripts_do_not_see() -> None:
    viewers = Viewers(KNOWN, secure=True)
    found = ask("/?key=the-key-of-a-link", viewers)
    assert found is not None and found.status == 200
    headers = dict(found.headers)
    cookie, *more = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Secure", "Path=/"} <= set(more)
    assert cookie == f"genkidama-8765={COOKIE}" and b"url=./" in found.body
    assert TOKEN not in str(found) and b"key" not in found.body
    again = ask("/?key=the-key-of-a-link", viewers)
    assert again is not None and again.status == 401 and b"opens once" in again.body
    entered = ask("/", viewers, cookie=cookie)
    assert entered is not None and entered.status == 200
    assert "Secure" not in str(ask("/?key=the-key-of-a-link", Viewers(KNOWN)))


def test_a_page_from_elsewhere_reads_nothing() -> None:
    for viewers in (OPEN, CLOSED):
        for origin in (
            *("http://evil.example", "null", "https://127.0.0.1:1", "http://127.0.0.1"),
            *("x://127.0.0.1:8765", "http://me@127.0.0.1:8765", "http://127.0.0.1:8765/"),
        ):
            refused = ask("/watch", viewers, origin=origin, **bearer(TOKEN))
            assert refused is not None and refused.status == 403
    assert ask("/watch", OPEN, origin="http://127.0.0.1:8765") is None
    # A name of theirs that points here is no name of this machine.
    rebound = ask("/status", OPEN, host="evil.example:8765")
    assert rebound is not None and rebound.status == 403
    # Whoever shows a token may come by any name, as through a proxy.
    proxied = ask("/status", CLOSED, host="shelf.example", **bearer(TOKEN))
    assert proxied is not None and proxied.status == 200


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1", True),
        ("192.168.7.2:8765", True),
        ("[::1]:8765", True),
        ("[fe80::1%eth0]:8765", True),
        ("localhost:1", True),
        ("SHELF.local:8765", True),
        ("shelf", True),
        ("shelf.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[::1", False),
        ("localhost:x", False),
        ("localhost:", False),
        ("me@localhost", False),
        ("localhost/x", False),
        ("localhost#", False),
        (" localhost", False),
        ("127.0.0.1:80:80", False),
        ("localhost\n", False),
    ],
)
def test_names_of_this_machine(host: str, ours: bool) -> None:
    assert is_own_host(host, OPEN.names) is ours


@given(st.from_regex(r"[][\w.:@/%?#~-]{1,24}", fullmatch=True) | st.text(max_size=8))
def test_a_host_that_is_read_is_read_by_others_in_the_same_way(host: str) -> None:
    name, port = host_and_port(host)
    if name:
        parts = urlsplit(f"//{host}")
        assert (parts.hostname, parts.netloc, parts.username) == (name, host, None)
        assert parts.netloc.rpartition(":")[2] == port if port else not host.endswith(":")
    assert (is_own_host(host, frozenset({name} - {""}))) == bool(name)
    assert cookie_of(host) == (f"genkidama-{port}" if port else "genkidama")


def test_what_is_compressed_says_so() -> None:
    found = ask("/static/play.js", **{"accept-encoding": "br, gzip"})
    assert found is not None and ("Content-Encoding", "gzip") in found.headers
    assert is_watching(HttpRequest("/watch?x", {"upgrade": "websocket"}))
    assert not is_watching(HttpRequest("/watch", {}))


def test_only_the_folders_own_files_are_given_and_large_ones_compressed() -> None:
    found = read_file("static/index.html", False)
    assert found is not None and found[0].startswith(b"<!doctype html>")
    for name in ("static/../routes.py", "static/", "static", "../routes.py", "static/a/b", "x"):
        assert read_file(name, False) is None
    small, zipped, plain = (
        read_file(f"static/{name}", wanted)
        for name, wanted in (("icon.svg", True), ("page.css", True), ("page.css", False))
    )
    assert small is not None and zipped is not None and plain is not None
    assert (small[1], zipped[1], plain[1]) == (False, True, False)
    assert gzip.decompress(zipped[0]) == plain[0]


def test_a_request_and_its_answer() -> None:
    asked = parse_request(Request("/status?x=1", Headers({"Host": "pi:1", "ACCEPT": "*"})))
    assert (asked.path, asked.headers) == ("/status", {"host": "pi:1", "accept": "*"})
    answer = HttpResponse(404, b"none\n", headers=(("X", "y"),))
    response = make_response(answer, asked)
    assert (response.status_code, response.reason_phrase) == (404, "Not Found")
    assert (response.body, response.headers["X"]) == (b"none\n", "y")
    head = make_response(answer, asked._replace(method="HEAD"))
    assert (head.body, head.headers["Content-Length"]) == (b"", "5")
    assert response.headers["Date"].endswith(" GMT")


OWNER_KEY = "the-key-of-an-owner"
OWNER_TOKEN, OWNER_COOKIE = link_token(OWNER_KEY, SALT), link_cookie(OWNER_KEY, SALT)
OWNERS = written("anna", OWNER_TOKEN, None, SALT, OWNER_COOKIE, "owner")
BOTH = (
    Viewers(Known(OWNERS + written("ben", TOKEN, None, SALT, COOKIE) + "pi token-of-the-pi-01\n")),
    Viewers(None, owners=parse_tokens(OWNERS, "owners")),
)
PAGE = {"origin": "http://127.0.0.1:8765"}


def steer(viewers: Viewers, target: str, method: str = "POST", **headers: str) -> tuple[int, str]:
    page = Shown()
    found = answer(HttpRequest(target, {**HERE, **headers}, method), page, viewers, 0.0)
    assert found is not None
    assert bool(page.commands) == (method == "POST" and found.status == 200)
    return found.status, f"{page.commands[0]}" if page.commands else found.body.decode().strip()


@pytest.mark.parametrize("viewers", BOTH)
def test_an_owner_steers_a_run_by_token_or_from_its_page(viewers: Viewers) -> None:
    cookie = {"cookie": f"genkidama-8765={OWNER_COOKIE}"}
    for shown in (bearer(OWNER_TOKEN), {**cookie, **PAGE}):
        found = steer(viewers, "/control?action=exclude&child=pi%2d1", **shown)
        assert found == (200, "('anna', 'exclude', 'pi-1', 0.5)")
        found = steer(viewers, "/control?action=extend&share=0.2", **shown)
        assert found == (200, "('anna', 'extend', '', 0.2)")
        words = "the run is over: 10 steps done"
        assert steer(viewers, "/control?action=stop", **shown) == (409, words)
        assert steer(viewers, "/control?action=extend&share=x", **shown)[0] == 409
        assert steer(viewers, "/control", "GET", **shown) == (200, '{"owner":"anna"}')
        assert steer(viewers, "/control", "PUT", **shown)[0] == 405


@pytest.mark.parametrize("viewers", BOTH)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"cookie": f"genkidama-8765={OWNER_COOKIE}"}, 403),  # no page says that it sends it
        ({"cookie": f"genkidama-8765={OWNER_COOKIE}", "origin": "http://127.0.0.1:1"}, 403),
        ({"cookie": f"genkidama-8765={OWNER_COOKIE}", "origin": "null"}, 403),
        ({"cookie": f"genkidama-8765={OWNER_TOKEN}", **PAGE}, 401),
        ({**bearer(OWNER_COOKIE), **PAGE}, 401),
        ({**bearer(TOKEN), **PAGE}, 403),  # a viewer's
        ({"cookie": f"genkidama-8765={COOKIE}", **PAGE}, 403),
        (bearer("token-of-the-pi-01"), 401),
        (PAGE, 401),
        ({**bearer(OWNER_TOKEN), "host": "evil.example"}, 200),
    ],
)
def test_nobody_else_steers_it(viewers: Viewers, headers: dict[str, str], status: int) -> None:
    found = steer(viewers, "/control?action=film", **headers)[0]
    if viewers.open:  # everybody may look, by an address of this machine
        status = 403 if status == 401 or headers.get("host") else status
    assert found == status
    if not headers.get("host"):
        assert steer(viewers, "/control?action=film", "GET", **PAGE)[0] in (200, 401)
