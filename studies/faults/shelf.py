"""The processes of one trial, the disk that they write to, and the stages of their run."""

from __future__ import annotations

import fcntl
import os
import random
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.groups import Group
from benchmarks.processes import until
from benchmarks.started import Started
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure

#: A trial that stands still for this time has failed.
PATIENCE = 90.0

#: Words in the command line of each kind of process.
KINDS = {
    "launcher": "-m genkidama ",
    "forkserver": "runtime.forkserver",
    "parent": "-m genkidama.parent",
    "child": "-m genkidama.child --parent",
    "core": "core:run_core",
    "learner": "genkidama.plugins.actors",
}

SETTINGS: dict[str, Any] = {
    "name": "small",
    "environment": {"id": "CartPole-v1"},
    "network": {"hidden": [64, 64]},
    "algorithm": {"name": "a3c", "batch_size": 16},
    "parent": {"checkpoint_seconds": 0.3, "linger_seconds": 5.0},
    "child": {"exchange": "free", "exchange_seconds": 0.05, "cores": 1},
    "stop": {"steps": 8000},
}

#: ioctl(2) of ext4: nothing more reaches the disk, not even the journal.
_SHUTDOWN, _NO_FLUSH = 0x8004587D, struct.pack("I", 2)


def experiment(**sections: dict[str, Any]) -> Experiment:
    """CartPole for a few seconds, with a checkpoint three times a second."""
    changed = {name: SETTINGS.get(name, {}) | section for name, section in sections.items()}
    return Experiment.from_dict(SETTINGS | changed)


class Program(Started):
    """A started process, and the words that it was started with."""

    def __init__(self, folder: Path, place: tuple[str, ...], words: tuple[str, ...]) -> None:
        self.words = words
        super().__init__(folder, (*place, *words))


class Shelf:
    """The processes of one trial, and all that they start. Leaving kills what is left.

    Args:
        folder: for all files of the trial; it is made.
        luck: decides when exactly the fault comes, and whom it meets.
        shim: the library that sets clocks and slows disks down; None does without.
    """

    def __init__(self, folder: Path, luck: random.Random, shim: Path | None = None) -> None:
        self.folder = folder
        self.luck = luck
        self.disk = folder / "disk"
        self.run = self.disk / "run"
        self.shm, self.tmp = folder / "shm", folder / "tmp"
        for each in (folder, self.disk, self.shm, self.tmp):
            each.mkdir()
        self.started: list[Program] = []
        #: What broke a law so far.
        self.broken: list[str] = []
        #: Whether what processes said is all there: a power cut takes their logs.
        self.heard = True
        #: Who is meant, as a run ends: to look among all processes takes longer than its end.
        self._known: list[psutil.Process] = []
        self._environment = [f"TMPDIR={self.tmp}"]
        self._control = folder / "control"
        self._control.write_bytes(bytes(16))
        if shim is not None:
            self._environment += [f"LD_PRELOAD={shim}", f"FAULTS_CONTROL={self._control}"]

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        while os.path.ismount(self.disk):
            _mount("umount", "-l", self.disk)

    # Processes.

    def start(self, *words: object, namespace: str = "", group: Group | None = None) -> Program:
        """`python -m WORDS…`, in a network namespace and a control group, if they are given."""
        options = ["--shm", str(self.shm)]
        for pair in self._environment:
            options += ["--set", pair]
        if namespace:
            options += ["--namespace", namespace]
        place = ("studies.faults.inside", *options, "--")
        self.started.append(Program(self.folder, place, tuple(map(str, words))))
        if group is not None:
            group.take(self.started[-1].pid)
        return self.started[-1]

    def train(self, settings: Experiment | None = None, group: Group | None = None) -> Program:
        """`genkidama train` with two children of a core each."""
        (self.folder / "e.toml").write_text((settings or experiment()).to_toml())
        return self.start(*TRAIN, "e.toml", "--out", self.run, group=group)

    def family(self) -> list[psutil.Process]:
        return [each for started in self.started for each in started.family()]

    def find(self, kind: str) -> list[psutil.Process]:
        """The living processes of this kind."""
        found = []
        for each in self.family():
            with suppress(psutil.Error):
                line = " ".join(each.cmdline())
                if KINDS[kind] in line and "faults.inside" not in line:
                    found.append(each)
        return found

    def send(self, kind: str, number: int) -> psutil.Process | None:
        """Sends a signal to one of them, and returns it; None if there is none."""
        found = self._known or self.find(kind)
        for each in self.luck.sample(found, len(found)):
            with suppress(psutil.Error):
                each.send_signal(number)
                return each
        return None

    def kill_all(self) -> None:
        """All at once, as far as one program can."""
        for each in self.family():
            with suppress(psutil.Error):
                each.kill()
        for started in self.started:
            started.popen.wait()
        until(lambda: not self.family(), "no process", 15.0)

    def vanish(self, what: str) -> None:
        """Notes what is still running after a while, and kills it."""
        try:
            until(lambda: not self.family(), "", 15.0)
        except AssertionError:
            left = [" ".join(each.cmdline()[2:5]) for each in self.family()]
            self.broken.append(f"after {what} there is still running: {left}")
            self.kill_all()

    # Stages.

    def said(self, event: str) -> int:
        """How many events of this kind the history has."""
        try:
            return (self.run / "history.jsonl").read_bytes().count(f'"event":"{event}"'.encode())
        except OSError:
            return 0

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """As `benchmarks.processes.until`, but ends at once if the first process does."""
        first = self.started[-1].popen

        def found() -> Any:
            return condition() or first.poll() is not None

        until(found, what, PATIENCE)

    def reach(self, stage: str, kind: str = "") -> None:
        """Waits until the run is at this stage, and then for a random moment."""
        uniform = self.luck.uniform
        if stage == "start":
            self.until(lambda: self.find(kind or "parent"), f"a {kind}")
            time.sleep(uniform(0.0, 0.3))
        elif stage == "joining":
            self.until(lambda: self.said("start") and (not kind or self.find(kind)), f"a {kind}")
            time.sleep(uniform(0.0, 0.4))
        elif stage == "training":
            self.until(lambda: self.said("exchange") > 3 or self.said("report"), "exchanges")
            time.sleep(uniform(0.0, 0.8))
        elif stage == "checkpoint":
            self.until(lambda: self.said("checkpoint"), "a checkpoint")
            folder, end = self.run / "checkpoints", time.monotonic() + 5.0
            while not any(name.endswith(".tmp") for name in os.listdir(folder)):
                if time.monotonic() > end:
                    break
            time.sleep(uniform(0.0, 0.002))
        elif stage == "ending":
            self.until(lambda: self.said("exchange") > 3, "exchanges")
            self._known = self.find(kind) if kind else []
            self.until(lambda: self.said("stop"), "the end")
            time.sleep(uniform(0.0, 0.1))

    # Clock and disk.

    def set(self, clock: int = 0, fsync: int = 0) -> None:
        """The wall clock is so many seconds ahead, and an fsync takes so many milliseconds more."""
        with self._control.open("r+b") as file:
            file.write(struct.pack("qq", clock, fsync))

    def format_disk(self) -> None:
        """The run's disk is a file system of its own, of 24 MB."""
        image = self.folder / "image"
        with image.open("wb") as file:
            file.truncate(24 << 20)
        _mount("mkfs.ext4", "-q", "-m", "0", "-J", "size=4", image)
        self.mount_disk()

    def mount_disk(self) -> None:
        until(self._unmounted, "an idle disk", 15.0)
        _mount("mount", "-o", "loop", self.folder / "image", self.disk)

    def _unmounted(self) -> bool:
        if os.path.ismount(self.disk):
            subprocess.run(["umount", self.disk], stderr=subprocess.DEVNULL, check=False)
        return not os.path.ismount(self.disk)

    def cut_disk(self) -> None:
        """From now on it takes and gives nothing. What was not flushed is lost."""
        self.heard = False
        folder = os.open(self.disk, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, _NO_FLUSH)
        finally:
            os.close(folder)

    def small_disk(self) -> None:
        """The run's disk has 2 MB."""
        _mount("mount", "-t", "tmpfs", "-o", "size=2m", "none", self.disk)

    def protect_disk(self) -> None:
        """It becomes read-only, as ext4 makes it after an error."""
        self.heard = False
        _mount("mount", "-o", "remount,abort", self.disk)


TRAIN = ("genkidama", "train", "--children", 2, "--cores", 1, "--episodes", 0)
SEARCH = ("genkidama", "search", "--children", 2, "--cores", 1, "--no-figures")


def fill(disk: Path) -> None:
    """Leaves no byte free. What fills it is `filler`."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 8, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def _mount(*words: object) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentFailure(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
