"""Which settings fit a replay for all children."""

from __future__ import annotations

from typing import Any

import pytest

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError

SHARED = {"replay.steps": 1000, "replay.url": "embedded"}
SAC = {"algorithm.name": "sac", "parent.rule": "experience"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"replay.url": "embedded"},
            "mine: replay.url = 'embedded': with replay.steps = 0 nothing is kept there; set it to "
            "how many steps all children keep together",
        ),
        (
            {"replay.url": "redis://:opensesame@far:6379"},
            "mine: replay.url = 'redis://…@far:6379': with replay.steps = 0 nothing is kept there; "
            "set it to how many steps all children keep together",
        ),
        (
            {"child.roles": ["act", "learn"]},
            "mine: child.roles = ['act', 'learn']: children that only act, or only learn, share a "
            "replay; set replay.url to 'embedded'",
        ),
        (
            {**SHARED, "child.roles": ["act"], "environment.normalize_rewards": True},
            "mine: child.roles = ['act']: the statistics of environment.normalize_rewards = True "
            "come from children that act and learn; set it to false, or child.roles to ['bundle']",
        ),
        (
            {"replay.url": "http://far"},
            "mine: replay.url = 'http://far': "
            "expected 'local', 'embedded' or 'redis://[:PASSWORD@]HOST[:PORT]'",
        ),
        (
            {"replay.url": "redis://:open/se@same@far"},
            "mine: replay.url = 'redis://…@far': "
            "expected 'local', 'embedded' or 'redis://[:PASSWORD@]HOST[:PORT]'",
        ),
        (
            {"algorithm.demonstrations": ["a.steps"]},
            "mine: algorithm.demonstrations = ['a.steps']: only algorithm.name = 'dqn' or 'sac' "
            "has this setting",
        ),
        (
            {"algorithm.name": "mine:Learner", "algorithm.demonstrations": ["a.steps"]},
            "mine: algorithm.demonstrations: are drawn beside the replay of a child, but "
            "replay.steps = 0; set replay.steps and another parent.rule, or take them out",
        ),
        (
            {"algorithm.name": "sac", "algorithm.demonstration_share": 1.5},
            "mine: algorithm.demonstration_share = 1.5: expected float <= 1.0",
        ),
        (
            {"algorithm.name": "sac", "replay.steps": 0},
            "mine: replay.steps = 0: 'sac' samples the replay tensor; set it to how many steps "
            "each core is to keep, with child.backend = 'hogwild'",
        ),
        (
            {**SAC, "replay.url": "embedded"},
            "mine: replay.url = 'embedded': with parent.rule = 'experience' only 'local' is "
            "possible",
        ),
        (
            {**SAC, "replay.priority_exponent": 0.5},
            "mine: replay.priority_exponent = 0.5: with parent.rule = 'experience' only 0.0 is "
            "possible",
        ),
        (
            {**SAC, "learner.device": "cuda"},
            "mine: learner.device = 'cuda': with parent.rule = 'experience' only 'cpu' is possible",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_a_line(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Experiment().with_settings(changes, source="mine")
    assert str(caught.value) == sentence


def test_a_search_has_nothing_to_share() -> None:
    search = {"search": {"phase_steps": 100, "space": {"algorithm": {"gamma": [0.9, 0.99]}}}}
    shared = {"replay": {"steps": 1000, "url": "embedded"}}
    try:
        Experiment.from_dict(search, "mine")
    except ConfigurationError as error:
        pytest.fail(f"the search itself: {error}")
    with pytest.raises(ConfigurationError, match=r"^mine: replay\.url = 'embedded': in a search"):
        Experiment.from_dict({**search, **shared}, "mine")


@pytest.mark.parametrize(
    "url",
    [
        "local",
        "embedded",
        "redis://far",
        "redis://far:6379/3",
        "redis://:pass@far",
        "rediss://user:pass@[::1]:6380",
        "redis://:pass@:4711",
    ],
)
def test_what_fits_is_taken(url: str) -> None:
    found = Experiment().with_settings({"replay.steps": 1000, "replay.url": url})
    assert found.shares_replay == (url != "local")
