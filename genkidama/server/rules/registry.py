"""Which rule has which name, what it takes, and whether an experiment's settings fit it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from genkidama.errors import ConfigurationError
from genkidama.plugins.actors.rule import Experience
from genkidama.plugins.robust.aggregation import cautious
from genkidama.protocol.messages import Kind
from genkidama.protocol.shard import MOST_PARTS
from genkidama.server.rules.blend import Blend, Rule
from genkidama.server.rules.difference import Difference
from genkidama.server.rules.gradient import Gradient
from genkidama.server.rules.weighted import Weighted

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment

__all__ = ["RULES", "check_parts", "check_push", "make_rule", "pushes", "reads_loss"]

#: The rules of `parent.rule` that have a name.
RULES: dict[str, type[Rule]] = {
    "blend": Blend,
    "weighted": Weighted,
    "difference": Difference,
    "gradient": Gradient,
    "experience": Experience,
}


def make_rule(experiment: Experiment, kind: Any = None) -> Rule:
    """The rule that `parent.rule` names.

    Args:
        kind: its class, if it is a rule of one's own.

    Raises:
        ConfigurationError: it does not take the options, or is no rule.
    """
    settings = experiment.parent
    kind = kind or RULES[settings.rule]
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
    return cautious(rule, settings)


def pushes(experiment: Experiment) -> Kind:
    """What the children of this experiment push: `"weights"` or something else."""
    if experiment.child.push != "auto":
        return experiment.child.push
    kind = RULES.get(experiment.parent.rule)
    return "weights" if kind is None or experiment.search is not None else kind.takes


def check_parts(experiment: Experiment, count: int) -> None:
    """Checks that a parent of this experiment can be in so many parts.

    Raises:
        ConfigurationError: it cannot.
    """
    if not 1 <= count <= MOST_PARTS:
        raise ConfigurationError(f"{count} parts: 1 to {MOST_PARTS} are possible")
    if count > 1 and experiment.search is not None:
        raise ConfigurationError(
            f"{experiment.name}: a [search] in {count} parts: each trial has one parent; "
            "leave --shard and --shards out"
        )
    if count > 1 and experiment.shares_replay:
        raise ConfigurationError(
            f"{experiment.name}: a replay for all children (replay.url) in {count} parts: "
            "one parent sees to the engine; leave --shard and --shards out"
        )
    if count > 1 and pushes(experiment) == "experience":
        raise ConfigurationError(
            f"parent.rule = {experiment.parent.rule!r} in {count} parts: one learner has the whole "
            "network; leave --shard and --shards out, or take another rule"
        )


def reads_loss(experiment: Experiment) -> bool:
    """Whether the rule may ask for the loss of a gradient, which costs its own way back."""
    parent = experiment.parent
    asks = parent.rule not in RULES or bool(parent.rule_options.get("outlier_sigmas"))
    return asks and pushes(experiment) == "gradient"


def check_push(experiment: Experiment, takes: str) -> None:
    """Checks that the children push what the parent's rule takes, and can do so.

    Raises:
        ConfigurationError: they do not; the message lacks the experiment's name.
    """
    parent, child = experiment.parent, experiment.child
    if child.push not in ("auto", takes):
        raise ConfigurationError(
            f"child.push = {child.push!r}: parent.rule = {parent.rule!r} takes {takes!r}; "
            "leave child.push out"
        )
    if takes != "weights" and experiment.search is not None:
        raise ConfigurationError(
            f"parent.rule = {parent.rule!r}: in a search each child has a trial of its own, and no "
            "rule; leave parent.rule out"
        )
    if takes == "gradient" and child.exchange != "update":
        raise ConfigurationError(
            f"child.exchange = {child.exchange!r}: children push a gradient after each update; "
            "set child.exchange to 'update'"
        )
