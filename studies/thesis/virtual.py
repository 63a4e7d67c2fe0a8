"""Training in virtual time: what a run learns if each of its processes has a core of its own.

The thesis' machines had a core for each process. Where four processes share two cores, a gradient
may be older when it is applied, and a child that plays long episodes takes time from the others.
This tells whether that matters: the cores of all children (`genkidama.child.core`) take turns in
one process, a batch at a time, in the order in which their batches would be full if none of them
ever waited for a CPU. A child exchanges weights with the parent in no time at all. Otherwise they
learn as always.

    python -m studies.thesis.virtual --seeds 1 2 3 4 5

A step takes a unit of time. gym 0.23 made a particle for each step with an engine on, and removed
it only as it drew a window, so the thesis' steps took the longer the more of them there were.
`Form.particle` (`cells.py`) is by how much. A run is a line of
`docs/results/thesis-virtual.jsonl`, takes 5 minutes for each child, and is not repeated once it is
there.
"""

from __future__ import annotations

import argparse
import heapq
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.processes import command
from genkidama.child.collector import CollectedBatch
from genkidama.child.core import SingleCore
from genkidama.child.core_forkserver import layout_of
from genkidama.child.shared_memory import SharedMemory
from genkidama.child.worker import WorkerPipe
from genkidama.config.decoding import parse_settings
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.protocol.vector import blend
from genkidama.runtime.lifeline import end_with_parent
from genkidama.runtime.machine import available_cores
from studies import store
from studies.thesis.cells import CELLS, FORMS, Cell, Form, Row
from studies.thesis.measure import ROOT, judged
from studies.thesis.options import add_episodes, add_places

__all__ = ["RESULTS", "Clocked", "exchanged", "in_turns", "learn"]

RESULTS = ROOT / "docs/results/thesis-virtual.jsonl"
#: No two cores are equally fast: the time of a batch is changed by up to this share.
_JITTER = 0.1

Weights = npt.NDArray[np.float32]


class _Alone(WorkerPipe):
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
            self._particles = 0
        return batch.ended

    def go_on(self, now: float) -> None:
        """Collects the next batch, with newer weights if it is time for them."""
        if self._batch.ended or self._since_pull >= self._core.algorithm.pull_steps:
            self._core.pull()
            self._since_pull = 0
        self.clock = now
        self._batch = self._collect()

    def _collect(self) -> CollectedBatch:
        batch = self._core.collector.collect()
        fired = batch.rows.actions[: batch.steps].ravel() != 0
        particles = self._particles + np.cumsum(fired)
        self._particles = int(particles[-1])
        seconds = batch.steps + self._form.particle * float(particles.sum())
        self.clock += seconds * self._rng.uniform(1.0 - _JITTER, 1.0 + _JITTER)
        return batch


def in_turns(cores: list[Clocked], waits: bool) -> Iterator[float]:
    """Lets each core learn as its batch is full; the time of each end of the first core's episode.

    Args:
        cores: of one child.
        waits: whether all wait after an episode until the last has ended its own. The time is then
            that of the last.
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
            yield now
            free, waiting = waiting, []
        else:
            if ended and number == 0:
                yield now
            free = [number]
        for one in free:
            cores[one].go_on(now)
            heapq.heappush(queue, (cores[one].clock, one))


def exchanged(
    parent: Weights, children: Sequence[tuple[Weights, Iterator[float]]], cell: Cell
) -> Iterator[int]:
    """Lets each child exchange its weights when an episode of its cores has ended.

    Args:
        parent: θ_P, float32 (n,), written to.
        children: of each its θ_C, float32 (n,), written to if β is not 0, and the times of its
            exchanges, after which it goes on.
        cell: has α and β.

    Yields:
        The child's number, after each exchange.
    """
    alpha = float(cell.settings["parent.alpha"])  # type: ignore[arg-type]
    beta = float(cell.settings["child.beta"])  # type: ignore[arg-type]
    queue = [(next(times), number) for number, (_, times) in enumerate(children)]
    heapq.heapify(queue)
    while True:
        _, number = queue[0]
        weights, times = children[number]
        blend(parent, weights, alpha)
        blend(weights, parent, beta)
        yield number
        heapq.heapreplace(queue, (next(times), number))


def learn(name: str, seed: int) -> Row:
    """One run.

    Args:
        name: a key of `FORMS`.
        seed: as `--seed` of a training.

    Returns:
        `steps` of all cores, `exchanges` of each child, and what was `kept`: θ_P, float32 (n,),
        after so many updates.
    """
    torch.set_num_threads(1)
    form = FORMS[name]
    cell = CELLS[form.cell]
    experiment = experiment_of(form, seed)
    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    environment.close()
    layout = layout_of(experiment, model).for_cores(cell.cores, experiment.optimizer.shared)
    parent = np.array(model.numbers)
    memories = [SharedMemory(layout) for _ in range(cell.children)]
    every: list[Clocked] = []
    children = []
    for child, memory in enumerate(memories):
        memory.weights[:] = parent
        cores = []
        for index in range(cell.cores):
            number = child * cell.cores + index
            core = SingleCore(index, experiment, memory, _Alone(), draws(form, seed, number))
            core.collector.reset(int(np.random.default_rng((seed, number)).integers(2**31)))
            cores.append(Clocked(core, form, np.random.default_rng((seed, number, 1))))
        every += cores
        children.append((memory.weights, in_turns(cores, form.waits)))
    kept: list[tuple[int, Weights]] = []
    exchanges = [0] * cell.children
    for number in exchanged(parent, children, cell):
        exchanges[number] += 1
        updates, rest = divmod(sum(exchanges), cell.children)
        if rest == 0 and updates % cell.every == 0:
            kept.append((updates, parent.copy()))
        if updates == cell.updates:
            break
    for memory in memories:
        memory.close()
    return {"steps": sum(core.steps for core in every), "exchanges": exchanges, "kept": kept}


def _run(one: tuple[str, int]) -> Row:
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
        prog="python -m studies.thesis.virtual",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    add_places(parser, RESULTS, ROOT / "runs/thesis-virtual")
    add_episodes(parser, 500, "that judge a checkpoint")
    return parser.parse_args(arguments)


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
            for number, ((name, seed), found) in enumerate(runs, 1):
                kept = found.pop("kept")
                row = {
                    "cell": name,
                    "seed": seed,
                    "date": time.strftime("%F %T"),
                    **found,
                    **judged(experiment_of(FORMS[name], seed), seed, kept, options.episodes),
                }
                store.append(options.results, row)
                minutes = (time.monotonic() - began) / number * (len(left) - number) / 60
                _, mean, deviation = row["curve"][-1]
                print(
                    f"[{number}/{len(left)}] {name} seed {seed}: {mean:.1f} ± {deviation:.1f},"
                    f" about {minutes:.0f} min left",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
