"""`genkidama launch`."""

from __future__ import annotations

import argparse

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
    run="genkidama.plugins.ray.verbs:run_launch",
    starts_run=True,
)


def run_launch(options: argparse.Namespace) -> int:
    """Trains or searches on a Ray cluster, and evaluates or reports."""
    import os
    from contextlib import redirect_stdout

    from genkidama.cli import verbs
    from genkidama.cli.progress import Progress, feeding
    from genkidama.config.decoding import check_least
    from genkidama.errors import ConfigurationError
    from genkidama.plugins.ray.start import launch
    from genkidama.runs.goal import prepare

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
