"""One run of a Parent and its Children, as real processes with real websockets; the row of any run.

The children start unheld, since a tenth of a core imports torch for half a minute. A child gets its
share when it is about to join, and is frozen when it has, until all have joined. Then all get their
shares, go on, and the time begins.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.judging import Judge, Snapshot, first
from benchmarks.processes import free_port
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.runs import checkpoint as checkpoints
from genkidama.runs.history import HistoryTail
from genkidama.runs.run import HISTORY, Run
from studies.scaling.figures import staleness, traffic
from studies.scaling.machines import ROOT, Machines, folder_for
from studies.scaling.matrix import TASKS, Condition, Row, contender_of, settings_of

#: Locked while the children of a run start.
STARTS = Path(tempfile.gettempdir()) / "scaling.lock"

#: All children must have joined by then.
_START_SECONDS = 300.0

#: So many children start side by side.
_STARTING = 2

#: A child logs this word when it has built its network and is about to join.
_READY = "training"

#: How often the history is read, while children join and while they train.
_JOINING_SECONDS, _TRAINING_SECONDS = 0.01, 0.2

#: How often the parent's connections are counted.
_COUNTING_SECONDS = 1.0


def experiment_of(condition: Condition) -> Experiment:
    """The experiment that a contender learns, with its seed."""
    file, settings = settings_of(condition)
    return Experiment.load(ROOT / "examples" / file).with_settings(settings)


class Ours:
    """A run of ours.

    Args:
        machines: where it runs.
        folder: for its files.
        goal: the training mean return that ends it.
        every: seconds between two snapshots.
    """

    def __init__(self, machines: Machines, folder: Path, goal: float, every: float) -> None:
        self._machines = machines
        self._out = folder / "run"
        self._history = HistoryTail(self._out / HISTORY)
        self._port = free_port()
        #: When each child has joined first, in Unix seconds.
        self._joined: dict[str, float] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._exchanges: list[Row] = []
        self._refused = 0
        #: Since then, in seconds of a monotonic clock, the bytes sent and received by the parent.
        self._traffic: list[tuple[float, int, int]] = []
        #: The same of each connection, by the other end's address.
        self._connections: dict[str, tuple[int, int]] = {}
        #: When the machines got their shares, in Unix seconds.
        self.begin = 0.0
        self._parent: subprocess.Popen[bytes] | None = None
        self._experiment = experiment_of(machines.condition).with_settings(
            {
                "parent.checkpoint_seconds": every,
                "parent.checkpoint_keep": 1_000_000,
                "stop.mean_return": goal,
                "stop.seconds": 86_400.0,  # we end it, by the children's clock
            }
        )

    def run(self, limit: float) -> Row:
        """Trains for so many seconds at most, and returns what is known of it without judging its
        snapshots."""
        file = self._out.with_suffix(".toml")
        file.write_text(self._experiment.to_toml())
        command = [sys.executable, "-m", "genkidama.parent", str(file), "--until-eof"]
        command += ["--listen", f"0.0.0.0:{self._port}", "--out", str(self._out)]
        command += ["--set", "parent.open=true", "--set", "parent.linger_seconds=0"]
        self._parent = self._machines.start_beside(command, "parent")
        machines = range(len(self._machines.shares))
        # Not all at once: a parent that gets no time on the CPU says too late who has joined.
        with _starting():
            for start in range(0, len(machines), _STARTING):
                together = list(machines[start : start + _STARTING])
                for machine in together:
                    self._start_child(machine)
                self._wait_for(together)
        self.begin = self._machines.begin()
        head_start = self._exchanges[-1]["steps"] if self._exchanges else 0
        self._count()
        self._train(limit)
        seconds = time.time() - self.begin
        row = {
            "seconds": seconds,
            "head_start_steps": head_start,
            **self._machines.account(),
            **traffic(self._traffic),
        }
        self._parent.terminate()  # if it has not ended: it writes a last checkpoint
        self._parent.wait()
        self._read()
        last: Row = self._exchanges[-1] if self._exchanges else {}
        return {
            **row,
            **{key: last.get(key) for key in ("steps", "episodes", "version")},
            "training_mean": last.get("mean_return"),
            "refused": self._refused,
            "left_out": dict(
                Counter(line["left_out"] for line in self._exchanges if line.get("left_out"))
            ),
            "staleness": staleness([line["staleness"] for line in self._exchanges]),
        }

    def snapshots(self) -> list[Snapshot]:
        """The checkpoints, oldest first, with the clock of the machines."""
        offset = self.begin - min(self._joined.values())
        found = []
        for path in Run(self._out).checkpoints:
            loaded = checkpoints.load(path)
            state = loaded.snapshot
            seconds = state.seconds - offset
            if seconds > 0.0:
                found.append(Snapshot(seconds, state.steps, state.mean_return, loaded.vector))
        return found

    def _start_child(self, machine: int) -> None:
        url = f"ws://{self._machines.network.parents_address(machine)}:{self._port}"
        command = [sys.executable, "-m", "genkidama.child", "--parent", url, "--until-eof"]
        for module in TASKS[self._machines.condition.task].allow:
            command += ["--allow", module]
        name = _name(machine)
        self._children[machine] = self._machines.start(machine, [*command, "--name", name], name)

    def _wait_for(self, machines: list[int]) -> None:
        """Waits until they have joined, and freezes each at once."""
        deadline = time.monotonic() + _START_SECONDS
        waiting = list(machines)
        ready: set[int] = set()
        while waiting:
            self._read()
            # It has built its network and is about to join. The history says so a quarter of a
            # second later: its cores do not run free until then.
            for machine in set(waiting) - ready:
                if self._machines.said(_name(machine), _READY):
                    self._machines.groups[machine].hold(self._machines.shares[machine])
                    ready.add(machine)
            for machine in [one for one in waiting if _name(one) in self._joined]:
                self._machines.groups[machine].freeze()
                waiting.remove(machine)
            self._check(waiting, deadline)
            time.sleep(_JOINING_SECONDS)

    def _train(self, limit: float) -> None:
        """Returns when the parent has ended the run, or the time is over."""
        assert self._parent is not None
        churn = list(self._machines.churn)
        back: dict[int, int] = {}
        while self._parent.poll() is None and (now := time.time() - self.begin) < limit:
            self._read()
            self._machines.disturb(now)
            if time.monotonic() - self._traffic[-1][0] >= _COUNTING_SECONDS:
                self._count()
            if churn and now >= churn[0][0]:
                _, leaves, returns = churn.pop(0)
                self._children[leaves].terminate()
                if returns is not None:
                    self._children[returns].kill()  # if it still is there
                    # It starts as fast as this computer can, and is held when it is about to join.
                    self._machines.groups[returns].release()
                    back[returns] = self._machines.said(_name(returns), _READY)
                    self._start_child(returns)
            for machine, before in list(back.items()):
                if self._machines.said(_name(machine), _READY) > before:
                    self._machines.groups[machine].hold(self._machines.shares[machine])
                    self._machines.count_from_now(machine)
                    del back[machine]
            time.sleep(_JOINING_SECONDS if back else _TRAINING_SECONDS)

    def _count(self) -> None:
        """Takes down what the kernel has counted at the parent's connections."""
        self._connections |= self._machines.network.traffic(self._port)
        sent, received = (sum(column) for column in zip(*self._connections.values(), strict=True))
        self._traffic.append((time.monotonic(), sent, received))

    def _read(self) -> None:
        for line in self._history.read():
            event = msgspec.json.decode(line)
            match event["event"]:
                case "join":
                    self._joined.setdefault(event["child"], event["time"])
                case "exchange":
                    self._exchanges.append(event)
                case "refused":
                    self._refused += 1

    def _check(self, waiting: list[int], deadline: float) -> None:
        """Ends the benchmark if nobody will ever join."""
        assert self._parent is not None
        names = ["parent", *map(_name, waiting)]
        if self._parent.poll() is not None or time.monotonic() > deadline:
            said = "; ".join(f"{name}: {self._machines.log(name)}" for name in names)
            raise EnvironmentFailure(f"not all children have joined: {said}")


def measure(condition: Condition, limit: float | None = None) -> Row:
    """One row: the run, and its snapshots judged.

    Args:
        condition: what is measured.
        limit: seconds of learning at most; None is the task's.
    """
    began = time.time()
    root = Path(tempfile.mkdtemp(prefix="scaling-"))
    folder = folder_for(root, condition)
    task = TASKS[condition.task]
    goal, every = task.goal + task.margin, task.every / condition.machines
    limit = limit or task.limit
    row: Row = {**condition.as_row(), "date": time.strftime("%F %T"), "limit": limit}
    try:
        with Machines(condition, folder, limit) as machines:
            if contender_of(condition.contender).kind == "ours":
                run = Ours(machines, folder, goal, every)
            else:
                from studies.scaling.rivals import rival

                run = rival(machines, folder, goal, every)
            row |= run.run(limit)
        if "reached" not in row:
            with Judge(experiment_of(condition), condition.seed) as judge:
                row["reached"] = first(run.snapshots(), task.goal, judge, task.scale)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    row["wall"] = round(time.time() - began, 1)
    return row


@contextmanager
def _starting() -> Iterator[None]:
    """Has runs that are measured side by side start one after the other."""
    with STARTS.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _name(machine: int) -> str:
    return f"child-{machine}"
