"""Checker after each fault: the laws that a run keeps, whatever has happened to it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genkidama.config.experiment import Experiment
from genkidama.errors import GenkidamaError
from genkidama.runs.run import Run
from studies.faults import searches
from studies.faults.shelf import Shelf

Line = dict[str, Any]


def check(shelf: Shelf, traceback: str = "") -> list[str]:
    """The laws that are broken: none for a run that has ended, whatever was done to it.

    Args:
        shelf: where it lies, with nothing running any more.
        traceback: a log in which each traceback has this word is in order.
    """
    logs = [*shelf.folder.glob("*.err"), *shelf.folder.glob("*.out"), *shelf.run.glob("logs/*.log")]
    found = [
        f"a traceback in {path.name}"
        for path in logs
        if (text := path.read_text(errors="replace")).count("Traceback")
        and not (traceback and text.count("Traceback") <= text.count(traceback))
    ]
    found += [f"left in /dev/shm: {path.name}" for path in shelf.shm.iterdir()]
    found += [f"left in TMPDIR: {path.name}" for path in shelf.tmp.iterdir()]
    found += [f"left beside checkpoints: {path.name}" for path in shelf.run.glob("**/.*.tmp")]
    if (shelf.folder / "cart.toml").exists():
        return found + _search(shelf)
    try:
        lines = list(_lines(shelf.run / "history.jsonl"))
        snapshot = Run(shelf.run).snapshot
        Run(shelf.run).load(unreadable=lambda problem: found.append(f"unreadable: {problem}"))
    except (GenkidamaError, ValueError, OSError) as error:
        return [*found, f"{type(error).__name__}: {error}"]
    found += _versions(lines, snapshot.version, snapshot.steps)
    return [*found, *_counts(lines, logs)] if shelf.heard else found


def _search(shelf: Shelf) -> list[str]:
    """The study agrees with its rule, with itself and with the directory."""
    try:
        for line in _lines(shelf.run / "history.jsonl"):
            assert line["event"]
        settings = Experiment.load(shelf.folder / "cart.toml")
        searches.check(shelf.run, searches.trials_of(shelf.run), settings)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return []


def _lines(path: Path) -> Iterator[Line]:
    for line in path.read_bytes().splitlines():
        yield json.loads(line)


def _versions(lines: list[Line], version: int, steps: int) -> Iterator[str]:
    """Versions never go back, except to a checkpoint that was said; each push counts once."""
    now: int | None = None  # a directory that is deleted and made anew has a later beginning
    saved = told = 0
    for line in lines:
        match line["event"]:
            case "resume":
                if line["version"] < saved:
                    yield f"resumed at version {line['version']}, {saved} was on the disk"
                now, told = line["version"], line["steps"]
            case "start":
                if saved:
                    yield f"begun anew though version {saved} was on the disk"
                now = told = 0
            case "exchange":
                if now is not None and line["version"] != now + (not line.get("left_out")):
                    yield f"version {line['version']} after {now}"
                now = line["version"]
                if line["steps"] < told:
                    yield f"{line['steps']} steps after {told}"
                told = line["steps"]
            case "checkpoint":
                saved = line["version"]
    if now is None:  # all exchanges were before that
        return
    if (now, told) != (version, steps):
        yield f"version {now}, {told} steps in the history; {version}, {steps} in the checkpoint"


def _counts(lines: list[Line], logs: list[Path]) -> Iterator[str]:
    """A child that lived all the time counts as many exchanges as its parent."""
    pushes = Counter(line["child"] for line in lines if line["event"] == "exchange")
    restarts = sum(line["event"] in ("start", "resume") for line in lines) - 1
    begun = Counter(line["child"] for line in _spoken(logs, "training"))
    ended = Counter(line["child"] for line in _spoken(logs, "left"))
    lost = {line["child"] for line in lines if line.get("reason") == "connection lost"}
    for line in _spoken(logs, "left"):
        child = line["child"]
        if child in lost and not line["exchanges"]:
            continue  # it was started again, and ended before it trained
        # A push after the end is answered and not counted; a restart may lose an answer, or what
        # the history had not written yet.
        if (
            begun[child] == ended[child] == 1
            and abs(line["exchanges"] - pushes[child]) > 1 + 12 * restarts
        ):
            yield f"{child} says {line['exchanges']} exchanges, its parent {pushes[child]}"


def _spoken(logs: list[Path], event: str) -> Iterator[Line]:
    for path in logs:
        for line in path.read_text(errors="replace").splitlines():
            if f'"event": "{event}"' in line:
                yield json.loads(line)
