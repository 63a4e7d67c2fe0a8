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

from genkidama._version import __version__ as __version__

if TYPE_CHECKING:
    from genkidama.child.backend import Backend as Backend
    from genkidama.child.backend import Work as Work
    from genkidama.child.child import Child as Child
    from genkidama.child.orchestrator import CoreOrchestrator as CoreOrchestrator
    from genkidama.cli.cluster import train as train
    from genkidama.config.experiment import Experiment as Experiment
    from genkidama.config.plugin import Plugin as Plugin
    from genkidama.config.sections import Algorithm as Algorithm
    from genkidama.config.sections import Environment as Environment
    from genkidama.config.sections import Stop as Stop
    from genkidama.errors import ConfigurationError as ConfigurationError
    from genkidama.errors import EnvironmentFailure as EnvironmentFailure
    from genkidama.errors import GenkidamaError as GenkidamaError
    from genkidama.errors import ProtocolError as ProtocolError
    from genkidama.learning.a3c import A3C as A3C
    from genkidama.learning.heads import Categorical as Categorical
    from genkidama.learning.heads import head_for as head_for
    from genkidama.learning.learners import Learner as Learner
    from genkidama.learning.ppo import PPO as PPO
    from genkidama.learning.tensors.networks import ActorCritic as ActorCritic
    from genkidama.learning.tensors.networks import Convolutional as Convolutional
    from genkidama.learning.tensors.networks import Network as Network
    from genkidama.parent.parent import Parent as Parent
    from genkidama.protocol.vector import Signature as Signature
    from genkidama.protocol.vector import blend as blend
    from genkidama.runs.checkpoint import Checkpoint as Checkpoint
    from genkidama.runs.evaluation import Evaluation as Evaluation
    from genkidama.runs.evaluation import evaluate as evaluate
    from genkidama.runs.policy import Policy as Policy
    from genkidama.runs.run import Run as Run
    from genkidama.server.parameter_server import ParameterServer as ParameterServer
    from genkidama.server.rules.blend import Blend as Blend
    from genkidama.server.rules.blend import Rule as Rule
    from genkidama.server.rules.blend import Update as Update

#: Public names by their modules. One is imported when a name of it is first used: a parent must not
#: pay for torch, and a core must not pay for websockets. Plug-ins have more, in `exports`.
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
    "protocol.vector": "Signature blend",
    "runs.checkpoint": "Checkpoint",
    "runs.evaluation": "Evaluation evaluate",
    "runs.policy": "Policy",
    "runs.run": "Run",
    "server.parameter_server": "ParameterServer",
    "server.rules.blend": "Blend Rule Update",
}
_HOMES = {
    name: f"genkidama.{home}:{name}" for home, names in _NAMES.items() for name in names.split()
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or ("" if name.startswith("_") else _exports().get(name))
    if not home:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*__all__, *_exports()])


def _exports() -> dict[str, str]:
    """Public names of the built-in plug-ins, and their import strings."""
    from genkidama.config.plugin import plugins

    return {name: home for each in plugins().values() for name, home in each.exports.items()}
