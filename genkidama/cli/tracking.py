"""What `--tensorboard` and `--log` ask for, and `export`, which does the same afterwards."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from genkidama.errors import ConfigurationError
from genkidama.plugins.sinks.feeds import Feeds, sink_maker
from genkidama.runs.directory import Run

__all__ = ["export", "requested_sinks"]


def requested_sinks(options: argparse.Namespace, say: Callable[[str], None] | None = None) -> Feeds:
    """The sinks that the command line names.

    Raises:
        ConfigurationError: there is no such sink, or its package is not installed.
    """
    sinks: list[Any] = list(options.log)
    folder: Path | None = options.tensorboard
    if folder == Path():
        sinks.append("tensorboard")
    elif folder is not None:
        sink_maker("tensorboard")  # which says what is missing
        sinks.append(partial(_tensorboard, folder))
    return Feeds(sinks, say)


def _tensorboard(folder: Path, about: Any) -> Any:
    from genkidama.plugins.sinks.services import TensorBoard

    return TensorBoard(about, folder)


def export(options: argparse.Namespace) -> int:
    """Carries a run's figures to other tools."""
    if options.tensorboard is None and not options.log:
        raise ConfigurationError("export: where to? give --tensorboard or --log SINK")
    run = Run.open(options.run)
    feeds = requested_sinks(options)
    with feeds:
        feeds.begin(run, None)
        for line in run.history():
            feeds.take(line)
    return min(1, feeds.dropped)
