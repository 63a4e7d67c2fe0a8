"""Notices that real processes post to a real HTTP server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from genkidama.errors import ConfigurationError
from genkidama.plugins.notify import VARIABLE, posting
from genkidama.plugins.notify.posting import Notice, Poster, service_at
from tests.helpers import command, constant, eventually, history, running, small, until

BEST = Notice("best", "shelf", "shelf: best so far 3", "näher")


class Receiver:
    """An HTTP server that keeps what is posted. It answers with the codes of `answers`, the last
    for ever, and redirects to `/elsewhere`."""

    def __init__(self) -> None:
        self.posts: list[tuple[str, dict[str, str], dict[str, object]]] = []
        self.answers = [200]
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.append((self.path, dict(self.headers), json.loads(body)))
                answers = receiver.answers
                self.send_response(answers.pop(0) if len(answers) > 1 else answers[0])
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            do_GET = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.host = f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def posted(address: str, receiver: Receiver) -> list[str]:
    """The complaints after a post there."""
    said: list[str] = []
    poster = Poster(service_at(address), said.append)
    poster.post(BEST)
    until(lambda: receiver.posts or said)
    poster.close(5.0)
    return said


def test_the_address_tells_the_form() -> None:
    for address, form in (
        ("https://ntfy.sh/shelf", "ntfy"),
        ("https://ntfy.example.org:8443/shelf", "ntfy"),
        ("ntfy=http://10.0.0.1/shelf", "ntfy"),
        ("https://hooks.slack.com/services/T/B/X", "slack"),
        ("https://chat.example.org/hooks/abc", "slack"),
        ("http://homeassistant.local:8123/api/webhook/abc?a=b", "json"),
        ("json=https://ntfy.sh/shelf", "json"),
    ):
        assert service_at(address).form == form, address
    assert service_at("https://ntfy.sh:8443/a%20b")[:2] == ("https://ntfy.sh:8443/", "ntfy.sh")
    kept = "http://homeassistant.local:8123/api/webhook/abc?a=b"
    assert service_at(kept).url == kept


@pytest.mark.parametrize(
    "address",
    [
        "",
        "file:///etc/passwd",
        "ftp://h/x",
        "https://",
        "http://h:x/",
        "h/x",
        "slack=h",
        "http://ü/",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--notify: expected an address like https"):
        service_at(address)


def test_ntfy_needs_one_topic() -> None:
    for address in ("https://ntfy.sh", "https://ntfy.sh/a/b"):
        with pytest.raises(ConfigurationError, match="expected one topic"):
            service_at(address)


def test_each_form_and_each_authorization_arrives(receiver: Receiver) -> None:
    for address in (
        f"ntfy=http://:tk_1@{receiver.host}/shelf",
        f"slack=http://{receiver.host}/services/T",
        f"http://me:pass%40word@{receiver.host}/api/webhook/abc",
    ):
        receiver.posts, before = [], receiver.posts
        assert not posted(address, receiver)
        receiver.posts = before + receiver.posts
    title, text = BEST.title, BEST.text
    assert [(path, body) for path, _, body in receiver.posts] == [
        (
            "/",
            {
                "topic": "shelf",
                "title": title,
                "message": text,
                "tags": ["chart_with_upwards_trend"],
                "priority": 2,
            },
        ),
        ("/services/T", {"text": f"*{title}*\n{text}"}),
        (
            "/api/webhook/abc",
            {"title": title, "message": text, "data": {"event": "best", "run": "shelf"}},
        ),
    ]
    assert [headers.get("Authorization") for _, headers, _ in receiver.posts] == [
        "Bearer tk_1",
        None,
        "Basic bWU6cGFzc0B3b3Jk",
    ]


def test_no_redirect_is_followed(receiver: Receiver) -> None:
    receiver.answers = [302]
    assert posted(f"http://{receiver.host}/hook", receiver) == ["HTTP 302"]
    assert [path for path, *_ in receiver.posts] == ["/hook"]


def test_a_service_that_fails_is_tried_again_and_said_once(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "_AGAIN", 0.01)
    receiver.answers = [503, 503, 429, 200]
    said: list[str] = []
    poster = Poster(service_at(f"http://{receiver.host}/hook"), said.append)
    for _ in range(2):
        poster.post(BEST)
    until(lambda: len(receiver.posts) == 5)
    poster.close(5.0)
    assert said == ["HTTP 503", "HTTP 429"]


def test_the_oldest_of_too_many_are_dropped(receiver: Receiver) -> None:
    receiver.answers = [503] + [200] * 99
    poster = Poster(service_at(f"http://{receiver.host}/hook"), lambda _: None)
    poster.post(BEST)
    until(lambda: receiver.posts)
    for number in range(posting._MOST + 9):
        poster.post(BEST._replace(title=str(number)))
    poster.close(5.0)
    assert receiver.posts[-1][-1]["title"] == str(posting._MOST + 8)


def test_the_last_notice_is_tried_once_more_at_the_end(receiver: Receiver) -> None:
    receiver.answers = [503, 200]
    poster = Poster(service_at(f"http://{receiver.host}/hook"), lambda _: None)
    poster.post(BEST)
    poster.close(5.0)
    assert len(receiver.posts) == 2


def test_nobody_waits_for_a_service_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as deaf:  # never accepts
        poster = Poster(service_at(f"http://127.0.0.1:{deaf.server_port}/"), lambda _: None)
        began = time.monotonic()
        for _ in range(1000):
            poster.post(BEST)
        assert poster._queue.qsize() <= posting._MOST
        poster.close(0.1)
        assert time.monotonic() - began < 5.0


def test_a_run_tells_of_its_beginning_and_its_end(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "shelf.toml"
    file.write_text(small(stop={"mean_return": 12.0, "window": 5}).to_toml())
    secret = f"http://{receiver.host}/hook/s3cret"
    train = f"genkidama train {file} --children 1 --out first --episodes 0"
    ended = command(tmp_path, *train.split(), "--notify", secret)
    assert ended.code == 0, ended.err
    begun, solved = (body for _, _, body in receiver.posts)
    assert begun["title"] == "first: begun" and solved["title"] == "first: solved"
    reason, state = str(solved["message"]).splitlines()
    assert reason.startswith("mean return ") and reason.endswith(" over 5 episodes reached 12")
    assert state.startswith("CartPole-v1") and "1 child" in state
    files = [path for path in (tmp_path / "first").rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]


def test_a_wrong_address_is_one_line(tmp_path: Path) -> None:
    ended = command(tmp_path, "genkidama", "parent", "cartpole", "--notify", "ftp://h/s3cret")
    assert ended.code == 2 and ended.err.startswith("error: --notify: expected an address like")
    assert "s3cret" not in ended.err and not list(tmp_path.glob("runs"))


async def test_a_disk_that_fails_is_told_and_a_refusal_is_said_without_the_address(
    receiver: Receiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    named = (f"http://{receiver.host}/{path}" for path in ("s3cret", "second", "s3cret"))
    monkeypatch.setenv(VARIABLE, " ".join(named))
    receiver.answers = [404]
    async with running(constant(), tmp_path / "run") as parent:
        assert parent._writer is not None
        for _ in range(3):
            parent._writer.complain("checkpoints: no space left on device")
        await eventually(lambda: len(receiver.posts) >= 4)
    told = sorted((path, body["title"]) for path, _, body in receiver.posts)
    assert told == [
        (path, f"run: {title}")
        for path in ("/s3cret", "/second")
        for title in ("begun", "ended", "warning")
    ]
    assert history(tmp_path / "run", "warning")[0]["reason"].startswith("checkpoints: no space")
    assert parent.status.document(parent.now())["run"]["notes"][-1].startswith("checkpoints: no")
    said = "".join(capfd.readouterr())
    assert "HTTP 404; the run goes on" in said and "s3cret" not in said
