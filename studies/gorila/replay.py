"""What a replay carries: a child's own tensor, and the ring of all children on an engine.

Steps of LunarLander are added in blocks of 64 and sampled uniformly, 32 or 256 at a time, from
100,000. `one` is a process that adds or samples and waits for each answer; `four` are four such
processes on one engine at once. `pipeline` draws from the same ring as a client without a script
on the engine would: so many GETRANGE in one pipeline. Peers are cpprb's and TorchRL's buffers,
within one process, if they are installed (`make peers`).

All take turns, `--rounds` times; what is printed are medians, and the ratios of a round's figures.

    python -m studies.gorila.replay --rounds 5
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from genkidama.child.shared_memory import SharedMemory
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.gorila.engine_ring import EngineRing
from genkidama.plugins.gorila.global_replay import GlobalReplay, ring_settings
from genkidama.plugins.gorila.replay_factory import make_replay
from studies.gorila.replay_peers import BLOCK, rate
from tests.engines import RealEngine, running

ROOT = Path(__file__).resolve().parents[2]
SIZES = (32, 256)


def experiment(steps: int, **replay: Any) -> Experiment:
    return Experiment.from_dict(
        {
            "environment": {"id": "LunarLander-v3"},
            "network": {"hidden": [8]},
            "algorithm": {"name": "dqn", "batch_size": BLOCK, "start_steps": 1},
            "replay": {"steps": steps, **replay},
        }
    )


def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(BLOCK, 8)).astype(np.float32), rng.normal(size=BLOCK)


def local(steps: int, seconds: float) -> dict[str, float]:
    """The tensor of a child with one core."""
    from genkidama.child.core_forkserver import layout_of

    settings = experiment(steps)
    model = Model(settings, make_environment(settings.environment))
    memory = SharedMemory(layout_of(settings, model))
    share, replay = make_replay(memory, model, np.random.default_rng(0), 0)
    assert replay is not None
    seen, rewards = numbers()

    def add() -> None:
        rows = share.begin(False)
        rows.observations[:] = seen
        rows.actions[:] = 1.0
        rows.rewards[:] = rewards
        rows.terminated[:] = 0.0
        rows.truncated[:] = 0.0
        share.end(BLOCK, [BLOCK - 1], [seen[0]], np.nan)

    found = {"add": rate(add, seconds)}
    for _ in range(2 * steps // BLOCK):
        add()
    for size in SIZES:
        found[f"sample {size}"] = rate(lambda size=size: replay.sample(size), seconds)
    memory.close()
    return found


class Remote:
    """A process' hand on the ring of all."""

    def __init__(self, steps: int, url: str) -> None:
        settings = experiment(steps, url=url, name="bench")
        model = Model(settings, make_environment(settings.environment))
        self.ring = EngineRing(ring_settings(model), f"process-{os.getpid()}")
        self.ring.open()
        self.replay = GlobalReplay(self.ring, model, np.random.default_rng(os.getpid()))
        seen, rewards = numbers()
        nothing = np.zeros(BLOCK)
        self.block = self.ring.settings.rows.block(
            seen, nothing[:, None], rewards, nothing, nothing, [BLOCK - 1], [seen[0]], np.nan
        )

    def work(self, what: str) -> Callable[[], object]:
        if what == "add":
            return lambda: self.ring.add(self.block)
        size = int(what.split()[1])
        if what.startswith("sample"):
            return lambda: self.replay.sample(size)
        return lambda: self.pipeline(size)

    def pipeline(self, size: int) -> None:
        """As `sample` without a script: random rows, each with the observation behind it."""
        rows, key = self.ring.settings.rows, self.ring._keys[0]
        while True:
            starts = np.random.default_rng().integers(len(self.ring), size=size) * rows.width
            with self.ring._engine.client.pipeline(transaction=False) as pipe:
                for start in starts.tolist():
                    pipe.getrange(key, start, start + rows.width + rows.observation_bytes - 1)
                found = pipe.execute()
            # A stop would be drawn again; one row in 65 is one.
            rows.drawn(b"".join(found), 1, 0.99)
            return


def measured(steps: int, url: str, what: str, seconds: float, ready: Any, out: Any) -> None:
    remote = Remote(steps, url)
    ready.wait()
    out.put(rate(remote.work(what), seconds))


def together(count: int, steps: int, engine: RealEngine, what: str, seconds: float) -> float:
    context = multiprocessing.get_context("fork")
    ready, out = context.Barrier(count), context.SimpleQueue()
    arguments = (steps, engine.url, what, seconds, ready, out)
    all_of_them = [context.Process(target=measured, args=arguments) for _ in range(count)]
    for process in all_of_them:
        process.start()
    total = sum(out.get() for _ in all_of_them)
    for process in all_of_them:
        process.join()
    return total


def globally(steps: int, seconds: float) -> dict[str, dict[str, float]]:
    kinds = ["add", *(f"sample {size}" for size in SIZES)]
    with tempfile.TemporaryDirectory() as folder:
        options = ("--appendonly", "yes", "--appendfsync", "no")
        with running(Path(folder), *options) as engine:
            remote = Remote(steps, engine.url)
            for _ in range(2 * steps // BLOCK):
                remote.ring.add(remote.block)
            one = {kind: rate(remote.work(kind), seconds) for kind in kinds}
            script = {
                kind: rate(remote.work(f"pipeline {kind.split()[1]}"), seconds)
                for kind in kinds[1:]
            }
            four = {kind: together(4, steps, engine, kind, seconds) for kind in kinds}
            remote.ring.close()
    return {"global, one": one, "global, four": four, "pipeline, one": script}


def peers(python: Path, steps: int, seconds: float) -> dict[str, dict[str, float]]:
    script = ROOT / "studies/gorila/replay_peers.py"
    command = [str(python), str(script), "--seconds", str(seconds), "--steps", str(steps)]
    if not python.exists():
        return {}
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    result: dict[str, dict[str, float]] = json.loads(found.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each figure of a round")
    parser.add_argument("--steps", type=int, default=100_000)
    python = ROOT / "benchmarks/.venv/bin/python"
    parser.add_argument("--peers", type=Path, default=python, help="their Python")
    options = parser.parse_args()
    rounds = []
    for number in range(options.rounds):
        found = {"local": local(options.steps, options.seconds)}
        found |= globally(options.steps, options.seconds)
        found |= peers(options.peers, options.steps, options.seconds)
        rounds.append(found)
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    kinds = ["add", *(f"sample {size}" for size in SIZES)]
    print(f"{'a second, medians':18}" + "".join(f"{kind:>14}" for kind in kinds))
    for name in rounds[0]:
        cells = [
            f"{statistics.median(found[name][kind] for found in rounds):>14,.0f}"
            if kind in rounds[0][name]
            else f"{'':>14}"
            for kind in kinds
        ]
        print(f"{name:18}" + "".join(cells))
    for over, under in (
        ("global, one", "pipeline, one"),
        ("local", "cpprb"),
        ("local", "torchrl"),
        ("global, one", "torchrl"),
        ("global, one", "local"),
    ):
        if under in rounds[0]:
            there = [kind for kind in kinds if kind in rounds[0][under]]
            ratios = [
                [found[over][kind] / found[under][kind] for kind in there] for found in rounds
            ]
            middle = map(statistics.median, zip(*ratios, strict=True))
            cells = [f"{kind} {ratio:.2f}" for kind, ratio in zip(there, middle, strict=True)]
            print(f"{over} / {under}: " + ", ".join(cells))


if __name__ == "__main__":
    main()
