"""A small search with HyperTrickScheduler on a real Ray on this machine's loopback.

    python -m tests.plugins.hypertrick.ray_search interrupted|restored DIRECTORY

A process of its own, since Ray leaves threads, settings and warnings behind in the one that
connects to it. It prints one line of JSON; `interrupted` ends by killing itself, and `restored`
goes on with what that left in DIRECTORY.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import ray
from ray import tune

from genkidama.plugins.hypertrick.ray_tune import JOURNAL, HyperTrickScheduler

WORKERS = 12
PHASES = 4
#: Trials in the order of their numbers; the later ones tend to be worse, so that some are stopped.
SLOPES = [11, 3, 8, 10, 5, 9, 2, 7, 4, 6, 1, 0]
#: This trial raises in its second phase.
FAULTY = 3


def train(config: dict[str, Any]) -> None:
    for iteration in range(1, 2 * PHASES + 1):
        if config["slope"] == SLOPES[FAULTY] and iteration == 3:
            raise RuntimeError("this trial fails, as it is meant to")
        # Two iterations are a phase; what the odd ones report would turn the order around.
        score = config["slope"] * iteration if iteration % 2 == 0 else -config["slope"]
        tune.report({"score": score})


class KillMeOnceNoted(tune.Callback):
    """Kills this process, once, as soon as a part of the journal is in the experiment's storage.

    Not while Ray copies, since its own state is then torn, and it starts anew.
    """

    def __init__(self, storage: Path) -> None:
        self.storage = storage

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        trial.storage.syncer.wait()
        journal, killed = self.storage / JOURNAL, self.storage / "killed"
        if not killed.exists() and journal.exists() and journal.read_text().count("phase") >= 5:
            killed.touch()  # Ray restores this callback too
            os.kill(os.getpid(), signal.SIGKILL)


def search(directory: Path, callbacks: list[tune.Callback]) -> tune.Tuner:
    scheduler = HyperTrickScheduler(
        workers=WORKERS, phases=PHASES, eviction_rate=0.25, phase_length=2
    )
    return tune.Tuner(
        train,
        param_space={"slope": tune.grid_search(SLOPES)},
        tune_config=tune.TuneConfig(scheduler=scheduler, metric="score", mode="max"),
        run_config=tune.RunConfig(
            storage_path=str(directory), name="search", verbose=0, callbacks=callbacks
        ),
    )


def findings(tuner: tune.Tuner) -> dict[str, Any]:
    results = tuner.fit()
    rows = {}
    for result in results:
        metrics = result.metrics or {}
        rows[SLOPES.index(result.config["slope"])] = {
            "iterations": metrics["training_iteration"],
            "failed": result.error is not None,
        }
    return {"trials": rows, "journal": Path(results.experiment_path, JOURNAL).read_text()}


def main(mode: str, directory: Path) -> None:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    if mode == "interrupted":
        found = findings(search(directory, [KillMeOnceNoted(directory / "search")]))
    else:
        space = {"slope": tune.grid_search(SLOPES)}
        found = findings(tune.Tuner.restore(str(directory / "search"), train, param_space=space))
    ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
