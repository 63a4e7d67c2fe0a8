"""The action cycle at 50 Hz while learning goes on, beside that of Stable-Baselines3's PPO.

    python -m studies.realtime ours sb3 ours sb3 --seconds 40

Each run has one pendulum on the wall clock, behind the same clock (`environment.period`), the same
network and PPO of the same settings. Each prints a row: the median, the 99th percentile and the
longest of the times from one action to the next, in ms, and the share of those that are more than a
tenth of a period too long. The first five seconds are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import store
from benchmarks.processes import ROOT, keep

PERIOD = 0.02
WARM_UP = 5.0
#: Steps of an update, in both.
BATCH = 512


def ours(times: Path, seconds: float, folder: Path) -> None:
    """The example of the tutorial, with one child."""
    from genkidama.config.experiment import Experiment

    experiment = Experiment.load(ROOT / "examples/rotary/rotary.toml").with_settings(
        {
            "environment.id": "studies.realtime.plant:Plant",
            "environment.options.path": str(times),
            "environment.safe_action": [],
            "environment.safe_seconds": 0.0,
            "environment.offline_seconds": 0.0,
            "parent.rule_options": {"batch": BATCH},
            "stop": {"seconds": seconds},
        }
    )
    (folder / "plant.toml").write_text(experiment.to_toml())
    command = [sys.executable, "-m", "genkidama", "train", "plant.toml", "--children", "1"]
    command += ["--episodes", "0", "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)


def sb3(times: Path, seconds: float, folder: Path) -> None:
    """Stable-Baselines3's PPO; it learns in the process that acts."""
    import torch
    from stable_baselines3 import PPO

    from genkidama.config.sections import Environment
    from genkidama.learning.real_time import RealTime
    from studies.realtime.plant import Plant

    torch.set_num_threads(1)
    environment = RealTime(Plant(str(times)), Environment(period=PERIOD))
    end = time.monotonic() + seconds
    model = PPO(
        "MlpPolicy",
        environment,
        n_steps=BATCH,
        batch_size=128,
        n_epochs=10,
        gamma=0.98,
        learning_rate=1e-3,
        policy_kwargs={"net_arch": [64, 64]},
    )
    model.learn(1_000_000, callback=lambda *_: time.monotonic() < end)


def measured(times: Path) -> dict[str, Any]:
    acted = np.fromfile(times, np.float64)
    cycles = np.diff(acted[acted > acted[0] + WARM_UP])
    return {
        "cycles": len(cycles),
        "p50_ms": round(1000.0 * float(np.percentile(cycles, 50)), 1),
        "p99_ms": round(1000.0 * float(np.percentile(cycles, 99)), 1),
        "max_ms": round(1000.0 * float(cycles.max()), 1),
        "late": round(float((cycles > 1.1 * PERIOD).mean()), 4),
    }


def main() -> None:
    parser = store.parser("realtime", __doc__)
    parser.add_argument("contenders", nargs="+", choices=("ours", "sb3"))
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--results", type=Path, help="file to which rows are appended")
    options = parser.parse_args()
    for name in options.contenders:
        with tempfile.TemporaryDirectory() as folder:
            times = Path(folder) / "times"
            globals()[name](times, options.seconds, Path(folder))
            load = round(os.getloadavg()[0], 1)
            row = {"contender": name, **measured(times), "load": load}
            print(json.dumps(row), flush=True)
            keep(options.results, row)


if __name__ == "__main__":
    main()
