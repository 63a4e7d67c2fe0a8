"""A3C in virtual time: what a run learns if each of its processes has a core of its own.

The thesis' machines had a core for each process. Where four processes share two cores, a gradient
may be older when it is applied. This tells whether that matters: the cores of a child
(`genkidama.child.core`) take turns in one process, a batch at a time, in the order in which their
batches would be full if none of them ever waited for a CPU. Otherwise they learn as always.

    python -m benchmarks.thesis.virtual --seeds 1 2 3 4 5

A step takes a unit of time. gym 0.23 made a particle for each step with an engine on, and removed
it only as it drew a window, so the thesis' steps took the longer the more of them there were.
`Form.particle` (`cells.py`) is by how much. A run is a line of
`docs/results/thesis-virtual.jsonl`, takes 5 minutes, and is not repeated once it is there.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import store
from benchmarks.judging import Judge, Snapshot
from benchmarks.processes import command
from benchmarks.thesis.cells import CELLS, FORMS, Form, Row
from benchmarks.thesis.measure import JUDGING, ROOT
from genkidama.child.collector import Batch
from genkidama.child.core import SingleCore
from genkidama.child.core_nursery import layout_of
from genkidama.child.memory import SharedMemory
from genkidama.child.process import Line
from genkidama.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.overrides import parse_settings
from genkidama.system.lifeline import end_with_parent
from genkidama.system.machine import available_cores

__all__ = ["RESULTS", "Clocked", "in_turns", "learn"]

RESULTS = ROOT / "docs/results/thesis-virtual.jsonl"
#: No two cores are equally fast: the time of a batch is changed by up to this share.
_JITTER = 0.1

Weights = npt.NDArray[np.float32]


class _Alone(Line):
    """A core's line to nobody."""

    def __init__(self) -> None:
        pass

    def check(self) -> None:
        pass

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        pass


class Clocked:
    """A core and its clock.

    Args:
        core: has begun its first episode.
        form: how long its steps take.
        rng: how fast it is.
    """

    def __init__(self, core: SingleCore, form: Form, rng: np.random.Generator) -> None:
        self._core = core
        self._form = form
        self._rng = rng
        self._since_pull = 0
        self._particles = 0
        #: When its newest batch is full.
        self.clock = 0.0
        self.episodes = 0
        self.steps = 0
        self._core.pull()
        self._batch = self._collect()

    def learn(self) -> bool:
        """Takes the gradient of the batch that is full now; whether that ended an episode."""
        batch = self._batch
        self._core.learn(batch)
        self._since_pull += batch.steps
        self.steps += batch.steps
        if batch.ended:
            self.episodes += 1
            self._particles = 0
        return batch.ended

    def go_on(self, now: float) -> None:
        """Collects the next batch, with newer weights if it is time for them."""
        if self._batch.ended or self._since_pull >= self._core.algorithm.pull_steps:
            self._core.pull()
            self._since_pull = 0
        self.clock = now
        self._batch = self._collect()

    def _collect(self) -> Batch:
        batch = self._core.collector.collect()
        fired = batch.rows.actions[: batch.steps].ravel() != 0
        particles = self._particles + np.cumsum(fired)
        self._particles = int(particles[-1])
        seconds = batch.steps + self._form.particle * float(particles.sum())
        self.clock += seconds * self._rng.uniform(1.0 - _JITTER, 1.0 + _JITTER)
        return batch


def in_turns(cores: list[Clocked], waits: bool) -> Iterator[None]:
    """Lets each core learn as its batch is full; a turn for each episode of the first core.

    Args:
        cores: of one child.
        waits: whether all wait after an episode until the last has ended its own.
    """
    queue = [(core.clock, number) for number, core in enumerate(cores)]
    heapq.heapify(queue)
    waiting: list[int] = []
    while True:
        now, number = heapq.heappop(queue)
        ended = cores[number].learn()
        if ended and waits:
            waiting.append(number)
            if len(waiting) < len(cores):
                continue
            yield
            free, waiting = waiting, []
        else:
            if ended and number == 0:
                yield
            free = [number]
        for one in free:
            cores[one].go_on(now)
            heapq.heappush(queue, (cores[one].clock, one))


def learn(name: str, seed: int) -> tuple[int, list[tuple[int, Weights]]]:
    """One run.

    Args:
        name: a key of `FORMS`.
        seed: as `--seed` of a training.

    Returns:
        All cores' steps, and the weights, float32 (n,), after so many of the first core's episodes.
    """
    torch.set_num_threads(1)
    form = FORMS[name]
    cell = CELLS[form.cell]
    experiment = experiment_of(form, seed)
    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    environment.close()
    layout = layout_of(experiment, model)
    memory = SharedMemory(layout.for_cores(cell.cores, experiment.optimizer.shared))
    memory.weights[:] = model.numbers
    cores = []
    for number in range(cell.cores):
        core = SingleCore(number, experiment, memory, _Alone(), draws(form, seed, number))
        core.collector.reset(int(np.random.default_rng((seed, number)).integers(2**31)))
        cores.append(Clocked(core, form, np.random.default_rng((seed, number, 1))))
    kept: list[tuple[int, Weights]] = []
    for episodes, _ in enumerate(in_turns(cores, form.waits), 1):
        if episodes % cell.every == 0:
            kept.append((episodes, memory.weights.copy()))
        if episodes == cell.updates:
            break
    steps = sum(core.steps for core in cores)
    memory.close()
    return steps, kept


def _run(one: tuple[str, int]) -> tuple[int, list[tuple[int, Weights]]]:
    return learn(*one)


def draws(form: Form, seed: int, number: int) -> tuple[int, int]:
    """What a core's actions are drawn with."""
    return seed, 0 if form.alike else number


def experiment_of(form: Form, seed: int) -> Experiment:
    cell = CELLS[form.cell]
    settings = parse_settings([*cell.overrides, f"seed={seed}"])
    return Experiment.load(ROOT / cell.file).with_settings(settings)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.thesis.virtual",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=ROOT / "runs/thesis-virtual")
    parser.add_argument("--episodes", type=int, default=500, help="that judge a checkpoint")
    options = parser.parse_args(arguments)
    if options.episodes < 1:
        parser.error(f"--episodes {options.episodes}: at least 1 is needed")
    return options


@command
def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    with store.only_one(options.work):
        done = {(row["cell"], row["seed"]) for row in store.read(options.results)}
        wanted = [(name, seed) for seed in options.seeds for name in options.forms]
        left = [one for one in wanted if one not in done]
        context = multiprocessing.get_context("spawn")
        workers = available_cores()
        # Its end, an interruption's too, does not wait for the runs under way.
        with context.Pool(workers, end_with_parent, (os.getpid(),)) as pool:
            began = time.monotonic()
            runs = zip(left, pool.imap(_run, left), strict=True)
            for number, ((name, seed), (steps, kept)) in enumerate(runs, 1):
                row = judged(name, seed, steps, kept, options.episodes)
                store.append(options.results, row)
                minutes = (time.monotonic() - began) / number * (len(left) - number) / 60
                _, mean, deviation = row["curve"][-1]
                print(
                    f"[{number}/{len(left)}] {name} seed {seed}: {mean:.1f} ± {deviation:.1f},"
                    f" about {minutes:.0f} min left",
                    flush=True,
                )
    return 0


def judged(name: str, seed: int, steps: int, kept: list[tuple[int, Weights]], episodes: int) -> Row:
    """The row of a run."""
    curve = []
    with Judge(experiment_of(FORMS[name], seed), seed + JUDGING) as judge:
        for moment, vector in kept:
            mean, deviation = judge(Snapshot(0.0, 0, None, vector), episodes)
            curve.append([moment, round(mean, 2), round(deviation, 2)])
        returns = [round(value, 1) for value in judge.returns]
    return {
        "cell": name,
        "seed": seed,
        "date": time.strftime("%F %T"),
        "steps": steps,
        "judged_by": episodes,
        "curve": curve,
        "returns": returns,
    }


if __name__ == "__main__":
    sys.exit(main())
