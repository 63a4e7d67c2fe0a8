"""A plain run: one trial, shared by all children, that ends with the run. Pure."""

from __future__ import annotations

from genkidama.averaging import Blend, Rule
from genkidama.events import Event
from genkidama.experiment import Experiment, Stop
from genkidama.formats import plural
from genkidama.parts import WHOLE, Part
from genkidama.rules.arrivals import Arrivals
from genkidama.rules.table import RULES, make_rule, pushes
from genkidama.trial import Tally, Trial

__all__ = ["PlainRun", "reached"]


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
        steps = told.exchange_steps if told.exchange == "free" else 0
        self._arrivals = Arrivals(steps) if steps else None

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
        if self._arrivals is not None:
            self._arrivals.note(child, steps, now)

    def share(self, child: str, children: int) -> int:
        told = self.rule.share(child, children)
        return told if told or self._arrivals is None else self._arrivals.share(child)

    def diverged(self, trial: Trial, now: float) -> None:
        pass

    def left(self, child: str, trial: Trial, failed: bool, reason: str, now: float) -> None:
        pass

    def vanished(self, child: str, now: float) -> None:
        if self._arrivals is not None:
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


def reached(
    stop: Stop, mean: float | None, updates: float, episodes: int, steps: int, seconds: float
) -> str:
    """Which stop condition a run has reached, in words; empty if none.

    Args:
        mean: mean return of the last `stop.window` episodes; None while there are fewer.
        updates: how far the run has come, as `[stop]` counts it; so are those that follow.
    """
    if stop.mean_return is not None and mean is not None and mean >= stop.mean_return:
        window = plural(stop.window, "episode")
        return f"mean return {mean:.1f} over {window} reached {stop.mean_return:g}"
    if stop.updates is not None and updates >= stop.updates:
        return f"{plural(stop.updates, 'update')} done"
    if stop.episodes is not None and episodes >= stop.episodes:
        return f"{plural(stop.episodes, 'episode')} done"
    if stop.steps is not None and steps >= stop.steps:
        return f"{plural(stop.steps, 'step')} done"
    if stop.seconds is not None and seconds >= stop.seconds:
        return f"{stop.seconds:g} seconds are over"
    return ""


def _named(experiment: Experiment) -> Rule:
    settings = experiment.parent
    return make_rule(experiment) if settings.rule in RULES else Blend(settings.alpha)
