"""`search`: a search on this machine, with children as processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

from genkidama.cli.cluster import Cluster, children_here, cores_of_each
from genkidama.cli.progress import Sinks, feeding, following
from genkidama.config.decoding import check_least
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.runs.resume import prepare_directory, resumable
from genkidama.runs.run import SETTINGS, Run
from genkidama.runtime.address import parse_listen
from genkidama.runtime.import_strings import check_environment
from genkidama.runtime.script import begin
from genkidama.server.limits import check_exposed


def search(
    experiment: Experiment,
    *,
    children: int | None = None,
    cores: int | None = None,
    listen: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    sinks: Sinks = (),
    say: Callable[[str], None] | None = None,
    progress: bool = False,
) -> Run:
    """Searches for hyperparameters until `[search]` says that it is over. Blocks.

    Args:
        experiment: all settings, with a `[search]`.
        children: child processes on this machine, each of which trains one trial after another.
            0 leaves all trials to children on the network; if absent, as in `train`.
        cores: core processes of each node; if absent, as in `train`.
        listen: `HOST:PORT` that lets children on other machines take part; a free port of the
            loopback if absent.
        out: the run directory; a new one under `runs/` if absent.
        resume: the directory of a search to resume, instead of `out`.
        watch: is called with each new line of the history, about four times a second.
        sinks: what the measures are carried to as well, as `["wandb"]` (docs/notes/sinks.md).
        say: is called with a line about each process that dies or complains.
        progress: shows how it goes, on standard error or in a notebook's cell.

    Returns:
        The run; its `trials` are runs. `genkidama.plugins.hypertrick.report` tells what they came
        to.

    Raises:
        ConfigurationError: a setting is wrong, or `out` holds a run already.
        EnvironmentFailure: a process cannot start, or keeps dying.
    """
    begin("search")
    Experiment.expect(experiment)
    if experiment.search is None:
        raise ConfigurationError(
            f"{experiment.name}: has no [search]; "
            "say what to vary, as `genkidama examples lunarlander/search` shows"
        )
    with chdir("."):  # which a module of the user's may leave
        check_environment(experiment)
    children = children_here(experiment, children, cores)
    if children < 0 or (children == 0 and listen is None):
        raise ConfigurationError(
            f"children = {children}: at least 1 is needed, "
            "or 0 with an address for children on the network"
        )
    check_least(1, cores=cores)
    guarded = experiment.parent.tokens_file or experiment.parent.certificate_file
    if children and listen is not None and guarded:
        raise ConfigurationError(
            f"children = {children}: a search that asks the network for tokens or TLS "
            "(parent.tokens_file, parent.certificate_file) starts none itself; give --children 0, "
            "and start `python -m genkidama.child` on each machine, also on this one"
        )
    if listen is not None and not listen.startswith("fd://"):
        check_exposed(experiment.parent, parse_listen(listen)["host"])
    feed = feeding(sinks, say)
    run = prepare_directory(experiment, out, resume)
    with resumable(run, "search"), feed:
        experiment = Experiment.load(run.path / SETTINGS)  # of a notebook's class it has the source
        names = [f"node-{number}" for number in range(1, children + 1)]
        cores = cores_of_each(experiment, cores, children)
        with (
            following(experiment, progress, watch) as shown,
            Cluster(run, experiment, names, cores, listen) as cluster,
        ):
            cluster.wait(feed.begin(run, shown), say)
    return run
