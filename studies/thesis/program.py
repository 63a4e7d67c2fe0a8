"""The thesis' own programs, run from a clone of its repository: a control of ours.

The repository is niko047/Genkidama on GitHub. Commit 8de83cf is that of the thesis' best run:

    git -C /tmp/thesis checkout 8de83cf
    python -m studies.thesis.program /tmp/thesis --runs 1 2 3
    python -m studies.thesis.program /tmp/thesis --runs 1 2 3 --children 2

`a3c_single_machine.py` trains with 4 processes and γ = 0.999, as for Table 5.2. With two children
`init_parent.py` and two `init_child.py` with 4 processes each train as for Table 5.3, with its best
cell: α = 0.9, β = 0. So that they run today, a few of their lines (`ONE`, `SEVERAL`) are replaced
in a copy: the rest is what the thesis ran. Its processes wait in empty loops, each on a core of
its own; here they sleep for a millisecond, as more of them than there are cores would wait for the
one that works.

It has no seed for the environment, so each run is another one. The weights that it sets aside every
100 episodes of its first process, or every 200 exchanges of its two children, are judged as all
others are. A run is a line of `docs/results/thesis-program.jsonl` and is not repeated once it is
there. It takes 12 minutes of two cores, or 40 with two children.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from benchmarks import store
from benchmarks.processes import command, free_port, start
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.machine import available_cores
from studies.thesis.cells import ALONE, BEST, CELLS, CHECKPOINTS, Row
from studies.thesis.measure import ROOT, judged

SCRIPT = "a3c_single_machine.py"
CORES = 4
_PRINTS = {
    # What it prints of each episode, and draws at its end.
    r"^ *print\(f'EPISODE.*\n": "",
    r"^import (matplotlib|pandas).*\n": "",
    r"^.*(\bplt\.|\bpd\.|\bdf_res\b).*\n": "",
}
#: Gymnasium's LunarLander, with the old way of stepping.
_GYM = {r"^import gym$": "from studies.thesis import stand_in as gym"}
#: With torch 2 `zero_grad` lets go of the gradients that both networks share.
_GRADIENTS = {r"\.zero_grad\(\)": ".zero_grad(set_to_none=False)"}
#: Numbers alone, where it pickles the whole network.
_WEIGHTS = {r"torch\.save\(": "gym.set_aside("}
#: What is replaced in which file of one machine's program, and by what: each pattern must be there.
ONE: dict[str, dict[str, str]] = {
    SCRIPT: {
        **_GYM,
        **_GRADIENTS,
        **_WEIGHTS,
        r"^NUM_CPUS\b.*": f"NUM_CPUS = {CORES}",
        r"^GAMMA\b.*": "GAMMA = 0.999",
        **_PRINTS,
    }
}
#: The same for parent and children.
SEVERAL: dict[str, dict[str, str]] = {
    "init_parent.py": {},
    "init_child.py": _GYM,
    "MARL/CoresOrchestrator.py": {r"mp\.cpu_count\(\)": str(CORES)},
    "MARL/SingleCore.py": {
        **_GYM,
        **_GRADIENTS,
        **_PRINTS,
        r"^( +)pass$": r"\1__import__('time').sleep(0.001)",
    },
    "MARL/Sockets/parent.py": {
        **_GYM,
        **_WEIGHTS,
        r"^import pandas.*\n": "",
        r"f'Tests/lunar_lander_a4c_": "f'lander_",
    },
}
RESULTS = ROOT / "docs/results/thesis-program.jsonl"
_LOOK_SECONDS = 1.0
_LISTENING_SECONDS = 60.0
_NUMBER = re.compile(r"lander_(\d+)")

Weights = npt.NDArray[np.float32]
Say = Callable[[str], None]


def changed(source: str, changes: Mapping[str, str], name: str = SCRIPT) -> str:
    """A file of the program with its changes.

    Raises:
        ConfigurationError: one of them has nothing to replace.
    """
    for pattern, replacement in changes.items():
        source, found = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        if not found:
            raise ConfigurationError(
                f"{name}: has no {pattern!r}; check out commit 8de83cf of its repository"
            )
    return source


def weights(path: Path) -> Weights:
    """A file of the program, in the order in which `thesis.toml` has its numbers."""
    found: Weights = safetensors.numpy.load_file(path)["weights"]
    return found


def copy(clone: Path, folder: Path, files: Mapping[str, Mapping[str, str]]) -> None:
    """Makes `folder` anew with the program in it, changed.

    Raises:
        ConfigurationError: `clone` has not the program.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if (clone / "MARL").is_dir():
        shutil.copytree(clone / "MARL", folder / "MARL")
    (folder / "Tests").mkdir()  # the parent looks there before it sets weights aside
    for name, changes in files.items():
        try:
            source = (clone / name).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{clone}: has no {name} ({error.strerror})") from error
        (folder / name).write_text(changed(source, changes, name), encoding="utf-8")


def train(clone: Path, folder: Path, children: int, say: Say) -> float:
    """Runs it in `folder`, with one machine or with a parent and children.

    Returns:
        Seconds.

    Raises:
        ConfigurationError: `clone` has not the program.
        EnvironmentFailure: it has failed.
    """
    copy(clone, folder, ONE if children == 1 else SEVERAL)
    began = time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    log = folder / "log"

    def begin(*words: str) -> None:
        path = f"PYTHONPATH={folder.resolve()}{os.pathsep}{ROOT}"
        line = ["env", "-C", str(folder), path, "OMP_NUM_THREADS=1", sys.executable, "-u", *words]
        processes.append(start(line, log))

    try:
        if children == 1:
            begin(SCRIPT)
        else:
            port = str(free_port())
            hosts = [f"127.0.0.{2 + child}" for child in range(children)]
            for host in hosts:
                begin("init_child.py", "-ip", host, "-p", port)
            _until_all_listen(processes, log)
            began = time.monotonic()
            begin("init_parent.py", "-ip", *hosts, "-p", port)
        said = 0
        code = None
        while code is None and said < CHECKPOINTS:
            time.sleep(_LOOK_SECONDS)
            code = next((code for one in processes if (code := one.poll()) is not None), None)
            if (known := len(list(folder.glob("*.pt")))) > said:
                said = known
                say(f"{said * CELLS[ALONE].every} of {CELLS[ALONE].updates} episodes")
        if children == 1 and code is None:
            code = processes[0].wait()
        seconds = time.monotonic() - began
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its own processes would go on
                process.wait()
    if code:
        raise EnvironmentFailure(f"the program ended with code {code}: {_last_line(log)}")
    if said < CHECKPOINTS:
        raise EnvironmentFailure(f"the program set {said} of {CHECKPOINTS} checkpoints aside")
    return seconds


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1]


def _until_all_listen(children: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
    deadline = time.monotonic() + _LISTENING_SECONDS
    while log.read_text(errors="replace").count("[LISTENING]") < len(children):
        if time.monotonic() > deadline or any(one.poll() is not None for one in children):
            raise EnvironmentFailure(f"the children do not listen: {_last_line(log)}")
        time.sleep(0.1)


def measure(clone: Path, run: int, children: int, folder: Path, episodes: int, say: Say) -> Row:
    """The row of one run, and its folder is gone."""
    load = os.getloadavg()[0]
    seconds = train(clone, folder, children, say)
    experiment = Experiment.load(ROOT / CELLS[ALONE].file)
    said = judged(experiment, run, _kept(folder, say), episodes)
    shutil.rmtree(folder)
    return {
        "cell": cell(children),
        "seed": run,
        "date": time.strftime("%F %T"),
        "seconds": round(seconds, 1),
        "machine_cores": available_cores(),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        **said,
    }


def cell(children: int) -> str:
    """The cell whose training the program does."""
    return ALONE if children == 1 else BEST


def _kept(folder: Path, say: Say) -> Iterator[tuple[int, Weights]]:
    """What the program has set aside, one after another as they are judged."""
    files = sorted(folder.glob("*.pt"), key=_episodes)
    for number, file in enumerate(files, 1):
        say(f"judging {number}/{len(files)}")
        yield _episodes(file), weights(file)


def _episodes(path: Path) -> int:
    """After how many of its first process' episodes, or of a child, the file was set aside."""
    found = _NUMBER.search(path.name)
    assert found is not None
    return -(-int(found[1]) // 100) * 100  # one machine's program counts from 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = store.parser("thesis.program", __doc__)
    parser.add_argument("clone", type=Path, help="where the thesis' repository lies")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--children", type=int, choices=[1, 2], default=1)
    store.add_places(parser, RESULTS, ROOT / "runs/thesis-program")
    parser.add_argument("--episodes", type=int, default=500, help="that judge a checkpoint")
    return parser.parse_args(arguments)


@command
def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    with store.only_one(options.work):
        for run in options.runs:
            made = [(row["cell"], row["seed"]) for row in store.read(options.results)]
            if (cell(options.children), run) in made:
                continue

            def say(what: str, run: int = run) -> None:
                print(f"run {run}: {what}", flush=True)

            folder = options.work / str(run)
            row = measure(options.clone, run, options.children, folder, options.episodes, say)
            store.append(options.results, row)
            _, mean, deviation = row["curve"][-1]
            say(f"{mean:.1f} ± {deviation:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
