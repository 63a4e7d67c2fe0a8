"""The machines of a measurement: control groups with their shares, processes in them, a network."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import genkidama
from benchmarks.groups import Group
from studies.scaling.links import Network
from studies.scaling.matrix import DISTURBANCES, LINKS, Condition, Row, churn, cuts, shares

ROOT = Path(genkidama.__file__).resolve().parent.parent

_OURS = re.compile(r"scaling-(\d+)-")


class Machines:
    """The machines of one condition. Entering makes them, leaving ends all that runs on them.

    Args:
        condition: how many there are, their shares, their network.
        folder: where the logs of their processes go.
        limit: seconds that a run takes at most.
    """

    def __init__(self, condition: Condition, folder: Path, limit: float) -> None:
        self.condition = condition
        self.shares = shares(condition)
        self.network = Network(len(self.shares), LINKS[condition.link], condition.seed)
        self.groups: list[Group] = []
        #: What runs at the parent's place.
        self.beside: Group | None = None
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        #: Seconds since the beginning, and who is cut off from then on.
        self.plan: list[tuple[float, list[int]]] = []
        #: Who leaves when, and who is back.
        self.churn: list[tuple[float, int, int | None]] = []
        disturbance, rng = DISTURBANCES[condition.disturbance], random.Random(condition.seed)
        if disturbance.cuts:
            self.plan = cuts(condition.machines, limit, rng)
        if disturbance.churn:
            self.churn = churn(condition.machines, limit, rng)
        self._begun = [0.0] * len(self.shares)
        self._used = [0.0] * len(self.shares)
        self._throttled = [0] * len(self.shares)
        self._machine = (0.0, 0.0)
        self._beside = 0.0

    def __enter__(self) -> Machines:
        self.network.__enter__()
        try:
            for number in range(len(self.shares)):
                self.groups.append(Group(f"scaling-{os.getpid()}-{number}"))
            self.beside = Group(f"scaling-{os.getpid()}-{len(self.shares)}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for group in (*self.groups, self.beside):
            if group is not None:
                group.close()
        for process in self._processes:
            with process:  # closes its pipes and waits
                pass
        self.network.__exit__(kind, error, trace)

    def start(
        self, machine: int, command: Sequence[str], name: str, *, talks: bool = False
    ) -> subprocess.Popen[bytes]:
        """Starts a process on a machine.

        Args:
            machine: its number.
            command: what is run there.
            name: of its log.
            talks: whether its standard output is a pipe to us; otherwise it goes to the log.
        """
        group = self.groups[machine]
        return self._popen(self.network.at(machine, list(command)), name, group, talks)

    def start_beside(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        """Starts a process at the parent's place."""
        assert self.beside is not None
        return self._popen(self.network.at_parent(list(command)), name, self.beside, False)

    def _popen(
        self, command: list[str], name: str, group: Group, talks: bool
    ) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
                preexec_fn=group.enter,
            )
        self._processes.append(process)
        return process

    def log(self, name: str) -> str:
        """The last line that a process wrote."""
        lines = (self._folder / f"{name}.log").read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")

    def said(self, name: str, word: str) -> int:
        """How often the processes of this name have written a word."""
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace").count(word) if path.exists() else 0

    def begin(self) -> float:
        """All get their shares now, and go on if they were stopped. Returns the time, Unix."""
        assert self.beside is not None
        for group, share in zip(self.groups, self.shares, strict=True):
            group.hold(share)
        self._machine = _busy_and_all()
        self._beside = self.beside.used()
        for machine in range(len(self.groups)):
            self.count_from_now(machine)
        for group in self.groups:
            group.thaw()
        return time.time()

    def count_from_now(self, machine: int) -> None:
        """What this machine has used before does not count."""
        self._begun[machine] = time.monotonic()
        self._used[machine] = self.groups[machine].used()
        self._throttled[machine] = self.groups[machine].throttled()

    def disturb(self, seconds: float) -> None:
        """Cuts off whom it is time to cut off.

        Args:
            seconds: since the beginning.
        """
        while self.plan and self.plan[0][0] <= seconds:
            self.network.cut(self.plan.pop(0)[1])

    def account(self) -> Row:
        """What the machines had since the beginning: each one's use of its share, and more.

        `parent_cpu`: seconds of CPU time at the parent's place. `use`: 1 for a machine that had all
        of its share. `throttled`: in how many of a second's periods it wanted more. `idle`: how
        much of this computer's time nobody wanted. `link_cpu`: seconds that the links took.
        """
        now = time.monotonic()
        use, throttled = [], []
        for machine, group in enumerate(self.groups):
            seconds = max(1e-9, now - self._begun[machine])
            used = group.used() - self._used[machine]
            use.append(round(used / seconds / self.shares[machine], 3))
            more = group.throttled() - self._throttled[machine]
            throttled.append(round(more / seconds, 1))
        busy, every = (new - old for new, old in zip(_busy_and_all(), self._machine, strict=True))
        assert self.beside is not None
        return {
            "parent_cpu": round(self.beside.used() - self._beside, 2),
            "use": use,
            "throttled": throttled,
            "idle": round(1.0 - busy / max(1e-9, every), 3),
            "link_cpu": round(self.network.used(), 2),
        }


def _busy_and_all() -> tuple[float, float]:
    """This computer's CPU time so far, in ticks: busy, and busy or idle."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [float(word) for word in first]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def folder_for(root: Path, condition: Condition) -> Path:
    """A new folder for a run's files."""
    name = "-".join(str(value) for value in condition.as_row().values())
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "condition.json").write_text(json.dumps(condition.as_row()))
    return folder


def sweep() -> None:
    """Removes the control groups and namespaces that a killed run has left."""
    found = [path.name for path in Path("/sys/fs/cgroup").glob("**/scaling-*") if path.is_dir()]
    found += [path.name for path in Path("/run/netns").glob("scaling-*")]
    for name in set(found):
        match = _OURS.match(name)
        if match is None or Path(f"/proc/{match[1]}").exists():
            continue
        if (Path("/run/netns") / name).exists():
            subprocess.run(["ip", "netns", "del", name], check=False)
        if name.rpartition("-")[2].isdecimal():
            Group(name).close()
