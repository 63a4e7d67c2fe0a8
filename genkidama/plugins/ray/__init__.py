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

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    verbs={"launch": "genkidama.plugins.ray.verbs:LAUNCH"},
)


def __getattr__(name: str) -> Any:
    if name in ("launch", "layout"):
        return getattr(importlib.import_module("genkidama.plugins.ray.start"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
