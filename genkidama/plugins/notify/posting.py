"""Services that take a notice by one HTTP POST, and the thread that posts to one.

Laws of this file:
- Nobody waits for a service: a thread of its own posts. One that fails is tried again, and said
  once.
- An address is a secret: messages name its host alone.
- Only http:// and https:// are spoken, and no redirect is followed.
"""

from __future__ import annotations

import base64
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from genkidama._version import __version__
from genkidama.errors import ConfigurationError
from genkidama.runtime.pacing import Once

#: Seconds that one POST may take, and seconds until it is tried again.
_TIMEOUT, _AGAIN = 10.0, 30.0

#: So many notices wait for a service that does not answer; the oldest are dropped.
_MOST = 32


class Notice(NamedTuple):
    """Something to be told."""

    #: `begun`, `best`, `solved`, `ended`, `silent`, `back`, `throttled` or `warning`.
    kind: str
    run: str
    title: str
    text: str


#: By kind of notice: ntfy's tag, which it shows as an emoji, and its priority from 1 to 5.
_NTFY = {
    "begun": ("seedling", 2),
    "best": ("chart_with_upwards_trend", 2),
    "solved": ("tada", 4),
    "ended": ("checkered_flag", 4),
    "back": ("green_circle", 2),
}


def _ntfy(notice: Notice, topic: str) -> dict[str, Any]:
    tag, priority = _NTFY.get(notice.kind, ("warning", 4))
    words = {"topic": topic, "title": notice.title, "message": notice.text}
    return {**words, "tags": [tag], "priority": priority}


#: Bodies by the name of their form. Home Assistant takes `json` at webhooks and at `notify`.
FORMS: dict[str, Callable[[Notice, str], dict[str, Any]]] = {
    "ntfy": _ntfy,
    "slack": lambda notice, _: {"text": f"*{notice.title}*\n{notice.text}"},
    "json": lambda notice, _: {
        "title": notice.title,
        "message": notice.text,
        "data": {"event": notice.kind, "run": notice.run},
    },
}


class Service(NamedTuple):
    """An address, and the form in which it takes notices."""

    url: str
    #: All of the address that may be told.
    host: str
    form: str
    #: ntfy's topic.
    topic: str
    headers: dict[str, str]

    def body(self, notice: Notice) -> bytes:
        """The JSON to post."""
        return msgspec.json.encode(FORMS[self.form](notice, self.topic))


def service_at(address: str) -> Service:
    """The service at `URL`, or at `FORM=URL`, where the address does not tell the form.

    A user and a password in the URL become a basic authorization, a password alone a bearer token.

    Raises:
        ConfigurationError: it is no such address.
    """
    form, _, url = address.partition("=")
    if form not in FORMS:
        form, url = "", address
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https") or not url.isascii() or " " in url:
        raise ConfigurationError(
            "--notify: expected an address like https://ntfy.sh/TOPIC, with ntfy=, slack= or json= "
            "before it if it does not tell its form"
        )
    path, topic = parts.path, ""
    if not form:
        slack = host == "hooks.slack.com" or path.startswith("/hooks/")  # Mattermost's
        form = "ntfy" if "ntfy" in host else "slack" if slack else "json"
    if form == "ntfy":  # a title may have any letters in JSON, which goes to the root
        path, topic = "/", unquote(path.strip("/"))
        if not topic or "/" in topic:
            raise ConfigurationError(
                f"--notify: {host}: expected one topic, as https://{host}/TOPIC"
            )
    headers = {"Content-Type": "application/json", "User-Agent": f"genkidama/{__version__}"}
    if parts.password is not None:
        user, password = unquote(parts.username or ""), unquote(parts.password)
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers["Authorization"] = f"Basic {basic}" if user else f"Bearer {password}"
    url = parts._replace(netloc=parts.netloc.rpartition("@")[2], path=path, fragment="").geturl()
    return Service(url, host, form, topic, headers)


class Poster:
    """Posts notices to one service, in a thread that begins with the first and calls `complain`
    with each problem that was not there before."""

    def __init__(self, service: Service, complain: Callable[[str], None]) -> None:
        self._service = service
        self._complain = complain
        self._problem = Once()
        self._queue: queue.Queue[Notice | None] = queue.Queue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def post(self, notice: Notice) -> None:
        """Posts it soon."""
        if self._thread.ident is None:
            self._thread.start()
        if self._queue.qsize() >= _MOST:
            with suppress(queue.Empty):
                self._queue.get_nowait()
        self._queue.put(notice)

    def close(self, seconds: float) -> None:
        """Tries once more what waits, for so long at most."""
        self._ending.set()
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        while (notice := self._queue.get()) is not None:
            while not self._try(notice):
                if self._ending.wait(_AGAIN):
                    self._try(notice)
                    break

    def _try(self, notice: Notice) -> bool:
        """Posts a notice; whether it is done with: taken, or refused for good."""
        # These take 50 ms to import, which parents without notices save.
        from urllib import request
        from urllib.error import HTTPError, URLError

        opener = request.OpenerDirector()
        for handler in (
            request.ProxyHandler,
            request.HTTPHandler,
            request.HTTPSHandler,
            request.HTTPDefaultErrorHandler,
            request.HTTPErrorProcessor,
        ):
            opener.add_handler(handler())
        service = self._service
        asked = request.Request(service.url, service.body(notice), service.headers)  # noqa: S310
        done, problem = True, ""
        try:
            opener.open(asked, timeout=_TIMEOUT).close()
        except HTTPError as error:
            error.close()
            problem = f"HTTP {error.code}"
            done = error.code < 500 and error.code not in (408, 429)
        except URLError as error:
            done, problem = False, str(error.reason)
        except Exception as error:  # a peer may answer anything; the text may hold the address
            done, problem = False, type(error).__name__
        if self._problem.is_new(problem):
            self._complain(problem)
        return done
