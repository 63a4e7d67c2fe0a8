"""How many steps lanes of LunarLander make in a second of CPU time: ours and EnvPool's, beside
Gymnasium's.

Claim: ours, which give Gymnasium's bits, make at least 1.25 times the steps of Gymnasium's. With 16
lanes or more, EnvPool's make at least twice the steps of Gymnasium's; with a single lane fewer.

Method: each figure is a process of its own, in turn, for several rounds. Lanes are made as a core
or an agent makes them, and stepped with random actions that were drawn beforehand. CPU time is that
of the whole process, resets, EnvPool's threads and the kernel included, so neighbours matter
little. The median of the rounds' ratios counts. Without EnvPool, only the other two are measured.

    python benchmarks/lanes.py [--lanes 1 16 32 64] [--rounds 3] [--steps 60000]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib.util import find_spec
from statistics import median

from processes import parser_of

KINDS = ("Gymnasium", "ours", "EnvPool")


def rate(kind: str, count: int, steps: int) -> float:
    """Steps in a second of CPU time."""
    import numpy as np

    from genkidama.config.sections import Environment
    from genkidama.learning import environments

    name = "LunarLander-v3"
    if kind == "Gymnasium":
        own = [environments.make_environment(Environment(id=name)) for _ in range(count)]
        lanes: environments.Lanes = environments.Single(own)
    else:
        prefix = "envpool:" if kind == "EnvPool" else ""
        lanes = environments.make_lanes(Environment(id=prefix + name), count)
    actions = np.random.default_rng(0).integers(4, size=(4096, count)).tolist()
    lanes.reset(0)
    turns = steps // count
    began = time.process_time()
    for turn in range(turns):
        lanes.step(actions[turn % 4096])
    return turns * count / (time.process_time() - began)


def alone(kind: str, count: int, steps: int) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", kind, str(count), "--steps", str(steps)]
    found: float = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60_000, help="of all lanes together")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "LANES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(rate(options.one[0], int(options.one[1]), options.steps)))
        return
    kinds = KINDS if find_spec("envpool") else KINDS[:2]
    print("lanes" + "".join(f"{kind:>11}" for kind in kinds) + "  ratios to the first")
    for count in options.lanes:
        rounds = [
            [alone(kind, count, options.steps) for kind in kinds] for _ in range(options.rounds)
        ]
        rates = [median(column) for column in zip(*rounds, strict=True)]
        ratios = [median(each[side] / each[0] for each in rounds) for side in range(1, len(kinds))]
        row = "".join(f"{rate:11,.0f}" for rate in rates) + "".join(f"  {r:.2f}" for r in ratios)
        print(f"{count:5}{row}", flush=True)


if __name__ == "__main__":
    main()
