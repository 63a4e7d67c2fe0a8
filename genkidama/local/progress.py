"""A line that shows how a run goes: what is reached, how fast, and how long it will still take."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, deque
from statistics import fmean
from typing import Any, TextIO

from genkidama.events import (
    CheckpointWritten,
    Event,
    Exchange,
    Joined,
    Left,
    Measures,
    PhaseReported,
    Refused,
    Resumed,
    Started,
    TrialAssigned,
    TrialEnded,
    TrialFailed,
    Warned,
    from_line,
)
from genkidama.experiment import Experiment
from genkidama.floods import times
from genkidama.formats import bar, duration, rate
from genkidama.tuning.records import SearchRecord, best_trial

__all__ = ["Progress", "SearchProgress"]

#: A terminal's line is renewed after so many seconds.
_TERMINAL_SECONDS = 0.25

#: Elsewhere, as in a log, a new line is written after so many seconds.
_LOG_SECONDS = 5.0

#: The speed is that of the last so many seconds.
_SPEED_WINDOW = 10.0

#: What remains is estimated when this process has done so much of the whole.
_LEAST_DONE = 0.02


class _Follower:
    """One line about a history: over and over on a terminal, now and then elsewhere."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file or sys.stderr
        self._terminal = self._file.isatty()
        self._printed = 0.0

    def __call__(self, line: dict[str, Any]) -> None:
        """Takes in one line of the history."""
        event = from_line(line)
        if event is not None:
            self.take(event)

    def take(self, event: Event) -> None:
        """Takes in one event."""
        raise NotImplementedError

    def line(self) -> str:
        """The line as it stands."""
        raise NotImplementedError

    def say(self, text: str) -> None:
        """A line of its own."""
        if self._terminal:
            print("\r\033[K", end="", file=self._file, flush=True)
        print(text, file=self._file, flush=True)

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._printed >= (_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS):
            self._printed = now
            self._print(self.line())

    def _print(self, line: str) -> None:
        if self._terminal:
            print(f"\r\033[K{line}", end="", file=self._file, flush=True)
        else:
            print(line, file=self._file, flush=True)

    def _leave_standing(self) -> None:
        self._print(self.line())
        if self._terminal:
            print(file=self._file, flush=True)


def _refused(event: Refused) -> str:
    others = f" (and {times(event) - 1} others)" if times(event) > 1 else ""
    return f"refused {event.child or 'a connection'}: {event.reason}{others}"


class Progress(_Follower):
    """Follows a plain run.

    Args:
        experiment: for the stop conditions.
        file: where to, standard error if absent.
    """

    def __init__(self, experiment: Experiment, file: TextIO | None = None) -> None:
        super().__init__(file)
        self._stop = experiment.stop
        self._name = experiment.environment.id
        self._algorithm = experiment.algorithm.name
        #: The newest measures of each child that is there.
        self._children: dict[str, dict[str, float]] = {}
        self._began: float | None = None
        #: How much was done before the first exchange that this process saw.
        self._share_before: float | None = None
        self._last: Exchange | None = None
        #: Whether there was a warning since the last checkpoint.
        self._warned = False
        #: Time and steps of the exchanges within the speed's window.
        self._points: deque[tuple[float, int]] = deque()

    def take(self, event: Event) -> None:
        """Takes in one event."""
        match event:
            case Exchange():
                self._take_exchange(event)
            case Measures():
                if event.child in self._children:
                    self._children[event.child] = event.figures
            case Started():
                self.say(f"training {self._name} with {self._algorithm}: run {event.run}")
            case Resumed():
                training = f"training {self._name} with {self._algorithm}"
                self.say(f"{training}: run {event.run} goes on from version {event.version}")
            case Joined():
                self._children[event.child] = {}
                self._began = event.time if self._began is None else self._began
            case Left():
                self._children.pop(event.child, None)
            case Refused():
                self.say(_refused(event))
            case Warned():
                self._warned = True
                self.say(f"warning: {event.reason}")
            case CheckpointWritten() if self._warned:
                self._warned = False
                self.say(f"checkpoint of version {event.version} written")

    def _take_exchange(self, event: Exchange) -> None:
        self._last = event
        if self._share_before is None:
            self._share_before = self._share(event) or 0.0
        self._points.append((event.time, event.steps))
        while self._points[-1][0] - self._points[0][0] > _SPEED_WINDOW:
            self._points.popleft()
        self._refresh()

    @property
    def steps_per_second(self) -> float:
        """Environment steps a second, never below 0 though a killed parent forgets some."""
        first, before = self._points[0]
        last, after = self._points[-1]
        return max(0.0, (after - before) / (last - first)) if last > first else 0.0

    def line(self) -> str:
        """The line as it stands, after the first exchange."""
        last = self._last
        assert last is not None
        share = self._share(last)
        parts = [self._name if share is None else f"{self._name} {bar(share)} {share:4.0%}"]
        if last.mean_return is not None:
            goal = "" if self._stop.mean_return is None else f" of {self._stop.mean_return:g}"
            parts.append(f"mean return {last.mean_return:7.1f}{goal}")
        parts += [
            f"update {last.update:,.0f}",
            f"{last.episodes:,} episodes",
            f"{last.steps:,} steps",
            f"{self.steps_per_second:,.0f}/s",
            *self._measures(),
            f"{len(self._children)} children",
            duration(self._elapsed(last)),
        ]
        if share is not None:
            parts += self._remaining(last, share)
        return " · ".join(parts)

    def _measures(self) -> list[str]:
        """Predictions and trained batches a second of all children, and their mean lag."""
        found = {
            key: [figures[key] for figures in self._children.values() if key in figures]
            for key in ("pps", "tps", "lag")
        }
        parts = [f"{key.upper()} {rate(sum(found[key]))}" for key in ("pps", "tps") if found[key]]
        if found["lag"]:
            parts.append(f"lag {fmean(found['lag']):.1f}")
        return parts

    def _elapsed(self, last: Exchange) -> float:
        return 0.0 if self._began is None else last.time - self._began

    def _remaining(self, last: Exchange, share: float) -> list[str]:
        """How long it takes at most, judged by what this process has done itself."""
        done = share - (self._share_before or 0.0)
        if done <= _LEAST_DONE:
            return []
        return [f"at most {duration(self._elapsed(last) * (1 - share) / done)} left"]

    def _share(self, last: Exchange) -> float | None:
        """How much of the strictest countable stop condition is used up."""
        stop = self._stop
        used = (
            (last.update, stop.updates),
            (last.episodes, stop.episodes),
            (last.steps, stop.steps),
            (self._elapsed(last), stop.seconds),
        )
        shares = [have / limit for have, limit in used if limit]
        return min(1.0, max(shares)) if shares else None

    def close(self) -> None:
        """Leaves the last line standing."""
        if self._last is not None:
            self._leave_standing()


class SearchProgress(_Follower):
    """Follows a search.

    Args:
        experiment: with a `[search]`.
        file: where to, standard error if absent.
    """

    def __init__(self, experiment: Experiment, file: TextIO | None = None) -> None:
        super().__init__(file)
        assert experiment.search is not None
        self._search = experiment.search
        self._name = experiment.environment.id
        rule = SearchRecord.of(experiment).rule()
        #: How many reports to expect in all: equation 9, or what a cohort makes of it.
        self._expected = rule.expected_completion_rate * rule.workers * rule.phases
        self._states: dict[int, str] = {}
        self._reports = 0
        #: Reports made before this process.
        self._resumed = 0
        #: By trial, its last metric.
        self._scores: dict[int, float] = {}
        self._nodes: set[str] = set()
        self._began: float | None = None
        self._now = 0.0

    def take(self, event: Event) -> None:
        """Takes in one event."""
        self._now = event.time
        searching = f"searching {self._name} with {self._search.method}"
        match event:
            case Started():
                self.say(f"{searching}: run {event.run}")
            case Resumed():
                self._resumed = event.reports or 0
                self._reports = self._resumed
                self.say(f"{searching}: run {event.run} goes on after {self._reports} reports")
            case TrialAssigned():
                self._states[event.trial] = "running"
                self._began = self._now if self._began is None else self._began
            case Joined():
                self._nodes.add(event.child)
            case Left():
                self._nodes.discard(event.child)
            case Refused():
                self.say(_refused(event))
            case Warned():
                self.say(f"warning: {event.reason}")
            case TrialFailed():
                self.say(f"trial {event.trial} failed on {event.child}: {event.reason}")
            case PhaseReported():
                self._reports += 1
                metric = event.metric
                self._scores[event.trial] = math.nan if metric is None else metric
            case TrialEnded():
                self._states[event.trial] = event.state
                if event.state == "failed":
                    self._scores.pop(event.trial, None)
            case Exchange():
                pass
            case _:
                return
        self._refresh()

    def line(self) -> str:
        """The line as it stands."""
        counts = Counter(self._states.values())
        states = [
            f"{counts[state]} {state}"
            for state in ("completed", "stopped", "failed", "running")
            if counts[state]
        ]
        share = self._share()
        parts = [
            f"{self._name} {bar(share)} {share:4.0%}",
            f"{len(self._states)} of {self._search.trials} trials",
            ", ".join(states) or "none",
        ]
        completed = {trial for trial, state in self._states.items() if state == "completed"}
        best = best_trial(self._scores, completed)
        if best is not None:
            parts.append(f"best {self._scores[best]:.1f} (trial {best})")
        elapsed = 0.0 if self._began is None else self._now - self._began
        parts += [f"{len(self._nodes)} nodes", duration(elapsed)]
        done = share - self._resumed / self._expected
        if done > _LEAST_DONE:
            parts.append(f"about {duration(elapsed * (1 - share) / done)} left")
        return " · ".join(parts)

    def _share(self) -> float:
        share = min(1.0, self._reports / self._expected)
        if self._search.seconds and self._began is not None:
            share = max(share, min(1.0, (self._now - self._began) / self._search.seconds))
        return share

    def close(self) -> None:
        """Leaves the last line standing."""
        if self._began is not None:
            self._leave_standing()
