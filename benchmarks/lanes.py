"""How many steps lanes of LunarLander make in a second of CPU time: EnvPool's beside Gymnasium's.

Claim: with 16 lanes or more, EnvPool's make at least twice the steps of Gymnasium's. With a
single lane they make fewer.

Method: each figure is a process of its own, in turn, for several rounds. Lanes are made as a core
or an agent makes them, and stepped with random actions that were drawn beforehand. CPU time is that
of the whole process, EnvPool's threads and the kernel included, so neighbours matter little. The
median of the rounds' ratios counts.

    python benchmarks/lanes.py [--lanes 1 16 32 64] [--rounds 3] [--steps 60000]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from statistics import median

GYMNASIUM, ENVPOOL = "LunarLander-v3", "envpool:LunarLander-v3"


def rate(name: str, count: int, steps: int) -> float:
    """Steps in a second of CPU time."""
    import numpy as np

    from genkidama.config.sections import Environment
    from genkidama.learning.environments import make_lanes

    lanes = make_lanes(Environment(id=name), count)
    actions = np.random.default_rng(0).integers(4, size=(4096, count)).tolist()
    lanes.reset(0)
    turns = steps // count
    began = time.process_time()
    for turn in range(turns):
        lanes.step(actions[turn % 4096])
    return turns * count / (time.process_time() - began)


def alone(name: str, count: int, steps: int) -> float:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--one", name, str(count), "--steps", str(steps)]
    found: float = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60_000, help="of all lanes together")
    parser.add_argument("--one", nargs=2, metavar=("ID", "LANES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(rate(options.one[0], int(options.one[1]), options.steps)))
        return
    print("lanes  Gymnasium    EnvPool  ratio")
    for count in options.lanes:
        pairs = [
            (alone(GYMNASIUM, count, options.steps), alone(ENVPOOL, count, options.steps))
            for _ in range(options.rounds)
        ]
        slow, fast = (median(pair[side] for pair in pairs) for side in (0, 1))
        ratio = median(pair[1] / pair[0] for pair in pairs)
        print(f"{count:5}  {slow:9,.0f}  {fast:9,.0f}  {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
