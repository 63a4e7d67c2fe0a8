"""Runs on a Ray cluster: processes on other machines, started and watched through Ray alone.

The extra `ray` is needed, and imported only by a launch.

    run = launch(Experiment.load("lunarlander.toml"), address="auto", out="runs/cluster")

Each part of the run is an actor of Ray's that starts one real process, `genkidama.parent` or
`genkidama.child`, as on a shelf. Weights go from process to process by websocket, not through Ray.

Its laws:
- Everything that a machine can lose is copied. This process, the driver, keeps the run directory:
  history and checkpoints come to it as they are written, as bytes.
- The copy of a search's study is kept back until the weights of all its reports are here.
- A part that is lost with its worker or its node is started again where there is room. A parent
  gets what the driver has copied. A child that is still there gets the new address, and keeps its
  weights.
- The parent takes no CPU of Ray's account, so there is always room for it. It runs on the head
  node: without that node the cluster is lost anyway.
- A process ends with its actor, and an actor with the driver. Nothing stays on a node, except its
  directory after a crash.
- The token that lets children in is drawn for each launch. It is never on a command line.
- An actor answers at once. The driver waits, and it sends each part one request at a time.
"""

from __future__ import annotations

import importlib
from typing import Any

from genkidama.config.plugin import Plugin

#: Public names and their modules, imported at their first use.
_HOMES = {
    "launch": "genkidama.plugins.ray.start",
    "layout": "genkidama.plugins.ray.start",
}

PLUGIN = Plugin(
    verbs={"launch": "genkidama.plugins.ray.verbs:LAUNCH"},
)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
