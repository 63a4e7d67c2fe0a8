"""A plain run: one trial, shared by all children, that ends with the run. Pure."""

from __future__ import annotations

from genkidama.averaging import Blend, Rule
from genkidama.events import Event
from genkidama.experiment import Experiment
from genkidama.parts import WHOLE, Part
from genkidama.rules.arrivals import Arrivals
from genkidama.rules.table import RULES, make_rule, pushes
from genkidama.trial import Tally, Trial

__all__ = ["PlainRun"]


class PlainRun:
    """The trivial `Trials`: all children train the same trial, until `[stop]` ends it.

    Args:
        rule: how a push is used. None takes the one that `parent.rule` names or, if that is an
            import string, the documented one.
        part: which part of the parent this is. Only the first ends the run.
    """

    shared = True
    wait = 0.0

    def __init__(
        self, experiment: Experiment, rule: Rule | None = None, part: Part = WHOLE
    ) -> None:
        self.rule: Rule = rule or _named(experiment)
        settings = experiment.to_dict()
        if self.rule.takes != pushes(experiment):
            # The children do not know a rule of one's own.
            settings["child"]["push"] = self.rule.takes
        self.trial = Trial(window=experiment.stop.window, experiment=settings, part=part)
        self.tally = Tally()
        self.events: list[Event] = []
        self._stop = experiment.stop
        told = experiment.child
        self._arrivals = Arrivals(told.exchange_steps if told.exchange == "free" else 0)

    @property
    def version(self) -> int:
        return self.trial.version

    def assign(self, child: str, now: float, training: int | None) -> Trial:
        return self.trial

    def owns(self, child: str, trial: Trial) -> bool:
        return True

    def joined(self, trial: Trial, now: float) -> None:
        pass

    def pushed(self, trial: Trial, now: float, child: str, steps: int) -> None:
        self._arrivals.note(child, steps, now)

    def share(self, child: str, children: int) -> int:
        return self.rule.share(child, children) or self._arrivals.share(child)

    def diverged(self, trial: Trial, now: float) -> None:
        pass

    def left(self, child: str, trial: Trial, failed: bool, reason: str, now: float) -> None:
        pass

    def vanished(self, child: str, now: float) -> None:
        self._arrivals.forget(child)

    def progress(self, trial: Trial, now: float) -> float:
        """How much of the strictest countable stop condition is used up."""
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

    def over(self, now: float) -> str:
        stop, trial = self._stop, self.trial
        if not trial.part.is_first:
            return ""
        if stop.mean_return is not None and len(trial.returns) == stop.window:
            mean = trial.mean_return
            if mean is not None and mean >= stop.mean_return:
                return (
                    f"mean return {mean:.1f} over {stop.window} episodes "
                    f"reached {stop.mean_return:g}"
                )
        if stop.updates is not None and self.tally.updates >= stop.updates:
            return f"{stop.updates} updates done"
        if stop.episodes is not None and trial.episodes >= stop.episodes:
            return f"{stop.episodes} episodes done"
        if stop.steps is not None and trial.steps >= stop.steps:
            return f"{stop.steps} steps done"
        if stop.seconds is not None and self.tally.seconds(now) >= stop.seconds:
            return f"{stop.seconds:g} seconds are over"
        return ""

    def describe(self, connected: int, now: float) -> str:
        """As `3 children, version 1234, mean return 201.3, 41 %`."""
        trial, stop = self.trial, self._stop
        parts = [f"{connected} child{'ren' if connected != 1 else ''}", f"version {trial.version}"]
        if trial.mean_return is not None:
            parts.append(f"mean return {trial.mean_return:.1f}")
        if stop.updates or stop.episodes or stop.steps or stop.seconds:
            parts.append(f"{100 * self.progress(trial, now):.0f} %")
        return ", ".join(parts)


def _named(experiment: Experiment) -> Rule:
    settings = experiment.parent
    return make_rule(experiment) if settings.rule in RULES else Blend(settings.alpha)
