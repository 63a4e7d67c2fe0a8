"""What a child that lies does to a run, what rules against it save, and what these cost.

Claim: without a rule one stolen child of four ruins a run. With `push_limit` or `push_window` the
run learns, whatever that child pushes. Neither takes much from an honest run.

Method: a real Parent in this process, three real children with a core each that learn CartPole by
A3C, and a stolen child of the protocol's own words in this process, too. It joins as the fourth
and pushes finite nonsense 20 times a second, as long as the run goes on. The run ends after
`--steps` environment steps of the honest children, so it does not matter how fast the machine is.
The result is the mean return of the last 100 training episodes (CartPole: 500 at most), the median
over the seeds. Rules and attacks take turns within a seed.

    huge      all numbers 10³⁰           noise     normal, deviation 100
    negated   −5·θ_P                     drift     θ_P and a step as long as an honest one, always
                                                   in the same direction

`cost` is the parent's CPU time of a push with the rules on, divided by that with none, for networks
of 3,000 and of 1,000,000 numbers and pushes of four children in turns; the medians of alternating
rounds.

    python -m studies.stolen [--seeds 1 2 3] [--steps 60000] [--attacks none huge] [--rules off]
    python -m studies.stolen cost
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from websockets.exceptions import WebSocketException

from benchmarks import store
from benchmarks.fake_child import FakeChild
from genkidama.config.experiment import Experiment
from genkidama.parent import Parent
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push, Reply, Weights
from genkidama.protocol.vector import DTYPE, Signature, Vector
from genkidama.runtime.machine import end_with_parent
from genkidama.server.parameter_server import ParameterServer

RULES: dict[str, dict[str, Any]] = {
    "off": {},
    "limit": {"push_limit": 10.0},
    "quarantine": {"push_limit": 10.0, "quarantine_after": 5},
    "median": {"push_window": 4},
    "both": {"push_limit": 10.0, "push_window": 4},
}
ATTACKS = ("none", "huge", "noise", "negated", "drift")
HONEST = 3
PAUSE = 0.05


def experiment(seed: int, steps: int, rules: dict[str, Any]) -> Experiment:
    return Experiment.from_dict(
        {
            "name": "stolen",
            "seed": seed,
            "environment": {"id": "CartPole-v1"},
            "network": {"hidden": [64, 64]},
            "algorithm": {"name": "a3c", "batch_size": 32, "gamma": 0.99, "across_episodes": True},
            "optimizer": {"name": "adam", "learning_rate": 0.001},
            "parent": {"history_every": 100, **rules},
            "child": {"exchange": "free", "exchange_seconds": 0.05, "cores": 1},
            "stop": {"steps": steps, "window": 100},
        }
    )


def nonsense(attack: str, vector: Vector, step: float, rng: np.random.Generator) -> Vector:
    if attack == "huge":
        return np.full(len(vector), 1e30, DTYPE)
    if attack == "noise":
        return rng.normal(0.0, 100.0, len(vector)).astype(DTYPE)
    if attack == "negated":
        return -5 * vector
    same = np.random.default_rng(0).normal(size=len(vector))
    return (vector + step * same / np.linalg.norm(same)).astype(DTYPE)


async def lie(parent: Parent, attack: str, seed: int) -> None:
    """Joins when the honest children have begun, and pushes until the run is over."""
    server, rng = parent.server, np.random.default_rng(seed)
    while server.trial.version < 20 and not server.stop:
        await asyncio.sleep(PAUSE)
    assert server.trial.signature is not None
    before: Vector | None = None
    step = 0.0
    try:
        async with FakeChild(parent.address, "stolen", signature=server.trial.signature) as child:
            reply: Reply = await child.enter()
            while isinstance(reply, Weights) and not reply.stop:
                assert reply.vector is not None
                if before is not None:
                    step = max(step, float(np.linalg.norm(reply.vector - before)))
                before = reply.vector.copy()
                reply = await child.push(nonsense(attack, before, step, rng), steps=0)
                await asyncio.sleep(PAUSE)
            assert isinstance(reply, Weights), reply
    except WebSocketException:
        return


async def train(settings: Experiment, attack: str, out: Path) -> dict[str, Any]:
    parent = Parent(settings, out=out, listen="127.0.0.1:0")
    await parent.startup()
    host, port = parent.address
    command = [sys.executable, "-m", "genkidama.child", "--parent", f"ws://{host}:{port}"]
    children = [
        subprocess.Popen(
            [*command, "--name", f"pi-{number}"],
            stderr=subprocess.DEVNULL,
            preexec_fn=end_with_parent,
        )
        for number in range(HONEST)
    ]
    lying = asyncio.create_task(lie(parent, attack, settings.seed)) if attack != "none" else None
    try:
        async with asyncio.timeout(900):
            await parent.serve()
    finally:
        await parent.shutdown()
        if lying is not None:
            lying.cancel()
        for child in children:
            child.terminate()
        for child in children:
            child.wait()
    records = parent.server.children
    return {
        "mean_return": parent.server.trial.mean_return,
        "pushes": parent.server.exchanges,
        "left_out": sum(r.left_out for name, r in records.items() if name != "stolen"),
        "stolen": records["stolen"].exchanges if "stolen" in records else 0,
        "stolen_left_out": records["stolen"].left_out if "stolen" in records else 0,
    }


def measure(options: argparse.Namespace) -> None:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in options.seeds:
        for attack in options.attacks:
            for rules in options.rules:
                settings = experiment(seed, options.steps, RULES[rules])
                with tempfile.TemporaryDirectory() as folder:
                    row = asyncio.run(train(settings, attack, Path(folder)))
                rows.setdefault((rules, attack), []).append(row)
                print(json.dumps({"seed": seed, "attack": attack, "rules": rules, **row}))
                sys.stdout.flush()
    print(f"\n{'':12}" + "".join(f"{attack:>10}" for attack in options.attacks))
    for rules in options.rules:
        found = [
            statistics.median(row["mean_return"] for row in rows[rules, attack])
            for attack in options.attacks
        ]
        print(f"{rules:12}" + "".join(f"{value:10.1f}" for value in found))


def cost(options: argparse.Namespace) -> None:
    for size, pushes in ((3_000, 4_000), (1_000_000, 40)):
        seconds: dict[str, list[float]] = {rules: [] for rules in RULES}
        for _ in range(options.rounds):
            for rules, settings in RULES.items():
                seconds[rules].append(_of_a_push(size, pushes, settings))
        base = statistics.median(seconds["off"])
        for rules, found in seconds.items():
            each = statistics.median(found)
            print(f"{size:>9,} {rules:12} {1e6 * each:10.1f} µs  {each / base:5.2f}")


def _of_a_push(size: int, pushes: int, rules: dict[str, Any]) -> float:
    server = ParameterServer(experiment(0, 10**9, rules))
    signature = Signature.of([("w", (size,))])
    rng = np.random.default_rng(0)
    vectors = [rng.normal(size=size).astype(DTYPE) for _ in range(4)]
    for child in "abcd":
        server.handle(child, Hello(protocol=PROTOCOL, name=child, session="s"), 0.0)
        server.handle(child, Join.of(signature), 0.0)
    began = 0.0
    for number in range(pushes + 16):
        if number == 16:  # what is usual is known by then
            began = time.process_time()
        child = "abcd"[number % 4]
        push = Push(version=0, sequence=number // 4 + 1, vector=vectors[number % 4])
        assert isinstance(server.handle(child, push, float(number)), Weights)
        server.take_events()
    return (time.process_time() - began) / pushes


def main() -> None:
    parser = store.parser("stolen", __doc__)
    parser.add_argument("what", nargs="?", choices=["runs", "cost"], default="runs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    options = parser.parse_args()
    measure(options) if options.what == "runs" else cost(options)


if __name__ == "__main__":
    main()
