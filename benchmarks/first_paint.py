"""How soon the page of a run is there, and whether it stutters.

Claim: the first paint comes within 1 s on loopback, with nothing in the browser's cache.

No claim yet, a comparison: the frames of whoever scrolls through 1,000 children that change every
second, and those of an empty page. More than 50 ms between two frames is a stutter that is seen.

Method: `paint` starts a real Parent and two real children, and opens its page in chromium, each
time in a browser context that has seen nothing. `first paint` is what the browser's performance
entries say; `drawn` is when the first figures stand on the page. `scroll` opens the page of a
made-up parent with 1,000 children and scrolls through all of them, some pixels a frame, while every
child changes once a second. An empty page that does nothing takes turns with it. A frame's time is
that between two calls of `requestAnimationFrame`. Nothing is drawn by a GPU here: with one it takes
less.

    python benchmarks/first_paint.py               half a minute
    python benchmarks/first_paint.py paint --loads 20
    python benchmarks/first_paint.py scroll --children 1000
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from made_up import BEGAN, DRAWN, child, document, made_up
from playwright.sync_api import sync_playwright
from processes import free_port, parser_of, start, start_parent, stop

_SETTINGS = """name = "cart"
[environment]
id = "CartPole-v1"
[child]
exchange = "free"
exchange_seconds = 0.5
"""

_FOUND = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
CHROMIUM: Any = {"executable_path": next(_FOUND, None), "args": ["--no-sandbox"]}

#: Pixels a frame: 1,000 rows of 32 in some 400 frames.
_PACE = 80

_SCROLL = """pace => new Promise(done => {
    const box = document.querySelector('#children-table .scroll');
    const frames = [];
    let before = performance.now();
    let left = 400;
    requestAnimationFrame(function next(now) {
        frames.push(now - before);
        before = now;
        if (box) box.scrollTop += pace;
        if (--left) requestAnimationFrame(next);
        else done(frames.slice(5));
    });
})"""


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    with sync_playwright() as player:
        found = player.chromium.launch(**CHROMIUM)
        yield found
        found.close()


def paint(loads: int) -> bool:
    """Prints when the page was there; whether that is soon enough."""
    with tempfile.TemporaryDirectory() as folder, browser() as chrome:
        directory = Path(folder)
        experiment = directory / "cart.toml"
        experiment.write_text(_SETTINGS, encoding="utf-8")
        port = free_port()
        url = f"127.0.0.1:{port}"
        processes = [start_parent(experiment, directory / "run", port)]
        try:
            for name in ("one", "two"):
                options = ["--parent", f"ws://{url}", "--name", name, "--cores", "1"]
                command = [sys.executable, "-m", "genkidama.child", *options]
                processes.append(start(command, directory / f"{name}.log"))
            firsts, drawns = [], []
            for _ in range(loads):
                page = chrome.new_page()  # in a context of its own: nothing is cached
                page.goto(f"http://{url}/")
                page.wait_for_selector(DRAWN)
                firsts.append(_entry(page, "first-contentful-paint"))
                drawns.append(_entry(page, "drawn"))
                page.close()
        finally:
            for process in reversed(processes):
                stop(process)
    for name, times in (("first paint", firsts), ("drawn", drawns)):
        middle, worst = statistics.median(times), max(times)
        print(f"{name:12} median {middle:5.0f} ms   most {worst:5.0f} ms   of {loads} loads")
    return statistics.median(firsts) < 1000.0


def _entry(page: Any, name: str) -> float:
    found: float = page.evaluate(f"performance.getEntriesByName('{name}')[0].startTime")
    return found


def scroll(children: int, rounds: int = 3) -> None:
    """Prints the times of frames."""
    found: dict[str, list[float]] = {"empty page": [], f"{children:,} children": []}
    with browser() as chrome, made_up(document(children=children)) as parent:
        for _ in range(rounds):
            for name, frames in found.items():
                page = chrome.new_page(viewport={"width": 1280, "height": 900})
                if name != "empty page":
                    page.goto(parent.url)
                    page.wait_for_selector(DRAWN)
                over = threading.Event()
                feed = threading.Thread(target=_feed, args=(parent, children, over))
                feed.start()
                frames += page.evaluate(_SCROLL, _PACE)
                over.set()
                feed.join()
                page.close()
    for name, frames in found.items():
        hundredths = statistics.quantiles(frames, n=100)
        slow = sum(frame > 50.0 for frame in frames) / len(frames)
        print(
            f"{name:15} median {hundredths[49]:5.1f} ms   p99 {hundredths[98]:5.1f} ms   "
            f"most {max(frames):5.0f} ms   over 50 ms {slow:.2%} of {len(frames)} frames"
        )


def _feed(parent: Any, children: int, over: threading.Event) -> None:
    """Changes every child once a second."""
    elapsed = 100.0
    while not over.wait(1.0):
        elapsed += 1.0
        change = document(elapsed, 1)
        change.update(type="change", gone=[])
        change["learning"]["curve"]["rows"] = [[elapsed, int(2670 * elapsed), 200.0]]
        for series in change["learning"]["diagnostics"].values():
            series["rows"] = series["rows"][-1:]
        change["children"] = [
            child(number, elapsed, steps_per_second=9000.0 + elapsed % 7 * number, since=BEGAN)
            for number in range(1, children + 1)
        ]
        parent.say(change)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "paint", "scroll"), default="all")
    parser.add_argument("--loads", type=int, default=10)
    parser.add_argument("--children", type=int, default=1000)
    options = parser.parse_args()
    if options.what != "paint":
        scroll(options.children)
    if options.what != "scroll" and not paint(options.loads):
        raise SystemExit("the claim does not hold")


if __name__ == "__main__":
    main()
