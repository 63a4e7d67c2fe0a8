"""Makes the pictures of the page: `python docs/pictures/page.py`, which takes two or three minutes.

page-light.png, page-dark.png   what a browser shows of `genkidama train lunarlander`

It needs chromium (`apt-get install chromium`) and what `make test` installs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

HERE = Path(__file__).resolve().parent

CHROMIUM: Any = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox"]}

WIDTH, HEIGHT = 1280, 1120
SECONDS = 150
#: The page is pictured at this share of the run, when something has been learned.
SHARE = 0.4

TRAIN = ["train", "lunarlander", "--out", "lunarlander", "--children", "3", "--cores", "1"]
TRAIN += ["--episodes", "0", "--set", f"stop.seconds={SECONDS}", "--set", "stop.mean_return=300"]


def main() -> None:
    """Trains, and pictures the page in both colours."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "genkidama", *TRAIN],
            cwd=folder,
            stdin=subprocess.DEVNULL,
        )
        try:
            url = address(process, Path(folder) / "lunarlander/logs/parent.log")
            while share(url) < SHARE:
                time.sleep(1.0)
            picture(url)
        finally:
            process.terminate()
            process.wait()


def address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where the page is, as the parent's log says it."""
    while process.poll() is None:
        for line in log.read_text().splitlines() if log.exists() else ():
            if line.startswith("{") and (page := json.loads(line).get("page")):
                return str(page)
        time.sleep(0.2)
    raise SystemExit(f"genkidama {' '.join(TRAIN)} ended with code {process.returncode}")


def share(url: str) -> float:
    """How much of the run is done."""
    with urllib.request.urlopen(f"{url}status") as answer:  # noqa: S310
        return json.load(answer)["run"]["share"] or 0.0


def picture(url: str) -> None:
    with sync_playwright() as player:
        browser = player.chromium.launch(**CHROMIUM)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(url)
        page.wait_for_selector("body:not([data-empty])")
        page.wait_for_selector("#connection[data-state=live]")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(1000)
            page.screenshot(path=HERE / f"page-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
