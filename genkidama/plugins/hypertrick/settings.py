"""`[search]` of an experiment: its settings, and what they may be together. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from genkidama.config.decoding import Count, Meta, Natural, NotNegative, Positive, Section, plug
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.hyperband import Halving, SynchronousHalving
from genkidama.plugins.hypertrick.pbt import PopulationBasedTraining
from genkidama.plugins.hypertrick.rule import HyperTrick, SearchRule, geometric_phases
from genkidama.plugins.hypertrick.space import parse_space

if TYPE_CHECKING:
    from genkidama.config.experiment import Experiment


class SearchSettings(Section, frozen=True):
    """`[search]`: makes the run a search, in which each child trains one trial after another."""

    optional = True

    method: Literal[
        "hypertrick",
        "successive_halving",
        "hyperband",
        "asynchronous_hyperband",
        "asha",
        "pbt",
        "random",
    ] = "hypertrick"
    """Rule by which trials stop: `"hypertrick"`, `"asynchronous_hyperband"` or `"asha"` (its
    stopping variant) without waiting, `"successive_halving"` or `"hyperband"` with waiting at each
    rung. `"pbt"`, Population Based Training, stops none, but lets bad ones copy good ones;
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
    """W₀ of equation 2, if it is not `trials`: the number of trials that collect data. Of the later
    trials the rule stops √r."""
    adaptive: bool = False
    """Stop more trials when fewer than expected were stopped so far."""
    reduction_factor: Annotated[int, Meta(ge=2)] | None = None
    """η of Successive Halving, Hyperband and ASHA: one trial of η continues; if absent, it is 3,
    and 4 for ASHA."""
    least_phases: Natural = 1
    """r of Successive Halving, Hyperband and ASHA: phases of a trial before its first decision."""
    restart: bool = False
    """Successive Halving and Hyperband, with waiting: each rung trains its trials from scratch,
    instead of going on from their weights."""
    truncation: Annotated[float, Meta(gt=0.0, le=0.5)] = 0.2
    """Population Based Training: the share of the trials that copy, and that are copied."""
    sampler: Annotated[str, plug("random", "tpe")] = "random"
    """The source of new trials' settings: `"random"`, `"tpe"`, or `"module:Class"`, a sampler
    of Optuna's."""
    sampler_options: dict[str, Any] = {}
    """Keyword arguments for the sampler."""
    seconds: Positive | None = None
    """Wall-clock time of the whole search, from the first trial's start; it cuts off the trials
    under way."""
    retries: Count = 1
    """Number of times that a trial goes to another node after its node has failed, before it counts
    as the worst."""
    return_seconds: NotNegative = 30.0
    """Time for a vanished node to return to its trial before another node takes it."""
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
    def waits(self) -> bool:
        """True if trials wait for each other at the rungs."""
        return self.method in _SYNCHRONOUS

    @property
    def eta(self) -> int | None:
        """η of Successive Halving, Hyperband and ASHA; None of another method."""
        default = 4 if self.method == "asha" else 3 if self.method in _HALVING else None
        return default and (self.reduction_factor or default)

    def rule(self, trials: int = 0, seed: int = 0) -> SearchRule:
        """The rule of this search, or of `trials` as W₀; random search decides nothing. The seed is
        of the hash that orders equal metrics."""
        trials = trials or self.trials
        if self.waits:
            return SynchronousHalving(
                workers=trials,
                phases=self.phases,
                factor=self.eta or 0,
                least=self.least_phases,
                brackets=self.method == "hyperband",
                restart=self.restart,
            )
        if self.method == "pbt":
            return PopulationBasedTraining(
                workers=trials, phases=self.phases, truncation=self.truncation, seed=seed
            )
        if self.eta:
            return Halving(
                workers=trials,
                phases=self.phases,
                factor=self.eta,
                least=self.least_phases,
                brackets=self.method == "asynchronous_hyperband",
            )
        geometric = geometric_phases(self.phases, self.factor)
        chosen = geometric if self.decisions == "geometric" else None
        return HyperTrick(
            workers=trials,
            phases=self.phases,
            eviction_rate=self.eviction_rate,
            decide_after=() if self.method == "random" else chosen,
            cohort=self.cohort or None,
            adaptive=self.adaptive,
            seed=seed,
        )


_SYNCHRONOUS = ("successive_halving", "hyperband")
_HALVING = (*_SYNCHRONOUS, "asynchronous_hyperband", "asha")

#: The methods that have a setting; all have the others. Random search ignores HyperTrick's, so that
#: the method alone can be changed.
_METHODS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("eviction_rate", "decisions", "factor", "cohort", "adaptive"), ("hypertrick", "random")
    ),
    **dict.fromkeys(("reduction_factor", "least_phases"), _HALVING),
    "restart": _SYNCHRONOUS,
    "truncation": ("pbt",),
}

#: Settings on which the shape of the weights depends.
_SHAPES = ("network.", "environment.", "algorithm.name.")

#: A trial cannot have its own value of these: they belong to the run, or to all trials.
_NOT_SEARCHABLE = ("name", "solved", "parent", "stop", "search")


def check(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    """Checks that a search has a length, and that every trial of its space could run."""
    search: SearchSettings | None = experiment.search
    if search is None:
        return
    if average := experiment.parent.average:
        raise ConfigurationError(
            f"{source}: parent.average = {average}: a search keeps no running mean; set it to 0"
        )
    _check_method(search, source)
    if search.restart and experiment.parent.start:
        raise ConfigurationError(
            f"{source}: search.restart = true: trials begin from scratch, and not from "
            f"parent.start = {experiment.parent.start!r}; take one of them out"
        )
    lengths = {
        key: value
        for key in ("phase_steps", "phase_episodes", "phase_seconds")
        if (value := getattr(search, key)) is not None
    }
    if len(lengths) != 1:
        found = ", ".join(f"search.{key} = {value!r}" for key, value in lengths.items())
        raise ConfigurationError(
            f"{source}: {found or 'search.phase_steps is absent'}: "
            "give exactly one of phase_steps, phase_episodes and phase_seconds"
        )
    for key in ("updates", "episodes", "steps", "seconds", "mean_return"):
        if (value := getattr(experiment.stop, key)) is not None:
            raise ConfigurationError(
                f"{source}: stop.{key} = {value!r}: "
                "a search ends after search.trials or search.seconds; take this setting out"
            )
    plain = msgspec.structs.replace(experiment, search=None)
    prefix = f"{source}: search.space"
    space = parse_space(search.space, prefix)
    for key, dimension in space.items():
        if key.partition(".")[0] in _NOT_SEARCHABLE:
            raise ConfigurationError(
                f"{prefix}: {key}: belongs to the whole run and cannot differ between trials"
            )
        # It may be a setting in such a table, the table itself, or one above it.
        shaping = any(f"{key}.".startswith(s) or s.startswith(f"{key}.") for s in _SHAPES)
        if search.method == "pbt" and shaping:
            raise ConfigurationError(
                f"{prefix}: {key}: with search.method = 'pbt' trials copy each other's weights, "
                "which this may not fit; take it out"
            )
        for value in dimension.extremes:
            try:
                plain.with_settings({key: value}, prefix)
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
