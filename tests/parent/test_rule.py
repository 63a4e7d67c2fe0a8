"""A rule of one's own at the parent: this file is all that there is of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.parent import Parent
from genkidama.protocol.vector import DTYPE, Vector
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.server.rules.blend import Blend, Rule, RuleState, Update
from tests.helpers import running
from tests.parent.fake_child import FakeChild, vector
from tests.parent.parents import experiment
from tests.server.rules import check_rule


class Momentum(Rule):
    """θ_P moves towards each push, less if it is stale, and goes on the way it was going."""

    def __init__(self, alpha: float, momentum: float = 0.5) -> None:
        self.alpha = alpha
        self.momentum = momentum
        self.velocity: Vector | None = None

    def apply(self, parent: Vector, push: Update) -> None:
        if self.velocity is None:
            self.velocity = np.zeros_like(parent)
        self.velocity *= self.momentum
        self.velocity += self.alpha / (1 + push.staleness) * (push.vector - parent)
        parent += self.velocity

    def state(self) -> RuleState:
        return {} if self.velocity is None else {"velocity": self.velocity}

    def restore(self, state: RuleState) -> None:
        self.velocity = state.get("velocity")


class Silent(Rule):
    def __init__(self, alpha: float) -> None:
        raise ValueError("alpha is of no use here")


def test_it_keeps_the_promises_of_every_rule() -> None:
    check_rule(Momentum)


async def test_a_run_with_it_is_saved_and_goes_on(tmp_path: Path) -> None:
    rule = {"rule": f"{__name__}:Momentum", "rule_options": {"momentum": 0.25}}
    settings = experiment(parent=rule)
    async with running(settings, tmp_path) as parent, FakeChild(parent.address) as child:
        await child.enter()
        np.testing.assert_array_equal(await child.pushed(0.0), vector(0.0))
        np.testing.assert_array_equal(await child.pushed(8.0), vector(4.0))
    path = CheckpointFolder(tmp_path / "checkpoints").version_path(2)
    tensors = safetensors.numpy.load_file(path)
    assert sorted(tensors) == ["__rule__.velocity", "layer.bias", "layer.weight"]
    np.testing.assert_array_equal(tensors["__rule__.velocity"], vector(4.0))

    async with (
        running(settings, tmp_path) as parent,
        FakeChild(parent.address, session="2") as child,
    ):
        await child.enter()
        # 4 + (4 · 0.25 + 0.5 · (8 − 4)): with no velocity it would be 6.
        np.testing.assert_array_equal(await child.pushed(8.0), vector(7.0))


@pytest.mark.parametrize(
    ("rule", "options", "reason"),
    [
        ("blend", {"momentum": 1}, "it has no options; 'weighted' is a blend that has"),
        (f"{__name__}:Silent", {}, "alpha is of no use here"),
        (f"{__name__}:Path", {}, "expected str, bytes or os.PathLike object, not float"),
        ("builtins:complex", {}, "is no genkidama.server.rules.blend.Rule"),
        (f"{__name__}:Nothing", {}, "has no 'Nothing'"),
    ],
)
def test_what_is_no_rule_is_an_error_of_one_line(
    rule: str, options: dict[str, int], reason: str
) -> None:
    settings = {"parent.rule": rule, "parent.rule_options": options}
    with pytest.raises(ConfigurationError) as caught:
        Parent(Experiment().with_settings(settings))
    assert f"parent.rule = '{rule}'" in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_blend_is_what_is_taken_without_a_word() -> None:
    rule = Parent(Experiment()).server.trials.rule
    assert isinstance(rule, Blend)
    assert rule.alpha == Experiment().parent.alpha


async def test_what_it_remembers_must_fit(tmp_path: Path) -> None:
    class Forgetful(Momentum):
        def restore(self, state: RuleState) -> None:
            raise ValueError("'velocity' is missing")

    folder = CheckpointFolder(tmp_path / "checkpoints")
    folder.prepare()
    server = Parent(Experiment()).server
    folder.save_latest(
        FakeChild(("", 0)).signature, np.zeros(9, DTYPE), server.snapshot(0.0), {"other": vector()}
    )
    settings = Parent(Experiment(), out=tmp_path, listen="127.0.0.1:0")
    settings.server.trials.rule = Forgetful(0.5)
    with pytest.raises(
        ConfigurationError, match=r"Forgetful cannot go on .* 'velocity' is missing"
    ):
        await settings.startup()
