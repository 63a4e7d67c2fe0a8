"""How good a policy is, and when it first was: episodes spread over this computer's cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from genkidama.config.experiment import Experiment
from genkidama.learning.environments import played
from genkidama.runtime.machine import ONE_THREAD, available_cores, end_with_parent

#: A policy is judged from where the training mean is this close to the goal. These are points of
#: LunarLander's.
_NEAR = 50.0

#: A policy goes on to all 500 episodes while its mean after these is no further below the goal:
#: twice the standard error of a mean, or a little more.
_LOOKS = ((60, 25.0), (200, 14.0))
EPISODES = 500


@dataclass(frozen=True)
class Snapshot:
    """The policy at one moment of training."""

    #: Since learning began.
    seconds: float
    #: Of all machines.
    steps: int
    #: Mean return of the last 100 episodes; None before.
    training_mean: float | None
    #: float32, the network's numbers.
    vector: npt.NDArray[np.float32]


class Judge:
    """Plays the snapshots of one experiment. Used in a `with` statement.

    All contenders are judged in Gymnasium's own environment, also if they learn in EnvPool's.

    Args:
        experiment: whose network the vectors are of.
        seed: of the episodes; the same for every snapshot.
    """

    def __init__(self, experiment: Experiment, seed: int) -> None:
        self._settings = {
            **experiment.to_dict(),
            "environment": msgspec.to_builtins(played(experiment.environment)),
        }
        self._seed = seed
        self._cores = available_cores()
        self._last: Snapshot | None = None
        #: Of the episodes that the last snapshot has played.
        self.returns: list[float] = []

    def __enter__(self) -> Judge:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._cores, context, _begin, (os.getpid(),))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, snapshot: Snapshot, episodes: int) -> tuple[float, float]:
        """Mean and standard deviation of the returns of so many episodes.

        Those of the same snapshot that were played before are not played again.
        """
        if snapshot is not self._last:
            self._last, self.returns = snapshot, []
        jobs = [
            self._pool.submit(_share, self._settings, snapshot.vector, list(part), self._seed)
            for core in range(self._cores)
            if (part := range(len(self.returns) + core, episodes, self._cores))
        ]
        for job in jobs:
            self.returns += job.result()
        return fmean(self.returns), pstdev(self.returns)


def first(
    snapshots: Iterable[Snapshot],
    goal: float,
    judge: Callable[[Snapshot, int], tuple[float, float]],
    scale: float = 1.0,
) -> dict[str, Any] | None:
    """The first snapshot with a mean of 500 episodes of at least `goal`; None if there is none.

    Short looks spare most of the long ones. They may miss a passage, and never invent one.

    Args:
        snapshots: oldest first.
        goal: a mean return.
        judge: mean and standard deviation of so many episodes of a snapshot.
        scale: of returns, against LunarLander's.
    """
    for snapshot in snapshots:
        if snapshot.training_mean is None or snapshot.training_mean < goal - _NEAR * scale:
            continue
        if any(judge(snapshot, episodes)[0] < goal - below * scale for episodes, below in _LOOKS):
            continue
        mean, std = judge(snapshot, EPISODES)
        if mean >= goal:
            return {"seconds": snapshot.seconds, "steps": snapshot.steps, "mean": mean, "std": std}
    return None


def _begin(parent: int) -> None:
    """Starts a process for a core: torch, which it imports later, would take all of them. It gives
    way to a run that is measured beside it."""
    end_with_parent(parent)
    os.environ.update(ONE_THREAD)
    os.nice(10)


def _share(settings: dict[str, Any], vector: Any, episodes: list[int], seed: int) -> list[float]:
    """One process' share of the episodes, as `genkidama evaluate` plays them.

    Args:
        settings: of the experiment.
        vector: θ, (parameters,).
        episodes: their numbers, each of which has a seed of its own.
        seed: of all episodes.
    """
    from genkidama.learning.environments import make_environment
    from genkidama.learning.model import Model
    from genkidama.runs.evaluation_worker import play

    experiment = Experiment.from_dict(settings)
    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    model.numbers[:] = vector
    returns = play(model, environment, episodes, seed, greedy=False)
    environment.close()
    return returns
