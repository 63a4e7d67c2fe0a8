"""Routes of the page: permissions and answers of plain HTTP requests, and the static files.

Laws of this file:
- Everything is `GET`, or `HEAD` for its head, and changes nothing; but a `POST` to `/control`.
- `POST /control` is for the run's owner. A browser must say that the page itself sends it, by
  `Origin`; a cookie without it is refused. So no other page steers a run in its owner's browser.
- `/healthz` and `/readyz` are for everybody; the rest is for viewers, if the parent has tokens.
- Without tokens a request must name this machine by one of its addresses or names. So a foreign
  web page whose name points here (DNS rebinding) reads nothing.
- Where browsers may be children, `/join` and its files are for everybody. They hold no secret.
- A browser may load nothing from elsewhere, and run no script inside the page.
"""

from __future__ import annotations

import functools
import gzip
import ipaddress
import re
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from genkidama.errors import ProtocolError
from genkidama.plugins.dashboard.viewers import Viewers, cookie_of, host_and_port

if TYPE_CHECKING:
    from genkidama.plugins.dashboard.broadcast import Page

#: Where the feed is.
WATCH = "/watch"

#: What steers the run.
CONTROL = "/control"

#: What a browser may load, and where; of the page itself there is nothing inline.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

_STATIC = Path(__file__).parent / "static"

#: A file of fewer bytes gains little.
_LEAST_ZIPPED = 1 << 12

_ZIPPED = (".js", ".css", ".html", ".svg")

#: Of every answer.
_HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)

_KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "json": "application/json",
    "mp4": "video/mp4",
}

#: Paths of this page beside its files.
_SHOWN = ("/", WATCH, "/favicon.ico", "/status", "/metrics", "/policy", "/film")

#: Files of the page of a browser that is a child.
_JOINING = frozenset(
    f"/static/{name}"
    for name in (
        *("acting.js", "dom.js", "environments.js", "icon.svg", "join.js", "messages.js"),
        *("page.css", "policy.js", "theme.js", "words.js"),
    )
)

_NEVER = (("Cache-Control", "no-store"),)

_VERSION = re.compile(r"\d{1,18}", re.ASCII)

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})", re.ASCII)


class HttpRequest(NamedTuple):
    #: `/path?query`, as it was sent.
    target: str
    #: By their names in lower case.
    headers: Mapping[str, str]
    method: str = "GET"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class HttpResponse(NamedTuple):
    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    #: Of a refusal that is worth a note: why. Who only came without a token is not.
    why: str = ""

    @property
    def all_headers(self) -> tuple[tuple[str, str], ...]:
        """Those that every answer has, too."""
        length = ("Content-Length", str(len(self.body)))
        policy = ("Content-Security-Policy", POLICY)
        return (("Content-Type", self.kind), length, policy, *_HEADERS, *self.headers)


def is_watching(asked: HttpRequest) -> bool:
    """True if the request is for the feed's websocket."""
    return asked.path == WATCH and "upgrade" in asked.headers


def answer(asked: HttpRequest, page: Page, viewers: Viewers, now: float) -> HttpResponse | None:
    """The answer to a request that is for no child's websocket, at `now` in Unix seconds; None if
    it has none here: a request for the feed that is allowed, or an unknown path."""
    path = asked.path
    if page.browsers and (path == "/join" or path in _JOINING):
        return _static(path[1:] if path in _JOINING else "static/join.html", asked)
    if path == CONTROL:
        return _refusal(asked, viewers, now) or _control(asked, page, viewers, now)
    if asked.method not in ("GET", "HEAD"):
        return None
    if path == "/healthz":
        return HttpResponse(HTTPStatus.OK, b"ok\n")
    if path == "/readyz":
        why = page.unready()
        status = HTTPStatus.SERVICE_UNAVAILABLE if why else HTTPStatus.OK
        return HttpResponse(status, f"{why or 'ready'}\n".encode())
    if path not in _SHOWN and not path.startswith("/static/"):
        return None
    refused = _refusal(asked, viewers, now)
    if refused is not None or path == WATCH:
        return refused
    if path == "/status":
        return HttpResponse(HTTPStatus.OK, page.status(), _KINDS["json"], _NEVER)
    if path == "/metrics":
        return page.metrics()
    if path == "/policy":
        version = _given(asked).get("version", "")
        number = int(version) if _VERSION.fullmatch(version) else None
        return HttpResponse(HTTPStatus.OK, page.policies.document(number), _KINDS["json"], _NEVER)
    if path == "/film" and (film := page.policies.film()) is not None:
        return _ranged(film, _KINDS["mp4"], asked.headers.get("range", ""))
    return _static("static/index.html" if path == "/" else path[1:], asked)


def _static(name: str, asked: HttpRequest) -> HttpResponse:
    found = read_file(name, "gzip" in asked.headers.get("accept-encoding", ""))
    if found is None:
        return HttpResponse(HTTPStatus.NOT_FOUND, f"{asked.path}: there is no such file\n".encode())
    body, zipped = found
    more: tuple[tuple[str, str], ...] = (("Cache-Control", "no-cache"),)
    if zipped:
        more += (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))
    kind = _KINDS.get(name.rpartition(".")[2], "application/octet-stream")
    return HttpResponse(HTTPStatus.OK, body, kind, more)


def _ranged(body: bytes, kind: str, asked: str) -> HttpResponse:
    """The range of a body that is asked for, without which Safari plays no film; all of it for any
    other wish, as a server may answer (RFC 9110, 14.2)."""
    headers: tuple[tuple[str, str], ...] = (*_NEVER, ("Accept-Ranges", "bytes"))
    if found := _RANGE.fullmatch(asked):
        start, end = int(found[1]), min(int(found[2] or len(body)) + 1, len(body))
        if start < end:
            headers += (("Content-Range", f"bytes {start}-{end - 1}/{len(body)}"),)
            return HttpResponse(HTTPStatus.PARTIAL_CONTENT, body[start:end], kind, headers)
    return HttpResponse(HTTPStatus.OK, body, kind, headers)


def _given(asked: HttpRequest) -> dict[str, str]:
    """The query of a request; of a repeated name the first counts."""
    return {name: values[0] for name, values in parse_qs(asked.target.partition("?")[2]).items()}


def _control(asked: HttpRequest, page: Page, viewers: Viewers, now: float) -> HttpResponse:
    """The answer to one who may look: to `GET` its name as an owner, to `POST` what came of it."""
    shown = viewers.shown(asked.headers, cookie_of(asked.headers.get("host", "")))
    owner = viewers.owner(shown, now)
    if asked.method in ("GET", "HEAD"):
        body = msgspec.json.encode({"owner": owner})
        return HttpResponse(HTTPStatus.OK, body, _KINDS["json"], _NEVER)
    if asked.method != "POST":
        return _words(HTTPStatus.METHOD_NOT_ALLOWED, "POST steers the run", ("Allow", "GET, POST"))
    if not owner:
        return _words(HTTPStatus.FORBIDDEN, "only the run's owner steers it, by a token of its own")
    if shown.is_cookie and "origin" not in asked.headers:
        return _words(HTTPStatus.FORBIDDEN, "a browser says by Origin which page sends a command")
    given = _given(asked)
    try:
        share = float(given.get("share", "0.5"))
        page.command(owner, given.get("action", ""), given.get("child", ""), share)
    except ValueError:
        return _words(HTTPStatus.CONFLICT, f"share = {given['share']!r}: expected a number")
    except ProtocolError as error:
        return _words(HTTPStatus.CONFLICT, error.reason)
    return HttpResponse(HTTPStatus.OK, b"done\n")


def _refusal(asked: HttpRequest, viewers: Viewers, now: float) -> HttpResponse | None:
    """The refusal of a request, or a link's welcome; None if it is allowed."""
    headers = asked.headers
    host = headers.get("host", "")
    origin = headers.get("origin")
    if origin is not None and not (host and origin in (f"http://{host}", f"https://{host}")):
        return _words(HTTPStatus.FORBIDDEN, "no other web page may look at a run")
    if viewers.open and not is_own_host(host, viewers.names):
        words = f"{host or 'no host'!r} is no name of this machine; ask by its address"
        return _words(HTTPStatus.FORBIDDEN, words)
    key = _given(asked).get("key", "")
    if key and asked.path == "/":
        if asked.method == "HEAD":  # a preview of the link, which must not use it up
            return HttpResponse(HTTPStatus.OK, _WELCOME, _KINDS["html"], _NEVER)
        opened = _open_link(key, host, viewers, now)
        # Where everybody may look, a link that was opened before leads to the page all the same.
        return None if viewers.open and opened.status != HTTPStatus.OK else opened
    if viewers.open:
        return None
    shown = viewers.shown(headers, cookie_of(host))
    problem = viewers.problem(shown, now)
    if not problem:
        return None
    found = _words(HTTPStatus.UNAUTHORIZED, problem, *_ASKS)
    found = _door(problem) if asked.path == "/" else found
    return found if shown.secret else found._replace(why="")


def _open_link(key: str, host: str, viewers: Viewers, now: float) -> HttpResponse:
    cookie, problem = viewers.open_link(key, now)
    if not cookie:
        return _door(problem)
    keeps = "Path=/; HttpOnly; SameSite=Strict; Max-Age=31536000" + "; Secure" * viewers.secure
    more = (("Set-Cookie", f"{cookie_of(host)}={cookie}; {keeps}"), *_NEVER)
    return HttpResponse(HTTPStatus.OK, _WELCOME, _KINDS["html"], more)


_ASKS = (("WWW-Authenticate", "Bearer"), *_NEVER)

#: A link may be found on a page from elsewhere. After a redirection a browser would still come from
#: there, and keep a strict cookie to itself; this page sends it on as one of ours.
_WELCOME = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=./">
<title>Genkidama</title><p><a href="./">To the run</a></p></html>
"""

_DOOR = """<!doctype html>
<meta charset="utf-8"><title>Genkidama</title>
<h1>This run is shown to viewers only</h1>
<p>{problem}.</p>
<p>On the parent's machine, <code>genkidama token --viewer</code> prints a link that opens once.</p>
"""


def _door(problem: str) -> HttpResponse:
    body = _DOOR.format(problem=problem.replace("&", "&amp;").replace("<", "&lt;")).encode()
    return HttpResponse(HTTPStatus.UNAUTHORIZED, body, _KINDS["html"], _ASKS, problem)


def _words(status: int, words: str, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, f"{words}\n".encode(), headers=headers, why=words)


def is_own_host(host: str, names: frozenset[str]) -> bool:
    """True if a `Host` header names an address, or one of this machine's `names` in lower case."""
    name, _ = host_and_port(host)
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name in names or name == "localhost" or name.endswith(".localhost")
    return True


@functools.cache
def _files() -> dict[str, bytes]:
    """The page's files by their paths. A name that is asked for is never joined to a path."""
    return {f"static/{path.name}": path.read_bytes() for path in _STATIC.iterdir()}


@functools.cache
def _zipped(name: str) -> bytes:
    return gzip.compress(_files()[name], 6, mtime=0)


def read_file(name: str, zipped: bool) -> tuple[bytes, bool] | None:
    """A file of the page, as `static/page.js`, and whether it is compressed; None if there is
    none."""
    content = _files().get(name)
    if content is None:
        return None
    if zipped and name.endswith(_ZIPPED) and len(content) >= _LEAST_ZIPPED:
        return _zipped(name), True
    return content, False


def parse_request(request: Request) -> HttpRequest:
    """A request as websockets read it. Of a repeated header the last counts."""
    headers = {name.lower(): value for name, value in request.headers.raw_items()}
    return HttpRequest(request.path, headers, getattr(request, "method", "GET"))


def make_response(found: HttpResponse, asked: HttpRequest) -> Response:
    """An answer as websockets sends it. `HEAD` gets its head."""
    status = HTTPStatus(found.status)
    headers = Headers({"Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())})
    headers["Connection"] = "close"
    for name, value in found.all_headers:
        headers[name] = value
    body = b"" if asked.method == "HEAD" else found.body
    return Response(status, status.phrase, headers, body)
