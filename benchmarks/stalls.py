"""A parent that says when its loop stands still, and why: `load.py --trace FILE` starts it.

    python benchmarks/stalls.py FILE EXPERIMENT.toml --listen … --out …     a parent, traced
    python benchmarks/stalls.py FILE                                        a table of its trace

Each line of the trace is an interval of at least `LEAST` seconds:

- `stall`: the loop's beat, due every 5 ms, was late. `cpu` is what its thread computed meanwhile,
  `queue` for how long it was ready and had no core, and the rest (`blocked`) it waited for a disk,
  for the interpreter's lock or for another thread. `stack` and `state` (R, S, D as in /proc) are
  from the middle of it, as another thread saw them.
- `gc`: a collection, with its generation and the number of objects there are. Those of generation 2
  look through all of them, and are noted however short they are.
- a name as `save_latest`: a call of the parent's, in the loop's thread or (`thread`) another.

The table gives each stall the calls and collections that lie over at least half of it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import json
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

LEAST = 0.02
_BEAT, _LOOK = 0.005, 0.02

#: Where the parent's own work happens: modules, classes and methods.
_CALLS = {
    "genkidama.runs.checkpoint:CheckpointFolder": ("save_latest", "save_best"),
    "genkidama.parent.checkpointer:Checkpointer": ("_copy", "_look_for_room"),
    "genkidama.parent.run_writer:RunWriter": ("_take_events", "_look"),
    "genkidama.parent.event_log:ProgressLog": ("beat",),
    "genkidama.runs.history:History": ("flush", "sync"),
    "genkidama.parent.connections:ConnectionManager": ("account",),
    "genkidama.server.parameter_server:ParameterServer": ("tick", "snapshot"),
}

Row = dict[str, Any]


class Trace:
    """Writes intervals to a file, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._main = threading.get_ident()
        self._task = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._collecting = 0.0
        self._beat = (time.perf_counter(), 0.0, 0.0)
        #: What the other thread saw of a stall under way.
        self._seen: Row = {}

    def note(self, what: str, began: float, seconds: float, **more: Any) -> None:
        if seconds >= LEAST or more.get("generation") == 2:
            row = {"what": what, "at": round(began, 4), "seconds": round(seconds, 4), **more}
            self._file.write(json.dumps(row) + "\n")

    def collects(self, phase: str, info: dict[str, int]) -> None:
        """As a callback of `gc`."""
        if phase == "start":
            self._collecting = time.perf_counter()
        else:
            took = time.perf_counter() - self._collecting
            more = {"generation": info["generation"], "collected": info["collected"]}
            more |= {"objects": len(gc.get_objects())} if info["generation"] == 2 else {}
            self.note("gc", self._collecting, took, **more)

    def timed(self, name: str, call: Any) -> Any:
        """The same function, timed."""

        @functools.wraps(call)
        def timed(*given: Any, **named: Any) -> Any:
            began, cpu = time.perf_counter(), time.thread_time()
            try:
                return call(*given, **named)
            finally:
                thread = threading.get_ident() != self._main
                used = round(time.thread_time() - cpu, 4)
                self.note(name, began, time.perf_counter() - began, cpu=used, thread=thread)

        return timed

    async def beats(self) -> None:
        """Beats in the loop for ever, and notes the beats that were late."""
        self._beat = self._moment()
        threading.Thread(target=self._watch, daemon=True).start()
        while True:
            await asyncio.sleep(_BEAT)
            before, self._beat = self._beat, self._moment()
            seconds, cpu, queue = (b - a for a, b in zip(before, self._beat, strict=True))
            seconds -= _BEAT
            if seconds >= LEAST:
                blocked = max(0.0, seconds - cpu - queue)
                parts = {"cpu": cpu, "queue": queue, "blocked": blocked}
                rounded = {name: round(part, 4) for name, part in parts.items()}
                self.note("stall", before[0], seconds, **rounded, **self._seen)
            self._seen = {}

    def _moment(self) -> tuple[float, float, float]:
        """Now, and the seconds for which the loop's thread has computed, and waited for a core."""
        computed, waited = (self._task / "schedstat").read_text().split()[:2]
        return time.perf_counter(), int(computed) * 1e-9, int(waited) * 1e-9

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK)
            if time.perf_counter() - self._beat[0] > 2 * _LOOK + _BEAT and not self._seen:
                stack = traceback.extract_stack(sys._current_frames()[self._main])[-5:]
                where = [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in stack]
                state = (self._task / "stat").read_text().rpartition(")")[2].split()[0]
                self._seen = {"stack": where, "state": state}


def run(path: Path, arguments: list[str]) -> int:
    """A parent with a trace."""
    from genkidama.parent.__main__ import main
    from genkidama.parent.parent import Parent
    from genkidama.runtime.import_strings import load_object

    trace = Trace(path)
    gc.callbacks.append(trace.collects)
    for place, names in _CALLS.items():
        kind = load_object(place, "a place to time")
        for name in names:
            assert not inspect.iscoroutinefunction(getattr(kind, name))
            setattr(kind, name, trace.timed(name, getattr(kind, name)))
    startup, kept = Parent.startup, list[Any]()

    async def started(self: Parent) -> None:
        await startup(self)
        kept.append(asyncio.get_running_loop().create_task(trace.beats()))

    Parent.startup = started  # type: ignore[method-assign]
    return main(arguments)


def table(rows: list[Row], least: float = 0.1) -> str:
    """The stalls of at least so many seconds, and what lies over them."""
    stalls = [row for row in rows if row["what"] == "stall" and row["seconds"] >= least]
    others = [row for row in rows if row["what"] != "stall"]
    lines = ["| at, s | ms | computes | has no core | blocked | state | meanwhile | in |"]
    lines.append("|---" * 8 + "|")
    culprits: Counter[str] = Counter()
    for row in stalls:
        over = [each["what"] for each in others if _common(row, each) >= 0.5 * row["seconds"]]
        parts = {name: row[name] for name in ("cpu", "queue", "blocked")}
        culprits[" + ".join([max(parts, key=parts.__getitem__), *sorted(set(over))])] += 1
        shares = [f"{part / row['seconds']:.0%}" for part in parts.values()]
        cells = [f"{row['at']:.1f}", f"{1e3 * row['seconds']:.0f}", *shares, row.get("state", "")]
        lines.append(
            "| " + " | ".join([*cells, ", ".join(over), (row.get("stack") or [""])[-1]]) + " |"
        )
    lines += ["", f"{len(stalls)} stalls of at least {1e3 * least:.0f} ms:"]
    lines += [f"  {count:4} {what}" for what, count in culprits.most_common()]
    full = [row for row in others if row["what"] == "gc" and row["generation"] == 2]
    if full:
        longest = max(full, key=lambda row: row["seconds"])
        took = f"{1e3 * longest['seconds']:.0f} ms over {longest['objects']:,} objects"
        lines.append(f"{len(full)} full collections, the longest {took}")
    return "\n".join(lines)


def _common(one: Row, other: Row) -> float:
    """Seconds that two intervals have in common."""
    ends = [each["at"] + each["seconds"] for each in (one, other)]
    return max(0.0, min(ends) - max(one["at"], other["at"]))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
    print(table([json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]))
