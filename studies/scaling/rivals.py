"""One run of a peer, held to the same shares, on the same kind of network."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.judging import Snapshot
from benchmarks.processes import PEERS, free_port
from genkidama.errors import EnvironmentFailure
from studies.scaling.figures import training_means
from studies.scaling.machines import ROOT, Machines
from studies.scaling.matrix import Row, contender_of
from studies.scaling.ours import experiment_of

#: All workers must stand ready by then.
_START_SECONDS = 300.0

_LOOK_SECONDS = 1.0

_SCRIPTS = ROOT / "studies/scaling/peers"


def rival(machines: Machines, folder: Path, goal: float, every: float) -> DDP | Flower | SB3:
    """The run of the peer that the condition names.

    Args:
        machines: where it runs.
        folder: for its files.
        goal: the training mean return that ends it.
        every: seconds between two snapshots.

    Raises:
        EnvironmentFailure: the peers are not installed.
    """
    if not PEERS.exists():
        raise EnvironmentFailure(f"{PEERS}: the peers are not installed; make peers")
    kinds: dict[str, type[DDP | Flower | SB3]] = {"ddp": DDP, "flower": Flower, "sb3": SB3}
    kind = kinds[contender_of(machines.condition.contender).kind]
    return kind(machines, folder, goal, every)


class _OurLearner:
    """A peer that combines our learner, which notes its progress (`peers/learner.py`)."""

    def __init__(self, machines: Machines, folder: Path, goal: float, every: float) -> None:
        self._machines = machines
        self._folder = folder
        self._goal = goal
        self._every = every
        self._begin = 0.0
        condition = machines.condition
        experiment = experiment_of(condition)
        if contender_of(condition.contender).divided:
            n, algorithm = condition.machines, experiment.algorithm
            experiment = experiment.with_settings(
                {
                    # Trajectories stay as long: a machine plays fewer of them.
                    "environment.lanes": max(1, experiment.environment.lanes // n),
                    "algorithm.batch_size": max(1, algorithm.batch_size // n),
                    "algorithm.minibatch_size": max(1, algorithm.minibatch_size // n),
                }
            )
        self._experiment = experiment
        (folder / "experiment.json").write_text(json.dumps(experiment.to_dict()))

    def run(self, limit: float) -> Row:
        """Trains, and returns what is known of it without judging its snapshots."""
        self.start()
        self._begin = self._machines.begin()
        self.go()
        while (seconds := time.time() - self._begin) < limit:
            self.check()
            episodes, _ = self._notes()
            (mean,) = training_means(episodes, [time.time()])
            if mean is not None and mean >= self._goal:
                break
            time.sleep(_LOOK_SECONDS)
        row = {"seconds": seconds, **self._machines.account()}
        episodes, progress = self._notes()
        (mean,) = training_means(episodes, [time.time()])
        steps = _steps_at(progress, time.time())
        return {**row, "steps": steps, "episodes": len(episodes), "training_mean": mean}

    def start(self) -> None:
        """Starts all workers and waits until they stand ready."""
        raise NotImplementedError

    def go(self) -> None:
        """Tells them to begin."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises an error if the peer has died."""

    def snapshots(self) -> list[Snapshot]:
        """The policies set aside, oldest first, with the clock of the machines."""
        file = self._folder / "snapshots.txt"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        moments = [float(moment) for moment, _ in lines]
        episodes, progress = self._notes()
        means = training_means(episodes, moments)
        return [
            Snapshot(
                moment - self._begin,
                _steps_at(progress, moment),
                mean,
                np.load(self._folder / f"snapshot-{number}.npy"),
            )
            for moment, (_, number), mean in zip(moments, lines, means, strict=True)
        ]

    def _notes(self) -> tuple[list[tuple[float, float]], list[list[tuple[float, int]]]]:
        """All episodes by their ends, and each worker's steps."""
        episodes, progress = [], []
        for file in self._folder.glob("notes-*.txt"):
            lines = [line.split() for line in file.read_text().splitlines() if line.count(" ") == 2]
            progress.append([(float(moment), int(steps)) for moment, steps, _ in lines])
            episodes += [(float(moment), float(value)) for moment, _, value in lines]
        return sorted(one for one in episodes if not math.isnan(one[1])), progress


class DDP(_OurLearner):
    """Synchronous averaging of gradients by torch.distributed."""

    def start(self) -> None:
        n = len(self._machines.shares)
        meeting = self._machines.network.address(0)
        port = str(free_port())
        self._workers = []
        for number in range(n):
            command = [str(PEERS), str(_SCRIPTS / "ddp.py"), str(self._folder), str(number), str(n)]
            command += [meeting, port, str(self._every)]
            self._workers.append(
                self._machines.start(number, command, f"worker-{number}", talks=True)
            )
        for number, worker in enumerate(self._workers):
            assert worker.stdout is not None
            if worker.stdout.readline() != b"ready\n":
                raise EnvironmentFailure(f"a worker died: {self._machines.log(f'worker-{number}')}")

    def go(self) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(b"\n")
            worker.stdin.flush()

    def check(self) -> None:
        for number, worker in enumerate(self._workers):
            if worker.poll() is not None:
                raise EnvironmentFailure(f"a worker died: {self._machines.log(f'worker-{number}')}")


class Flower(_OurLearner):
    """FedAvg as Flower's documentation starts it: SuperLink, SuperNodes, `flwr run`."""

    def start(self) -> None:
        n = len(self._machines.shares)
        port = free_port()
        np.save(self._folder / "initial.npy", initial(self._experiment))
        programs = PEERS.parent
        home = self._folder / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "{self._machines.network.parents_address(0)}:{port}"\ninsecure = true\n'
        )
        variables = {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        os.environ |= variables
        link = [str(programs / "flower-superlink"), "--insecure", "--host", "0.0.0.0"]
        link += ["--port", str(port), "--disable-runtime-dependency-installation"]
        self._link = self._machines.start_beside(link, "superlink")
        time.sleep(3.0)
        for number in range(n):
            address = f"{self._machines.network.parents_address(number)}:{port}"
            node = [str(programs / "flower-supernode"), "--insecure", "--superlink", address]
            node += ["--port", str(free_port())]
            node += ["--node-config", f"partition-id={number} num-partitions={n}"]
            self._machines.start(number, node, f"supernode-{number}")
        app = [str(programs / "flwr"), "run", str(_SCRIPTS / "flower_app"), "here"]
        batches = contender_of(self._machines.condition.contender).batches
        app += ["--run-config", f"folder='{self._folder}' workers={n} batches={batches}"]
        self._machines.start_beside(app, "run")
        _until((self._folder / "ready").exists, lambda: self._machines.log("superlink"))

    def go(self) -> None:
        (self._folder / "go").touch()

    def check(self) -> None:
        if self._link.poll() is not None:
            raise EnvironmentFailure(f"the SuperLink died: {self._machines.log('superlink')}")


class SB3:
    """Stable-Baselines3's PPO on one machine with n environments. It judges itself."""

    def __init__(self, machines: Machines, folder: Path, goal: float, every: float) -> None:
        self._machines = machines
        self._goal = goal
        self._every = every

    def run(self, limit: float) -> Row:
        """Trains, and judges the policies when it is held no longer."""
        condition = self._machines.condition
        command = [str(PEERS), str(ROOT / "benchmarks/peers/sb3.py"), "learn", "--told"]
        command += ["--seed", str(condition.seed), "--environments", str(condition.machines)]
        command += ["--limit", str(limit), "--until-mean", str(self._goal)]
        command += ["--every", str(self._every)]
        if sum(self._machines.shares) > 1.0:
            command.append("--subprocesses")  # one process has one core at most
        worker = self._machines.start(0, command, "sb3", talks=True)
        self._expect(worker, "ready")
        self._machines.begin()
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
        worker.stdin.flush()
        self._expect(worker, "trained")
        row = self._machines.account()
        self._machines.groups[0].release()
        assert worker.stdout is not None
        facts = json.loads(worker.stdout.read())
        reached = facts["reached"]["200"]
        return {
            **row,
            "seconds": facts["seconds"],
            "steps": facts["steps"],
            "training_mean": facts["training_mean"],
            "reached": reached,
        }

    def snapshots(self) -> list[Snapshot]:
        """None: it has judged them."""
        return []

    def _expect(self, worker: subprocess.Popen[bytes], word: str) -> None:
        assert worker.stdout is not None
        if worker.stdout.readline().decode().strip() != word:
            raise EnvironmentFailure(f"Stable-Baselines3 died: {self._machines.log('sb3')}")


def initial(experiment: object) -> np.ndarray:
    """The initial numbers of an experiment's network, float32."""
    from genkidama.learning.environments import make_environment
    from genkidama.learning.model import Model

    environment = make_environment(experiment.environment)
    return np.array(Model(experiment, environment).numbers)


def _until(true: Callable[[], bool], said: Callable[[], str]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise EnvironmentFailure(f"the peer is not ready after 5 minutes: {said()}")
        time.sleep(0.05)


def _steps_at(progress: list[list[tuple[float, int]]], moment: float) -> int:
    """Steps of all workers at a moment."""
    return sum(
        max((steps for when, steps in worker if when <= moment), default=0) for worker in progress
    )
