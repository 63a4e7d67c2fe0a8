"""`--set key=value` as a user types it."""

from __future__ import annotations

import pytest

from genkidama.config.decoding import parse_setting, parse_settings
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("child.exchange=free", "free"),
        ('child.exchange="free"', "free"),
        ("child.cores=4", 4),
        ("parent.alpha=0.9", 0.9),
        (" optimizer.learning_rate = 1e-3 ", 1e-3),
        ("network.shared=true", True),
        ("network.hidden=[64, 64]", [64, 64]),
        ("environment.options={wind = 3}", {"wind": 3}),
        ("environment.id=LunarLander-v3", "LunarLander-v3"),
        ("environment.id=my.module:make", "my.module:make"),
        ("name=2024-01-31", "2024-01-31"),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("parent.alpha=1\nseed = 3", "1\nseed = 3"),
    ],
)
def test_values(text: str, value: object) -> None:
    key, found = parse_setting(text)
    assert key == text.partition("=")[0].strip()
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "text", ["child.exchange", "=3", "child..exchange=free", ".x=1", "a b=1", ""]
)
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected key=value with a dotted key"):
        parse_setting(text)


def test_they_fit_the_experiment() -> None:
    changed = Experiment().with_settings(
        parse_settings(["seed=1", "child.exchange=free", "seed=2"])
    )
    assert (changed.seed, changed.child.exchange) == (2, "free")
