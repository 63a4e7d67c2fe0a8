from __future__ import annotations

from typing import Any

import pytest

from genkidama.config.experiment import Experiment, applicable_settings
from genkidama.errors import ConfigurationError

REPLAY = {"replay": {"steps": 5000}}


@pytest.mark.parametrize("name", ["a3c", "ppo", "dqn", "vtrace", "mine:Learner"])
def test_an_experiment_says_what_its_algorithm_has_and_is_read_back(name: str) -> None:
    experiment = Experiment.from_dict({"algorithm": {"name": name}, **REPLAY})
    settings = experiment.to_dict()
    assert Experiment.from_dict(settings) == experiment
    has = {key: key in settings["algorithm"] for key in ("clip", "minibatch_size", "double")}
    assert has == {
        "clip": name in ("ppo", "mine:Learner"),
        "minibatch_size": name != "a3c",
        "double": name in ("dqn", "mine:Learner"),
    }


def test_another_algorithm_can_be_set_and_takes_its_own_settings() -> None:
    plain = Experiment.from_dict({**REPLAY})
    changed = plain.with_settings({"algorithm.name": "dqn", "algorithm.n_steps": 3})
    assert (changed.algorithm.name, changed.algorithm.n_steps) == ("dqn", 3)
    assert changed.with_settings({"algorithm.name": "a3c"}).algorithm.name == "a3c"


def test_settings_of_others_are_left_out() -> None:
    section = {"name": "a3c", "gamma": 0.9, "clip": 0.2, "n_steps": 3}
    assert applicable_settings(section, "a3c") == {"name": "a3c", "gamma": 0.9}
    assert applicable_settings(section, "vtrace") == {"name": "a3c", "gamma": 0.9, "n_steps": 3}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"algorithm": {"name": "ppo", "double": True}},
            "algorithm.double = True: only algorithm.name = 'dqn' has this setting",
        ),
        (
            {"algorithm": {"name": "a3c", "minibatch_size": 5}},
            "algorithm.minibatch_size = 5: only algorithm.name = 'ppo' or 'dqn' or 'vtrace' has "
            "this setting",
        ),
        (
            {"algorithm": {"name": "dqn"}},
            "replay.steps = 0: 'dqn' samples the replay tensor; set it to how many steps each core "
            "is to keep, with child.backend = 'hogwild'",
        ),
        (
            {"algorithm": {"name": "vtrace"}, "replay": {"steps": 500}},
            "algorithm.start_steps = 1000: at most replay.steps = 500 is allowed, or a child with "
            "one core would never learn",
        ),
        (
            {"algorithm": {"name": "dqn", "target_updates": 0}, **REPLAY},
            "algorithm.target_updates = 0: with target_versions = 0 too, θ⁻ would never follow θ; "
            "set one of them",
        ),
        (
            {"algorithm": {"name": "dqn"}, "parent": {"rule": "experience"}},
            "algorithm.name = 'dqn': samples what its own child remembers, but with parent.rule = "
            "'experience' children only act; take another parent.rule",
        ),
        (
            {"replay": {"priority_exponent": 0.6}},
            "replay.priority_exponent = 0.6: with replay.steps = 0 nothing is kept that could be "
            "drawn; set that, too",
        ),
        (
            {"algorithm": {"name": "dqn", "vtrace": True}, **REPLAY},
            "algorithm.vtrace = True: is for a3c with the backend ga3c or with parent.rule = "
            "'experience', but algorithm.name = 'dqn'",
        ),
    ],
)
def test_what_nothing_could_be_learned_with_is_refused(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Experiment.from_dict(settings, source="x.toml")
    assert str(caught.value) == f"x.toml: {sentence}"
