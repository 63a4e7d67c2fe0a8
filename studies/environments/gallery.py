"""The gallery in `examples/zoo`: run directories of trained policies, cut down to what is shown."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.store import Row
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs.run import EXPERIMENT, HISTORY, Run

#: Bytes of one policy's weights, and of the gallery.
MOST, MOST_TOGETHER = 300_000, 1_000_000

#: A curve has this many points.
POINTS = 40

WEIGHTS = "checkpoints/best.safetensors"
EVALUATION = "evaluation.json"

#: Events that are kept whole.
_KEPT = ("start", "join", "stop")

Point = tuple[float, int, float]


def name_of(environment: str) -> str:
    """The name in the gallery: `"MinAtar/Breakout-v1"` is `"minatar-breakout"`."""
    return re.sub(r"-v\d+\Z", "", environment).replace("/", "-").lower()


def place(work: Path, environment: str, seed: int) -> Path:
    """Where the run of a seed is kept until one is published."""
    return work / name_of(environment) / str(seed)


def curve(run: Path) -> list[Point]:
    """Seconds since the first child joined, steps, and mean training return, of each exchange."""
    history = list(Run.open(run).history())
    begin = next(event["time"] for event in history if event["event"] == "join")
    return [
        (round(event["time"] - begin, 2), event["steps"], round(event["mean_return"], 3))
        for event in history
        if event["event"] == "exchange" and event["mean_return"] is not None
    ]


def thinned(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most so many points, evenly over the seconds, with the last."""
    if not points:
        return []
    found: list[Point] = []
    apart = points[-1][0] / most
    for point in points[:-1]:
        if len(found) < most - 1 and point[0] >= len(found) * apart:
            found.append(point)
    return [*found, points[-1]]


def keep(run: Path, to: Path) -> None:
    """Keeps the newest weights of a run, without the optimizer's state, its settings, its
    evaluation, and a thin history."""
    shutil.rmtree(to, ignore_errors=True)
    (to / WEIGHTS).parent.mkdir(parents=True)
    loaded = checkpoints.load(Run.open(run).final)
    snapshot = msgspec.structs.replace(loaded.snapshot, children={}, sessions={})
    checkpoints.save(to / WEIGHTS, loaded.signature, loaded.vector, snapshot)
    shutil.copy(run / EXPERIMENT, to / EXPERIMENT)
    evaluation = json.loads((run / EVALUATION).read_text())
    evaluation["checkpoint"] = WEIGHTS
    (to / EVALUATION).write_text(json.dumps(evaluation))
    lines = (run / HISTORY).read_text().splitlines(keepends=True)
    (to / HISTORY).write_text("".join(_thin(lines)))


def _thin(lines: Sequence[str]) -> Iterator[str]:
    """The events of `_KEPT`, and the exchanges of a thin curve."""
    events = [json.loads(line) for line in lines]
    exchanges = [n for n, event in enumerate(events) if event["event"] == "exchange"]
    every = max(1, len(exchanges) // POINTS)
    chosen = {*exchanges[::every], *exchanges[-1:]}
    for number, (line, event) in enumerate(zip(lines, events, strict=True)):
        if event["event"] in _KEPT or number in chosen:
            yield line


def best(rows: Iterable[Row]) -> dict[str, Row]:
    """Our row with the highest mean of each environment."""
    found: dict[str, Row] = {}
    for row in rows:
        if row["contender"] == "genkidama":
            before = found.get(row["environment"])
            if before is None or row["mean"] > before["mean"]:
                found[row["environment"]] = row
    return found


def publish(rows: Iterable[Row], work: Path, zoo: Path) -> Iterator[str]:
    """Copies the best seed's run of each environment into the gallery, and says so.

    One that is there and has a higher mean stays. What is larger than `MOST`, or would make the
    gallery larger than `MOST_TOGETHER`, is left out.
    """
    for environment, row in best(rows).items():
        source, to = place(work, environment, row["seed"]), zoo / name_of(environment)
        if not source.is_dir():
            yield f"{environment}: {source} is not there"
            continue
        if (to / EVALUATION).exists() and _mean(to) > row["mean"]:
            yield f"zoo:{to.name}: {_mean(to):.1f} stays, beside {row['mean']:.1f}"
            continue
        size = _size(source)
        others = sum(_size(one) for one in zoo.glob("*") if one != to)
        if size > MOST or others + size > MOST_TOGETHER:
            yield f"{environment}: {size:,} bytes are too many"
            continue
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(source, to)
        yield f"zoo:{to.name}: {row['mean']:.1f} with seed {row['seed']}, {size:,} bytes"


def table(zoo: Path) -> str:
    """The lines of the page's table: each policy with its return and its training."""
    lines = [
        "| policy | environment | return | seconds | steps | files |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(zoo.iterdir()):
        run = Run.open(path)
        evaluation, state = run.evaluation, run.load().snapshot
        assert evaluation is not None
        result = f"{evaluation['mean']:.1f} ± {evaluation['std']:.1f}".replace("-", "−")
        lines.append(
            f"| `zoo:{path.name}` | `{run.experiment.environment.id}` | {result} "
            f"| {state.seconds:.0f} | {state.steps:,} | {_size(path) / 1e3:.0f} kB |"
        )
    return "\n".join(lines) + "\n"


def _mean(run: Path) -> float:
    return float(json.loads((run / EVALUATION).read_text())["mean"])


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
