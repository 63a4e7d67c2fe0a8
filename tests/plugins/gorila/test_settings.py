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
            {**SHARED, "child.backend": "ga3c"},
            "mine: replay.steps = 1000: the backend ga3c has no replay tensor; set it to 0, or "
            "child.backend to 'hogwild'",
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
@pytest.mark.parametrize("roles", [["bundle"], ["act"], ["learn"], ["act", "act", "bundle"]])
def test_what_fits_is_taken(url: str, roles: list[str]) -> None:
    if url == "local":
        roles = ["bundle"]
    changes = {"replay.steps": 1000, "replay.url": url, "child.roles": roles}
    found = Experiment().with_settings(changes)
    assert found.shares_replay == (url != "local")
    assert found.role == (roles[0] if len(roles) == 1 else "bundle")


def test_sac_alone_sets_what_suits_it_and_gives_way_to_what_is_given() -> None:
    plain = Experiment.from_dict({"algorithm": {"name": "sac"}})
    assert (plain.network.activation, plain.algorithm.minibatch_size) == ("relu", 256)
    assert plain.replay_steps == plain.replay.steps == 100_000
    given = {"algorithm": {"name": "sac", "minibatch_size": 8}, "replay": {"steps": 500}}
    own = Experiment.from_dict(given)
    assert (own.algorithm.minibatch_size, own.algorithm.batch_size) == (8, 8)
    assert own.replay.steps == 500
    assert Experiment.from_dict(own.to_dict()) == own
    beside = plain.with_settings({"parent.rule": "experience"})
    assert beside.replay_steps == 0, "of a child's cores"
    assert beside.replay.steps == 100_000
