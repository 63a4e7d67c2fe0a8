"""One run: train, then judge every checkpoint. What is done is not done again.

A run's folder below `--work` has:

    training/     the run directory while it trains; begun anew after an interruption
    run/          the same, once training has ended; not used if its settings are others
    judged.jsonl  a line for each checkpoint that was judged
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import safetensors.numpy

import genkidama
from benchmarks import store
from benchmarks.judging import Judge, Snapshot
from benchmarks.processes import ROOT
from genkidama.errors import EnvironmentFailure
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs.run import CHILDREN, Run
from genkidama.runtime.machine import available_cores, end_with_parent
from studies.thesis.cells import CELLS, Cell, Condition, Row

#: Episodes begin alike for all cells of a seed, and otherwise than in training.
JUDGING = 1_000
#: A figure shows staleness as means of so many spans of the run.
_SPANS = 20

Say = Callable[[str], None]


def command(cell: Cell, seed: int, out: Path) -> list[str]:
    """What trains the cell."""
    settings = [word for setting in cell.overrides for word in ("--set", setting)]
    file = str(ROOT / cell.file)
    words = ["--cores", str(cell.cores), "--seed", str(seed), "--out", str(out), *settings]
    words += ["--children", str(cell.children), "--episodes", "0"]
    return [sys.executable, "-m", "genkidama", "train", file, *words]


def measure(
    condition: Condition,
    work: Path,
    say: Say,
    episodes: int = 500,
    cell: Cell | None = None,
    keep: bool = False,
) -> Row:
    """The row of one run.

    Args:
        condition: which.
        work: the folder of all runs.
        say: is called with a line about the progress.
        episodes: that judge a checkpoint.
        cell: in place of the one that the condition names.
        keep: leaves the run's folder there.

    Raises:
        EnvironmentFailure: the training failed.
    """
    cell = cell or CELLS[condition.cell]
    folder = work / f"{condition.cell}-{condition.seed}"
    timing = folder / "timing.jsonl"
    if (folder / "run").exists() and store.read(timing)[-1].get("settings") != _settings(cell):
        shutil.rmtree(folder)  # it is of an earlier version of the cell
    if not (folder / "run").exists():
        say("training")
        store.append(timing, _train(cell, condition.seed, folder))
        (folder / "training").rename(folder / "run")
    trained = store.read(timing)[-1]
    run = Run.open(folder / "run")
    found = _judge(run, condition.seed, folder / "judged.jsonl", episodes, say)
    snapshot = run.snapshot
    row = {
        "cell": condition.cell,
        "seed": condition.seed,
        "date": time.strftime("%F %T"),
        **trained,
        "judging": round(sum(one["seconds"] for one in found), 1),
        "updates": snapshot.updates,
        "episodes": snapshot.episodes,
        "steps": snapshot.steps,
        "judged_by": episodes,
        "curve": [[round(one["updates"], 1), one["mean"], one["std"]] for one in found],
        "returns": found[-1]["returns"],
        "exchanges": _exchanges(run),
        "disagreement": _disagreement(run),
    }
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return row


def _settings(cell: Cell) -> list[str]:
    return [f"--children {cell.children} --cores {cell.cores}", *cell.overrides]


def _train(cell: Cell, seed: int, folder: Path) -> Row:
    out = folder / "training"
    for name in (out, folder / "judged.jsonl"):
        shutil.rmtree(name) if name.is_dir() else name.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    began = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command(cell, seed, out), stdout=log, stderr=log, preexec_fn=end_with_parent
        )
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if code != 0:
        lines = (folder / "log").read_text(errors="replace").strip().splitlines() or ["nothing"]
        raise EnvironmentFailure(f"the training ended with code {code}: {lines[-1]}")
    return {
        "seconds": round(time.monotonic() - began, 1),
        "machine_cores": available_cores(),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "software": genkidama.__version__,
        "settings": _settings(cell),
    }


def _judge(run: Run, seed: int, path: Path, episodes: int, say: Say) -> list[Row]:
    """A line for each checkpoint, in order of updates."""
    found = {row["checkpoint"]: row for row in store.read(path)}
    kept = run.checkpoints
    with Judge(run.experiment, seed + JUDGING) as judge:
        for number, checkpoint in enumerate(kept, 1):
            if checkpoint.name in found:
                continue
            say(f"judging {number}/{len(kept)}")
            began = time.monotonic()
            loaded = checkpoints.load(checkpoint)
            mean, deviation = judge(
                Snapshot(0.0, loaded.snapshot.steps, None, loaded.vector), episodes
            )
            row = {
                "checkpoint": checkpoint.name,
                "updates": loaded.snapshot.updates,
                "mean": round(mean, 2),
                "std": round(deviation, 2),
                "returns": [round(value, 1) for value in judge.returns],
                "seconds": round(time.monotonic() - began, 1),
            }
            store.append(path, row)
            found[checkpoint.name] = row
    return sorted(found.values(), key=lambda row: row["updates"])


def _exchanges(run: Run) -> dict[str, Any]:
    """By child: how many, and their mean staleness in equal spans of updates."""
    values: dict[str, list[tuple[float, int]]] = {}
    for line in run.history():
        if line["event"] == "exchange":
            values.setdefault(line["child"], []).append((line["update"], line["staleness"]))
    end = max((update for found in values.values() for update, _ in found), default=0.0)
    result: dict[str, Any] = {}
    for child, found in sorted(values.items()):
        spans: list[list[int]] = [[] for _ in range(_SPANS)]
        for update, staleness in found:
            spans[min(_SPANS - 1, int(_SPANS * update / end))].append(staleness)
        means = [round(fmean(span), 3) if span else None for span in spans]
        result[child] = {"exchanges": len(found), "staleness": means}
    return result


def _disagreement(run: Run) -> dict[str, Any]:
    """How far the ended run's weights lie apart, by |θ_P|: each child's from θ_P, and from others'.

    `between` is the mean over all pairs of children; None with one child.
    """
    files = sorted((run.path / CHILDREN).glob("*.safetensors"))
    children = {file.stem: safetensors.numpy.load_file(file)["weights"] for file in files}
    parent = checkpoints.load(run.final).vector.astype(np.float64)
    scale = float(np.linalg.norm(parent))

    def apart(a: Any, b: Any) -> float:
        return round(float(np.linalg.norm(a - b)) / scale, 4)

    pairs = [apart(a, b) for a, b in itertools.combinations(children.values(), 2)]
    return {
        "parent": {name: apart(weights, parent) for name, weights in children.items()},
        "between": round(fmean(pairs), 4) if pairs else None,
    }
