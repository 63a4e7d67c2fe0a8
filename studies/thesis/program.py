"""The thesis' own A3C program, run from a clone of its repository: a control of ours.

The repository is niko047/Genkidama on GitHub. Commit 8de83cf is that of the thesis' best run:

    git -C /tmp/thesis checkout 8de83cf
    python -m studies.thesis.program /tmp/thesis --runs 1 2 3

`a3c_single_machine.py` trains with 4 processes and γ = 0.999, as for Table 5.2. So that it runs
today, a few of its lines are replaced (`CHANGES`) in a copy: the rest is what the thesis ran. It
has no seed for the environment, so each run is another one. The weights that it sets aside every
100 episodes of its first process are judged as all others are. A run is a line of
`docs/results/thesis-program.jsonl`, takes 12 minutes, and is not repeated once it is there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from benchmarks.processes import command, start
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.machine import available_cores
from studies import store
from studies.thesis.cells import ALONE, CELLS, CHECKPOINTS, Row
from studies.thesis.measure import ROOT, judged

SCRIPT = "a3c_single_machine.py"
CORES = 4
#: What is replaced, and by what: each pattern must be there.
CHANGES = {
    # Gymnasium's LunarLander, with the old way of stepping.
    r"^import gym$": "from studies.thesis import stand_in as gym",
    # With torch 2 `zero_grad` lets go of the gradients that both networks share.
    r"\.zero_grad\(\)": ".zero_grad(set_to_none=False)",
    r"^NUM_CPUS\b.*": f"NUM_CPUS = {CORES}",
    r"^GAMMA\b.*": "GAMMA = 0.999",
    # Numbers alone, where it pickles the whole network.
    r"torch\.save\(": "gym.set_aside(",
    # What it prints of each episode, and draws at its end.
    r"^ *print\(f'EPISODE.*\n": "",
    r"^import (matplotlib|pandas).*\n": "",
    r"^.*(\bplt\.|\bpd\.|\bdf_res\b).*\n": "",
}
RESULTS = ROOT / "docs/results/thesis-program.jsonl"
_LOOK_SECONDS = 1.0
_NUMBER = re.compile(r"lander_(\d+)_")

Weights = npt.NDArray[np.float32]
Say = Callable[[str], None]


def changed(source: str) -> str:
    """The program's source with `CHANGES`.

    Raises:
        ConfigurationError: one of them has nothing to replace.
    """
    for pattern, replacement in CHANGES.items():
        source, found = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        if not found:
            raise ConfigurationError(
                f"{SCRIPT}: has no {pattern!r}; check out commit 8de83cf of its repository"
            )
    return source


def weights(path: Path) -> Weights:
    """A file of the program, in the order in which `thesis.toml` has its numbers."""
    found: Weights = safetensors.numpy.load_file(path)["weights"]
    return found


def train(clone: Path, folder: Path, say: Say) -> float:
    """Runs it in `folder`.

    Returns:
        Seconds.

    Raises:
        ConfigurationError: `clone` has not the program.
        EnvironmentFailure: it has failed.
    """
    try:
        source = (clone / SCRIPT).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{clone}: has no {SCRIPT} ({error.strerror})") from error
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / SCRIPT).write_text(changed(source), encoding="utf-8")
    began = time.monotonic()
    log = folder / "log"
    path = f"PYTHONPATH={clone.resolve()}{os.pathsep}{ROOT}"
    line = ["env", "-C", str(folder), path, "OMP_NUM_THREADS=1", sys.executable, SCRIPT]
    process = start(line, log)
    try:
        said = 0
        ended = False
        while not ended:
            time.sleep(_LOOK_SECONDS)
            ended = process.poll() is not None
            if (known := len(list(folder.glob("*.pt")))) > said:
                said = known
                say(f"{said * CELLS[ALONE].every} of {CELLS[ALONE].updates} episodes")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # its own processes would go on
            process.wait()
    if process.returncode:
        lines = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
        raise EnvironmentFailure(f"the program ended with code {process.returncode}: {lines[-1]}")
    if said < CHECKPOINTS:
        raise EnvironmentFailure(f"the program set {said} of {CHECKPOINTS} checkpoints aside")
    return time.monotonic() - began


def measure(clone: Path, run: int, folder: Path, episodes: int, say: Say) -> Row:
    """The row of one run, and its folder is gone."""
    load = os.getloadavg()[0]
    seconds = train(clone, folder, say)
    experiment = Experiment.load(ROOT / CELLS[ALONE].file)
    said = judged(experiment, run, _kept(folder, say), episodes)
    shutil.rmtree(folder)
    return {
        "cell": ALONE,
        "seed": run,
        "date": time.strftime("%F %T"),
        "seconds": round(seconds, 1),
        "machine_cores": available_cores(),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        **said,
    }


def _kept(folder: Path, say: Say) -> Iterator[tuple[int, Weights]]:
    """What the program has set aside, one after another as they are judged."""
    files = sorted(folder.glob("*.pt"), key=_episodes)
    for number, file in enumerate(files, 1):
        say(f"judging {number}/{len(files)}")
        yield _episodes(file), weights(file)


def _episodes(path: Path) -> int:
    """After how many of its first process' episodes the program has set the file aside."""
    found = _NUMBER.search(path.name)
    assert found is not None
    return int(found[1]) + 1


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = store.parser("thesis.program", __doc__)
    parser.add_argument("clone", type=Path, help="where the thesis' repository lies")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    store.add_places(parser, RESULTS, ROOT / "runs/thesis-program")
    parser.add_argument("--episodes", type=int, default=500, help="that judge a checkpoint")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    with store.only_one(options.work):
        for run in options.runs:
            if any(row["seed"] == run for row in store.read(options.results)):
                continue

            def say(what: str, run: int = run) -> None:
                print(f"run {run}: {what}", flush=True)

            row = measure(options.clone, run, options.work / str(run), options.episodes, say)
            store.append(options.results, row)
            _, mean, deviation = row["curve"][-1]
            say(f"{mean:.1f} ± {deviation:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
