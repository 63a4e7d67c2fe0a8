"""A real browser that looks at pages: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.helpers import ROOT

playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs Playwright: pip install playwright"
)

#: What tests have seen, for people.
PICTURES = ROOT / "build/screenshots"

#: What a browser says of a parent that does not answer; no page can keep it from saying so.
UNREACHABLE = ("net::ERR_", "WebSocket connection to")

#: Milliseconds that anything may take on a machine that does much else.
PATIENCE = 30_000

Look = Callable[..., AbstractContextManager[Any]]


def chromium() -> str:
    """Where the browser is; skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    pytest.skip("needs chromium: apt-get install chromium")


@contextmanager
def browsing() -> Iterator[Look]:
    """A browser; it gives `look(url, width=1280, height=900, **context)`, which opens a page.

    With `halted` the page's clock stands still, until `page.clock.run_for` moves it. `ended` gets
    its requests. At the end of its block a page must have had no error, and asked nobody but its
    own host.
    """
    path = chromium()
    with playwright.sync_playwright() as player:
        # No sandbox: tests run as root, too, and look at nothing but their own pages.
        browser = player.chromium.launch(executable_path=path, args=["--no-sandbox"])

        @contextmanager
        def look(
            url: str,
            width: int = 1280,
            height: int = 900,
            lost: bool = False,
            halted: bool = False,
            ended: list[Any] | None = None,
            **context: Any,
        ) -> Iterator[Any]:
            whole = browser.new_context(viewport={"width": width, "height": height}, **context)
            page = whole.new_page()
            if halted:
                page.clock.install(time=0)
                page.clock.pause_at(1)
            page.set_default_timeout(PATIENCE)
            said: list[str] = []
            hosts: set[str] = set()
            page.on("pageerror", lambda error: said.append(f"{error} {error.stack}"))
            page.on(
                "console",
                lambda message: (
                    said.append(message.text) if message.type in ("error", "warning") else None
                ),
            )
            page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
            if ended is not None:
                page.on("requestfinished", lambda request: ended.append(request))
            page.goto(url)
            try:
                yield page
                bad = [text for text in said if not (lost and any(w in text for w in UNREACHABLE))]
                assert not bad, bad
                assert hosts <= {urlsplit(url).netloc, ""}, hosts
            finally:
                whole.close()

        yield look
        browser.close()


def picture(page: Any, name: str) -> None:
    """Keeps what is seen as `build/screenshots/NAME.png`."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def violations(page: Any) -> list[str]:
    """What axe-core finds that keeps people from using the page."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="needs axe-core: pip install axe-playwright-python",
    )
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html']}" for one in found for node in one["nodes"]]


def rows(page: Any, table: str) -> list[list[str]]:
    """The cells that are seen of a table's rows, as a person reads them."""
    found: list[list[str]] = page.eval_on_selector_all(
        f"#{table} tbody tr:not(.space)",
        """rows => rows.map(row => [...row.cells]
            .filter(cell => cell.offsetParent !== null).map(cell => cell.innerText.trim()))""",
    )
    return found


def facts(page: Any, of: str) -> dict[str, str]:
    """Terms and values of a list, as a person reads them."""
    pairs: list[list[str]] = page.eval_on_selector_all(
        f"#{of} > div", "all => all.map(one => [...one.children].map(part => part.innerText))"
    )
    return {term: " ".join(value.split()) for term, value in pairs}
