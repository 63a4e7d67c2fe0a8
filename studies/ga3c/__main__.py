"""What GA3C makes of its CPU cores, or of its GPU.

Claims: on two CPU cores with the document's Atari network and 16 agents, GA3C makes at least 0.8 of
the predictions a second that its parts allow. It makes at least 1.2 times the steps of the Hogwild
backend with the same network. The dynamic adjustment begins at a bad setting and ends within 10 %
of the best fixed one.

    speed    In each round: the environment alone, GA3C, the forward and backward passes alone at
             the batches that GA3C reached, Hogwild. Ratios compare neighbours in
             time; medians of the rounds count. The parts run on all cores at once, as they do in
             training. Their limit is cores ÷ (environment step + forward pass at the prediction
             batch reached + forward and backward pass at the training batch). The optimizer's time
             is printed beside it.
    agents   TPS and PPS against the number of agents, and of environments an agent: for a GPU, or
             to choose a setting.
    dynamic  The best of a small grid of fixed settings, and the dynamic adjustment from N_A = 32,
             N_P = N_T = 1.

This script drives the backends as a child does, but exchanges with nobody. `--width 4` makes each
layer four times as wide. `--device cuda` uses a GPU; Hogwild and the environment stay on the CPU.

    python -m studies.ga3c speed [--rounds 3] [--seconds 20] [--width 1] [--training-batch 80]
                                    [--json FILE]
    python -m studies.ga3c agents --agents 16 32 64 --width 1 4 16 --device cuda
    python -m studies.ga3c dynamic [--windows 40] [--window 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from genkidama.child.backend import Backend, make_backend
from genkidama.config.experiment import Experiment
from genkidama.plugins.ga3c.backend import GA3C
from genkidama.runtime.machine import end_with_parent

ROOT = Path(__file__).resolve().parents[2]

#: Seconds before anything is counted.
WARM = 6.0


def experiment(options: argparse.Namespace, **changes: Any) -> Experiment:
    """The example with the document's settings, at this width, without the dynamic adjustment."""
    wide = options.wide
    settings = Experiment.load(ROOT / f"examples/atari/{options.example}.toml").with_settings(
        {
            "network.convolutions": [[16 * wide, 8, 4], [32 * wide, 4, 2]],
            "network.hidden": [256 * wide],
            "ga3c.dynamic": False,
            "ga3c.predictors": 1,
            "ga3c.trainers": 1,
            "ga3c.device": options.device,
            "child.exchange_seconds": 1.0,
        }
    )
    return settings.with_settings({key.replace("__", "."): value for key, value in changes.items()})


# Backends.


async def _drive(backend: Backend, seconds: float) -> dict[str, float]:
    """Trains for a while. Returns steps and measures a second, from the end of the warm-up on."""
    try:
        await backend.startup()
        await backend.begin(None)
        began, windows, reports = 0.0, [], []
        warm, before = time.perf_counter() + WARM, {}
        while True:
            await backend.due()
            work = backend.take_work()
            backend.release()
            now = time.perf_counter()
            if began:
                windows.append(work.measures)
                if work.steps:
                    reports.append((now, work.steps))
                if now - began >= seconds:
                    break
            elif now >= warm:
                began, before = now, cpu_seconds(backend)
        # Steps are reported some hundred at a time. Only the steps between the first and the last
        # report count.
        told = sum(steps for _, steps in reports[1:])
        result = {
            "steps": told / (reports[-1][0] - reports[0][0]) if len(reports) > 1 else math.nan
        }
        for name in dict.fromkeys(name for window in windows for name in window):
            # A window without an update has no losses, and NaN is no figure.
            found = [window.get(name, math.nan) for window in windows]
            values = [value for value in found if not math.isnan(value)]
            result[name] = sum(values) / max(1, len(values))
        for name, spent in cpu_seconds(backend).items():
            result[f"{name} µs"] = (spent - before[name]) / (now - began) / result["pps"] * 1e6
        return result
    finally:
        await backend.shutdown()


def cpu_seconds(backend: Backend) -> dict[str, float]:
    """User and system time of GA3C's agents and of its engine, while they live."""
    if not isinstance(backend, GA3C):
        return {}
    assert backend._engine is not None
    pids = {"agents": backend.pids, "engine": [backend._engine.popen.pid]}
    return {
        name: sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in numbers)
        for name, numbers in pids.items()
    }


def drive(settings: Experiment, seconds: float) -> dict[str, float]:
    return asyncio.run(_drive(make_backend(settings, cores(), "benchmark"), seconds))


def cores() -> int:
    return len(os.sched_getaffinity(0))


# The parts, alone.


def part(kind: str, settings: Experiment, batch: int, seconds: float) -> float:
    """Seconds a step of one part on one core, while every core does the same."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(settings.to_dict(), file)
        file.flush()
        command = [
            sys.executable,
            __file__,
            "part",
            "--kind",
            kind,
            "--experiment",
            file.name,
            "--batch",
            str(batch),
            "--seconds",
            str(seconds),
        ]
        processes = [
            subprocess.Popen(
                [*command, "--pin", str(cpu)],
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=end_with_parent,
            )
            for cpu in sorted(os.sched_getaffinity(0))
        ]
        rates = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    return len(rates) / sum(rates)


def one_part(options: argparse.Namespace) -> None:
    """In a process of its own: prints steps a second."""
    os.sched_setaffinity(0, {options.pin})
    import numpy as np

    settings = Experiment.from_dict(json.loads(Path(options.experiment).read_text()))
    if options.kind == "environment":
        from genkidama.learning.environments import make_lanes

        count = settings.ga3c.environments
        lanes = make_lanes(settings.environment, count)
        lanes.reset(options.pin)
        actions = (
            np.random.default_rng(0).integers(lanes.action_space.n, size=(1 << 16, count)).tolist()
        )
        print(
            json.dumps(
                count * rate(lambda i: lanes.step(actions[i % len(actions)]), options.seconds)
            )
        )
        return
    import torch

    from genkidama.learning.environments import make_environment
    from genkidama.learning.learners import make_learner
    from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
    from genkidama.learning.rollout import Rollout
    from genkidama.learning.tensors.tensor_model import TensorModel

    torch.set_num_threads(1)
    environment = make_environment(settings.environment)
    model, batch = TensorModel(settings, environment), options.batch
    rng = np.random.default_rng(0)
    images = torch.from_numpy(
        rng.integers(256, size=(batch, *environment.observation_space.shape)).astype(np.uint8)
    ).float()
    if options.kind == "forward":
        with torch.inference_mode():
            print(json.dumps(batch * rate(lambda _: model.network(images), options.seconds)))
        return
    length = min(batch, settings.algorithm.batch_size)
    ends = (np.arange(batch) % length == length - 1) | (np.arange(batch) == batch - 1)
    rollout = Rollout(
        images,
        torch.zeros(batch, 1, dtype=torch.int64),
        rng.standard_normal(batch).astype(np.float32),
        ends,
        np.flatnonzero(ends),
        images[:0],
        cut_values=np.zeros(int(ends.sum()), np.float32),
    )
    learner, generator = make_learner(settings.algorithm, model), model.generator(0)
    state = np.zeros((STATE_ROWS[settings.optimizer.name], model.trainable), np.float32)
    optimizer = make_optimizer(
        settings.optimizer, model.vector[: model.trainable], state, np.zeros(1)
    )

    def backward(_: int) -> None:
        for _ in model.gradients(learner, rollout, generator):
            pass

    work = backward if options.kind == "backward" else lambda _: optimizer.step(model.gradient, 0.0)
    print(json.dumps(batch * rate(work, options.seconds)))


def rate(work: Any, seconds: float) -> float:
    """Calls a second, after a first call that does not count."""
    work(0)
    began, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        work(calls)
        calls += 1
    return calls / passed


# What is compared.


def speed(options: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, float]] = []
    agents = {"ga3c__agents": options.agents[0], "ga3c__environments": options.environments[0]}
    settings = experiment(options, ga3c__training_batch=options.training_batch, **agents)
    part_seconds = options.seconds / 4
    for number in range(options.rounds):
        row: dict[str, float] = {}
        environment = part("environment", settings, 1, part_seconds)
        found = drive(settings, options.seconds)
        row["GA3C"] = found["pps"]
        row |= {
            name: found[name]
            for name in (
                "tps",
                "updates",
                "prediction_batch",
                "training_batch",
                "lag",
                "agents µs",
                "engine µs",
            )
        }
        environment = (environment + part("environment", settings, 1, part_seconds)) / 2
        forward = part("forward", settings, max(1, round(found["prediction_batch"])), part_seconds)
        batch = max(1, round(found["training_batch"]))
        backward = part("backward", settings, batch, part_seconds)
        row["optimizer µs"] = part("optimizer", settings, batch, part_seconds) * 1e6
        row |= {
            "environment µs": environment * 1e6,
            "forward µs": forward * 1e6,
            "backward µs": backward * 1e6,
        }
        row["limit"] = cores() / (environment + forward + backward)
        for batch_size in options.hogwild:
            hogwild = experiment(
                options,
                child__backend="hogwild",
                algorithm__batch_size=batch_size,
                child__cores=cores(),
            )
            row[f"Hogwild, t_max {batch_size}"] = drive(hogwild, options.seconds)["steps"]
        rows.append(row)
        print(
            f"round {number + 1}: "
            + ", ".join(f"{name} {value:,.1f}" for name, value in row.items()),
            flush=True,
        )
    others = [name for name in rows[0] if name == "limit" or name.startswith("Hogwild")]
    ratios = {f"GA3C / {name}": median(row["GA3C"] / row[name] for row in rows) for name in others}
    for name, value in ratios.items():
        print(f"{value:6.2f}  {name}")
    return {"rounds": rows, "ratios": ratios}


def agents(options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for count in options.agents:
        for environments in options.environments:
            settings = experiment(
                options,
                ga3c__agents=count,
                ga3c__environments=environments,
                ga3c__training_batch=options.training_batch,
                ga3c__max_agents=max(64, count),
            )
            found = drive(settings, options.seconds)
            rows.append(
                {"agents": count, "environments": environments, **found, **gpu_use(options)}
            )
            print(", ".join(f"{name} {value:,.1f}" for name, value in rows[-1].items()), flush=True)
    hogwild = experiment(options, child__backend="hogwild", child__cores=cores())
    result = {
        "width": options.wide,
        "rows": rows,
        "hogwild": drive(hogwild, options.seconds)["steps"],
    }
    best = max(row["pps"] for row in rows) / result["hogwild"]
    print(
        f"Hogwild on {cores()} cores: {result['hogwild']:,.1f}/s; the best of GA3C {best:.1f} times"
    )
    return result


def gpu_use(options: argparse.Namespace) -> dict[str, float]:
    """The GPU's utilization in percent, as its driver reports it; None without a GPU."""
    if not options.device.startswith("cuda"):
        return {}
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    return {
        "gpu": float(
            subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
        )
    }


def dynamic(options: argparse.Namespace) -> dict[str, Any]:
    def fixed(predictors: int, trainers: int, count: int) -> float:
        settings = experiment(
            options,
            ga3c__predictors=predictors,
            ga3c__trainers=trainers,
            ga3c__agents=count,
            ga3c__training_batch=options.training_batch,
        )
        return drive(settings, options.seconds)["tps"]

    grid = [(p, t, a) for a in (8, 16, 32) for p in (1, 2) for t in (1, 2)]
    before = {setting: fixed(*setting) for setting in grid}
    settings = experiment(
        options,
        ga3c__predictors=1,
        ga3c__trainers=1,
        ga3c__agents=32,
        ga3c__training_batch=options.training_batch,
        ga3c__window_seconds=options.window,
    ).with_settings({"ga3c.dynamic": True})
    backend = GA3C(settings, cores(), "benchmark")

    async def adjust() -> None:
        try:
            await backend.startup()
            await backend.begin(None)
            while backend.adjustment is None or len(backend.adjustment.trace) < options.windows:
                await backend.due()
                backend.take_work()
                backend.release()
        finally:
            await backend.shutdown()

    asyncio.run(adjust())
    assert backend.adjustment is not None
    accepted = tuple(backend.adjustment.accepted)
    # The grid's best and the rule's last setting, once more and in turn: the machine may have
    # drifted.
    best = max(before, key=lambda setting: before[setting])
    turns = [(fixed(*accepted), fixed(*best)) for _ in range(options.rounds)]
    share = median(ours / theirs for ours, theirs in turns)
    for setting, tps in before.items():
        print(f"N_P {setting[0]}, N_T {setting[1]}, N_A {setting[2]:2}: {tps:7.1f} TPS")
    for window in backend.adjustment.trace:
        mark = "accepted" if window.accepted else ""
        print(f"  {tuple(window.setting)} {window.rate:7.1f} TPS {mark}")
    print(f"{share:6.2f}  dynamic, ended at {accepted} / best of the grid, {best}")
    return {
        "grid": [[*setting, tps] for setting, tps in before.items()],
        "trace": [
            [*window.setting, window.rate, window.accepted] for window in backend.adjustment.trace
        ],
        "turns": turns,
        "share": share,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=["speed", "agents", "dynamic", "part"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--width", type=int, nargs="+", default=[1])
    parser.add_argument("--training-batch", type=int, default=80)
    parser.add_argument("--agents", type=int, nargs="+", default=[16])
    parser.add_argument("--environments", type=int, nargs="+", default=[1])
    parser.add_argument(
        "--hogwild", type=int, nargs="*", default=[5, 20], help="t_max of the Hogwild runs"
    )
    parser.add_argument("--example", default="pong", help="which of examples/atari")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--window", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    for name, kind in (("kind", str), ("experiment", str), ("batch", int), ("pin", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mode == "part":
        one_part(options)
        return
    results = {}
    for wide in options.width:
        options.wide = wide
        print(f"network {wide} times as wide" if wide > 1 else "the document's network", flush=True)
        results[str(wide)] = {
            "speed": speed,
            "agents": agents,
            "dynamic": dynamic,
        }[options.mode](options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
