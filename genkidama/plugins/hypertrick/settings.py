"""`[search]`: the settings of a search, and the checks that take more than one field. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from genkidama.config.decoding import Count, Meta, Natural, NotNegative, Positive, Section, plug
from genkidama.config.sections import Stop
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.equations import geometric_phases
from genkidama.plugins.hypertrick.space import parse_space

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment

__all__ = ["SearchSettings", "check", "check_search"]


class SearchSettings(Section, frozen=True):
    """`[search]`: makes the run a search, in which each child trains one trial after another."""

    optional = True

    method: Literal["hypertrick", "hyperband", "asha", "random"] = "hypertrick"
    """`"hypertrick"`, `"hyperband"` and `"asha"` stop the trials that do worse, each by its rule;
    `"random"` lets every trial run to its end."""
    trials: Natural = 16
    """W₀: trials to start in all."""
    phases: Natural = 10
    """N_p: phases of a trial; it reports after each."""
    phase_steps: Natural | None = None
    """Length of a phase in environment steps."""
    phase_episodes: Natural | None = None
    """Length of a phase in episodes, instead."""
    phase_seconds: Positive | None = None
    """Length of a phase in seconds of a node's time, instead."""
    eviction_rate: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.25
    """r: the share of trials that the rule aims to stop after each decision; with a `cohort` it
    stops nearly √r of them."""
    decisions: Literal["every", "geometric"] = "every"
    """After which phases the rule stops trials: `"every"` phase but the last, or `"geometric"`:
    after 1, `factor`, `factor`², … phases."""
    factor: Annotated[int, Meta(ge=2)] = 3
    """`geometric`: the factor from one decision to the next."""
    cohort: Count = 0
    """W₀ of equation 2, if it is not `trials`: how many trials collect data. Of the trials that
    follow the rule stops √r."""
    adaptive: bool = False
    """Whether the rule stops more trials when it has stopped fewer than expected so far."""
    reduction_factor: Annotated[int, Meta(ge=2)] | None = None
    """η of Hyperband and ASHA: one trial of η goes on; 3 for Hyperband and 4 for ASHA if absent."""
    least_phases: Natural = 1
    """r of Hyperband and ASHA: phases of a trial before its first decision."""
    sampler: Annotated[str, plug("random", "tpe")] = "random"
    """Where new trials' settings come from: `"random"`, `"tpe"`, or `"module:Class"`, a sampler
    of Optuna's."""
    sampler_options: dict[str, Any] = {}
    """Keyword arguments for the sampler."""
    seconds: Positive | None = None
    """Wall-clock time of the whole search, from the first trial's start; it cuts off the trials
    under way."""
    retries: Count = 1
    """How often a trial goes to another node after its node has failed, before it counts as the
    worst."""
    return_seconds: NotNegative = 30.0
    """How long a vanished node may take to return to its trial before another node goes on with
    it."""
    storage: str = ""
    """Optuna's storage URL, as `postgresql+psycopg://…`; empty means a SQLite file in the run's
    directory."""
    space: dict[str, Any] = {}
    """Settings to vary: `{ low, high, log, step }` or a list of choices for each dotted key."""

    @property
    def unit(self) -> Literal["steps", "episodes", "seconds"]:
        """The unit of a phase's length."""
        return "steps" if self.phase_steps else "episodes" if self.phase_episodes else "seconds"

    @property
    def length(self) -> float:
        """Length of a phase in its unit."""
        return self.phase_steps or self.phase_episodes or self.phase_seconds or 0

    @property
    def decide_after(self) -> tuple[int, ...]:
        """The phases, from 0, after which HyperTrick may stop trials."""
        return (
            geometric_phases(self.phases, self.factor)
            if self.decisions == "geometric"
            else tuple(range(self.phases - 1))
        )


#: The methods that have a setting; all have the others. Random search ignores HyperTrick's, so that
#: the method alone can be changed.
_METHODS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("eviction_rate", "decisions", "factor", "cohort", "adaptive"), ("hypertrick", "random")
    ),
    **dict.fromkeys(("reduction_factor", "least_phases"), ("hyperband", "asha")),
}

#: A trial cannot have its own value of these: they belong to the run, or to all trials.
_NOT_SEARCHABLE = ("name", "solved", "parent", "stop", "search")


def check(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks `[search]`, if there is one.

    Raises:
        ConfigurationError: as `check_search`, or the run averages versions.
    """
    if experiment.search is None:
        return
    if average := experiment.parent.average:
        raise ConfigurationError(
            f"{source}: parent.average = {average}: a search keeps no running mean; set it to 0"
        )
    plain = msgspec.structs.replace(experiment, search=None)
    check_search(experiment.search, experiment.stop, plain.with_settings, source)


def check_search(
    search: SearchSettings,
    stop: Stop,
    attempt: Callable[[dict[str, Any], str], object],
    source: str,
) -> None:
    """Checks that the search has a length, and that every trial of its space could run.

    Args:
        search: the section.
        stop: the experiment's, which has to be empty.
        attempt: makes the experiment with these settings changed; its second argument is the
            source that an error names.
        source: where the section comes from, as an error names it.

    Raises:
        ConfigurationError: it has no length, or a value of its space is not allowed.
    """
    _check_method(search, source)
    lengths = {
        key: value
        for key in ("phase_steps", "phase_episodes", "phase_seconds")
        if (value := getattr(search, key)) is not None
    }
    if len(lengths) != 1:
        given = (
            ", ".join(f"search.{key} = {value!r}" for key, value in lengths.items())
            or "search.phase_steps is absent"
        )
        raise ConfigurationError(
            f"{source}: {given}: give exactly one of phase_steps, phase_episodes and phase_seconds"
        )
    limits = {
        key: value
        for key in ("updates", "episodes", "steps", "seconds", "mean_return")
        if (value := getattr(stop, key)) is not None
    }
    for key, value in limits.items():
        raise ConfigurationError(
            f"{source}: stop.{key} = {value!r}: "
            "a search ends after search.trials or search.seconds; take this setting out"
        )
    prefix = f"{source}: search.space"
    space = parse_space(search.space, prefix)
    for key, dimension in space.items():
        if key.partition(".")[0] in _NOT_SEARCHABLE:
            raise ConfigurationError(
                f"{prefix}: {key}: belongs to the whole run and cannot differ between trials"
            )
        for value in dimension.extremes:
            try:
                attempt({key: value}, prefix)
            except ConfigurationError as error:
                problem = str(error).removeprefix(prefix)
                # If another dimension is named, one of its values may make this one fit.
                if not any(f" {other} = " in problem for other in space if other != key):
                    raise


def _check_method(search: SearchSettings, source: str) -> None:
    """Checks that no setting belongs to another method, and that trials last to a decision."""
    plain = SearchSettings()
    for key, methods in _METHODS_OF.items():
        value = getattr(search, key)
        if search.method not in methods and value != getattr(plain, key):
            having = " or ".join(repr(method) for method in methods if method != "random")
            raise ConfigurationError(
                f"{source}: search.{key} = {value!r}: search.method = {having} is needed for this, "
                f"and it is {search.method!r}; take one of them out"
            )
    if search.least_phases > search.phases:
        raise ConfigurationError(
            f"{source}: search.least_phases = {search.least_phases}: "
            f"at most search.phases = {search.phases} is allowed"
        )
