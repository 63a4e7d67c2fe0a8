from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.plugin import find
from genkidama.config.sections import ParentSettings
from genkidama.errors import ConfigurationError
from genkidama.protocol.shard import MOST_PARTS
from genkidama.protocol.vector import DTYPE
from genkidama.server.rules import registry
from genkidama.server.rules.blend import Blend, Rule
from genkidama.server.rules.difference import Difference
from genkidama.server.rules.registry import check_parts, check_push, make_rule, reads_loss
from genkidama.server.trial import SingleTrialRun
from tests.server.rules import contribution

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
        ({"rule": "difference"}, False),
    ],
)
def test_a_loss_costs_a_pass_where_the_rule_may_ask_for_it(
    rule: dict[str, Any], reads: bool
) -> None:
    push = {"exchange": "update", "push": "gradient"} if rule["rule"] == "mine:Rule" else {}
    child = push or ({"exchange": "update"} if rule["rule"] == "gradient" else {})
    assert reads_loss(experiment(parent=rule, child=child)) is reads
    assert not reads_loss(experiment(parent={"rule": "mine:Rule"}))
    assert not reads_loss(experiment(parent={"rule": "mine:Rule"}, child={"push": "difference"}))


class WithOption(Blend):
    """A rule of one's own, with an option."""

    def __init__(self, alpha: float, *, least: int = 0) -> None:
        super().__init__(alpha)
        if least > 3:
            raise ValueError(f"least = {least}: 3 at most")
        self.least = least


def test_a_rule_of_ones_own_is_made_with_alpha_and_its_options() -> None:
    options = {"alpha": 0.25, "rule": "mine:Rule", "rule_options": {"least": 3}}
    rule = make_rule(experiment(parent=options), WithOption)
    assert isinstance(rule, WithOption)
    assert (rule.alpha, rule.least) == (0.25, 3)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (WithOption, {"least": 4}, "least = 4: 3 at most"),
        (WithOption, {"most": 4}, ".*unexpected keyword argument 'most'"),
        (lambda alpha: None, {}, r"is no genkidama\.server\.rules\.blend\.Rule"),
    ],
)
def test_what_makes_no_rule_is_told_in_one_line(
    kind: Callable[..., Any], options: dict[str, Any], words: str
) -> None:
    settings = experiment(parent={"rule": "mine:Rule", "rule_options": options})
    words = rf"^parent\.rule = 'mine:Rule' with parent\.rule_options = .*: {words}$"
    with pytest.raises(ConfigurationError, match=words):
        make_rule(settings, kind)


def test_a_parents_optimizer_keeps_to_the_norm_that_children_keep_to() -> None:
    rule = make_rule(
        experiment(
            parent={"rule": "gradient"},
            child={"exchange": "update"},
            algorithm={"max_gradient_norm": 5.0},
            optimizer={"name": "sgd", "learning_rate": 0.5},
        )
    )
    weights = np.zeros(2, DTYPE)
    rule.apply(weights, contribution(np.array([30.0, 40.0], DTYPE)))
    assert weights.tolist() == [-1.5, -2.0]


class Around(Blend):
    """A rule of a plug-in around another."""

    def __init__(self, name: str, inner: Rule, settings: ParentSettings) -> None:
        super().__init__(settings.alpha)
        self.name, self.inner = name, inner


def test_rules_of_plug_ins_go_around_it_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = experiment(parent={"rule": "difference", "alpha": 0.25, "push_window": 3})
    wrappers = {name: partial(Around, name) for name in ("robust", "second")}
    monkeypatch.setattr(registry, "every", lambda hook: wrappers.items())
    outer = make_rule(settings)
    assert isinstance(outer, Around) and isinstance(outer.inner, Around)
    assert (outer.name, outer.inner.name) == ("second", "robust")
    assert outer.alpha == outer.inner.alpha == 0.25
    assert type(outer.inner.inner) is Difference


@pytest.mark.parametrize("key", ["push_limit", "push_window", "quarantine_after"])
def test_what_needs_a_plug_in_is_refused_where_it_is_gone(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, settings = experiment(), experiment(parent={key: 3})
    monkeypatch.setattr(registry, "every", lambda hook: [])
    assert type(make_rule(plain)) is Blend
    with pytest.raises(ConfigurationError, match=rf"^parent\.{key} = 3.*'robust', which is not"):
        make_rule(settings)


@pytest.mark.parametrize(
    ("sections", "most"),
    [
        ({}, MOST_PARTS),
        ({"parent": {"rule": "difference"}}, MOST_PARTS),
        ({"parent": {"rule": "gradient"}, "child": {"exchange": "update"}}, MOST_PARTS),
        ({"parent": {"rule": "experience"}}, 1),
        ({"search": SEARCH}, 1),
    ],
)
def test_a_parent_may_have_so_many_parts(sections: dict[str, Any], most: int) -> None:
    settings = experiment(**sections)
    for count in (1, most):
        check_parts(settings, count)
    for count in (0, most + 1):
        with pytest.raises(ConfigurationError, match=rf"\b{count} parts: "):
            check_parts(settings, count)


@pytest.mark.parametrize(
    ("child", "takes", "words"),
    [
        ({}, "weights", ""),
        ({"push": "difference"}, "difference", ""),
        ({"push": "difference"}, "weights", r"^child\.push = 'difference': .* takes 'weights'"),
        ({"exchange": "update"}, "gradient", ""),
        *[
            ({"exchange": exchange}, "gradient", f"^child.exchange = '{exchange}': .* 'update'$")
            for exchange in ("episode", "free", "chunk")
        ],
    ],
)
def test_children_can_push_what_a_rule_of_ones_own_takes(
    child: dict[str, Any], takes: str, words: str
) -> None:
    settings = experiment(parent={"rule": "mine:Rule"}, child=child)
    if words:
        with pytest.raises(ConfigurationError, match=words):
            check_push(settings, takes)
    else:
        check_push(settings, takes)


def test_a_run_of_a_rule_of_ones_own_tells_the_children_what_to_push() -> None:
    class Own(Blend):
        takes = "difference"

    settings = experiment(parent={"rule": "mine:Own"})
    told = Experiment.from_dict(SingleTrialRun(settings, Own(0.5)).trial.experiment)
    assert told.pushes == "difference"
    assert SingleTrialRun(settings, Blend(0.5)).trial.experiment == settings.to_dict()
    settings = experiment(parent={"rule": "difference"})
    assert SingleTrialRun(settings, Blend(0.5)).trial.experiment["child"]["push"] == "weights"
