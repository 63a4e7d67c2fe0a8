"""The rule of an experiment, and the checks of settings that belong to a rule. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genkidama.config.plugin import CORE, every, find
from genkidama.errors import ConfigurationError
from genkidama.protocol.shard import MOST_PARTS
from genkidama.server.rules.blend import Blend, Rule
from genkidama.server.rules.gradient import Gradient

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment


def make_rule(experiment: Experiment, kind: Any = None) -> Rule:
    """The rule of `parent.rule`, with the rules of plug-ins around it.

    Its class is given if `parent.rule` is an import string; without it that is `Blend`.
    """
    settings = experiment.parent
    if kind is None:
        kind = find("rules", settings.rule)
    if kind is None:
        return Blend(settings.alpha)
    options = settings.rule_options
    arguments: tuple[Any, ...] = (settings.alpha,)
    if kind is Gradient:
        longest = experiment.algorithm.max_gradient_norm
        arguments = (settings.alpha, experiment.optimizer, longest)
    problem = f"parent.rule = {settings.rule!r} with parent.rule_options = {options!r}"
    if kind is Blend and options:
        raise ConfigurationError(f"{problem}: it has no options; 'weighted' is a blend that has")
    try:
        rule = kind(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{problem}: {error}") from None
    if not isinstance(rule, Rule):
        raise ConfigurationError(f"{problem}: is no genkidama.server.rules.blend.Rule")
    wrappers = dict(every("rule_wrappers"))
    for key in ("push_limit", "push_window", "quarantine_after"):
        if (value := getattr(settings, key)) and "robust" not in wrappers:
            raise ConfigurationError(
                f"parent.{key} = {value}: is of the plug-in 'robust', which is not there; take the "
                "setting out, or install Genkidama anew"
            )
    made: Rule = rule
    for wrap in wrappers.values():
        made = wrap(made, settings)
    return made


def check_parts(experiment: Experiment, count: int) -> None:
    """Checks that a parent of this experiment can have this number of shards."""
    if not 1 <= count <= MOST_PARTS:
        raise ConfigurationError(f"{count} parts: 1 to {MOST_PARTS} are possible")
    if count > 1 and experiment.searches:
        raise ConfigurationError(
            f"{experiment.name}: a [search] in {count} parts: each trial has one parent; "
            "leave --shard and --shards out"
        )
    if count > 1 and experiment.pushes == "experience":
        raise ConfigurationError(
            f"parent.rule = {experiment.parent.rule!r} in {count} parts: acting children send "
            "experience, and one learner has the whole network, so there is nothing to shard; "
            "leave --shard and --shards out, or take another rule"
        )


def reads_loss(experiment: Experiment) -> bool:
    """True if the rule may ask for the loss of a gradient, which costs a further backward pass."""
    parent = experiment.parent
    asks = parent.rule not in CORE.rules or bool(parent.rule_options.get("outlier_sigmas"))
    return asks and experiment.pushes == "gradient"


def check_push(experiment: Experiment, takes: str) -> None:
    """Checks that the children push what the parent's rule takes, and can do so."""
    parent, child = experiment.parent, experiment.child
    if child.push not in ("auto", takes):
        raise ConfigurationError(
            f"child.push = {child.push!r}: parent.rule = {parent.rule!r} takes {takes!r}; "
            "leave child.push out"
        )
    if takes != "weights" and experiment.searches:
        raise ConfigurationError(
            f"parent.rule = {parent.rule!r}: in a search each child has a trial of its own, and no "
            "rule; leave parent.rule out"
        )
    if takes == "gradient" and child.exchange != "update":
        raise ConfigurationError(
            f"child.exchange = {child.exchange!r}: children push a gradient after each update; "
            "set child.exchange to 'update'"
        )


def check_rule(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks a rule that has a name; the parent checks one of a user's module when it makes it."""
    if ":" in experiment.parent.rule:
        return
    try:
        check_push(experiment, make_rule(experiment).takes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None
