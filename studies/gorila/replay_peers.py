"""Replay buffers of others as peers: cpprb's, and TorchRL's with its storage of tensors.

Steps of LunarLander: observations of 8 numbers before and after, an action, a reward, whether it
terminated. They are added in blocks of 64, and sampled uniformly. One JSON object is printed:
blocks added and samples drawn a second, by buffer.

    benchmarks/.venv/bin/python studies/gorila/replay_peers.py --seconds 1 --steps 100000
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

BLOCK = 64


def rate(work: Callable[[], object], seconds: float) -> float:
    """How often a second it is done."""
    for _ in range(20):
        work()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(20):
            work()
        count += 20
    return count / (time.perf_counter() - began)


def columns(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(count, 8)).astype(np.float32),
        "act": rng.integers(4, size=(count, 1)).astype(np.float32),
        "rew": rng.normal(size=(count, 1)).astype(np.float32),
        "next_obs": rng.normal(size=(count, 8)).astype(np.float32),
        "done": np.zeros((count, 1), np.float32),
    }


def cpprb(steps: int, sizes: list[int], seconds: float) -> dict[str, float]:
    from cpprb import ReplayBuffer

    shapes = {"obs": 8, "act": 1, "rew": 1, "next_obs": 8, "done": 1}
    buffer = ReplayBuffer(steps, {name: {"shape": shape} for name, shape in shapes.items()})
    block = columns(BLOCK)
    found = {"add": rate(lambda: buffer.add(**block), seconds)}
    buffer.add(**columns(steps))
    for size in sizes:
        found[f"sample {size}"] = rate(lambda size=size: buffer.sample(size), seconds)
    return found


def torchrl(steps: int, sizes: list[int], seconds: float) -> dict[str, float]:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, ReplayBuffer

    torch.set_num_threads(1)
    buffer = ReplayBuffer(storage=LazyTensorStorage(steps))

    def given(count: int) -> Any:
        tensors = {name: torch.from_numpy(column) for name, column in columns(count).items()}
        return TensorDict(tensors, batch_size=count)

    block = given(BLOCK)
    found = {"add": rate(lambda: buffer.extend(block), seconds)}
    buffer.extend(given(steps))
    for size in sizes:
        found[f"sample {size}"] = rate(lambda size=size: buffer.sample(size), seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 256])
    options = parser.parse_args()
    found = {}
    for buffer in (cpprb, torchrl):
        try:
            found[buffer.__name__] = buffer(options.steps, options.sizes, options.seconds)
        except ImportError:
            continue
    print(json.dumps(found))


if __name__ == "__main__":
    main()
