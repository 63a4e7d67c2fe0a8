"""What is no rule for a parent, and a state that no rule of its own takes over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.parent import Parent
from genkidama.protocol.vector import DTYPE
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.server.rules.blend import Blend, Rule, RuleState
from tests.parent.fake_child import FakeChild, vector


class Silent(Rule):
    def __init__(self, alpha: float) -> None:
        raise ValueError("alpha is of no use here")


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
    class Forgetful(Blend):
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
