"""A ring of rows on an engine, which all children write to and draw from.

Laws of this file:
- Whatever is asked, the engine does whole, in a script: nobody sees half a block.
- A block is sent until it is answered, under a number of its own, and counts once. What is answered
  is in the engine's memory and in its file, if it keeps one.
- An engine that is not there is waited for, with jittered backoff, for as long as this process
  lives. A ring that is gone is made anew.
- A ring belongs to whoever agrees with its description.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import structlog

from genkidama.errors import ConfigurationError
from genkidama.plugins.gorila.engine import EngineGone, RedisClient
from genkidama.plugins.gorila.ring import Drawn, RingRows
from genkidama.runtime.pacing import Backoff

__all__ = ["EngineRing", "RingSettings"]

Array = npt.NDArray[Any]

#: The shortest and the longest wait for an engine that is not there.
BACKOFF_SECONDS = (0.1, 5.0)

#: How long a length that was heard of is good enough.
_LENGTH_SECONDS = 0.2

_LUA = Path(__file__).with_name("lua")

log = structlog.get_logger()


class RingSettings(NamedTuple):
    """Which ring, and what is in it."""

    #: Of the engine.
    url: str
    #: Of the ring, on the engine.
    name: str
    rows: RingRows
    #: How many rows.
    capacity: int
    description: str
    prioritized: bool


class EngineRing:
    """One process' hand on a ring.

    Args:
        settings: which one.
        writer: the process' name among all that write, the same for its successors.
        check: called while the engine is waited for; it raises if this process should end.

    Raises:
        ConfigurationError: as `RedisClient`.
    """

    def __init__(
        self, settings: RingSettings, writer: str, check: Callable[[], None] = lambda: None
    ) -> None:
        self.settings = settings
        self._engine = RedisClient(settings.url)
        self._check = check
        self._writer = writer
        self._word = secrets.token_hex(8)
        self._number = 0
        #: Cluster engines keep together what has the same words in braces.
        self._keys = [f"genkidama:{{{settings.name}}}:{part}" for part in _PARTS]
        tree = _text("tree")
        make = self._engine.client.register_script
        self._scripts = {name: make(tree + _text(name)) for name in _SCRIPTS}
        self._known = 0
        self._heard = -1e9

    def open(self) -> None:
        """Makes the ring, unless it is there.

        Raises:
            ConfigurationError: it is another experiment's, or the engine is no good.
            EnvironmentFailure: it does not fit there.
        """
        self._patiently(self._open)

    def _open(self) -> None:
        warning = self._engine.check()
        kept = self.settings
        key = self._keys[1]
        there = self._engine.ask(lambda client: client.hget(key, "description"))
        if there is None:
            if warning:
                log.warning(warning, replay=self._engine.url)
            self._engine.check_room(kept.capacity * kept.rows.width)
        row = (kept.capacity, kept.rows.width, kept.rows.observation_bytes, int(kept.prioritized))
        self._agree(self._once("open", kept.description, *row))

    def add(self, block: Array) -> None:
        """Writes a block, and returns when the engine has it.

        Args:
            block: rows as `RingRows.block` makes them.

        Raises:
            GenkidamaError: as `open`.
        """
        self._number += 1
        kept = self.settings
        self._ask(
            "add",
            block.tobytes(),
            len(block),
            kept.rows.width,
            self._writer,
            self._word,
            self._number,
            int(kept.prioritized),
        )

    def sample(
        self,
        seed: int,
        count: int,
        steps: int,
        mode: str,
        gamma: float,
        scale: Callable[[Array], Array],
    ) -> tuple[Drawn, Array]:
        """Random steps, and of each where it lies: row, lap, priority, float64 (count, 3).

        Args:
            seed: decides which.
            count: how many.
            steps: n of n-step returns.
            mode: `"uniform"`, `"distinct"`, which is without replacement, or `"priority"`.
            gamma, scale: as `RingRows.drawn`.

        Raises:
            ValueError: there are no steps, or fewer than `count` different ones.
        """
        reply, places, _ = self._draw(seed, count, steps, mode)
        drawn = self.settings.rows.drawn(reply, steps, gamma, scale)
        return drawn, np.frombuffer(places, "<f8").reshape(count, 3)

    def stretches(self, seed: int, count: int, length: int) -> list[tuple[Array, Array, Array]]:
        """Random trajectories of at most `length` steps, as `RingRows.stretches` gives them.

        Raises:
            ValueError: there are no steps.
        """
        reply, _, lengths = self._draw(seed, count, length, "stretch")
        found = np.frombuffer(lengths, "<f8").astype(int).tolist()
        return self.settings.rows.stretches(reply, found)

    def _draw(self, seed: int, count: int, steps: int, mode: str) -> tuple[bytes, bytes, bytes]:
        rows = self.settings.rows
        size = (rows.observation_bytes, rows.width)
        reply = self._ask("sample", count, seed, steps, *size, mode)
        if isinstance(reply, int):
            raise ValueError(f"{count} steps asked for, {reply} are there")
        first, second, third = reply
        return first, second, third

    def prioritize(self, places: Array) -> None:
        """Gives steps other priorities, unless they have been overwritten.

        Args:
            places: of each its row, its lap and its new priority, (B, 3).
        """
        self._ask("prioritize", places.astype("<f8").tobytes())

    def __len__(self) -> int:
        """How many rows can be drawn from; a moment old."""
        now = time.monotonic()
        if now - self._heard > _LENGTH_SECONDS:
            key = self._keys[1]
            found = self._patiently(
                lambda: self._engine.ask(lambda client: client.hget(key, "filled"))
            )
            self._known = int(found or 0)
            self._heard = now
        return self._known

    def close(self) -> None:
        self._engine.close()

    # Asking.

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._patiently(
            lambda: self._once(name, self.settings.description, *arguments), name
        )

    def _once(self, name: str, *arguments: Any) -> Any:
        script, keys = self._scripts[name], self._keys
        return self._engine.ask(lambda _: script(keys, arguments))

    def _patiently(self, work: Callable[[], Any], name: str = "") -> Any:
        """What `work` gives, however long the engine is away."""
        backoff = Backoff(BACKOFF_SECONDS, random.random)
        problem = ""
        while True:
            try:
                result = work()
            except EngineGone as error:
                if not problem:
                    log.warning("replay not reachable, still trying", reason=str(error))
                problem = str(error)
                self._engine.client.connection_pool.disconnect()
                self._rest(backoff.wait())
                continue
            except Exception as error:
                kind, _, rest = str(error).partition(" ")
                if name == "sample" and kind == "FEW":
                    return int(rest)
                if not name or kind != "RING":
                    raise
                self._agree(rest.encode() if rest else None)
                log.warning("the replay was gone, and begins anew", replay=self._engine.url)
                self.open()
                continue
            if problem:
                log.info("replay reachable again", replay=self._engine.url)
            return result

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, 0.1))

    def _agree(self, there: bytes | None) -> None:
        """Checks that a ring of this description is ours; None for no ring."""
        ours = self.settings
        if there is not None and there.decode(errors="replace") != ours.description:
            raise ConfigurationError(
                f"replay.name = {ours.name!r}: this ring on {self._engine.url} is another "
                f"experiment's ({there.decode(errors='replace')}; here: {ours.description}); "
                "choose another replay.name"
            )


#: What the name of a key of a ring ends with.
_PARTS = ("rows", "state", "priorities")

_SCRIPTS = ("open", "add", "sample", "prioritize")


def _text(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")
