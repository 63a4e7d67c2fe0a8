"""`genkidama serve`: runs from their directories, behind one address, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from genkidama.errors import ConfigurationError
from genkidama.plugins.dashboard.run_browser import Gallery, RecordedRun, find_runs
from genkidama.runs.run import Run
from genkidama.server.events import Commanded, Event, Resumed, Started, as_lines
from tests.helpers import eventually, small, starting, until
from tests.plugins.dashboard.test_broadcast import Viewer
from tests.stories import BEGAN, PLAN, began, plain, pushed


def written(path: Path, count: int = 50) -> Path:
    path.mkdir(parents=True)
    (path / "experiment.toml").write_text(plain(steps=1000).to_toml())
    events = [*began("a", "b"), *(pushed(number, "ab"[number % 2]) for number in range(count))]
    (path / "history.jsonl").write_bytes(as_lines(events) + b'{"time": 1.0, "event": "join"}\n')
    return path


def test_it_grows_with_its_history(tmp_path: Path) -> None:
    run = RecordedRun(written(tmp_path / "run"))
    run.read()
    run.status.mark_sent()
    assert run.status.time == BEGAN + 50
    row = run.summary("runs/run/")
    assert (row["name"], row["steps"], row["mean_return"]) == ("run", 490, 48.5)
    assert len(row["curve"]["rows"]) == 50 and row["elapsed"] == 49.0
    with (tmp_path / "run" / "history.jsonl").open("ab") as file:
        file.write(as_lines([pushed(50)]))
    run.read()
    assert run.status.document(run.status.time)["learning"]["steps"] == 500


def test_a_run_that_goes_on_with_other_limits_has_come_as_far_as_they_say(tmp_path: Path) -> None:
    path = written(tmp_path / "run")

    def resume(steps: int, *before: Event) -> None:
        (path / "experiment.toml").write_text(plain(steps=steps).to_toml())
        with (path / "history.jsonl").open("ab") as file:
            file.write(as_lines([*before, Resumed(time=BEGAN + 60, run="told", software="1.3")]))

    longer = {"steps": 1500}
    resume(10_000, Commanded(time=BEGAN + 55, action="extend", by="owner", limits=longer))
    run = RecordedRun(path)
    run.read()
    for status in (run.status, Run(path).status()):
        assert status.share(status.time) == 0.049
    resume(2000)  # while it is looked at
    run.read()
    assert run.status.share(run.status.time) == 0.245
    assert run.summary("")["settings"]["stop.steps"] == 2000


def test_a_search_that_goes_on_with_more_trials_has_as_many_planned(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    begun = Started(time=BEGAN, run="told", software="1.3")
    for trials in (24, 48):
        settings = small(search={**PLAN, "trials": trials})
        (path / "experiment.toml").write_text(settings.to_toml())
        with (path / "history.jsonl").open("ab") as file:
            file.write(as_lines([begun]))
        if trials == 24:
            run = RecordedRun(path)
        run.read()
        assert run.status.document(run.status.time)["search"]["planned"] == trials


DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"event": "jo\xe9n"}\n', "is damaged: "),
        (b'{"event": "warning", "reason": ' + DEEP + b"}\n", "is damaged: "),
        (b"\0" * (5 << 20) + b"\n", "is damaged: a line is longer than any that a parent writes"),
    ],
    ids=["a flipped bit", "nested", "a hole"],
)
def test_a_damaged_line_is_left_out_and_said(tmp_path: Path, line: bytes, problem: str) -> None:
    path = written(tmp_path / "run", 9)
    with (path / "history.jsonl").open("ab") as file:
        file.write(line + as_lines([pushed(9)]))
    run = RecordedRun(path)
    run.read()
    while run.behind:
        run.read()
    row = run.summary("")
    assert row["state"] == "damaged" and row["reason"].startswith(f"{path}/history.jsonl: ")
    assert problem in row["reason"]
    assert row["steps"] == 90  # what is whole counts
    assert run.status.document(run.status.time)["run"]["notes"] == [row["reason"]]
    with pytest.raises(ConfigurationError, match=r"history.jsonl: (line 14 )?is damaged: "):
        list(Run(path).history())


@pytest.mark.parametrize("text", [b"\xff", b"a = " + DEEP, b"#" * (2 << 20), b"[nothing]", None])
def test_a_run_with_damaged_settings_is_one_damaged_run(tmp_path: Path, text: bytes | None) -> None:
    path = written(tmp_path / "run", 9)
    if text is None:
        (path / "experiment.toml").unlink()
    else:
        (path / "experiment.toml").write_bytes(text)
    run = RecordedRun(path)
    run.read()
    row = run.summary("")
    assert (row["state"], row["environment"], row["steps"]) == ("damaged", "?", 80)
    assert "run" in row["reason"] and "\n" not in row["reason"]


def test_a_history_that_cannot_be_read_is_one_damaged_run(tmp_path: Path) -> None:
    path = written(tmp_path / "run")
    (path / "history.jsonl").unlink()
    (path / "history.jsonl").symlink_to("/proc/self/mem")  # nobody may read its beginning
    run = RecordedRun(path)
    run.read()
    assert "history.jsonl: is damaged: it cannot be read: " in run.summary("")["reason"]


def test_runs_are_found_in_folders(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a"), written(tmp_path / "b")
    (tmp_path / "other").mkdir()
    assert find_runs([tmp_path]) == find_runs([tmp_path, first]) == [first, second]
    with pytest.raises(ConfigurationError, match="other: holds no run; give a run directory"):
        find_runs([tmp_path / "other"])
    assert find_runs([first, tmp_path / "other"]) == [first, tmp_path / "other"]
    row = RecordedRun(tmp_path / "other").summary("")
    assert (row["state"], row["steps"]) == ("damaged", 0) and "holds no run" in row["reason"]


async def fetch(url: str, **headers: str) -> tuple[int, bytes]:
    def get() -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as found:
                return found.status, found.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    return await asyncio.to_thread(get)


async def test_runs_are_listed_and_each_has_its_page_and_feed(tmp_path: Path) -> None:
    written(tmp_path / "a")
    written(tmp_path / "b", 9)
    async with await Gallery([tmp_path]).start("127.0.0.1:0") as server:
        host, port = next(iter(server.sockets)).getsockname()
        site = f"http://{host}:{port}"
        rows = json.loads((await fetch(f"{site}/status"))[1])["runs"]
        assert [(row["name"], row["url"], row["steps"]) for row in rows] == [
            ("a", "runs/a/", 490),
            ("b", "runs/b/", 80),
        ]
        status, page = await fetch(f"{site}/runs/b")
        assert status == 200 and page.startswith(b"<!doctype html>")
        assert json.loads((await fetch(f"{site}/runs/b/status"))[1])["learning"]["steps"] == 80
        for path, status in (("runs/c/status", 404), ("runs/b/more", 404), ("healthz", 200)):
            assert (await fetch(f"{site}/{path}"))[0] == status
        for path in ("status", "runs/a/status"):
            assert (await fetch(f"{site}/{path}", Host="evil.example"))[0] == 403
        async with connect(f"ws://{host}:{port}/runs/a/watch") as feed:
            assert json.loads(await feed.recv())["learning"]["steps"] == 490


async def test_a_list_takes_no_change_from_those_who_watch(tmp_path: Path) -> None:
    gallery = Gallery([written(tmp_path / "a")])
    shown = gallery.runs["a"]
    shown.feed.add(viewer := Viewer())
    with (tmp_path / "a" / "history.jsonl").open("ab") as file:
        file.write(as_lines([pushed(50)]))
    gallery.list()
    assert len(shown.run_status.change(BEGAN)["learning"]["curve"]["rows"]) == 1
    shown.feed.remove(viewer)
    (row,) = json.loads(gallery.list())["runs"]
    assert len(row["curve"]["rows"]) == 51


async def test_a_damaged_run_is_one_row_and_a_long_one_keeps_nobody_waiting(
    tmp_path: Path,
) -> None:
    written(tmp_path / "a", 9)
    (written(tmp_path / "b", 9) / "experiment.toml").write_bytes(b"a = " + b"[" * 5000)
    history = written(tmp_path / "long", 9) / "history.jsonl"
    lines = as_lines([pushed(number) for number in range(20_000)])
    with history.open("ab") as file:
        file.write(lines)
    gallery = Gallery([tmp_path])
    assert gallery.runs["long"].run.behind  # only its first piece is read before it serves
    async with await gallery.start("127.0.0.1:0") as server:
        port = next(iter(server.sockets)).getsockname()[1]
        rows = json.loads((await fetch(f"http://127.0.0.1:{port}/status"))[1])["runs"]
        assert [(row["name"], row["state"]) for row in rows] == [
            ("a", "training"),
            ("b", "damaged"),
            ("long", "training"),
        ]
        assert rows[1]["reason"].endswith("experiment.toml: not settings: it is nested too deeply")
        await eventually(lambda: not gallery.runs["long"].run.behind)
    assert gallery.runs["long"].run.summary("")["steps"] == 199_990


async def test_a_run_that_nobody_looks_at_is_read_on(tmp_path: Path) -> None:
    history = written(tmp_path / "a") / "history.jsonl"
    gallery = Gallery([tmp_path])
    async with await gallery.start("127.0.0.1:0"):
        run = gallery.runs["a"].run
        for count in (10_000, 20_000):  # more than a request reads
            with history.open("ab") as file:
                file.write(as_lines([pushed(number) for number in range(count - 10_000, count)]))
            await eventually(lambda count=count: run.status.steps == 10 * count - 10)
        with history.open("ab") as file:
            file.write(b'{"time": ')
        await eventually(lambda: not run.behind)  # what is half a line is not read each second


async def test_of_one_run_the_page_is_its_own_and_other_machines_see_nothing(
    tmp_path: Path,
) -> None:
    gallery = Gallery([written(tmp_path / "a")])
    with pytest.raises(ConfigurationError, match="whoever comes sees the runs"):
        await gallery.start("0.0.0.0:0")
    async with await gallery.start("localhost:0") as server:
        port = next(iter(server.sockets)).getsockname()[1]
        assert json.loads((await fetch(f"http://localhost:{port}/status"))[1])["schema"] == 1


def test_terminated_while_it_reads_it_says_nothing(tmp_path: Path) -> None:
    run = written(tmp_path / "run")
    with (run / "history.jsonl").open("r+b") as file:
        file.truncate(1 << 29)  # it reads for a while
    with starting(tmp_path) as start:
        serving = start("genkidama", "serve", "run", "--listen", "127.0.0.1:0")
        until(lambda: "http://" in serving.out, "the page")
        serving.signal(signal.SIGTERM)
        assert (serving.wait(), serving.err) == (143, "")
