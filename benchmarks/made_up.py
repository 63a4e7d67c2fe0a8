"""A made-up parent for the page: its static files, and documents that a test or benchmark chooses.

It says what nobody can wait for: a thousand children, long searches.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from genkidama.plugins.dashboard.routes import (
    HttpResponse,
    answer,
    make_response,
    parse_request,
)
from genkidama.plugins.dashboard.viewers import Viewers

STATIC = Path(__file__).parents[1] / "genkidama/plugins/dashboard/static"

#: A page is ready when it has drawn its first document.
DRAWN = "body:not([data-empty])"

#: When the made-up runs began, in Unix seconds.
BEGAN = 1795366900.0


def child(number: int, elapsed: float = 100.0, **changed: Any) -> dict[str, Any]:
    """A child that trains; some values differ from child to child."""
    wave = math.sin(number)
    return {
        "name": f"child-{number}",
        "state": "training",
        "why": "",
        "address": f"192.168.0.{number % 250}",
        "cores": 4,
        "software": "0.2.0",
        "since": BEGAN,
        "exchanged": BEGAN + elapsed - 0.2 - 0.1 * (number % 5),
        "updates": 62.0 + number % 9,
        "steps": 133000 + 1000 * (number % 40),
        "steps_per_second": 9000.0 + 900 * wave,
        "last_return": 120.1 + 60 * wave,
        "staleness": number % 4,
        "lag": None,
        "round_trip": 0.0012 + 0.0004 * wave,
        "bytes_in": 6_123_456 + 1000 * number,
        "bytes_out": 6_123_456,
        "distance": 0.02 + 0.01 * wave,
        "figures": {"kl": 0.0035},
        **changed,
    }


def learned(elapsed: float, last: float = 226.0) -> list[list[float]]:
    """Rows of a curve that has grown for so many seconds: at most 400."""
    count = min(400, int(4 * elapsed))
    rows = []
    for index in range(count):
        time = elapsed * (index + 1) / count
        rise = 1 - math.exp(-time / 30)
        noise = 14 * math.sin(1.7 * index) * math.exp(-time / 70) + 6 * math.sin(0.31 * index)
        rows.append([round(time, 2), int(2670 * time), -190 + (last + 190) * rise + noise])
    return rows


def diagnostic(elapsed: float, start: float, end: float, jitter: float) -> dict[str, Any]:
    rows = [
        [
            elapsed * (index + 1) / 120,
            end
            + (start - end) * math.exp(-index / 25)
            + jitter * math.sin(2.1 * index + start) * math.cos(0.4 * index),
        ]
        for index in range(120)
    ]
    return {"columns": ["seconds", "value"], "rows": rows}


def document(elapsed: float = 100.0, children: int = 4, **changed: Any) -> dict[str, Any]:
    """How a plain run stands after so many seconds."""
    members = [child(number, elapsed) for number in range(1, children + 1)]
    rows = learned(elapsed)
    return {
        "schema": 1,
        "type": "status",
        "time": BEGAN + elapsed,
        "run": {
            "name": "lunarlander-20261122-142608",
            "kind": "plain",
            "environment": "LunarLander-v3",
            "algorithm": "ppo",
            "backend": "hogwild",
            "software": "0.2.0",
            "rule": "average",
            "alpha": 0.5,
            "beta": None,
            "state": "training",
            "reason": "",
            "started": BEGAN,
            "elapsed": elapsed,
            "share": min(1.0, elapsed / 160),
            "left": max(0.0, 160 - elapsed),
            "goal": 200.0,
            "notes": [],
        },
        "settings": {"algorithm.gamma": 0.999, "network.hidden": [64, 64]},
        "learning": {
            "update": 1.24 * elapsed,
            "version": int(4.9 * elapsed),
            "episodes": int(8.86 * elapsed),
            "steps": int(2670 * elapsed),
            "steps_per_second": sum(one["steps_per_second"] for one in members),
            "mean_return": rows[-1][2] if rows else None,
            "curve": {"columns": ["seconds", "steps", "mean_return"], "rows": rows},
            "figures": {"kl": 0.0035, "updates": 32.0},
            "diagnostics": {
                "approximate_kl": diagnostic(elapsed, 0.021, 0.0035, 0.002),
                "entropy": diagnostic(elapsed, 1.38, 0.42, 0.03),
                "explained_variance": diagnostic(elapsed, -0.4, 0.91, 0.05),
                "policy_loss": diagnostic(elapsed, -0.02, -0.006, 0.004),
                "value_loss": diagnostic(elapsed, 190.0, 12.0, 9.0),
                "clip_fraction": diagnostic(elapsed, 0.24, 0.08, 0.03),
            },
        },
        "children": members,
        "refusals": {},
        "search": None,
        "parts": None,
        "evaluation": None,
        **changed,
    }


def search(elapsed: float = 400.0, trials: int = 24, nodes: int = 4) -> dict[str, Any]:
    """How a search stands: trials of up to four phases, one after another on each node."""
    free = [0.0] * nodes
    found = []
    for number in range(trials):
        node = min(range(nodes), key=lambda one: free[one])
        if free[node] >= elapsed:
            break
        lr = 10 ** (-4 + 2.5 * (number * 0.618 % 1))
        gamma = 0.9 + 0.099 * (number * 0.414 % 1)
        quality = 220 - 130 * (math.log10(lr) + 2.6) ** 2 - 900 * (0.99 - gamma) ** 2
        wanted = 4 if quality > 120 else 1 + number % 3
        phases: list[dict[str, Any]] = []
        for phase in range(wanted):
            begin = free[node]
            end = begin + 14 + 3 * (number % 4) + 3 * node
            running = end > elapsed
            free[node] = elapsed if running else end
            phases.append(
                {
                    "node": f"child-{node + 1}",
                    "from": begin,
                    "to": None if running else end,
                    "score": None if running else quality - 60 + 20 * phase,
                }
            )
            if running:
                break
        running = phases[-1]["to"] is None
        scores = [phase["score"] for phase in phases if phase["score"] is not None]
        found.append(
            {
                "number": number,
                "state": "running" if running else ("finished" if wanted == 4 else "stopped"),
                "score": scores[-1] if scores else None,
                "settings": {
                    "algorithm.learning_rate": lr,
                    "algorithm.gamma": gamma,
                    "algorithm.batch_size": [5, 10, 20, 40][number % 4],
                },
                "phases": phases,
            }
        )
    scored = [trial for trial in found if trial["score"] is not None]
    best = max(scored, key=lambda trial: trial["score"])
    whole = document(elapsed, nodes)
    whole["run"].update(kind="search", name="search-lunarlander", algorithm="a3c", goal=None)
    rows, highest = [], -math.inf
    for trial in sorted(scored, key=lambda one: one["phases"][-1]["from"]):
        highest = max(highest, trial["score"])
        rows.append([trial["phases"][-1]["from"], 9000 * len(rows), highest])
    whole["learning"].update(
        mean_return=best["score"],
        curve={"columns": ["seconds", "steps", "mean_return"], "rows": rows},
        diagnostics={},
        update=sum(len(trial["phases"]) for trial in found),
    )
    whole["search"] = {
        "method": "HyperTrick",
        "metric": "mean return",
        "nodes": [f"child-{node + 1}" for node in range(nodes)],
        "phases": 4,
        "count": len(found),
        "best": {
            "trial": best["number"],
            "score": best["score"],
            "settings": best["settings"],
        },
        "settings": list(best["settings"]),
        "trials": found,
    }
    return whole


def runs(count: int = 4) -> dict[str, Any]:
    """Several runs, as `genkidama serve` gives them."""
    found = []
    for index in range(count):
        rows = learned(100.0 + 20 * index, 240.0 - 45 * index)
        found.append(
            {
                "name": f"lunarlander-seed-{index}",
                "url": f"runs/lunarlander-seed-{index}/",
                "environment": "LunarLander-v3",
                "algorithm": "ppo" if index % 2 else "a3c",
                "backend": "hogwild",
                "rule": "average",
                "alpha": 0.5,
                "beta": 0.5,
                "seed": index,
                "started": BEGAN,
                "settings": {"algorithm.gamma": 0.99 if index % 2 else 0.9, "seed": 1},
                "evaluation": 199.5,
                "state": "over",
                "reason": "200 reached",
                "mean_return": rows[-1][2],
                "steps": rows[-1][1],
                "episodes": 900,
                "elapsed": rows[-1][0],
                "curve": {"columns": ["seconds", "steps", "mean_return"], "rows": rows},
            }
        )
    return {"schema": 1, "type": "runs", "time": BEGAN, "runs": found}


class MadeUpPolicies(dict[int | None, dict[str, Any]]):
    """The newest policy, and those of checkpoints, by version."""

    def document(self, version: int | None) -> bytes:
        return json.dumps(self[version]).encode()

    def film(self) -> bytes | None:
        return b""


class MadeUp:
    """A server of its own thread; `document` is what it says, `say` sends what else happens."""

    def __init__(self, first: dict[str, Any]) -> None:
        self.document = first
        self.policies = MadeUpPolicies({None: {"problem": "none", "checkpoints": []}})
        self._watchers: set[ServerConnection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Begins to listen, at the same port as before if there was one."""
        self._server = self._wait(self._serve())
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Is gone, as a parent that was killed."""
        self._wait(self._close())

    def end(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def say(self, message: dict[str, Any]) -> None:
        """Sends one message to all who watch."""
        self._wait(self._send(json.dumps(message)))

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _serve(self) -> Any:
        return await serve(self._watch, "127.0.0.1", self.port, process_request=self._answer)

    async def _close(self) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _send(self, text: str) -> None:
        for watcher in list(self._watchers):
            with suppress(ConnectionClosed):
                await watcher.send(text)

    async def _watch(self, connection: ServerConnection) -> None:
        await connection.send(json.dumps(self.document))
        self._watchers.add(connection)
        await connection.wait_closed()
        self._watchers.discard(connection)

    # What `routes.answer` asks of a page.

    browsers = False

    def status(self) -> bytes:
        return json.dumps(self.document).encode()

    def metrics(self) -> HttpResponse:
        raise NotImplementedError

    def unready(self) -> str:
        raise NotImplementedError

    def command(self, by: str, action: str, child: str, share: float) -> None:
        raise NotImplementedError

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        asked = parse_request(request)
        if asked.path.startswith("/runs/"):
            asked = asked._replace(target=f"/{asked.target.split('/', 3)[3]}")
        found = answer(asked, self, Viewers(None), 0.0)
        return None if found is None else make_response(found, asked)


@contextmanager
def made_up(first: dict[str, Any]) -> Iterator[MadeUp]:
    """A made-up parent that says `first`; it ends with the block."""
    server = MadeUp(first)
    try:
        yield server
    finally:
        server.end()
