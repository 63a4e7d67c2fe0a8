"""`[learner]`, and the check of an experiment whose children act for a learner. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genkidama.config.decoding import Device, Section
from genkidama.errors import ConfigurationError

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment


class LearnerSettings(Section, frozen=True):
    """`[learner]`: the learner beside the parent, with `parent.rule = "experience"`."""

    device: Device = "auto"
    """Where the learner's model is, on the parent's machine: `"cpu"`, `"cuda"`, `"cuda:N"`;
    `"auto"` means a GPU if there is one and the network is no perceptron, which a CPU computes
    faster."""


def check(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks that the children can act for a learner, if they are to."""
    if not experiment.sends_experience:
        return
    replay = experiment.section("replay")
    kept: list[tuple[str, Any, Any]] = [("replay.steps", 0 if replay is None else replay.steps, 0)]
    if experiment.algorithm.name == "sac":
        kept = [
            ("replay.url", replay.url, "local"),
            ("replay.priority_exponent", replay.priority_exponent, 0.0),
            ("learner.device", experiment.learner.device.replace("auto", "cpu"), "cpu"),
        ]
    for key, value, wanted in (
        ("child.backend", experiment.child.backend, "hogwild"),
        ("algorithm.epsilon", experiment.algorithm.epsilon, 0.0),
        *kept,
        ("algorithm.across_episodes", experiment.algorithm.across_episodes, True),
    ):
        if value != wanted:
            raise ConfigurationError(
                f"{source}: {key} = {value!r}: with parent.rule = 'experience' "
                f"only {wanted!r} is possible"
            )
