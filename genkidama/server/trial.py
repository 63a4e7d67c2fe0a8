"""Trials: each a set of hyperparameters with its weights; and the plain run, which has one. Pure.

In a plain run all children share the trial of a `SingleTrialRun`. In a search each child trains a
separate trial, which the `Search` of the plug-in hypertrick assigns. Both are `Trials`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, fsum, inf, lcm
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType, to_builtins
from msgspec.structs import replace

from genkidama.config.experiment import Experiment
from genkidama.config.formatting import plural
from genkidama.config.sections import Stop
from genkidama.errors import ProtocolError
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.vector import DTYPE, Signature, Vector, is_finite, length
from genkidama.server.averaging import Averaging
from genkidama.server.events import Event, Exchange
from genkidama.server.rules.blend import Rule, RuleState, Update
from genkidama.server.rules.registry import make_rule
from genkidama.server.speeds import Speeds

#: Prefix of a rule's arrays in a checkpoint, beside a network's parameters.
STATE_PREFIX = "__rule__."

#: A push longer than this (Euclidean norm) is applied with a copy of what it changes.
_SUSPECT = 1e6

#: Far below float32's 3.4e38, as is its square below a float's largest.
_SAFE = 1e18

#: The reason to leave out a push of weights by a rule that takes something else: its child had no
#: θ_P to start from, and gets one with the answer.
BASELESS = "baseless"

#: The largest denominator with which the updates of a checkpoint are read as a fraction.
_LARGEST_DENOMINATOR = 1_000_000


@dataclass
class Trial:
    """θ_P of one set of hyperparameters, its signature, and how far it has come."""

    #: Episodes that `mean_return` covers.
    window: int
    #: In a search, its number in the order of starting; None in a plain run.
    number: int | None = None
    #: The experiment with this trial's settings, as a child receives it.
    experiment: dict[str, Any] = field(default_factory=dict)
    #: Of the whole network, of which this parent may hold a shard.
    signature: Signature | None = None
    part: Shard = WHOLE
    #: The numbers that this parent holds: shape (held.size,).
    vector: Vector | None = None
    #: The versions in the running mean of θ_P.
    averaged: int = 0
    #: A finite copy of θ_P and of the rule's state, and its version: the last checkpoint's, or that
    #: of the run's beginning.
    backup: tuple[Vector, RuleState, int] | None = None
    #: Pushes applied.
    version: int = 0
    episodes: int = 0
    steps: int = 0
    #: The reason why it has ended; empty before.
    stop: str = ""
    returns: deque[float] = field(default_factory=deque)
    #: An upper bound for the norm of θ_P's trained numbers; infinity until they are looked at.
    _bound: float = inf
    #: The running mean. After a million versions, float32 would keep nothing of the next.
    _mean: npt.NDArray[np.float64] | None = None
    _sum: float = 0.0
    _unchecked: int = 0

    @property
    def held(self) -> Signature:
        """The signature of the numbers that this parent holds; a child must have joined."""
        assert self.signature is not None
        return self.signature if self.part is WHOLE else self.part.of(self.signature)

    @property
    def average(self) -> Vector | None:
        """The running mean of θ_P, for evaluation and export, as a new array; None unless
        `parent.average` is set."""
        return None if self._mean is None else self._mean.astype(DTYPE)

    @average.setter
    def average(self, average: Vector | None) -> None:
        self._mean = None if average is None else average.astype(np.float64)

    def clear_returns(self) -> None:
        self.returns.clear()
        self._sum = 0.0

    def add_returns(self, returns: list[float]) -> None:
        newest = self.returns
        for value in returns:
            newest.append(value)
            self._sum += value
            if len(newest) > self.window:
                self._sum -= newest.popleft()
        self._unchecked += len(returns)
        if self._unchecked >= self.window:
            # Computing the sum anew now and then drops its rounding errors.
            self._sum = fsum(newest)
            self._unchecked = 0

    def apply(self, push: Update, kind: str, rule: Rule, decay: float) -> str | None:
        """Applies a push to θ_P: a new version, unless the push is left out.

        Returns why it is left out; None if it is used, and an empty text if it brings nothing.
        After a ProtocolError nothing has changed. `decay` is that of the running mean of versions.
        """
        if kind == "work":
            return ""
        left_out = None
        if self.vector is None:
            self.vector = rule.start(push) if kind == "weights" else None
            if self.vector is None:
                raise ProtocolError(
                    "order",
                    f"child {push.child!r} pushes before the parent has weights, "
                    "and this push cannot become them",
                )
            if not rule.convex:
                self.backup = (self.vector.copy(), {}, 1)
        elif kind == rule.takes:
            left_out = self._use(push, self.vector, rule)
        elif kind == "weights" and rule.takes != "experience":
            left_out = BASELESS
        else:
            raise ProtocolError(
                "order",
                f"child {push.child!r} pushes {kind!r}, the parent's rule takes {rule.takes!r}",
            )
        if left_out is None:
            self.version += 1
            if decay:
                self._update_average(self.vector, decay)
        return left_out

    def _use(self, push: Update, vector: Vector, rule: Rule) -> str | None:
        """Calls `Rule.apply`; a push that makes NaN or infinity changes nothing and is refused.

        An overflow by a push of honest size, under a rule that is not `convex`, is detected
        afterwards and without a copy; θ_P then goes back to the `backup`. All of θ_P is checked
        only when the steps since the last check may have added up to something large.
        """
        if rule.convex:
            return rule.apply(vector, push)
        before = None
        if push.length is None or push.length > _SUSPECT:
            before = vector.copy(), _copied(rule.state())
        left_out = _quietly(rule, vector, push)
        self._bound += rule.moved()
        if self._bound < _SAFE and before is None:
            return left_out
        trained = len(vector) - push.statistics
        self._bound = length(vector[:trained])
        sound = self._bound < inf and is_finite(vector[trained:])
        if sound and (before is None or _all_finite(rule.state())):
            return left_out
        self._bound = inf
        if before is not None:
            vector[:] = before[0]
            rule.restore(before[1])
            what = "it is taken back"
        else:
            what = self.go_back(rule)
        raise ProtocolError(
            "finite", f"child {push.child!r}: its push makes NaN or infinity of θ_P; {what}"
        )

    def go_back(self, rule: Rule) -> str:
        """Restores θ_P and the rule from the `backup`, and says so. The counts stay."""
        assert self.vector is not None
        assert self.backup is not None
        vector, state, version = self.backup
        self.vector[:] = vector
        self._bound = inf
        rule.restore(_copied(state))
        if self.average is not None and not is_finite(self.average):
            self.average = None
        return f"θ_P goes back to what it was at version {version}"

    def is_sound(self, rule: Rule) -> bool:
        """True if θ_P, its mean and the rule's state are finite."""
        vectors = [each for each in (self.vector, self.average) if each is not None]
        return all(map(is_finite, vectors)) and _all_finite(rule.state())

    def _update_average(self, vector: Vector, decay: float) -> None:
        """Below decay 1 the mean is exponential, and plain while there are few versions.

        At 1 it is the plain mean of all versions since it began (Izmailov et al. 2018, SWA).
        """
        if self._mean is None:
            self.average, self.averaged = vector, 1
        else:
            self.averaged += 1
            share = max(1.0 - decay, 1.0 / self.averaged)
            self._mean *= 1.0 - share
            self._mean += share * vector

    @property
    def label(self) -> int | UnsetType:
        """Its number as an event holds it: absent in a plain run."""
        return UNSET if self.number is None else self.number

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last `window` episodes, or of all so far; None before the first."""
        return self._sum / len(self.returns) if self.returns else None

    def exchanged(
        self, child: str, update: float, staleness: int, left_out: str | None, now: float
    ) -> Exchange:
        """The event of a push, applied or left out."""
        return Exchange(
            time=now,
            child=child,
            version=self.version,
            update=update,
            staleness=staleness,
            episodes=self.episodes,
            steps=self.steps,
            mean_return=self.mean_return,
            trial=self.label,
            left_out=left_out or UNSET,
        )

    def snapshot(
        self,
        *,
        exchanges: int,
        updates: float,
        seconds: float,
        children: dict[str, dict[str, int]] | None = None,
        sessions: dict[str, tuple[str, int]] | None = None,
        excluded: list[str] | None = None,
        pushing: dict[str, float] | None = None,
    ) -> Snapshot:
        """The metadata of a checkpoint. The arguments are not the trial's."""
        return Snapshot(
            version=self.version,
            exchanges=exchanges,
            updates=updates,
            episodes=self.episodes,
            steps=self.steps,
            seconds=seconds,
            alpha=self.experiment["parent"]["alpha"],
            beta=self.experiment["child"]["beta"],
            mean_return=self.mean_return,
            returns=list(self.returns),
            children=children or {},
            sessions=sessions or {},
            excluded=excluded or [],
            pushing=pushing or {},
            averaged=self.averaged,
            experiment=self.experiment,
            part=str(self.part),
            whole=[] if self.part == WHOLE or not self.signature else [*self.signature.entries],
        )

    def restore(self, snapshot: Snapshot, signature: Signature, vector: Vector) -> None:
        """Resumes from a checkpoint. The vector is used as it is, not copied."""
        self.signature = signature
        self.vector = vector
        self._bound = inf
        self.version = snapshot.version
        self.episodes = snapshot.episodes
        self.steps = snapshot.steps
        self.add_returns(snapshot.returns)


@np.errstate(over="ignore", invalid="ignore")
def _quietly(rule: Rule, vector: Vector, push: Update) -> str | None:
    return rule.apply(vector, push)


def _copied(state: RuleState) -> RuleState:
    return {name: array.copy() for name, array in state.items()}


def _all_finite(state: RuleState) -> bool:
    return all(is_finite(array.reshape(-1)) for array in state.values())


class Snapshot(msgspec.Struct, kw_only=True):
    """The metadata of a checkpoint: a trial's state beside the vector and its signature."""

    version: int
    exchanges: int
    updates: float
    episodes: int
    steps: int
    #: Seconds of training so far.
    seconds: float
    alpha: float
    beta: float
    mean_return: float | None = None
    returns: list[float] = []
    #: Per child: `exchanges`, `episodes`, `steps`.
    children: dict[str, dict[str, int]] = {}
    #: Per child: its last session, and the number of its last counted push. The vector has all
    #: pushes up to there, so a push that is sent again is not counted again.
    sessions: dict[str, tuple[str, int]] = {}
    #: Names of children that the run's owner has excluded.
    excluded: list[str] = []
    #: With `child.exchange = "chunk"`, per child: the weight of its pushes in n.
    pushing: dict[str, float] = {}
    #: Versions in the running mean of `parent.average`.
    averaged: int = 0
    experiment: dict[str, Any] = {}
    #: `"2/3"`: the second of three parts, whose vector this is. Then `whole` is the signature of
    #: the network.
    part: str = "1/1"
    whole: list[tuple[str, tuple[int, ...]]] = []


class ProgressCounter:
    """Counts exchanges, updates, and seconds of training.

    `updates` are exchanges a child, the thesis' count: each counts 1/n while n children take part.
    It never goes back when children come or go.
    """

    def __init__(self) -> None:
        #: Pushes applied, of all children.
        self.exchanges = 0
        #: Exchanges a child.
        self.updates = 0.0
        # Updates are numerator/denominator, without a rounding error; 1/n is step/denominator.
        self._numerator = 0
        self._denominator = 1
        self._step = 1
        self._children = 1
        self._seconds_before = 0.0
        self._started: float | None = None

    def count(self, children: int) -> None:
        """Counts an exchange while n children take part, including the one that pushes."""
        if children != self._children:
            self._divide_by(children)
        self.exchanges += 1
        self._numerator += self._step
        self.updates = self._numerator / self._denominator

    def start(self, now: float) -> None:
        """Starts the clock of training, once."""
        if self._started is None:
            self._started = now

    def seconds(self, now: float) -> float:
        """Seconds of training, from the first join on, without downtime."""
        return self._seconds_before + (now - self._started if self._started is not None else 0.0)

    def restore(self, exchanges: int, updates: float, seconds: float) -> None:
        """Resumes from a checkpoint."""
        fraction = Fraction(updates).limit_denominator(_LARGEST_DENOMINATOR)
        if fraction.numerator / fraction.denominator != updates:
            fraction = Fraction(updates)
        self.exchanges = exchanges
        self.updates = updates
        self._numerator = fraction.numerator
        self._denominator = fraction.denominator
        self._divide_by(self._children)
        self._seconds_before = seconds

    def _divide_by(self, children: int) -> None:
        denominator = lcm(self._denominator, children)
        self._numerator *= denominator // self._denominator
        self._denominator = denominator
        self._step = denominator // children
        self._children = children


class Trials(Protocol):
    """Assigns trials to children, and decides when they and the run end.

    A plain run has a trivial one, `SingleTrialRun`. A search has
    `genkidama.plugins.hypertrick.search.Search`.
    """

    #: The trial of a plain run. In a search it is never trained: it tells a child that all is over.
    trial: Trial
    #: Whether children share a trial. If not, a child that pushes knows θ_P without being told.
    shared: bool
    #: How a push is used.
    rule: Rule
    tally: ProgressCounter
    #: What happened, oldest first. The `ParameterServer` adds its own events, and hands all out.
    events: list[Event]
    #: What follows the number of children; None if nothing does.
    averaging: Averaging | None

    @property
    def wait(self) -> float:
        """Seconds until a child that `assign` gave nothing asks again."""

    def assign(self, child: str, now: float, training: int | None) -> Trial | None:
        """The trial that this child has to train; None if there is none at present."""

    def owns(self, child: str, trial: Trial) -> bool:
        """True if this child may train and report that trial."""

    def joined(self, trial: Trial, now: float) -> None:
        """A child takes part in this trial from now on."""
        return

    def pushed(self, trial: Trial, now: float, child: str, steps: int) -> None:
        """Notes that a child's push to this trial has been applied and counted."""

    def share(self, child: str, children: int) -> int:
        """Environment steps of the child's next push while `children` take part; 0 leaves it to
        the child."""

    def diverged(self, trial: Trial, now: float) -> None:
        """A push brings NaN or infinity. If trials are shared, the push is refused instead."""
        return

    def left(self, child: str, trial: Trial, failed: bool, reason: str, now: float) -> None:
        """The child goes for good; `failed` says that it could not train its trial."""
        return

    def vanished(self, child: str, now: float) -> None:
        """The child's connection is gone. It may come back."""

    def progress(self, trial: Trial, now: float) -> float:
        """The share of the trial that is done, in [0, 1]; only `limit` decreases it."""

    def limit(self, stop: Stop) -> None:
        """Sets other limits for the one trial of a plain run."""

    def over(self, now: float) -> str:
        """The reason why the run is over; empty before."""

    @property
    def version(self) -> int | UnsetType:
        """The version of θ_P, if all children share one."""

    def describe(self, connected: int, now: float) -> str:
        """A few words for people on the run, with the number of connected children."""


class ExchangePacing:
    """Steps of each child's next push, in proportion to its speed, so that all push equally often.

    With one number for all, a slow child's push is old when it comes: a straggler (Nguyen et al.
    2022). A child of mean speed has `steps`.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.speeds = Speeds()

    def share(self, child: str) -> int:
        """Environment steps of the child's next push; 0 leaves it to the child."""
        speed = self.speeds.relative(child)
        return 0 if speed is None else max(1, round(self._steps * speed))


class SingleTrialRun(Trials):
    """The trivial `Trials`: all children train the same trial, until `[stop]` ends it.

    Without a rule it is that of `parent.rule` or, if that is an import string, `Blend`. Only the
    first shard ends the run.
    """

    shared = True
    wait = 0.0

    def __init__(
        self, experiment: Experiment, rule: Rule | None = None, part: Shard = WHOLE
    ) -> None:
        self.rule: Rule = rule or make_rule(experiment)
        settings = experiment.to_dict()
        if self.rule.takes != experiment.pushes:
            # The children do not know a rule of the user's.
            settings["child"]["push"] = self.rule.takes
        self.trial = Trial(window=experiment.stop.window, experiment=settings, part=part)
        self.tally = ProgressCounter()
        self.events: list[Event] = []
        chunks = experiment.child.exchange == "chunk"
        self.averaging = Averaging(experiment, self.events) if chunks else None
        self._stop = experiment.stop
        child = experiment.child
        steps = child.exchange_steps if child.exchange == "free" else 0
        self._pacing = ExchangePacing(steps) if steps else None

    @property
    def version(self) -> int:
        return self.trial.version

    def assign(self, child: str, now: float, training: int | None) -> Trial:
        return self.trial

    def owns(self, child: str, trial: Trial) -> bool:
        return True

    def pushed(self, trial: Trial, now: float, child: str, steps: int) -> None:
        if self._pacing is not None:
            self._pacing.speeds.note(child, steps, now)

    def share(self, child: str, children: int) -> int:
        steps = self.rule.share(child, children)
        return steps if steps or self._pacing is None else self._pacing.share(child)

    def vanished(self, child: str, now: float) -> None:
        if self._pacing is not None:
            self._pacing.speeds.forget(child)

    def progress(self, trial: Trial, now: float) -> float:
        """The used share of the strictest countable stop condition."""
        stop = self._stop
        used = 0.0
        if stop.updates:
            used = self.tally.updates / stop.updates
        if stop.episodes:
            used = max(used, trial.episodes / stop.episodes)
        if stop.steps:
            used = max(used, trial.steps / stop.steps)
        if stop.seconds:
            used = max(used, self.tally.seconds(now) / stop.seconds)
        return min(1.0, used)

    def limit(self, stop: Stop) -> None:
        self._stop = stop
        self.trial.experiment = {**self.trial.experiment, "stop": to_builtins(stop)}

    def over(self, now: float) -> str:
        trial, stop = self.trial, self._stop
        wanted = stop.mean_return is not None and len(trial.returns) == stop.window
        if not wanted and self.progress(trial, now) < 1.0:
            return ""  # asked after each push
        if not trial.part.is_first:
            return ""
        mean = trial.mean_return if wanted else None
        tally = self.tally
        return reached(stop, mean, tally.updates, trial.episodes, trial.steps, tally.seconds(now))

    def describe(self, connected: int, now: float) -> str:
        """As `3 children, version 1234, mean return 201.3, 41 %`."""
        trial, stop = self.trial, self._stop
        parts = [plural(connected, "child"), f"version {trial.version}"]
        if trial.mean_return is not None:
            parts.append(f"mean return {trial.mean_return:.1f}")
        if stop.updates or stop.episodes or stop.steps or stop.seconds:
            parts.append(f"{100 * self.progress(trial, now):.0f} %")
        return ", ".join(parts)


def limits_of(stop: Stop) -> dict[str, float]:
    """The limits that are set and can be counted up to, by their names."""
    limits = {name: getattr(stop, name) for name in ("updates", "episodes", "steps", "seconds")}
    return {name: limit for name, limit in limits.items() if limit is not None}


def extended(stop: Stop, share: float) -> Stop:
    """The stop conditions with each countable limit longer by this share of itself."""
    longer = {name: limit * (1.0 + share) for name, limit in limits_of(stop).items()}
    whole = {name: ceil(limit) for name, limit in longer.items() if name != "seconds"}
    return replace(stop, **{**longer, **whole})


def reached(
    stop: Stop, mean: float | None, updates: float, episodes: int, steps: int, seconds: float
) -> str:
    """The stop condition that a run has reached, in words; empty if none.

    `mean` is of the last `stop.window` episodes; None while there are fewer.
    """
    if stop.mean_return is not None and mean is not None and mean >= stop.mean_return:
        window = plural(stop.window, "episode")
        return f"mean return {mean:.1f} over {window} reached {stop.mean_return:g}"
    if stop.updates is not None and updates >= stop.updates:
        return f"{plural(stop.updates, 'exchange')} a child done"
    if stop.episodes is not None and episodes >= stop.episodes:
        return f"{plural(stop.episodes, 'episode')} done"
    if stop.steps is not None and steps >= stop.steps:
        return f"{plural(stop.steps, 'step')} done"
    if stop.seconds is not None and seconds >= stop.seconds:
        return f"{stop.seconds:g} seconds are over"
    return ""
