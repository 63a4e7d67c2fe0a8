"""The learner of a parent whose children send experience: a process beside it, on the same machine.

The parent needs neither torch nor an environment; the learner, which does, is a separate process.
The two take turns: the parent hands over a batch, and the learner reports when it has learned.

`genkidama.plugins.actors.learner_process` is the parent's side.
"""

from __future__ import annotations

from genkidama.config.plugin import Plugin

PLUGIN = Plugin(
    sections={"learner": "genkidama.plugins.actors.settings:LearnerSettings"},
    checks={"experience": "genkidama.plugins.actors.settings:check"},
    rules={"experience": "genkidama.plugins.actors.rule:Experience"},
    companions={"learner": "genkidama.plugins.actors.learner_process:companion"},
    backends={"experience": "genkidama.plugins.actors.backend:Actors"},
    cores={"experience": "genkidama.plugins.actors.actor:Actor"},
)
