"""HyperTrickScheduler: HyperTrick's rule as a scheduler of Ray Tune. Needs the extra `ray`.

    scheduler = HyperTrickScheduler(
        workers=100, phases=10, eviction_rate=0.25, metric="score", mode="max", phase_length=50
    )
    config = tune.TuneConfig(scheduler=scheduler, num_samples=100)
    tune.Tuner(train, tune_config=config).fit()

Laws of this file:
- Trials are numbered in the order in which Ray adds them. The verdict is the reply to the result
  that ends a phase; a result that ends several at once reports each of them, with the same metric.
- A trial that has run all its phases is complete, and is stopped. One that Ray gives up after a
  failure reports NaN for the phase under way; one that Ray tries again reports nothing, and is not
  asked again for the phases it repeats.
- Ray's experiment checkpoint holds its trials and its searcher, not its scheduler, so that a
  restored Tuner would start with a rule that knows nothing. Ray does copy each JSON file in the
  driver's staging directory to the experiment's storage with every checkpoint, and back before a
  restored run adds its trials. So each report is noted in one there, a line of JSON each, as soon
  as it is decided; a last line that is torn was never answered, and is dropped.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from genkidama._version import pip_install
from genkidama.errors import ConfigurationError
from genkidama.plugins.hypertrick.rule import Decision, HyperTrick, Mode, Verdict, is_number

try:
    from ray.tune.schedulers import FIFOScheduler
except ImportError as error:
    raise ConfigurationError(
        f"HyperTrickScheduler needs Ray Tune ({error}): {pip_install('ray')}"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.experiment import Trial

#: In the experiment's directory: the trials' ids in the order of their numbers, and all decisions.
JOURNAL = "hypertrick.json"


class HyperTrickScheduler(FIFOScheduler):
    """Stops trials of Ray Tune by HyperTrick's rule. One scheduler serves one run.

    Args:
        workers: W₀, how many trials the run has (`num_samples`).
        phases: N_p; a trial is complete after `phases * phase_length` units of `time_attr`.
        eviction_rate: r, the share of trials that is meant to end after each phase, within (0, 1).
        metric: the key of the result that is compared; here or in `tune.TuneConfig`.
        mode: "max" or "min"; here or in `tune.TuneConfig`.
        time_attr: the key of the result that says how far a trial is; it must not fall.
        phase_length: units of `time_attr` in one phase, above 0.
        decide_after, cohort, adaptive, seed: as of `genkidama.HyperTrick`.

    Raises:
        ConfigurationError: one of them is out of its range; later, where Ray calls: a result
            without the metric or the time, or in which it is not a number.
    """

    # A verdict depends on the order of reports, and stops the trial then and there.
    _supports_buffered_results = False

    def __init__(
        self,
        *,
        workers: int,
        phases: int,
        eviction_rate: float,
        metric: str | None = None,
        mode: str | None = None,
        time_attr: str = "training_iteration",
        phase_length: float = 1,
        decide_after: Sequence[int] | None = None,
        cohort: int | None = None,
        adaptive: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not is_number(phase_length) or not 0 < phase_length < math.inf:
            raise ConfigurationError(f"phase_length = {phase_length!r}: a number above 0 is needed")
        _check_mode(mode)
        #: The rule, with all its decisions. Its metrics are the trials' own, with the sign changed
        #: where `mode` is "min".
        self.rule = HyperTrick(
            workers=workers,
            phases=phases,
            eviction_rate=eviction_rate,
            decide_after=decide_after,
            cohort=cohort,
            adaptive=adaptive,
            seed=seed,
        )
        self._metric, self._mode = metric, mode
        self._time_attr, self._phase_length = time_attr, phase_length
        self._numbers: dict[str, int] = {}
        #: By trial number, how many phases it has reported.
        self._reported: list[int] = []
        self._journal: Path | None = None

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Takes `metric` and `mode` from `tune.TuneConfig`. False if they are given here
        already."""
        if (self._metric and metric) or (self._mode and mode):
            return False
        _check_mode(mode)
        self._metric, self._mode = self._metric or metric, self._mode or mode
        return True

    def on_trial_add(self, tune_controller: TuneController, trial: Trial) -> None:
        """Numbers a trial; before the first, takes up the run that Ray is restoring, if it is."""
        if not self._metric or not self._mode:
            raise ConfigurationError(
                f"metric = {self._metric!r}, mode = {self._mode!r}: "
                "name both, to HyperTrickScheduler or to tune.TuneConfig"
            )
        if trial.storage is not None:
            self._open(Path(trial.storage.experiment_driver_staging_path, JOURNAL))
        if trial.trial_id not in self._numbers:
            self._number(trial.trial_id)
            self._note({"trial": trial.trial_id})

    def on_trial_result(
        self, tune_controller: TuneController, trial: Trial, result: dict[str, Any]
    ) -> str:
        """CONTINUE or STOP. Asked again for a phase, it gives the same answer as before."""
        metric = _number_in(result, str(self._metric), trial)
        time = _number_in(result, self._time_attr, trial)
        if not math.isfinite(time):
            raise ConfigurationError(
                f"trial {trial}: {self._time_attr} = {time!r}: "
                "a finite number is needed, to tell its phase"
            )
        # A billionth, for a time that is a sum of floats.
        done = math.floor(time / self._phase_length + 1e-9)
        for phase in range(min(done, self.rule.phases)):
            decision = self._decide(trial, phase, metric if self._mode == "max" else -metric)
            runs_again = decision.mode is Mode.FAILURE and not math.isnan(metric)
            if decision.verdict is Verdict.STOP and not runs_again:
                return self.STOP
        return self.STOP if done >= self.rule.phases else self.CONTINUE

    def on_trial_complete(
        self, tune_controller: TuneController, trial: Trial, result: dict[str, Any]
    ) -> None:
        """Counts a last result that ends a phase. Ray does not show it to `on_trial_result` if one
        of its own stoppers ends the trial."""
        if self._metric in result and self._time_attr in result:
            self.on_trial_result(tune_controller, trial, result)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        """Counts the phase under way as failed, unless Ray runs the trial again. It does so up to
        `FailureConfig.max_failures` times."""
        phase = self._reported[self._numbers[trial.trial_id]]
        tried_again = trial.should_recover()  # type: ignore[no-untyped-call]
        if phase < self.rule.phases and not tried_again:
            self._decide(trial, phase, math.nan)

    def save(self, checkpoint_path: str) -> None:
        """Writes the trials' numbers and all decisions to a file, as lines of JSON."""
        lines: list[dict[str, Any]] = [{"trial": trial} for trial in self._numbers]
        lines += map(msgspec.to_builtins, self.rule.decisions)
        Path(checkpoint_path).write_text("".join(json.dumps(line) + "\n" for line in lines))

    def restore(self, checkpoint_path: str) -> None:
        """Takes over what `save` or a run wrote. To be called before any trial is added.

        Raises:
            ConfigurationError: the file is not one of this scheduler's.
        """
        decisions = []
        # What follows the last line break was not written to its end.
        for n, text in enumerate(Path(checkpoint_path).read_text().split("\n")[:-1], start=1):
            try:
                line = json.loads(text)
                if "phase" not in line:
                    self._number(line["trial"])
                else:
                    decisions.append(msgspec.convert(line, Decision))
                    self._reported[decisions[-1].trial] += 1
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ConfigurationError(
                    f"{checkpoint_path}, line {n}: not a scheduler's state: {text[:80]!r} ({error})"
                ) from None
        self.rule.restore(decisions)

    def _open(self, journal: Path) -> None:
        if self._journal == journal:
            return
        if self._journal is not None:
            raise ConfigurationError(
                "this HyperTrickScheduler has served another run, whose reports it remembers: "
                "make a new one"
            )
        self._journal = journal
        if journal.exists():
            self.restore(str(journal))
        journal.parent.mkdir(parents=True, exist_ok=True)
        self.save(str(journal))  # anew, for a torn line

    def _number(self, trial_id: str) -> None:
        self._numbers[trial_id] = len(self._numbers)
        self._reported.append(0)

    def _decide(self, trial: Trial, phase: int, metric: float) -> Decision:
        number = self._numbers[trial.trial_id]
        decision = self.rule.decide(number, phase, metric)
        if phase == self._reported[number]:
            self._reported[number] += 1
            self._note(msgspec.to_builtins(decision))
        return decision

    def _note(self, line: dict[str, Any]) -> None:
        if self._journal is not None:
            with self._journal.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _check_mode(mode: str | None) -> None:
    if mode not in ("max", "min", None):
        raise ConfigurationError(f"mode = {mode!r}: 'max' or 'min' is needed")


def _number_in(result: dict[str, Any], key: str, trial: Trial) -> float:
    if key not in result:
        raise ConfigurationError(
            f"trial {trial}: its result has no {key!r}, only {', '.join(sorted(result))}"
        )
    value = result[key]
    if not is_number(value):
        raise ConfigurationError(f"trial {trial}: {key} = {value!r}: expected a number")
    return float(value)
