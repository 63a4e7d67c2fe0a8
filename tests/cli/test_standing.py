"""A parent and a child on two terminals: what they show, and how they end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tests.certificates import needs_openssl
from tests.helpers import constant, history, until
from tests.terminals import Terminal, in_terminal


@needs_openssl
def test_a_parent_shows_its_run_and_a_child_its_work(tmp_path: Path) -> None:
    (tmp_path / "cart.toml").write_text(constant(stop={"updates": 100_000}).to_toml())
    with socket.create_server(("127.0.0.1", 0)) as found:
        place = f"--credentials keys --listen 127.0.0.1:{found.getsockname()[1]}"
    seen: dict[str, tuple[subprocess.Popen[bytes], Terminal]] = {}

    def show(*words: str) -> Terminal:
        command = [sys.executable, "-m", "genkidama", *words]
        return in_terminal(
            command,
            120,
            30,
            folder=tmp_path,
            meanwhile=lambda process, terminal: seen.update({words[0]: (process, terminal)}),
        )

    def ended(name: str, terminal: Future[Terminal]) -> list[str]:
        seen[name][0].send_signal(signal.SIGINT)
        return terminal.result(30.0).lines

    with ThreadPoolExecutor() as pool:
        parent = pool.submit(show, "parent", "cart.toml", "--out", "run", *place.split())
        joining = until(
            lambda: "parent" in seen and re.search(r"join '(\S+)'", seen["parent"][1].text)
        )[1]
        child = pool.submit(show, "join", joining, "--name", "pi-1", "--allow", "tests")
        until(lambda: len(history(tmp_path / "run", "exchange")) > 5, "some exchanges")
        until(lambda: re.search("[1-9][0-9]* exchanges", seen["join"][1].text), "a display")
        told = "\n".join(ended("join", child))
        assert "pi-1: training CartPole-v1 on " in told and "0 steps/s" not in told
        assert "ended: stopped; to go on, type the same command again" in told
        told = "\n".join(ended("parent", parent))
    assert re.search("CartPole-v1 · .* · run run", told)
    assert re.search(r"pi-1 +(training|away)", told)
    assert "run: run, saved: version " in told
    assert f"  go on:      genkidama parent cart.toml {place} --out run" in told
    assert "genkidama evaluate run" in told and "Traceback" not in told
