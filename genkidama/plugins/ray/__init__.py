"""Runs on a Ray cluster: Children on its nodes, started and watched through Ray.

The extra `ray` is needed, and imported only by a launch.

    run = launch(Experiment.load("lunarlander.toml"), address="auto", out="runs/cluster")

Its laws:
- The Parent runs beside the driver, this process, and writes the run directory. Each Child is an
  actor of Ray's that starts one real process, `genkidama.child`, as on a shelf. Weights go from
  process to process by websocket, not through Ray.
- A Child that is lost with its worker or its node is started again where there is room.
- A process ends with its actor, and an actor with the driver. Nothing stays on a node, except its
  directory after a crash.
- The token that lets Children in is drawn for each launch. It is never on a command line.
- An actor answers at once. The driver sends it one request at a time, and never waits for it.
"""

from __future__ import annotations

import importlib
from typing import Any

from genkidama.cli.options import (
    ALLOW,
    EPISODES,
    JSON,
    SEED,
    Verb,
    file,
    number,
    option,
    path,
    setting,
)
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(verbs={"launch": "genkidama.plugins.ray:LAUNCH"})

LAUNCH = Verb(
    "train or search on a Ray cluster",
    "Trains or searches on a Ray cluster.",
    (
        file("the experiment (may be left out with --resume)"),
        option(
            "--ray", "on Ray: the only kind of cluster so far", action="store_true", required=True
        ),
        option(
            "--address",
            "the cluster's (default: $RAY_ADDRESS, or the one this machine belongs to)",
            metavar="ADDRESS",
        ),
        number("--children", "number of children (default: one on each node that has enough CPUs)"),
        number("--cores", "CPUs and core processes of each child (default: all of a node)"),
        option("--gpus", "GPUs of each child (default: 0)", type=float, default=0.0, metavar="N"),
        SEED,
        path("--out", "the run directory, on this machine (default: a new one under runs/)"),
        path("--resume", "continue this run"),
        ALLOW,
        setting("child.exchange=free"),
        EPISODES,
        JSON,
    ),
    (
        ("genkidama launch lunarlander --ray", "a child on each node of the cluster here"),
        (
            "genkidama launch mine.toml --ray --address ray://HEAD:10001 --children 8",
            "eight children on another cluster",
        ),
    ),
    run="genkidama.plugins.ray:run_launch",
    starts_run=True,
)


def run_launch(options: Any) -> int:
    """Trains or searches on a Ray cluster, and evaluates or reports."""
    import os
    from contextlib import redirect_stdout

    from genkidama.cli import verbs
    from genkidama.cli.progress import Progress, feeding
    from genkidama.config.decoding import check_least
    from genkidama.errors import ConfigurationError
    from genkidama.plugins.ray.start import launch
    from genkidama.runs.resume import prepare

    experiment, about_stop = prepare(verbs.experiment_of(options, "which experiment?"))
    check_least(0, episodes=options.episodes)
    if options.json and experiment.search is not None:
        raise ConfigurationError(
            f"--json: {experiment.name} has a [search], which ends with a report; leave --json out"
        )
    before = verbs.counters_before(options)
    progress = Progress(experiment, about=about_stop)
    with feeding(getattr(options, "sinks", ()), progress.say) as sinks:
        # Ray prints what it knows about lost workers to standard output, which is for the result.
        with (
            verbs.closing_display(progress),
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),
        ):
            run = launch(
                experiment,
                address=options.address,
                children=options.children,
                cores=options.cores,
                gpus=options.gpus,
                out=options.out,
                resume=options.resume,
                episodes=0,
                watch=progress,
                sinks=sinks,
                say=progress.say,
            )
        if experiment.search is not None:
            verbs.say_reason(progress)
            print(run.report(run.path / "figures"))
        else:
            verbs.conclude(run, experiment, options, progress, before, sinks)
    return 0


def __getattr__(name: str) -> Any:
    if name in ("launch", "layout"):
        return getattr(importlib.import_module("genkidama.plugins.ray.start"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
