"""HyperTrick for Optuna: `optuna.create_study(pruner=HyperTrickPruner(…))`.

The rule itself is `genkidama.plugins.hypertrick.rule`. This module makes it work in a study that
many threads, processes and machines share, with any storage and any sampler.

Laws of this file:
- A trial's report of a phase is the moment at which `should_prune` is asked first after it. Optuna
  keeps no times of reports, and much may happen between a report and the question (a checkpoint is
  written). So the questions are put in order: the n-th trial to be asked has the order n.
- A report whose trial cannot be asked about it any more (it has ended, or has reported a later
  step) counts as well, from then on. One that may still be asked does not count yet: it counts
  itself when it is.
- A trial that fails between two reports has none of the second: it does not count there.
- A decision is written to its trial once, by the process that runs it
  (`system_attrs["hypertrick:<phase>"]`), and read from there ever after: asking again, from any
  thread, process or day, gives the same answer. `decisions` lists them.
- In one process, with any number of threads, all this is exact: the verdicts are those of
  `HyperTrick`, fed in that order.
- Processes do not wait for each other. Each reads, decides and writes, so a decision may miss those
  that other processes have not written yet, and two trials may get the same order. A trial's order
  is thus never higher than its rank among the written decisions. Of m processes, each can have read
  before and written after the W_p^DCM-th decision was written for one trial at most, so in a phase
  at least W_p^DCM and at most W_p^DCM + m − 1 pass unconditionally. Trials that reported NaN, or
  that count without having been asked, take places among them. Suppose that all reports were
  counted instead, asked or not. Then trials that report together would each count all of them, and
  none might pass. The rule would stop √r of them where it should stop r.
- Finished trials are read once by each pruner object. A decision costs Optuna's own listing of the
  trials (those that its storage has not cached are read), a look at each unfinished trial, and a
  binary search.
- A trial that repeats one whose process died (Optuna's `RetryHeartbeatStaleTrialCallback`) inherits
  its decisions: they are answered again and counted once.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from genkidama._version import pip_install
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.rule import Decision, HyperTrick, Mode, Verdict, check_natural

try:
    from optuna.pruners import BasePruner
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise ConfigurationError(
        f"HyperTrickPruner needs Optuna: {pip_install('search')} ({error})"
    ) from error

_PREFIX = "hypertrick:"


@dataclass
class _Memory:
    rule: HyperTrick
    #: The number of trials that were seen.
    seen: int = 0
    #: Trials that had not ended when they were looked at last, with the steps of them that the rule
    #: has.
    unfinished: dict[int, set[int]] = field(default_factory=dict)


class HyperTrickPruner(BasePruner):
    """Stops trials by HyperTrick's rule (Heinrich and Frosio, arXiv 1902.02725, §3.2).

        pruner = HyperTrickPruner(workers=100, phases=10, eviction_rate=0.25)
        study = optuna.create_study(direction="maximize", pruner=pruner)
        study.optimize(objective, n_trials=100, n_jobs=4)

    where the objective calls `trial.report(value, step)` and then `trial.should_prune()` for the
    steps 0 to 9. Both directions are understood. NaN is worse than any value and prunes at the end
    of any phase.

    Each phase ends with one step: phase p (from 0) with the step `first_step + p·interval`. Other
    steps may be reported, and nothing is pruned there. For steps 1, 2, 3, … set `first_step=1`. For
    1000, 2000, … set `first_step=1000, interval=1000`. For 0, 1, 2, … with a decision after every
    ten of them set `first_step=9, interval=10`. A trial that reports no value for a step is not
    judged there. After the last phase nothing is decided.

    Args:
        workers: W₀, how many trials the study will run: `n_trials`, of all processes together.
        phases: N_p, how many phases a trial has that is never stopped.
        eviction_rate: r, the share of trials that is meant to end after each phase, within (0, 1).
        decide_after, cohort, adaptive, seed: as in `HyperTrick`.
        first_step: the step that ends phase 0.
        interval: steps between the ends of two phases.

    Raises:
        ConfigurationError: one of them is out of its range.
    """

    def __init__(
        self,
        *,
        workers: int,
        phases: int,
        eviction_rate: float,
        decide_after: Sequence[int] | None = None,
        cohort: int | None = None,
        adaptive: bool = False,
        seed: int = 0,
        first_step: int = 0,
        interval: int = 1,
    ) -> None:
        self._settings: dict[str, Any] = {
            "workers": workers,
            "phases": phases,
            "eviction_rate": eviction_rate,
            "decide_after": decide_after,
            "cohort": cohort,
            "adaptive": adaptive,
            "seed": seed,
        }
        rule = HyperTrick(**self._settings)
        check_natural("first_step", first_step, least=0)
        check_natural("interval", interval, least=1)
        self._steps = range(first_step, first_step + phases * interval, interval)
        #: The steps after which something is decided, and their phases.
        self._deciding = {self._steps[phase]: phase for phase in rule.decide_after}
        self._forget()

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """True if `trial` should end after its last step. Optuna calls this for
        `Trial.should_prune`."""
        step = trial.last_step
        if step is None:
            return False
        if step > self._steps[-1]:
            warnings.warn(
                f"steps after {self._steps[-1]}, the last of {len(self._steps)} phases, "
                "are not judged: if steps are counted otherwise, "
                "set HyperTrickPruner's phases, first_step and interval",
                stacklevel=3,
            )
        metric = float(trial.intermediate_values[step])
        if step not in self._deciding:
            return step in self._steps and math.isnan(metric)
        phase = self._deciding[step]
        with self._lock:
            trials = study.get_trials(deepcopy=False)
            sign = 1 if study.direction == StudyDirection.MAXIMIZE else -1
            memory = self._memories.setdefault(study, _Memory(HyperTrick(**self._settings)))
            # The adaptive quantile depends on how many have passed the decision before, too.
            self._read(memory, trials, [s for s in self._deciding if s <= step][-2:], sign)
            record = trials[trial.number].system_attrs.get(f"{_PREFIX}{phase}")
            if record is None:
                decision = memory.rule.decide(trial.number, phase, sign * metric)
                memory.unfinished.get(trial.number, set()).add(step)
                record = msgspec.to_builtins(decision) | {"step": step}
                study._storage.set_trial_system_attr(trial._trial_id, f"{_PREFIX}{phase}", record)
        return bool(record["verdict"] == Verdict.STOP.value)

    def _read(
        self, memory: _Memory, trials: Sequence[FrozenTrial], steps: Sequence[int], sign: int
    ) -> None:
        """Gives the rule what has been reported since; by unfinished trials only after `steps`."""
        memory.unfinished.update((number, set()) for number in range(memory.seen, len(trials)))
        memory.seen = len(trials)
        for number, counted in list(memory.unfinished.items()):
            trial = trials[number]
            if trial.state.is_finished():
                del memory.unfinished[number]
            for step in self._deciding if trial.state.is_finished() else steps:
                if step in counted or step not in trial.intermediate_values:
                    continue
                phase = self._deciding[step]
                record = trial.system_attrs.get(f"{_PREFIX}{phase}")
                if record is None and trial.last_step == step and not trial.state.is_finished():
                    continue  # it may still be asked about this
                counted.add(step)
                if record is None:
                    goes_on = trial.last_step != step or trial.state == TrialState.COMPLETE
                    record = {
                        "trial": number,
                        "order": 0,
                        "worse": 0,
                        "mode": Mode.NONE,
                        "verdict": Verdict.CONTINUE if goes_on else Verdict.STOP,
                    }
                if not _inherited(trial, record):
                    metric = sign * float(trial.intermediate_values[step])
                    memory.rule.restore([_decision(number, phase, metric, record)])

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._memories: WeakKeyDictionary[Study, _Memory] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in ("_lock", "_memories")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()


def decisions(study: Study) -> list[Decision]:
    """The decisions of a `HyperTrickPruner` in a study, by phase and order.

    `metric` is the value as it was reported: where the study minimizes, lower is better.
    Phases after which nothing is decided are left out.
    """
    made = [
        _decision(
            trial.number,
            int(key.removeprefix(_PREFIX)),
            float(trial.intermediate_values[record["step"]]),
            record,
        )
        for trial in study.get_trials(deepcopy=False)
        for key, record in trial.system_attrs.items()
        if key.startswith(_PREFIX) and not _inherited(trial, record)
    ]
    return sorted(made, key=lambda decision: (decision.phase, decision.order, decision.trial))


def _inherited(trial: FrozenTrial, record: dict[str, Any]) -> bool:
    """True if a decision was made for the trial that this one repeats."""
    return record["trial"] in trial.system_attrs.get("retry_history", ())


def _decision(trial: int, phase: int, metric: float, record: dict[str, Any]) -> Decision:
    """The decision of a stored form, for the trial that has it."""
    return msgspec.convert(record | {"trial": trial, "phase": phase, "metric": metric}, Decision)
