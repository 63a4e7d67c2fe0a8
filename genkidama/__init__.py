"""Genkidama trains one policy on many small machines.

A Parent holds the weights. Each Child trains a copy of them with all its cores. When it is ready,
it exchanges weights with the parent over one websocket, without waiting for other children.
`docs/design.md` describes the folders.

    experiment = genkidama.Experiment.load("lunarlander")
    run = genkidama.train(experiment, children=2, out="runs/first")
    print(genkidama.evaluate(run).mean)
    action, _ = run.policy().predict(observation)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from genkidama._version import __version__

if TYPE_CHECKING:
    from genkidama.child.backend import Backend, Work
    from genkidama.child.child import Child
    from genkidama.child.orchestrator import CoreOrchestrator
    from genkidama.cli.cluster import train
    from genkidama.config.experiment import Experiment
    from genkidama.config.plugin import Plugin
    from genkidama.config.sections import Algorithm, Environment, Stop
    from genkidama.errors import (
        ConfigurationError,
        EnvironmentFailure,
        GenkidamaError,
        ProtocolError,
    )
    from genkidama.learning.a3c import A3C
    from genkidama.learning.heads import Categorical, head_for
    from genkidama.learning.learners import Learner
    from genkidama.learning.ppo import PPO
    from genkidama.learning.tensors.networks import ActorCritic, Convolutional, Network
    from genkidama.parent.parent import Parent
    from genkidama.plugins.ga3c.backend import GA3C
    from genkidama.plugins.hypertrick.local_search import search
    from genkidama.plugins.hypertrick.pruner import HyperTrickPruner
    from genkidama.plugins.hypertrick.rule import HyperTrick, Verdict
    from genkidama.plugins.render.playback import play
    from genkidama.protocol.vector import Signature, blend
    from genkidama.runs.checkpoint import Checkpoint
    from genkidama.runs.evaluation import Evaluation, evaluate
    from genkidama.runs.policy import Policy
    from genkidama.runs.run import Run
    from genkidama.server.parameter_server import ParameterServer
    from genkidama.server.rules.blend import Blend, Rule, Update

#: Public names by their modules. One is imported when a name of it is first used: a parent must not
#: pay for torch, and a core must not pay for websockets.
_NAMES = {
    "child.backend": "Backend Work",
    "child.child": "Child",
    "child.orchestrator": "CoreOrchestrator",
    "cli.cluster": "train",
    "config.experiment": "Experiment",
    "config.plugin": "Plugin",
    "config.sections": "Algorithm Environment Stop",
    "errors": "ConfigurationError EnvironmentFailure GenkidamaError ProtocolError",
    "learning.a3c": "A3C",
    "learning.heads": "Categorical head_for",
    "learning.learners": "Learner",
    "learning.ppo": "PPO",
    "learning.tensors.networks": "ActorCritic Convolutional Network",
    "parent.parent": "Parent",
    "plugins.ga3c.backend": "GA3C",
    "plugins.hypertrick.local_search": "search",
    "plugins.hypertrick.pruner": "HyperTrickPruner",
    "plugins.hypertrick.rule": "HyperTrick Verdict",
    "plugins.render.playback": "play",
    "protocol.vector": "Signature blend",
    "runs.checkpoint": "Checkpoint",
    "runs.evaluation": "Evaluation evaluate",
    "runs.policy": "Policy",
    "runs.run": "Run",
    "server.parameter_server": "ParameterServer",
    "server.rules.blend": "Blend Rule Update",
}
_HOMES = {name: f"genkidama.{home}" for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "A3C",
    "ActorCritic",
    "Algorithm",
    "Backend",
    "Blend",
    "Categorical",
    "Checkpoint",
    "Child",
    "ConfigurationError",
    "Convolutional",
    "CoreOrchestrator",
    "Environment",
    "EnvironmentFailure",
    "Evaluation",
    "Experiment",
    "GA3C",
    "GenkidamaError",
    "HyperTrick",
    "HyperTrickPruner",
    "Learner",
    "Network",
    "PPO",
    "ParameterServer",
    "Parent",
    "Plugin",
    "Policy",
    "ProtocolError",
    "Rule",
    "Run",
    "Signature",
    "Stop",
    "Update",
    "Verdict",
    "Work",
    "__version__",
    "blend",
    "evaluate",
    "head_for",
    "play",
    "search",
    "train",
]


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is not None:
        try:
            return getattr(importlib.import_module(home), name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{home}.".startswith(f"{error.name}."):
                raise
            raise AttributeError(f"genkidama.{name}: {error.name} was deleted") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
