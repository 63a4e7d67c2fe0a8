"""What GA3C makes of its CPU cores, or of its GPU.

Claims: on two CPU cores with the document's Atari network and 16 agents, GA3C makes at least 0.8 of
the predictions a second that its parts allow. It makes at least 1.2 times the steps of the Hogwild
backend with the same network. On a GPU, larger networks gain more over the CPU of the same machine.

    speed    In each round: the environment alone, GA3C, the forward and backward passes alone at
             the batches that GA3C reached, Hogwild. Ratios compare neighbours in
             time; medians of the rounds count. The parts run on all cores at once, as they do in
             training. Their limit is cores ÷ (environment step + forward pass at the prediction
             batch reached + forward and backward pass at the training batch). The optimizer's time
             is printed beside it.
    agents   TPS and PPS against the number of agents, and of environments an agent, to choose a
             setting.
    gpu      The source's table: PPS and TPS by width and N_A, with the dynamic adjustment and
             without, beside the CPU of the same machine; `gpu --help` has its options.

`--width 4` makes each layer four times as wide. Each setting of N_P, N_T and N_A, and the dynamic
adjustment from bad starts, are in `studies.ga3c.sweep`.

    python -m studies.ga3c speed [--rounds 3] [--seconds 20] [--width 1] [--training-batch 80]
                                    [--json FILE]
    python -m studies.ga3c agents --agents 16 32 --environments 1 2
    python -m studies.ga3c gpu
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import store
from genkidama.config.experiment import Experiment
from genkidama.runtime.machine import end_with_parent
from studies.ga3c import sweep
from studies.ga3c.drive import cores, drive, experiment

# The parts, alone.


def part(kind: str, settings: Experiment, batch: int, seconds: float) -> float:
    """Seconds a step of one part on one core, while every core does the same."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(settings.to_dict(), file)
        file.flush()
        command = [
            sys.executable,
            "-m",
            "studies.ga3c",
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


def setup(options: argparse.Namespace) -> tuple[str, int, str]:
    return options.example, options.wide, options.device


def speed(options: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, float]] = []
    agents = {"ga3c__agents": options.agents[0], "ga3c__environments": options.environments[0]}
    settings = experiment(*setup(options), ga3c__training_batch=options.training_batch, **agents)
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
                *setup(options),
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
                *setup(options),
                ga3c__agents=count,
                ga3c__environments=environments,
                ga3c__training_batch=options.training_batch,
                ga3c__max_agents=max(64, count),
            )
            found = drive(settings, options.seconds)
            rows.append({"agents": count, "environments": environments, **found})
            print(", ".join(f"{name} {value:,.1f}" for name, value in rows[-1].items()), flush=True)
    hogwild = experiment(*setup(options), child__backend="hogwild", child__cores=cores())
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


def main() -> None:
    if sys.argv[1:2] == ["gpu"]:
        sys.exit(sweep.gpu(sys.argv[2:]))
    parser = store.parser("ga3c", __doc__)
    parser.add_argument("mode", choices=["speed", "agents", "gpu", "part"])
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
        }[options.mode](options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
