"""What a real parent shows, over real HTTP and a real websocket, with children that push."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.parent import Parent
from genkidama.parent.connection import PIECE_BYTES
from genkidama.plugins.dashboard import endpoint, films, policies, routes
from genkidama.protocol.messages import Push
from genkidama.protocol.tokens import link_cookie, link_token, written
from genkidama.runs.status import RunStatus, fold
from genkidama.server.events import from_line
from genkidama.server.limits import ANSWERS_OF_ONE, VIEWERS_OF_ONE
from tests.helpers import constant, eventually, history, running, small
from tests.parent.fake_child import FakeChild, vector
from tests.parent.test_authentication import Bearer, bearer
from tests.plugins.dashboard.test_run_browser import fetch
from tests.plugins.dashboard.test_viewers import COOKIE, SALT
from tests.plugins.dashboard.test_viewers import TOKEN as VIEWER

KEY = "the-key-of-a-link"
PI = "token-of-the-pi-01"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"pi {PI}\n" + written("anna", VIEWER, salt=SALT, cookie=COOKIE))
    path.chmod(0o600)
    return path


@pytest.fixture
async def parent(tmp_path: Path) -> AsyncIterator[Parent]:
    async with running(constant(), tmp_path / "run") as parent:
        yield parent


@pytest.fixture
async def guarded(tmp_path: Path, tokens: Path) -> AsyncIterator[Parent]:
    async with running(constant(parent={"tokens_file": str(tokens)}), tmp_path / "run") as parent:
        yield parent


def place(parent: Parent, path: str, scheme: str = "http") -> str:
    host, port = parent.address
    return f"{scheme}://{host}:{port}/{path}"


def page_of(parent: Parent) -> endpoint.Dashboard:
    (dashboard,) = parent.observers
    assert isinstance(dashboard, endpoint.Dashboard)
    return dashboard


def watch(parent: Parent, **headers: str) -> Any:
    return connect(place(parent, "watch", "ws"), additional_headers=headers, compression=None)


async def hear(feed: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(10):
        return dict(json.loads(await feed.recv()))


async def to_the_end(feed: ClientConnection) -> None:
    while True:
        await hear(feed)


async def push(child: FakeChild, number: int, value: float) -> None:
    await child.ask(
        Push(
            version=0,
            sequence=number,
            vector=vector(value),
            steps=10,
            returns=[float(number)],
            measures={"pps": 7.0},
        )
    )


async def test_what_is_shown_is_what_happened(parent: Parent, tmp_path: Path) -> None:
    async with watch(parent) as feed:
        seen = fold(None, await hear(feed))
        assert seen["run"]["state"] == "waiting" and seen["children"] == []
        async with FakeChild(parent.address, "pi") as child:
            await child.enter()
            for number, value in enumerate((1.0, 2.0, 3.0, 4.5, 6.75), 1):
                await push(child, number, value)
            while seen["learning"]["version"] < 5:
                seen = fold(seen, await hear(feed))
            status = json.loads((await fetch(place(parent, "status")))[1])
    assert status["learning"]["steps"] == seen["learning"]["steps"] == 50
    (pi,) = status["children"]
    assert (pi["name"], pi["updates"], pi["steps"], pi["last_return"]) == ("pi", 5, 50, 5.0)
    assert pi["distance"] == pytest.approx(1.0)  # each push is 2·θ_P, before the blend
    assert pi["address"] == "127.0.0.1" and pi["figures"] == {"pps": 7.0}
    assert pi["bytes_in"] > 5 * 4 * 9 and pi["bytes_out"] > 5 * 4 * 9
    # The same events, as the history has them, give the same document.
    await eventually(lambda: len(history(tmp_path / "run", "exchange")) == 5)
    again = RunStatus(parent.experiment)
    for line in history(tmp_path / "run"):
        event = from_line(line)
        assert event is not None
        again.take([event])
    assert again.steps == 50 and again.document(0.0)["learning"]["mean_return"] == 3.0


async def test_who_is_excluded_is_shown_after_a_restart_too(parent: Parent) -> None:
    parent.server.excluded |= {"pi-2", "pi-1"}  # as a checkpoint has told it
    shown = json.loads((await fetch(place(parent, "status")))[1])
    assert shown["run"]["excluded"] == ["pi-1", "pi-2"]


async def test_the_newest_film_is_shown_after_a_restart_too(tmp_path: Path) -> None:
    folder = tmp_path / "run/films"
    folder.mkdir(parents=True)
    for version in (7, 12):
        (folder / f"version-{version:010}.mp4").touch()
    async with running(constant(), tmp_path / "run") as parent:
        shown = json.loads((await fetch(place(parent, "status")))[1])
    assert shown["run"]["film"] == 12


async def test_health_and_readiness_need_no_token(guarded: Parent) -> None:
    for path, words in (("healthz?probe=1", b"ok\n"), ("readyz", b"ready\n")):
        assert await fetch(place(guarded, path)) == (200, words)
    assert not guarded.server.refusals
    guarded.server.stop = "10 steps done"
    assert await fetch(place(guarded, "readyz")) == (503, b"the run is over\n")
    assert (await fetch(place(guarded, "healthz")))[0] == 200


async def test_the_feed_takes_a_viewers_token_and_a_child_its_own(guarded: Parent) -> None:
    for headers in ({}, bearer("wrong-token-of-nobody"), bearer(PI)):
        with pytest.raises(InvalidStatus, match="401"):
            async with watch(guarded, **headers):
                pass
    with pytest.raises(InvalidStatus, match="403"):
        async with watch(guarded, Origin="http://evil.example", **bearer(VIEWER)):
            pass
    assert guarded.server.refusals["token"] == 2  # who only came without one is not noted
    async with watch(guarded, Origin=place(guarded, "")[:-1], **bearer(VIEWER)) as feed:
        assert (await hear(feed))["type"] == "status"
    with pytest.raises(InvalidStatus, match="401"):
        async with Bearer(guarded.address, VIEWER):
            pass
    async with Bearer(guarded.address, PI) as child:
        await child.enter()
        np.testing.assert_array_equal(await child.pushed(2.0), vector(2.0))


async def test_a_link_opens_once_though_the_parent_is_started_again(
    tmp_path: Path, tokens: Path
) -> None:
    settings = constant(parent={"tokens_file": str(tokens)})
    for status in (200, 401):
        async with running(settings, tmp_path / "run") as parent:
            assert (await fetch(place(parent, f"?key={KEY}")))[0] == status
            cookie = {"Cookie": f"genkidama-{parent.address[1]}={COOKIE}"}
            assert (await fetch(place(parent, "status"), **cookie))[0] == 200
            opened = (tmp_path / "run" / "opened-links").read_text().split()
            assert len(opened) == 1 and KEY not in opened[0]


async def test_viewers_take_no_childs_place_and_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = constant(parent={"max_children": 1, "max_per_address": 2})
    async with running(settings, tmp_path / "run") as parent:
        doors = parent.connections.limits
        feeds = [await watch(parent) for _ in range(VIEWERS_OF_ONE)]
        with pytest.raises(InvalidStatus, match="503"):
            await watch(parent)
        async with FakeChild(parent.address, "pi") as child:
            await child.enter()
            await child.pushed(2.0)
            assert await fetch(place(parent, "readyz")) != (200, b"ready\n")
        for feed in feeds:
            await feed.close()
        await eventually(lambda: len(doors) == 0)
        async with watch(parent) as feed:
            assert (await hear(feed))["type"] == "status"


async def test_a_viewer_says_nothing(parent: Parent) -> None:
    async with watch(parent) as feed:
        await hear(feed)
        await feed.send("let me in")
        with pytest.raises(ConnectionClosed) as closed:
            await to_the_end(feed)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    await eventually(lambda: len(page_of(parent).feed) == 0)


async def test_who_watches_hears_of_the_end(tmp_path: Path) -> None:
    async with running(constant(), tmp_path / "run") as parent:
        feed = await watch(parent)
        seen = fold(None, await hear(feed))
    with suppress(ConnectionClosed):
        while True:
            seen = fold(seen, await hear(feed))
    assert (seen["run"]["state"], seen["run"]["reason"]) == ("over", "stopped")


async def test_one_who_does_not_read_costs_the_others_nothing_and_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages are dropped; when it takes none for long, its connection ends."""
    monkeypatch.setattr(endpoint, "STUCK_SECONDS", 0.3)
    async with running(constant(), tmp_path / "run") as parent:
        stuck = await watch(parent)
        stuck.transport.pause_reading()
        feed = page_of(parent).feed
        viewer = next(iter(feed._viewers))
        for _ in range(200):  # until the kernel's buffers are full
            if viewer.free:
                viewer.write_frame(b"x" * 2**18)
        held = viewer.transport.get_write_buffer_size()  # type: ignore[attr-defined]
        feed.send()
        assert viewer.transport.get_write_buffer_size() == held  # type: ignore[attr-defined]
        await eventually(lambda: len(feed) == 0, seconds=5.0)
        stuck.transport.abort()


async def test_a_large_answer_comes_whole_and_nobody_who_does_not_read_costs_much(
    parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * 2**15  # 8 MB

    def read(name: str, zipped: bool) -> tuple[bytes, bool]:
        return content, False

    connections = parent.connections
    monkeypatch.setattr(routes, "read_file", read)
    assert await fetch(place(parent, "static/page.css")) == (200, content)
    taken, refused = [], 0
    for _ in range(ANSWERS_OF_ONE + 3):
        reader, writer = await asyncio.open_connection(*parent.address, limit=2**16)
        host, port = parent.address
        writer.write(f"GET /static/page.css HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        taken.append((reader, writer))
        refused += (await reader.readline()).startswith(b"HTTP/1.1 503 ")
    assert refused == 3
    assert (await fetch(place(parent, "healthz")))[0] == 200
    waiting = [each.transport.get_write_buffer_size() for each in connections._open]
    assert 0 < max(waiting) <= 3 * PIECE_BYTES  # what each pins; the content is there once
    reader, writer = taken[0]
    writer.write_eof()
    async with asyncio.timeout(10):  # one that reads again gets the rest
        assert (await reader.read()).endswith(content[-(2**20) :])
    for _, each in taken:
        each.transport.abort()
    await eventually(lambda: not connections.limits._answered)


def mutated(rng: random.Random, request: bytes) -> bytes:
    """The request with a few of its bytes cut, copied, or replaced by what parsers trip over."""
    for _ in range(rng.randint(0, 3)):
        at, length = rng.randrange(len(request) + 1), rng.choice((0, 1, 2, 9))
        odd = (b"[", b"://[", b"\r\n", b"\0", b"\xff", b"%", b":", b"?", b" ", b"abc", b"\x81\x05")
        new = rng.choice((*odd, request[at : at + 20], b"x" * rng.choice((9, 9_000)), b""))
        request = request[:at] + new + request[at + length :]
    return request


async def test_no_request_makes_a_traceback_and_none_fills_the_log(
    guarded: Parent, caplog: pytest.LogCaptureFixture
) -> None:
    """Mutants of what browsers, children and probes ask, on a live parent."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    upgrade = (
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )
    heads = [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1\r\nCookie: genkidama=x; y\r\n",
        b"GET /watch HTTP/1.1\r\nHost: [\r\nOrigin: http://[\r\n" + upgrade,
        b"GET /status HTTP/1.1\r\nHost: a\r\nOrigin: http://[\r\n",
        b"GET /?key=x HTTP/1.1\r\nHost: [\r\n",
        b"GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n",
        b"HEAD /healthz HTTP/1.1\r\nHost: a\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer " + PI.encode() + b"\r\n" + upgrade,
    ]
    rng = random.Random(1)
    asked = [head + b"\r\n" + rest for head in heads for rest in (b"", b"abc", b"\x88\x80\0\0\0\0")]
    asked += [mutated(rng, rng.choice(asked)) for _ in range(1_000)]
    began = time.monotonic()

    async def ask(request: bytes) -> None:
        reader, writer = await asyncio.open_connection(*guarded.address)
        with suppress(OSError, TimeoutError):
            writer.write(request)
            if b"\r\n\r\n" not in request or b"Upgrade" in request:
                writer.write_eof()  # it would be waited for
            async with asyncio.timeout(1.0):
                await reader.read()
        writer.close()

    for first in range(0, len(asked), 50):
        await asyncio.gather(*map(ask, asked[first : first + 50]))
    async with Bearer(guarded.address, PI) as child:
        await child.enter()
    seconds = time.monotonic() - began
    assert not list(map(str, faults[:3]))
    said = [each.getMessage()[:200] for each in caplog.records if each.levelno >= logging.WARNING]
    assert not said[:3]
    assert not any(each.exc_info for each in caplog.records)
    lines = [line for line in history(guarded.out) if line["event"] == "refused"]
    assert len(lines) <= len(guarded.server.refusals) * (seconds + 2)


async def test_what_is_withdrawn_ends_the_pages_that_are_open(
    guarded: Parent, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "RECHECK_SECONDS", 0.05)
    cookie = f"genkidama-{guarded.address[1]}={COOKIE}"
    feeds = [await watch(guarded, **bearer(VIEWER)), await watch(guarded, Cookie=cookie)]
    for feed in feeds:
        await hear(feed)
    tokens.write_text(f"pi {PI}\n")
    for feed in feeds:
        with pytest.raises(ConnectionClosed) as closed:
            async with asyncio.timeout(5):
                await to_the_end(feed)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


def test_the_documents_paths_are_those_of_the_parent() -> None:
    from tests.helpers import ROOT

    text = (ROOT / "docs" / "reference" / "status.md").read_text(encoding="utf-8")
    for path in ("/status", "/watch", "/metrics", "/healthz", "/readyz"):
        assert f"`{path}`" in text or f"GET {path}`" in text
    assert re.search(r"`/static/", text) and routes.WATCH == "/watch"


@pytest.mark.parametrize(
    ("host", "secure", "page"),
    [
        ("127.0.0.1", False, "http://127.0.0.1:8765/"),
        ("0.0.0.0", True, "https://127.0.0.1:8765/"),
        ("fd00::1", True, "https://[fd00::1]:8765/"),
    ],
)
def test_the_address_of_the_page(host: str, secure: bool, page: str) -> None:
    shown = SimpleNamespace(viewers=SimpleNamespace(secure=secure), _secret="")
    assert endpoint.Dashboard.links(shown, host, 8765) == {"page": page}


async def steer(parent: Parent, query: str, **headers: str) -> tuple[int, str]:
    """The answer to a command, by hand: what a page sends is not what all others send."""
    reader, writer = await asyncio.open_connection(*parent.address)
    fields = {"Host": place(parent, "").split("/")[2], "Content-Length": "0", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"POST /control?{query} HTTP/1.1\r\n{head}\r\n".encode())
    answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(answer.split()[1]), body.decode().strip()


async def test_a_run_without_tokens_knows_its_owner_by_a_file(
    parent: Parent, tmp_path: Path
) -> None:
    file = tmp_path / "run" / "owner"
    assert file.stat().st_mode & 0o777 == 0o600
    top, link, _ = file.read_text().split()
    token = top.split(":")[2].partition("@")[0]
    assert token not in link and link.startswith(place(parent, "?key="))
    async with FakeChild(parent.address, "pi") as child:
        await child.enter()
        await push(child, 1, 1.0)
        assert (await steer(parent, "action=checkpoint"))[0] == 403
        assert (await steer(parent, "action=checkpoint", **bearer("x" * 64)))[0] == 403
        assert parent.server.refusals["token"] == 2
        first, second = (await fetch(link))[1], (await fetch(link))[1]
        assert b"To the run" in first and b"To the run" not in second  # it opens once
        assert await steer(parent, "action=checkpoint", **bearer(token)) == (200, "done")
        checkpoints = tmp_path / "run" / "checkpoints"
        await eventually(lambda: list(checkpoints.glob("version-*1.safetensors")))
        assert await steer(parent, "action=exclude&child=pi", **bearer(token)) == (200, "done")
        with pytest.raises(ConnectionClosed):
            await child.hear()
        async with FakeChild(parent.address, "pi") as again:
            assert "has excluded the child 'pi'" in str(await again.hello())
        async with FakeChild(parent.address, "pi-2") as other:
            await other.enter()
            await push(other, 1, 2.0)
            assert await steer(parent, "action=stop", **bearer(token)) == (200, "done")
            refused = await steer(parent, "action=stop", **bearer(token))
            assert refused == (409, "the run is over: stopped by owner")
    await eventually(lambda: len(history(tmp_path / "run", "command")) == 3)
    commands = history(tmp_path / "run", "command")
    assert [(line["action"], line["by"]) for line in commands] == [
        *(("checkpoint", "owner"), ("exclude", "owner"), ("stop", "owner"))
    ]
    assert commands[1]["child"] == "pi"


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (lambda file: None, 200),
        (lambda file: file.chmod(0o640), 403),  # others may have read it
        (lambda file: os.truncate(file, file.stat().st_size - 9), 403),  # a full disk
    ],
    ids=["whole", "readable", "torn"],
)
async def test_a_parent_that_was_killed_knows_its_owner_again(
    tmp_path: Path, spoil: Callable[[Path], None], status: int
) -> None:
    file = tmp_path / "run" / "owner"
    experiment = constant(stop={"steps": 100})
    async with running(experiment, tmp_path / "run") as killed:
        top, link, salt = file.read_text().split()
        killed.observers.clear()  # so that nothing of its end is heard
    spoil(file)
    token, key = top.split(":")[2].partition("@")[0], link.partition("?key=")[2]
    async with running(experiment, tmp_path / "run") as parent:
        page = place(parent, "")
        cookie = f"genkidama-{parent.address[1]}={link_cookie(key, salt)}"
        for shown in (bearer(token), {"Cookie": cookie, "Origin": page.rstrip("/")}):
            assert (await steer(parent, "action=extend&share=1", **shown))[0] == status
        assert file.stat().st_mode & 0o777 == 0o600
        assert (f"{page}?key={key}" in file.read_text()) == (status == 200)


async def test_with_tokens_an_owner_has_one_of_its_own(guarded: Parent, tokens: Path) -> None:
    assert not (tokens.parent / "run" / "owner").exists()
    owner = link_token("an-owners-key", SALT)
    with tokens.open("a") as file:
        file.write(written("ben", owner, None, SALT, link_cookie("an-owners-key", SALT), "owner"))
    async with Bearer(guarded.address, PI) as child:
        await child.enter()
        await push(child, 1, 1.0)
        page = {"Origin": place(guarded, "").rstrip("/")}
        cookie = f"genkidama-{guarded.address[1]}={link_cookie('an-owners-key', SALT)}"
        assert (await steer(guarded, "action=stop", **bearer(VIEWER)))[0] == 403
        assert (await steer(guarded, "action=stop", **bearer(PI)))[0] == 401
        assert (await steer(guarded, "action=stop", Cookie=cookie))[0] == 403
        assert (await steer(guarded, "action=stop", Cookie=cookie, Origin="http://evil"))[0] == 403
        assert not guarded.server.stop
        assert (await steer(guarded, "action=stop", Cookie=cookie, **page)) == (200, "done")
        assert guarded.server.stop == "stopped by ben"
        with pytest.raises(InvalidStatus, match="401"):  # an owner's token admits no child
            await connect(child.url, additional_headers=bearer(owner))


async def test_more_time_is_in_the_runs_settings(tmp_path: Path) -> None:
    async with running(constant(stop={"steps": 100}), tmp_path / "run") as parent:
        token = (tmp_path / "run" / "owner").read_text().split(":")[2].partition("@")[0]
        assert (await steer(parent, "action=extend&share=1", **bearer(token)))[0] == 200
        await eventually(
            lambda: (
                "steps = 200" in (tmp_path / "run" / "experiment.toml").read_text()
                and parent.status.experiment.stop.steps == 200
            )
        )
    assert not (tmp_path / "run" / "owner").exists()  # it is of no use any more


async def test_a_film_that_cannot_be_made_is_a_warning(
    parent: Parent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.create_subprocess_exec

    async def play(*_: str, **streams: Any) -> asyncio.subprocess.Process:
        return await start("sh", "-c", "echo more; echo error: no screen >&2; exit 1", **streams)

    monkeypatch.setattr(films.asyncio, "create_subprocess_exec", play)
    token = (tmp_path / "run" / "owner").read_text().split(":")[2].partition("@")[0]
    async with FakeChild(parent.address, "pi") as child:
        await child.enter()
        await push(child, 1, 1.0)
        assert (await steer(parent, "action=film", **bearer(token)))[0] == 200
        await eventually(lambda: history(tmp_path / "run", "warning"))
        (warning,) = history(tmp_path / "run", "warning")
        assert warning["reason"] == "no film was made: error: no screen"
        assert parent.server.asked == set()


async def policy(parent: Parent, query: str = "") -> dict[str, Any]:
    status, body = await fetch(place(parent, f"policy{query}"))
    assert status == 200
    return dict(json.loads(body))


async def test_the_newest_weights_and_those_of_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small(parent={"checkpoint_seconds": 0.2, "alpha": 1.0})
    model = Model(experiment, make_environment(experiment.environment))
    monkeypatch.setattr(policies, "SECONDS", 0.0)
    async with running(experiment, tmp_path / "run") as parent:
        assert (await policy(parent))["problem"] == "there are no weights yet"
        async with FakeChild(parent.address, "pi", signature=model.signature) as child:
            await child.enter()
            for number in (1, 2):
                await child.ask(
                    Push(version=0, sequence=number, vector=np.full_like(model.numbers, number))
                )
                found = await policy(parent)
                assert found["version"] == number
                raw = np.frombuffer(base64.b64decode(found["numbers"]), np.float32)
                names = [name for name, _ in found["arrays"]]
                assert set(raw) == {number} and all(each.startswith("policy.") for each in names)
                folder = tmp_path / "run/checkpoints"
                await eventually(lambda: list(folder.glob(f"version-*{number}.safetensors")))  # noqa: B023
            assert (await policy(parent))["checkpoints"] == [1, 2]
            first = await policy(parent, "?version=1")
            assert first["version"] == 1 and first["arrays"] == found["arrays"]
            assert "no such checkpoint" in (await policy(parent, "?version=77"))["problem"]
            # Others than versions are not looked for on the disk.
            assert (await policy(parent, "?version=../../x"))["version"] == 2
            monkeypatch.setattr(policies, "SECONDS", 60.0)
            await child.ask(Push(version=0, sequence=3, vector=np.full_like(model.numbers, 3)))
            assert (await policy(parent))["version"] == 2  # a minute old at most


async def test_weights_and_films_are_for_viewers(guarded: Parent) -> None:
    for path in ("policy", "film"):
        assert (await fetch(place(guarded, path)))[0] == 401
        assert (await fetch(place(guarded, path), **bearer(PI)))[0] == 401
    assert (await fetch(place(guarded, "policy"), **bearer(VIEWER)))[0] == 200
    assert (await fetch(place(guarded, "film"), **bearer(VIEWER)))[0] == 404


async def test_a_film_is_made_and_shown(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    pytest.importorskip("pygame")
    experiment = small()
    model = Model(experiment, make_environment(experiment.environment))
    model.network.parts["policy.2.bias"][0] = 9.0  # the pole falls soon
    async with running(experiment, tmp_path / "run") as parent:
        token = (tmp_path / "run" / "owner").read_text().split(":")[2].partition("@")[0]
        async with FakeChild(parent.address, "pi", signature=model.signature) as child:
            await child.enter()
            await child.ask(Push(version=0, sequence=1, vector=model.numbers))
            assert (await steer(parent, "action=film", **bearer(token)))[0] == 200
            await eventually(lambda: history(tmp_path / "run", "film"), seconds=60)
        (line,) = history(tmp_path / "run", "film")
        assert (line["version"], line["file"]) == (1, "version-0000000001.mp4")
        status, film = await fetch(place(parent, "film"))
        assert status == 200 and film[4:8] == b"ftyp"
        assert await fetch(place(parent, "film"), range="bytes=4-7") == (206, b"ftyp")
        assert json.loads((await fetch(place(parent, "status")))[1])["run"]["film"] == 1
