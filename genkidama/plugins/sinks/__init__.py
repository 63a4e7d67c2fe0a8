"""Sinks: TensorBoard, W&B, MLflow and trackio receive the measures of a run."""

from __future__ import annotations

from typing import Any

from genkidama.cli.options import Follower, Option, Verb, option, path
from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"sync": "genkidama.plugins.sinks:SYNC"},
    followers={"sinks": "genkidama.plugins.sinks:SINKS"},
)

#: Both leave their sinks in one list.
_OPTIONS: tuple[Option, ...] = (
    option(
        "--tensorboard",
        "event files for TensorBoard (default DIR: tensorboard/ in the run's directory)",
        dest="sinks",
        action="append",
        default=[],
        type=lambda folder: f"tensorboard={folder}" if folder else "tensorboard",
        nargs="?",
        const="",
        metavar="DIR",
    ),
    option(
        "--log",
        "metrics to wandb, mlflow, trackio or module:Class; repeatable (docs/notes/sinks.md)",
        dest="sinks",
        action="append",
        default=[],
        metavar="SINK",
    ),
)

SINKS = Follower(_OPTIONS, "genkidama.plugins.sinks.feeds:Feeds")

SYNC = Verb(
    "send a run's metrics to TensorBoard, W&B, MLflow or trackio",
    "Sends the metrics of a run that has ended, or of what there is of it, to other tools.",
    (path("run", "a run directory"), *_OPTIONS),
    (("genkidama sync runs/first --tensorboard", "then: tensorboard --logdir runs"),),
    run="genkidama.plugins.sinks:run_sync",
)


def run_sync(options: Any) -> int:
    """Sends the metrics of a run to other tools."""
    from genkidama.errors import ConfigurationError
    from genkidama.plugins.sinks.feeds import Feeds
    from genkidama.runs.run import Run

    if not options.sinks:
        raise ConfigurationError("sync: where to? give --tensorboard or --log SINK")
    run = Run.open(options.run)
    feeds = Feeds(options.sinks)
    with feeds:
        feeds.begin(run, None)
        for line in run.history():
            feeds.take(line, wait=True)
    return min(1, feeds.dropped)
