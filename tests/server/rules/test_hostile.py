"""What a hostile child can do to θ_P by finite pushes: every rule behind a whole parent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.plugin import names
from genkidama.protocol.messages import Push, Refusal
from genkidama.protocol.vector import DTYPE, Vector
from genkidama.server.rules.blend import Rule, RuleState, Update
from genkidama.server.rules.registry import make_rule
from tests.server.rules import check_push, parent_with

LARGEST = float(np.finfo(DTYPE).max)

SETTINGS: list[dict[str, Any]] = [
    {"parent": {"rule": "blend"}},
    {"parent": {"rule": "weighted", "rule_options": {"buffer": 2}}},
    {"parent": {"rule": "difference", "alpha": 1.0}},
    {"parent": {"rule": "difference", "alpha": 1.0, "rule_options": {"max_difference": 0.0}}},
    {"parent": {"rule": "difference", "rule_options": {"momentum": 0.9, "nesterov": True}}},
    {"parent": {"rule": "gradient"}, "optimizer": {"name": "adam"}},
    {"parent": {"rule": "gradient"}, "optimizer": {"name": "rmsprop"}},
    {"parent": {"rule": "gradient"}, "optimizer": {"name": "adagrad"}},
    {"parent": {"rule": "gradient"}, "optimizer": {"name": "sgd", "momentum": 0.9}},
    {
        "parent": {"rule": "gradient", "rule_options": {"max_step": 1.0}},
        "optimizer": {"name": "sgd"},
    },
    {"parent": {"rule": "difference", "push_window": 2}},
]


def rule_of(settings: dict[str, Any]) -> Rule:
    if settings["parent"]["rule"] == "gradient":
        settings = {**settings, "child": {"exchange": "update"}}
    return make_rule(Experiment.from_dict(settings))


def test_all_rules_that_take_vectors_are_here() -> None:
    assert {each["parent"]["rule"] for each in SETTINGS} == {*names("rules")} - {"experience"}


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 1.2e38, 1.8e19, 3e14, 1e14])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_no_number_of_finite_pushes_makes_a_parent_infinite(
    settings: dict[str, Any], value: float
) -> None:
    server = parent_with(rule_of(settings), 3)
    for number in range(2, 12):
        check_push(server, np.full(3, value, DTYPE), number)
    assert check_push(server, np.full(3, 0.5, DTYPE), 12), "an honest push is taken as before"


class Gain(Rule):
    """A rule of a user's own that grows without bound, and remembers what it was given."""

    takes = "difference"

    def __init__(self, gain: float) -> None:
        self.gain = gain
        self.kept: Vector | None = None

    def apply(self, parent: Vector, push: Update) -> None:
        if self.kept is None:
            self.kept = np.zeros_like(parent)
        self.kept += push.vector
        parent += DTYPE.type(self.gain) * push.vector

    def state(self) -> RuleState:
        return {} if self.kept is None else {"kept": self.kept}

    def restore(self, state: RuleState) -> None:
        self.kept = state.get("kept")


def test_a_push_that_a_rule_makes_infinity_of_is_taken_back_with_the_rules_state() -> None:
    server = parent_with(Gain(1e25), 3)
    assert check_push(server, np.ones(3, DTYPE), 2)
    assert not check_push(server, np.full(3, 1e14, DTYPE), 3)
    assert server.trial.vector is not None
    assert server.trial.vector.tolist() == pytest.approx([1e25] * 3)
    assert server.refusals == {"finite": 1}
    reason = server.take_events()[-1].reason
    assert reason == ("child 'pi': its push makes NaN or infinity of θ_P; it is taken back")


def test_where_honest_pushes_make_infinity_the_parent_goes_back_and_says_so() -> None:
    rule = Gain(1e38)
    server = parent_with(rule, 2)
    trial = server.trial
    for number in range(2, 5):
        assert check_push(server, np.ones(2, DTYPE), number)
    push = Push(version=1, sequence=5, steps=1, kind="difference", vector=np.ones(2, DTYPE))
    assert isinstance(server.handle("pi", push, 9.0), Refusal)
    assert trial.vector is not None
    assert trial.vector.tolist() == [1.0, 1.0]
    assert rule.state() == {}
    assert server.take_events()[-1].reason.endswith("θ_P goes back to what it was at version 1")
