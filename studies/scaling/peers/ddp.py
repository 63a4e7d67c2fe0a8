"""One worker of synchronous data-parallel training with torch.distributed (gloo), as a peer.

Every minibatch's gradient is averaged over all workers by one all-reduce of the flat gradient,
which is what DistributedDataParallel does for a network that fits into one bucket, without its
hooks. Then all take the same step. The learner is Genkidama's (`learner.py`).

`python -m studies.scaling` starts it: `ddp.py FOLDER NUMBER WORKERS ADDRESS PORT EVERY`. It says
"ready", and begins when it is sent a line.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from genkidama.learning.optimizers import Optimizer, clip_gradient
from studies.scaling.peers.learner import Worker, set_aside


class Averaged:
    """An optimizer whose gradients are averaged over all workers, and then clipped.

    Args:
        inner: takes the step.
        workers: how many there are.
        limit: the averaged gradient's longest norm; 0 means none.
    """

    def __init__(self, inner: Optimizer, workers: int, limit: float) -> None:
        self._inner = inner
        self._workers = workers
        self._limit = limit

    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        dist.all_reduce(gradient)
        gradient.div_(self._workers)
        if self._limit:
            clip_gradient(gradient, self._limit)
        self._inner.step(gradient, learning_rate)


def main() -> None:
    folder, number, workers = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    address, port, every = sys.argv[4], sys.argv[5], float(sys.argv[6])
    # Otherwise gloo takes the interface of this computer's name, which a namespace need not have.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if address == "127.0.0.1" else "uplink"
    worker = Worker(folder, number, (number,))
    core = worker.core
    limit = core.algorithm.max_gradient_norm
    core.algorithm = msgspec.structs.replace(core.algorithm, max_gradient_norm=0.0)
    core._optimizer = Averaged(core._optimizer, workers, limit)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}:{port}",
        rank=number,
        world_size=workers,
        timeout=timedelta(hours=1),
    )
    weights = torch.from_numpy(worker.memory.weights)
    dist.broadcast(weights, 0)
    dist.barrier()
    print("ready", flush=True)
    sys.stdin.readline()
    due, kept, steps = 0.0, 0, 0
    # ε falls with the run's progress; a rate is constant here.
    whole = core.experiment.stop.steps if core.algorithm.name == "dqn" else None
    while True:
        if number == 0 and time.monotonic() >= due:
            set_aside(folder, kept, worker.memory.weights)
            kept += 1
            due = time.monotonic() + every
        # All play equally many steps.
        steps += workers * worker.one_batch(min(1.0, steps / whole) if whole else 0.0)


if __name__ == "__main__":
    main()
