"""Genkidama's own learning code without its parent and children, for peers that combine it.

So a comparison differs in nothing but how the learning of many machines is put together.

A worker writes its progress into `notes-NUMBER.txt`: a line of Unix time, steps so far, and the
return of the episode that has just ended, or nan. Policies are set aside as `snapshot-NUMBER.npy`;
`snapshots.txt` has a line of Unix time and number for each.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

# Before anything that loads a BLAS.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch

from genkidama.child.core import SingleCore
from genkidama.child.core_forkserver import build
from genkidama.child.shared_memory import SharedMemory
from genkidama.child.worker import EPISODE, WorkerPipe
from genkidama.config.experiment import Experiment

#: The experiment's file in the folder of a run, as JSON.
EXPERIMENT = "experiment.json"


class Worker:
    """One machine's learner and environment.

    Args:
        folder: with the experiment; notes are written there.
        number: which machine this is.
        seed: distinguishes this worker from every other one.
        steps: that this machine has made before.
    """

    def __init__(self, folder: Path, number: int, seed: tuple[int, ...], steps: int = 0) -> None:
        torch.set_num_threads(1)
        experiment = Experiment.from_dict(json.loads((folder / EXPERIMENT).read_text()))
        _, vector, layout, _ = build(experiment)
        #: θ, the optimizer's state and its clock, to be read and written between batches.
        self.memory = SharedMemory(layout)
        self.memory.weights[:] = np.frombuffer(vector, np.float32)
        self._notes = _Notes(folder / f"notes-{number}.txt", steps)
        self.core = SingleCore(0, experiment, self.memory, cast(WorkerPipe, self._notes), seed)
        # As `SingleCore.run` begins.
        self.core.collector.reset(self.core._first_seed)

    def one_batch(self, progress: float = 0.0) -> int:
        """Plays a batch with the weights in `memory`, and learns from it there.

        Args:
            progress: of the run, in [0, 1], for what is annealed.

        Returns:
            The steps that it played.
        """
        self.memory.progress[0] = progress
        self.core.pull()
        batch = self.core.collector.collect()
        self.core.learn(batch)
        self._notes.batch(batch.steps)
        return batch.steps


class _Notes:
    """In the place of a core's line to its orchestrator."""

    def __init__(self, path: Path, steps: int) -> None:
        self._path = path
        self._before = steps

    def check(self) -> None: ...

    def pause(self) -> None: ...

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        if kind == EPISODE:
            self._write(episode_return)

    def batch(self, steps: int) -> None:
        self._before += steps
        self._write(float("nan"))

    def _write(self, episode_return: float) -> None:
        with self._path.open("a") as file:
            file.write(f"{time.time():.3f} {self._before} {episode_return:.3f}\n")


def set_aside(folder: Path, number: int, vector: Any) -> None:
    """Keeps a policy as it is now."""
    now = time.time()
    np.save(folder / f"snapshot-{number}.npy", np.asarray(vector, np.float32))
    with (folder / "snapshots.txt").open("a") as file:
        file.write(f"{now:.3f} {number}\n")
