from __future__ import annotations

from typing import Any

import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.plugin import find
from genkidama.errors import ConfigurationError
from genkidama.server.rules.blend import Blend
from genkidama.server.rules.registry import make_rule, reads_loss
from genkidama.server.trial import SingleTrialRun

SEARCH = {
    "trials": 2,
    "phases": 2,
    "phase_steps": 1,
    "space": {"algorithm.gamma": [0.9, 0.99]},
}


def experiment(**sections: Any) -> Experiment:
    return Experiment.from_dict(sections)


@pytest.mark.parametrize(
    ("rule", "child", "pushed"),
    [
        ("blend", {}, "weights"),
        ("weighted", {}, "weights"),
        ("difference", {}, "difference"),
        ("gradient", {"exchange": "update"}, "gradient"),
        ("mine:Rule", {}, "weights"),
        ("mine:Rule", {"push": "difference"}, "difference"),
    ],
)
def test_what_children_push_follows_from_the_rule(
    rule: str, child: dict[str, str], pushed: str
) -> None:
    settings = experiment(parent={"rule": rule}, child=child)
    assert settings.pushes == pushed
    kind = find("rules", rule) or Blend
    assert type(make_rule(settings)) is kind
    assert type(SingleTrialRun(settings).rule) is kind
    assert Experiment.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"parent": {"rule": "difference"}, "child": {"push": "weights"}},
            "child.push = 'weights': parent.rule = 'difference' takes 'difference'; "
            "leave child.push out",
        ),
        (
            {"parent": {"rule": "gradient"}},
            "child.exchange = 'episode': children push a gradient after each update; "
            "set child.exchange to 'update'",
        ),
        (
            {"child": {"exchange": "update", "backend": "ga3c"}},
            "child.exchange = 'update': the cores of the backend hogwild can wait for each "
            "update, ga3c cannot; set child.exchange to 'free', or child.backend to 'hogwild'",
        ),
        (
            {"parent": {"rule": "difference", "rule_options": {"momentum": 2}}},
            "parent.rule_options: momentum = 2: expected float < 1.0",
        ),
        (
            {"parent": {"rule": "blend", "rule_options": {"momentum": 2}}},
            "parent.rule = 'blend' with parent.rule_options = {'momentum': 2}: it has no options; "
            "'weighted' is a blend that has",
        ),
        (
            {"parent": {"rule": "gradient", "rule_options": {"optimizer": "sgd"}}},
            "parent.rule_options: optimizer = 'sgd': no such setting; known here: buffer, by, "
            "children_power, max_staleness, max_step, milliseconds, outlier_sigmas, staleness, "
            "staleness_decay, staleness_grace",
        ),
        (
            {"parent": {"rule": "difference"}, "search": SEARCH},
            "parent.rule = 'difference': in a search each child has a trial of its own, and no "
            "rule; leave parent.rule out",
        ),
        (
            {"parent": {"average": 0.9}, "search": SEARCH},
            "parent.average = 0.9: a search keeps no running mean; set it to 0",
        ),
    ],
)
def test_settings_that_do_not_fit_are_told_in_one_line(sections: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        experiment(**sections)
    assert str(caught.value) == f"the experiment: {line}"


@pytest.mark.parametrize(
    ("rule", "reads"),
    [
        ({"rule": "gradient"}, False),
        ({"rule": "gradient", "rule_options": {"outlier_sigmas": 2.0}}, True),
        ({"rule": "mine:Rule"}, True),
        ({"rule": "blend"}, False),
    ],
)
def test_a_loss_costs_a_pass_where_the_rule_may_ask_for_it(
    rule: dict[str, Any], reads: bool
) -> None:
    push = {"exchange": "update", "push": "gradient"} if rule["rule"] == "mine:Rule" else {}
    child = push or ({"exchange": "update"} if rule["rule"] == "gradient" else {})
    assert reads_loss(experiment(parent=rule, child=child)) is reads
    assert not reads_loss(experiment(parent={"rule": "mine:Rule"}))


def test_a_run_of_a_rule_of_ones_own_tells_the_children_what_to_push() -> None:
    class Own(Blend):
        takes = "difference"

    settings = experiment(parent={"rule": "mine:Own"})
    told = Experiment.from_dict(SingleTrialRun(settings, Own(0.5)).trial.experiment)
    assert told.pushes == "difference"
    assert SingleTrialRun(settings, Blend(0.5)).trial.experiment == settings.to_dict()
