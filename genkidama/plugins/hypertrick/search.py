"""The search in a parent: its trials, their nodes, and the decisions about them.

The metaoptimization service of Heinrich and Frosio (arXiv 1902.02725, §3). A *node* is a child. It
says hello and is given a trial, and pushes its weights while it trains. The reply to a push says
whether the phase that has just ended was the trial's last. Then the node says hello again.

Laws of this file:
- Pure: `now` (seconds, never falling) is an argument, new configurations come from outside.
- A trial belongs to one node at a time, and a node trains one trial at a time. Only the pushes of a
  trial's owner count.
- A node that vanishes may return to its trial; after `search.return_seconds` another one gets it.
- A trial under way without a node comes before one that has not begun.
- A trial that waits for others at a rung is paused: it has no node. Its node gets another trial, or
  asks again soon. When the rung is full the trial waits for a node, or ends.
- A trial that copies another one goes through a node's hello, too, which brings its settings. If
  trials take turns, one that has ended a phase makes room for those that are behind.
- A node that fails gives its trial back. A trial that has failed on 1 + `search.retries` nodes, or
  whose weights have become NaN, counts as the worst of its phase and ends.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from genkidama.config.experiment import Experiment
from genkidama.config.formatting import plural
from genkidama.config.sections import Stop
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.pbt import explore
from genkidama.plugins.hypertrick.records import PhaseRecord, State, state_after
from genkidama.plugins.hypertrick.rule import Mode, SearchRule, Verdict
from genkidama.plugins.hypertrick.settings import SearchSettings
from genkidama.plugins.hypertrick.space import parse_space
from genkidama.protocol.vector import Vector
from genkidama.server.averaging import Averaging
from genkidama.server.events import (
    Event,
    PhaseReported,
    TrialAssigned,
    TrialEnded,
    TrialFailed,
    Warned,
)
from genkidama.server.rules.blend import Rule, Update
from genkidama.server.trial import ProgressCounter, Snapshot, Trial


@dataclass
class SearchTrial(Trial):
    #: The settings that make it differ from the others.
    params: dict[str, Any] = field(default_factory=dict)
    state: State = "waiting"
    #: The node that trains it.
    owner: str = ""
    failures: int = 0
    #: The nodes that could not train it: it goes to others first.
    failed_on: set[str] = field(default_factory=set)
    phases: list[PhaseRecord] = field(default_factory=list)
    #: Seconds that nodes have trained it.
    seconds: float = 0.0
    #: Search time at which its owner began the phase under way.
    began: float = 0.0
    #: When its owner was last heard.
    heard: float | None = None
    #: Whether the next node trains it from scratch.
    anew: bool = False
    #: Whether it has copied another trial since its last node trained it.
    copied: bool = False

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "stopped", "failed")

    @property
    def index(self) -> int:
        """Its number, which a trial of a search always has."""
        assert self.number is not None
        return self.number

    def as_run(self) -> Snapshot:
        """The snapshot of its checkpoint: by itself it is a run of one child."""
        return self.snapshot(exchanges=self.version, updates=self.version, seconds=self.seconds)

    def hear(self, now: float) -> None:
        """Counts the time since the owner's last message as training."""
        if self.heard is not None:
            self.seconds += now - self.heard
        self.heard = now

    def begin_anew(self) -> None:
        """Forgets what it has learned."""
        self.vector = self.signature = None
        self.steps = self.episodes = 0
        self.seconds = 0.0
        self.clear_returns()
        self.anew = False

    def trained(self, unit: str) -> float:
        """Its training so far, in steps, episodes or seconds."""
        return {"steps": self.steps, "episodes": self.episodes}.get(unit, self.seconds)


# The service.

#: A node that gets no trial asks again after this time while a configuration is being sampled or
#: a trial has no node; later if so many wait that they would ask more than 50 times a second.
_SOON_SECONDS = 0.2
_MOST_ASK = 50

#: It asks again after this time if other nodes have all trials, of which one may be given back.
_BUSY_SECONDS = 2.0


class Replace(Rule):
    """The rule of pushes in a search: a trial becomes what its owner pushes."""

    convex = True

    def apply(self, parent: Vector, push: Update) -> None:
        parent[:] = push.vector


class Search:
    """The `Trials` of a search: gives them to nodes, and decides after each phase."""

    shared = False

    def __init__(self, experiment: Experiment) -> None:
        assert experiment.search is not None
        self.settings: SearchSettings = experiment.search
        settings = self.settings
        self.space = parse_space(settings.space)
        self.rule: Rule = Replace()
        #: Decides after each phase.
        self.search_rule: SearchRule = settings.rule(seed=experiment.seed)
        #: A trial of no node, by which nodes learn that the search is over.
        self.trial = Trial(window=experiment.stop.window, experiment=experiment.to_dict())
        self.tally = ProgressCounter()
        self.averaging: Averaging | None = None
        self.events: list[Event] = []
        #: All trials that were begun, by number.
        self.trials: dict[int, SearchTrial] = {}
        #: Trials without a node, the next one first.
        self.waiting: deque[int] = deque()
        #: The trial of each node.
        self.owned: dict[str, int] = {}
        #: Trials whose node has vanished, and when.
        self.absent: dict[int, float] = {}
        #: Nodes that got no trial.
        self.idle: set[str] = set()
        #: The number of reports so far.
        self.reports = 0
        #: The experiment of a trial before its own settings.
        self.plain = msgspec.structs.replace(experiment, search=None)
        self._window = experiment.stop.window
        self._seed = experiment.seed
        self._changed: dict[int, SearchTrial] = {}
        self._before = 0.0
        self._began: float | None = None

    # Configurations.

    @property
    def wanted(self) -> int:
        """The number of configurations to offer: one for each node that waits, at least one."""
        waiting = (self.trials[number] for number in self.waiting)
        untried = sum(not (trial.phases or trial.failed_on) for trial in waiting)
        if self.search_rule.takes_turns:
            return self.settings.trials - len(self.trials)
        missing = max(1, len(self.idle)) - untried
        return max(0, min(self.settings.trials - len(self.trials), missing))

    def offer(self, number: int, params: dict[str, Any], now: float) -> None:
        """A new configuration: dotted settings and their values."""
        # Another program may have added trials to the study.
        self.search_rule.left_out.update(set(range(number)) - self.trials.keys())
        trial = self._add(number, params)
        trial.began = self.seconds(now)
        if trial.stop:
            self._fail(trial, trial.stop, now)
        else:
            self.waiting.append(number)

    # Nodes.

    def assign(self, child: str, now: float, training: int | None = None) -> SearchTrial | None:
        """The trial for this node; None if there is none now. A node keeps the trial that it says
        it is `training` already, unless another node has it."""
        number = self.owned.get(child)
        if training is not None and training != number and self._is_free(training):
            if self.trials[training].anew or self.trials[training].copied:
                self.idle.add(child)  # it has what the trial was before, and must forget it first
                return None
            if number is not None:
                self._requeue(self.trials[number])
            if training in self.waiting:
                self.waiting.remove(training)
            number = training
        if number is None:
            number = self._next(child, now)
        if number is None:
            self.idle.add(child)
            return None
        self.idle.discard(child)
        self.absent.pop(number, None)
        trial = self.trials[number]
        if self._began is None:
            self._began = now
        trial.heard = None
        if self.owned.get(child) != number:
            self._release(trial)
            self.owned[child] = number
            trial.owner = child
            trial.state = "running"
            trial.stop = ""
            trial.copied = False
            trial.began = self.seconds(now)
            # Of one without weights nothing is left of what it had learned.
            if trial.anew or (trial.vector is None and training != number):
                trial.begin_anew()
            self.events.append(
                TrialAssigned(
                    time=now,
                    trial=trial.index,
                    child=child,
                    phase=len(trial.phases),
                    params=trial.params,
                )
            )
        return trial

    def owns(self, child: str, trial: Trial) -> bool:
        """True if the node trains that trial, or does not know of its end yet."""
        return isinstance(trial, SearchTrial) and trial.owner == child

    @property
    def wait(self) -> float:
        """Seconds after which a node that got no trial should ask again."""
        soon = any(trial.state in ("paused", "waiting") for trial in self.trials.values())
        if soon or len(self.trials) < self.settings.trials:
            return max(_SOON_SECONDS, len(self.idle) / _MOST_ASK)
        return _BUSY_SECONDS

    def vanished(self, child: str, now: float) -> None:
        """The node's connection is gone; its trial waits for its return."""
        self.idle.discard(child)
        if child in self.owned:
            self.absent[self.owned[child]] = now

    def left(self, child: str, trial: Trial, failed: bool, reason: str, now: float) -> None:
        """The node leaves for good; the next one that asks gets its trial."""
        if not self.owns(child, trial) or child not in self.owned:
            return
        mine = self.trials[self.owned[child]]
        if failed:
            mine.failures += 1
            mine.failed_on.add(child)
            self.events.append(TrialFailed(time=now, trial=mine.index, child=child, reason=reason))
        if failed and mine.failures > self.settings.retries:
            self._fail(mine, reason, now)
        else:
            self._requeue(mine)

    def _is_free(self, number: int) -> bool:
        """True if a node may keep a trial that it says it is training. It may if no node has the
        trial, or if only the study says that another node has it."""
        return number in self.waiting or (
            number in self.absent and self.trials[number].heard is None
        )

    def _next(self, child: str, now: float) -> int | None:
        """The trial for a node that has none."""
        for number, since in self.absent.items():
            if now - since >= self.settings.return_seconds:
                return number
        others = (each for each in self.waiting if child not in self.trials[each].failed_on)
        chosen = min(others, key=self._turn, default=None)
        if chosen is not None and self._turn(chosen) and len(self.trials) < self.settings.trials:
            return None  # it is the turn of one that is still being sampled
        if chosen is None and self.waiting and not self.owned and not self.wanted:
            chosen = self.waiting[0]  # it has failed on this node, and there is no other
        if chosen is not None:
            self.waiting.remove(chosen)
        return chosen

    def _turn(self, number: int) -> int:
        """Orders trials that take turns: those first that are behind."""
        return len(self.trials[number].phases) if self.search_rule.takes_turns else 0

    def _requeue(self, trial: SearchTrial) -> None:
        """Takes the trial from its node; it waits, before the new ones if it has begun."""
        self._release(trial)
        trial.owner = ""
        trial.state = "waiting"
        trial.heard = None
        if trial.phases or trial.steps:
            self.waiting.appendleft(trial.index)
        else:
            self.waiting.append(trial.index)

    def _release(self, trial: SearchTrial) -> None:
        """Takes the trial from its node."""
        if self.owned.get(trial.owner) == trial.number:
            del self.owned[trial.owner]
        self.absent.pop(trial.index, None)

    # Progress.

    def joined(self, trial: Trial, now: float) -> None:
        """The owner has joined, and trains."""
        if isinstance(trial, SearchTrial):
            trial.hear(now)

    def share(self, child: str, children: int) -> int:
        return 0

    def pushed(self, trial: Trial, now: float, child: str, steps: int) -> None:
        """The owner has pushed: the phases that this completes are over."""
        if isinstance(trial, SearchTrial):
            trial.hear(now)
            self._advance(trial, now)

    def diverged(self, trial: Trial, now: float) -> None:
        """The trial's weights are no numbers any more, which no other node could mend."""
        if isinstance(trial, SearchTrial):
            self._fail(trial, "its weights became NaN or infinite", now)

    def progress(self, trial: Trial, now: float) -> float:
        """The share of all its phases that a trial has done, in [0, 1]."""
        if not isinstance(trial, SearchTrial):
            return 1.0
        return min(
            1.0, trial.trained(self.settings.unit) / (self.settings.length * self.settings.phases)
        )

    def limit(self, stop: Stop) -> None:
        raise NotImplementedError("a search ends with its trials")

    def seconds(self, now: float) -> float:
        """Seconds of search, from the first trial's start on, without downtime."""
        return self._before + (now - self._began if self._began is not None else 0.0)

    def over(self, now: float) -> str:
        """The reason why the search is over; empty while it continues."""
        limit = self.settings.seconds
        if limit is not None and self.seconds(now) >= limit:
            return f"{limit:g} seconds are over: {self}"
        all_begun = len(self.trials) >= self.settings.trials
        if all_begun and all(trial.ended for trial in self.trials.values()):
            return f"all trials are done: {self}"
        return ""

    @property
    def version(self) -> UnsetType:
        """Each trial has a version of its own."""
        return UNSET

    def describe(self, connected: int, now: float) -> str:
        """The state, as `2 nodes, 5 of 16 trials: 1 completed, 2 stopped, 2 running`."""
        trials = plural(self.settings.trials, "trial")
        return f"{plural(connected, 'node')}, {len(self.trials)} of {trials}: {self}"

    def __str__(self) -> str:
        counts = Counter(trial.state for trial in self.trials.values())
        states: list[State] = ["completed", "stopped", "failed", "running", "paused"]
        return ", ".join(f"{counts[s]} {s}" for s in states if counts[s]) or "none begun"

    def take_changed(self) -> list[SearchTrial]:
        """The trials that have reported since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    # After a restart.

    def restore(
        self, number: int, params: dict[str, Any], state: State, phases: list[PhaseRecord]
    ) -> SearchTrial:
        """Adds a trial of the study. `restored` is to be called after the last."""
        trial = self._add(number, params)
        trial.phases = phases
        trial.state = state
        if phases:
            trial.steps = phases[-1].steps
            trial.episodes = phases[-1].episodes
            if self.settings.unit == "seconds":
                began = self.search_rule.began(number, len(phases) - 1)
                trial.seconds = (len(phases) - began) * self.settings.length
            trial.owner = phases[-1].node
        if not trial.ended and (end := state_after(phases, self.search_rule.length(number))):
            # All was written but this.
            trial.state = end
            self._changed[number] = trial
        if trial.ended and not phases:
            self.search_rule.left_out.add(number)
        if trial.ended:
            trial.stop = f"it has {trial.state}"
        elif trial.state == "paused":
            trial.stop = _PAUSED
        else:
            trial.anew = self._begins_anew(trial)
            trial.copied = bool(phases) and phases[-1].verdict is Verdict.COPY
        return trial

    def restored(self, now: float) -> None:
        """Restores the rule from all reports, and trials under way to their nodes; others wait."""
        records = [(record, trial) for trial in self.trials.values() for record in trial.phases]
        records.sort(key=lambda pair: pair[0].report)
        self.search_rule.restore(record.decision(trial.index) for record, trial in records)
        self.reports = max((record.report for record, _ in records), default=-1) + 1
        self._before = max((record.end for record, _ in records), default=0.0)
        for trial in self.trials.values():
            trial.began = self._before
            if trial.stop and not (trial.ended or trial.state == "paused"):
                self._fail(trial, trial.stop, now)
        # Those that have just failed may have filled a rung, whose best wait by now.
        begun = [
            trial
            for trial in self.trials.values()
            if not (trial.ended or trial.state == "paused" or trial.index in self.waiting)
        ]
        # A node is with the trial for which it has reported last.
        for trial in sorted(
            begun, key=lambda each: each.phases[-1].report if each.phases else -1, reverse=True
        ):
            kept = not (trial.anew or trial.copied)
            if trial.owner and trial.owner not in self.owned and kept:
                self.owned[trial.owner] = trial.index
                self.absent[trial.index] = now
                trial.state = "running"
            else:
                self._requeue(trial)
        order = sorted(self.waiting, key=lambda number: (not self.trials[number].phases, number))
        self.waiting = deque(order)
        self._settle(now)

    # Inside.

    def _add(self, number: int, params: dict[str, Any]) -> SearchTrial:
        """A trial; one whose settings do not go together says so in `stop`."""
        self.search_rule.numbers = max(self.search_rule.numbers, number + 1)
        trial = self.trials[number] = SearchTrial(window=self._window, number=number, params=params)
        try:
            trial.experiment = self.plain.with_settings(params, source=f"trial {number}").to_dict()
        except ConfigurationError as error:
            trial.stop = str(error)
        return trial

    def _advance(self, trial: SearchTrial, now: float) -> None:
        """Ends the phases that a push has completed."""
        length = self.settings.length
        began = self.search_rule.began(trial.index, len(trial.phases))
        while (
            trial.state == "running"
            and trial.trained(self.settings.unit) >= (len(trial.phases) + 1 - began) * length
        ):
            metric = trial.mean_return
            if metric is None:
                reason = _NO_EPISODE.format(len(trial.phases), trial.number)
                self.events.append(Warned(time=now, trial=trial.index, reason=reason))
            self._report(trial, math.nan if metric is None else metric, now)

    def _report(self, trial: SearchTrial, metric: float, now: float) -> None:
        phase = len(trial.phases)
        end = self.seconds(now)
        decision = self.search_rule.decide(trial.index, phase, metric)
        source = decision.source
        if source is not None:
            self._copy(trial, self.trials[source])
        record = PhaseRecord(
            phase=phase,
            node=trial.owner,
            start=trial.began,
            end=end,
            metric=None if math.isnan(metric) else metric,
            order=decision.order,
            worse=decision.worse,
            mode=decision.mode,
            verdict=decision.verdict,
            steps=trial.steps,
            episodes=trial.episodes,
            report=self.reports,
            source=UNSET if source is None else source,
            params=UNSET if source is None else trial.params,
        )
        self.reports += 1
        trial.phases.append(record)
        self._changed[trial.index] = trial
        trial.began = end
        self.events.append(
            PhaseReported(time=now, trial=trial.index, **msgspec.structs.asdict(record))
        )
        if decision.mode is Mode.FAILURE:
            self._end(trial, "failed", f"no metric after phase {phase}", now)
        elif decision.verdict is Verdict.STOP:
            place = f"is too low among {plural(decision.order, 'report')}"
            self._end(trial, "stopped", f"{metric:.1f} after phase {phase} {place}", now)
        elif phase == self.search_rule.length(trial.index) - 1:
            self._end(trial, "completed", "all phases are done", now)
        elif decision.verdict is Verdict.PAUSE:
            trial.state = "paused"
            trial.stop = _PAUSED
            self._release(trial)
        elif source is not None or self._is_ahead(trial):
            trial.state = "waiting"
            trial.stop = "others are behind" if source is None else f"it goes on as trial {source}"
            if source is None:  # to whoever reads events it pauses, since it has no node
                self.events[-1] = msgspec.structs.replace(self.events[-1], verdict=Verdict.PAUSE)
            self._release(trial)
            self.waiting.append(trial.index)
        self._settle(now)

    def _copy(self, trial: SearchTrial, source: SearchTrial) -> None:
        """Gives a trial the weights of another one, and its settings, perturbed."""
        chance = Random(f"{self._seed}:{trial.number}:{len(trial.phases)}")  # noqa: S311
        for _ in range(_MOST_DRAWS):
            trial.params = explore(self.space, source.params, chance)
            with suppress(ConfigurationError):  # some settings do not go together
                trial.experiment = self.plain.with_settings(trial.params).to_dict()
                break
        else:
            trial.params, trial.experiment = source.params, source.experiment
        trial.signature = source.signature
        trial.vector = None if source.vector is None else source.vector.copy()
        trial.clear_returns()
        trial.add_returns([*source.returns])
        trial.copied = True

    def _is_ahead(self, trial: SearchTrial) -> bool:
        """True if trials take turns, and it is another one's."""
        behind = (len(self.trials[number].phases) < len(trial.phases) for number in self.waiting)
        left = len(self.trials) < self.settings.trials
        return self.search_rule.takes_turns and (left or any(behind))

    def _settle(self, now: float) -> None:
        """Does what the rule decides on paused trials."""
        chosen = []
        for decision in self.search_rule.settle():
            trial = self.trials[decision.trial]
            trial.phases[-1] = msgspec.structs.replace(trial.phases[-1], verdict=decision.verdict)
            self._changed[trial.index] = trial
            if decision.verdict is Verdict.STOP:
                trial.stop = ""
                reason = f"{decision.metric:.1f} is not among the best of its rung"
                self._end(trial, "stopped", reason, now)
            else:
                trial.state = "waiting"
                trial.anew = self._begins_anew(trial)
                chosen.append(trial.index)
        self.waiting.extendleft(reversed(chosen))

    def _begins_anew(self, trial: SearchTrial) -> bool:
        """True if the phase that comes next is to be trained from scratch."""
        return 0 < len(trial.phases) == self.search_rule.began(trial.index, len(trial.phases))

    def _fail(self, trial: SearchTrial, reason: str, now: float) -> None:
        trial.stop = reason
        self._report(trial, math.nan, now)

    def _end(self, trial: SearchTrial, state: State, reason: str, now: float) -> None:
        trial.state = state
        trial.stop = trial.stop or reason
        self._release(trial)
        self.events.append(TrialEnded(time=now, trial=trial.index, state=state, reason=trial.stop))


#: Draws of a copy's settings that do not go together, before it keeps those of the original.
_MOST_DRAWS = 10

#: What a node is told whose trial is paused.
_PAUSED = "it waits for the other trials of its rung"

_NO_EPISODE = (
    "phase {} of trial {} ended without a single episode, which counts as the worst; "
    "make the phases of [search] longer"
)
