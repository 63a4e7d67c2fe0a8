"""Genkidama trains one policy on many small machines.

A Parent holds the weights. Each Child trains its own copy with all its cores. Whenever it is ready,
it exchanges weights with the parent over one websocket. Nobody waits for anybody else.

The rules of the whole are in `genkidama/*.py`. `genkidama.system` touches the machine,
`genkidama.learning` learns, and `genkidama.parent` and `genkidama.child` wait and talk.
`docs/design.md` tells the rest.

    experiment = genkidama.Experiment.load("examples/lunarlander/lunarlander.toml")
    run = genkidama.train(experiment, children=2, out="runs/first")
    print(genkidama.evaluate(run).mean)
    action, _ = run.policy().predict(observation)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from genkidama._version import __version__

if TYPE_CHECKING:
    from genkidama.averaging import blend
    from genkidama.child.client import Child
    from genkidama.child.ga3c.backend import GA3C
    from genkidama.child.orchestrator import CoreOrchestrator
    from genkidama.errors import (
        ConfigurationError,
        EnvironmentFailure,
        GenkidamaError,
        ProtocolError,
    )
    from genkidama.experiment import Experiment
    from genkidama.learning.heads import head_for
    from genkidama.learning.networks import ActorCritic, Convolutional, Network
    from genkidama.learning.policy import Policy
    from genkidama.local.cluster import search, train
    from genkidama.local.evaluation import Evaluation, evaluate
    from genkidama.local.results import Run
    from genkidama.local.showing import play
    from genkidama.parameter_server import ParameterServer
    from genkidama.parent.server import Parent
    from genkidama.system.checkpoint import Checkpoint
    from genkidama.weights import Signature

#: Public names and their homes. A home is imported when its name is first used: a parent must not
#: pay for torch, and a core must not pay for websockets.
_HOMES = {
    "ActorCritic": "genkidama.learning.networks",
    "Checkpoint": "genkidama.system.checkpoint",
    "Child": "genkidama.child.client",
    "ConfigurationError": "genkidama.errors",
    "Convolutional": "genkidama.learning.networks",
    "CoreOrchestrator": "genkidama.child.orchestrator",
    "EnvironmentFailure": "genkidama.errors",
    "Evaluation": "genkidama.local.evaluation",
    "Experiment": "genkidama.experiment",
    "GA3C": "genkidama.child.ga3c.backend",
    "GenkidamaError": "genkidama.errors",
    "Network": "genkidama.learning.networks",
    "ParameterServer": "genkidama.parameter_server",
    "Parent": "genkidama.parent.server",
    "Policy": "genkidama.learning.policy",
    "ProtocolError": "genkidama.errors",
    "Run": "genkidama.local.results",
    "Signature": "genkidama.weights",
    "blend": "genkidama.averaging",
    "evaluate": "genkidama.local.evaluation",
    "head_for": "genkidama.learning.heads",
    "play": "genkidama.local.showing",
    "search": "genkidama.local.cluster",
    "train": "genkidama.local.cluster",
}

__all__ = [
    "ActorCritic",
    "Checkpoint",
    "Child",
    "ConfigurationError",
    "Convolutional",
    "CoreOrchestrator",
    "EnvironmentFailure",
    "Evaluation",
    "Experiment",
    "GA3C",
    "GenkidamaError",
    "Network",
    "ParameterServer",
    "Parent",
    "Policy",
    "ProtocolError",
    "Run",
    "Signature",
    "__version__",
    "blend",
    "evaluate",
    "head_for",
    "play",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
