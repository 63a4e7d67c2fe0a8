"""A GPU in some minutes: `python -m studies.ga3c gpu --minutes 8`, the most telling points first.

1. The tests that need a GPU.
2. A trainer alone (`trainer`): frames a second that one thread learns from, rollout by rollout of
   t_max frames and 64 rollouts at a time, from the host's memory; and the share of that time in
   which kernels run (torch's profiler). It bounds what any number of agents can bring.
3. `learner.device` (`learner`): steps a second of a learner beside the parent, 512 at a time.
4. GA3C on Pong by width, beside GA3C and Hogwild's A3C on the CPU: the windows of the long command.
5. Emulated agents (`emulated`), whose frames cost nothing: PPS and TPS by N_A, when the game is no
   limit.
6. More N_A of Pong, and the dynamic adjustment.

Each point is a row as soon as it is measured, windows in `--results`, the rest beside them; what
has a row is not measured again. A point that would end after the time is over is left out.
`--device cpu --seconds 1` tries all of it on a CPU. A machine without a network needs wheels:

    .venv/bin/pip download --only-binary=:all: --python-version 3.12 -d build/wheels -c \
        constraints.txt --no-deps numpy gymnasium ale-py farama-notifications cloudpickle \
        msgspec structlog websockets safetensors psutil tomli-w packaging pytest pluggy iniconfig \
        hypothesis sortedcontainers pygments typing-extensions
    pip install --no-index --no-deps --find-links build/wheels build/wheels/*.whl      # there
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

from benchmarks import store

#: Files with tests that have a case for a GPU.
_TESTS = (
    "tests/learning/test_accelerator.py",
    "tests/learning/test_heads.py",
    "tests/learning/test_learners.py",
    "tests/plugins/actors/test_learner.py",
    "tests/plugins/ga3c/test_device.py",
)
_TEST_SECONDS = 75.0

#: Rollouts of an update, steps of a batch of the learner, and frames that a shape has.
_ROLLOUTS, _STEPS = (1, 64), 512
_SHAPE, _ACTIONS = (4, 84, 84), 6

#: What a part takes beside its seconds.
_START = 8.0


class Frames(gymnasium.Env[Any, Any]):
    """An environment of Pong's spaces whose steps cost nothing: an emulated agent."""

    observation_space = gymnasium.spaces.Box(0, 255, _SHAPE, np.uint8)
    action_space = gymnasium.spaces.Discrete(_ACTIONS)

    def __init__(self) -> None:
        self._frame = np.random.default_rng(0).integers(256, size=_SHAPE).astype(np.uint8)
        self._left = 0

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self._left = 1000
        return self._frame, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._frame, 0.0, self._left == 0, False, {}


def trainer(device: str, width: int, rollouts: int, seconds: float) -> store.Row:
    """Frames a second that a trainer alone learns from, and the share of kernels in its time."""
    import torch

    from genkidama.learning.learners import make_learner
    from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
    from genkidama.learning.rollout import Rollout
    from genkidama.learning.tensors.accelerator import DeviceWeights, find_device
    from genkidama.learning.tensors.tensor_model import TensorModel
    from studies.ga3c.drive import experiment

    torch.set_num_threads(1)
    settings, spaces = experiment("pong", width), _spaces()
    host = TensorModel(settings, spaces)
    rows = STATE_ROWS[settings.optimizer.name]
    moments = np.zeros((rows, host.trainable), np.float32)
    weights = DeviceWeights(find_device("ga3c.device", device), host.numbers, moments)
    model = host if device == "cpu" else weights.model(settings, spaces)
    vector = model.vector[: model.trainable]
    optimizer = make_optimizer(settings.optimizer, vector, weights.state, np.zeros(1))
    learner, rng = make_learner(settings.algorithm, model), model.generator(0)
    t_max = settings.algorithm.batch_size
    count = t_max * rollouts
    images = np.random.default_rng(0).integers(256, size=(count, *_SHAPE)).astype(np.float32)
    ends = np.arange(count) % t_max == t_max - 1

    def update(_: int = 0) -> None:
        cuts = np.flatnonzero(ends)
        rollout = Rollout(
            model.native(images),
            model.native(np.zeros((count, 1), np.int64)),
            np.zeros(count, np.float32),
            ends,
            cuts,
            model.native(images[:0]),
            cut_values=np.zeros(len(cuts), np.float32),
        )
        for _ in model.gradients(learner, rollout, rng):
            optimizer.step(model.gradient, 1e-4)

    from studies.ga3c.__main__ import rate

    row = {"frames": round(count * _synchronous(device, lambda: rate(update, seconds)), 1)}
    if not device.startswith("cuda"):
        return row
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        began = time.perf_counter()
        _synchronous(device, lambda: [update() for _ in range(50)])
        passed = time.perf_counter() - began
    kernels = sum(event.self_device_time_total for event in profile.key_averages()) * 1e-6
    return {**row, "kernels": round(kernels / passed, 4)}


def _synchronous(device: str, call: Callable[[], Any]) -> Any:
    import torch

    found = call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return found


def _spaces() -> Any:
    return SimpleNamespace(
        observation_space=Frames.observation_space, action_space=Frames.action_space
    )


def learner(device: str, width: int, seconds: float) -> store.Row:
    """Steps a second of the learner beside a parent."""
    from genkidama.plugins.actors.learner import row_learner
    from studies.ga3c.__main__ import rate
    from studies.ga3c.drive import experiment

    settings = experiment(
        "pong",
        width,
        parent__rule="experience",
        child__backend="hogwild",
        algorithm__across_episodes=True,
        learner__device=device,
    )
    learning = row_learner(settings, _spaces())
    columns = learning.columns
    rows = np.zeros((_STEPS + 1, columns.count), np.float32)
    chance = np.random.default_rng(0)
    rows[:, : columns.observation] = chance.integers(256, size=(len(rows), columns.observation))
    rows[:_STEPS, columns.actions] = chance.integers(_ACTIONS, size=(_STEPS, 1))
    rows[:_STEPS, columns.log_mu] = -np.log(_ACTIONS)
    rows[:_STEPS, columns.following] = 1.0
    batches = rate(lambda _: [None for _ in learning.learn(rows, 0.0)], seconds)
    return {"steps": round(_STEPS * batches, 1)}


def emulated(device: str, width: int, agents: int, seconds: float) -> store.Row:
    """PPS, TPS and the GPU's use with agents whose frames cost nothing."""
    from studies.ga3c.drive import drive, experiment

    settings = experiment(
        "pong",
        width,
        device,
        environment__id="studies.ga3c.gpu:Frames",
        environment__options={},
        environment__wrappers=[],
        ga3c__agents=agents,
        ga3c__max_agents=max(64, agents),
        ga3c__predictors=2,
        ga3c__trainers=2,
        ga3c__training_batch=0,
        child__exchange_seconds=min(5.0, seconds),
    )
    found = drive(settings, seconds)
    names = ("pps", "tps", "prediction_batch", "lag", "gpu")
    return {name: round(found[name], 2) for name in names if name in found}


def tests() -> store.Row:
    """The last line of the tests that need a GPU."""
    files = [name for name in _TESTS if Path(name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cuda", *files]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return {"passed": False, "said": f"not done after {_TEST_SECONDS:g} s"}
    lines = (ran.stdout + ran.stderr).strip().splitlines()
    return {"passed": ran.returncode == 0, "said": lines[-1] if lines else ""}


def _parts(options: argparse.Namespace) -> Iterator[tuple[store.Row, float, Callable[[], Any]]]:
    """Key, seconds and measurement of each point; a window is its own key."""
    from studies.ga3c import sweep

    seconds, device, widths = options.seconds, options.device, options.width
    rows = store.read(options.results)

    def window(one: sweep.Window) -> tuple[store.Row, float, Callable[[], Any]]:
        adjusting = options.windows * 1.25 * options.window + seconds + _START if one.dynamic else 0
        return (
            {"what": "window", **one._asdict()},
            seconds + 2 * _START + adjusting,
            lambda: sweep.measure(one, options, rows),
        )

    def pong(device: str, width: int, agents: int, dynamic: bool = False) -> sweep.Window:
        return sweep.Window(options.example, width, device, 0, 2, 2, agents, dynamic)

    yield {"what": "tests"}, _TEST_SECONDS, tests
    part = min(3.0, seconds)
    for width in widths:
        for rollouts in _ROLLOUTS:
            for where in dict.fromkeys((device, "cpu")):
                key = {"what": "trainer", "device": where, "width": width, "rollouts": rollouts}
                given = (where, width, rollouts, part)
                yield key, part + 3.0, lambda given=given: trainer(*given)
    for where in dict.fromkeys((device, "cpu")):
        key = {"what": "learner", "device": where, "width": widths[len(widths) // 2]}
        given = (where, key["width"], part)
        yield key, part + 3.0, lambda given=given: learner(*given)
    middle = options.agents[len(options.agents) // 2]
    for width in reversed(widths):
        yield window(pong(device, width, middle))
        yield window(sweep.hogwild(options.example, width))
        yield window(pong("cpu", width, middle))
    for agents in options.emulated:
        key = {"what": "emulated", "device": device, "width": widths[0], "agents": agents}
        given = (device, widths[0], agents, seconds)
        yield key, seconds + 2 * _START, lambda given=given: emulated(*given)
    yield window(pong(device, widths[-1], options.agents[0], dynamic=True))
    for width in reversed(widths):
        for agents in options.agents:
            yield window(pong(device, width, agents))


def brief(options: argparse.Namespace) -> int:
    """As many of the points as fit into the time; returns the exit code."""
    from genkidama.errors import GenkidamaError
    from studies.ga3c import sweep

    end, well = time.monotonic() + 60.0 * options.minutes, True
    beside = options.results.with_name(f"{options.results.stem}-parts.jsonl")
    for key, seconds, measure in _parts(options):
        windows = key["what"] == "window"
        path = options.results if windows else beside
        known = {name: value for name, value in key.items() if not (windows and name == "what")}
        if any(known.items() <= row.items() for row in store.read(path)):
            continue
        left = end - time.monotonic()
        if seconds > left:
            print(f"left out, since {left:.0f} s are left: {json.dumps(key)}", flush=True)
            continue
        try:
            row = {**known, **measure()}
        except (GenkidamaError, RuntimeError, OSError, ImportError) as error:
            print(f"failed: {json.dumps(key)}: {error!r}", flush=True)
            well = False
            continue
        well &= row.get("passed", True)
        store.append(path, row)
        print(f"{left:5.0f} s left  {json.dumps(row)}"[:240], flush=True)
    print(sweep.table_of_gpu(store.read(options.results)), end="")
    return 0 if well else 1
