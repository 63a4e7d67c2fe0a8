"""A line that shows how a run goes: what is reached, how fast, and how long it will still take."""

from __future__ import annotations

import sys
import time
from collections import Counter
from itertools import pairwise
from statistics import fmean
from typing import Any, TextIO

from genkidama.experiment import Experiment

__all__ = ["Progress", "SearchProgress", "bar", "duration"]

#: Lines a second on a terminal, and seconds between lines elsewhere (a log, CI).
_TERMINAL_SECONDS, _LOG_SECONDS = 0.25, 5.0

#: The speed is that of the last so many seconds.
_SPEED_WINDOW = 10.0


class _Line:
    """One line of text that is printed over and over on a terminal, and now and then elsewhere."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file or sys.stderr
        self._terminal = self._file.isatty()
        self._printed = 0.0

    def line(self) -> str:
        raise NotImplementedError

    def say(self, text: str) -> None:
        """A line of its own."""
        self._clear()
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

    def _clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=self._file, flush=True)

    def _leave_standing(self) -> None:
        self._print(self.line())
        if self._terminal:
            print(file=self._file, flush=True)


def bar(share: float, width: int = 20) -> str:
    """`share` in [0, 1] as a bar of `width` characters."""
    full = round(min(1.0, max(0.0, share)) * width)
    return "█" * full + "░" * (width - full)


def duration(seconds: float) -> str:
    """`0:42`, `12:05` or `3:07:00`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _rate(value: float) -> str:
    """A number a second, with a decimal where it is small."""
    return f"{value:,.0f}" if value >= 10.0 else f"{value:.1f}"


class Progress(_Line):
    """Follows a run's history and prints one line about it, over and over on a terminal.

    Args:
        experiment: for the stop conditions.
        file: where to, standard error if absent.
    """

    def __init__(self, experiment: Experiment, file: TextIO | None = None) -> None:
        self._stop, self._name, self._algorithm = (
            experiment.stop,
            experiment.environment.id,
            experiment.algorithm.name,
        )
        self._backend = experiment.child.backend
        super().__init__(file)
        #: The newest measures of each child that is there.
        self._children: dict[str, dict[str, Any]] = {}
        self._began: float | None = None
        self._share_before: float | None = None
        self._last: dict[str, Any] = {}
        self._points: list[tuple[float, int]] = []

    def __call__(self, event: dict[str, Any]) -> None:
        """Takes in one line of the history."""
        match event["event"]:
            case "start":
                self.say(f"training {self._name} with {self._algorithm}: run {event['run']}")
            case "resume":
                self.say(
                    f"training {self._name} with {self._algorithm}: run {event['run']} goes on from version {event['version']}"
                )
            case "join":
                self._children[event["child"]] = {}
                self._began = event["time"] if self._began is None else self._began
            case "leave":
                self._children.pop(event["child"], None)
            case "refused":
                self.say(f"refused {event.get('child') or 'a connection'}: {event['reason']}")
            case "measures" | self._backend:
                if event["child"] in self._children:
                    self._children[event["child"]] = event
            case "exchange":
                self._last = event
                if self._share_before is None:
                    self._share_before = self._share(self._elapsed)
                self._points.append((event["time"], event["steps"]))
                while self._points[-1][0] - self._points[0][0] > _SPEED_WINDOW:
                    self._points.pop(0)
                self._refresh()

    @property
    def steps_per_second(self) -> float:
        (first, before), (last, after) = self._points[0], self._points[-1]
        return (
            max(0.0, (after - before) / (last - first)) if last > first else 0.0
        )  # a parent that is killed forgets some

    def line(self) -> str:
        """The line as it stands."""
        last = self._last
        elapsed = self._elapsed
        share = self._share(elapsed)
        parts = [f"{self._name} {bar(share)} {share:4.0%}" if share is not None else self._name]
        mean = last["mean_return"]
        if mean is not None:
            goal = f" of {self._stop.mean_return:g}" if self._stop.mean_return is not None else ""
            parts.append(f"mean return {mean:7.1f}{goal}")
        parts += [
            f"update {last['update']:,.0f}",
            f"{last['episodes']:,} episodes",
            f"{last['steps']:,} steps",
        ]
        parts += [
            f"{self.steps_per_second:,.0f}/s",
            *self._measures(),
            f"{len(self._children)} children",
            duration(elapsed),
        ]
        done = (share or 0.0) - (
            self._share_before or 0.0
        )  # by this process: a resumed run begins with a share
        if share is not None and done > 0.02:
            parts.append(f"at most {duration(elapsed * (1 - share) / done)} left")
        return " · ".join(parts)

    def _measures(self) -> list[str]:
        """Predictions and training batches a second of all children, and their mean lag, as far as a backend measures them."""
        found = {
            key: [child[key] for child in self._children.values() if key in child]
            for key in ("pps", "tps", "lag")
        }
        parts = [f"{key.upper()} {_rate(sum(found[key]))}" for key in ("pps", "tps") if found[key]]
        if found["lag"]:
            parts.append(f"lag {fmean(found['lag']):.1f}")
        return parts

    @property
    def _elapsed(self) -> float:
        now: float = self._last["time"]
        return 0.0 if self._began is None else now - self._began

    def _share(self, elapsed: float) -> float | None:
        """How much of the strictest countable stop condition is used up."""
        stop, last = self._stop, self._last
        used = (
            (stop.updates, last["update"]),
            (stop.episodes, last["episodes"]),
            (stop.seconds, elapsed),
        )
        return (
            min(1.0, max((have / limit for limit, have in used if limit), default=-1.0))
            if any(limit for limit, _ in used)
            else None
        )

    def close(self) -> None:
        """Leaves the last line standing."""
        if self._last:
            self._leave_standing()


class SearchProgress(_Line):
    """Follows a search's history and prints one line about it.

    Args:
        experiment: with a `[search]`.
        file: where to, standard error if absent.
    """

    def __init__(self, experiment: Experiment, file: TextIO | None = None) -> None:
        super().__init__(file)
        assert experiment.search is not None
        self._search, self._name = experiment.search, experiment.environment.id
        self._states: dict[int, str] = {}
        self._reports, self._resumed = 0, 0
        self._best: tuple[float, int] | None = None
        self._nodes: set[str] = set()
        self._began: float | None = None
        self._now = 0.0

    def __call__(self, event: dict[str, Any]) -> None:
        """Takes in one line of the history."""
        self._now = event["time"]
        match event["event"]:
            case "start":
                self.say(f"searching {self._name} with {self._search.method}: run {event['run']}")
            case "resume":
                self.say(
                    f"searching {self._name} with {self._search.method}: run {event['run']} goes on after {event['reports']} reports"
                )
                self._reports = self._resumed = event["reports"]
            case "trial":
                self._states[event["trial"]] = "running"
                self._began = self._now if self._began is None else self._began
            case "join":
                self._nodes.add(event["child"])
            case "leave":
                self._nodes.discard(event["child"])
            case "refused":
                self.say(f"refused {event.get('child') or 'a connection'}: {event['reason']}")
            case "warning":
                self.say(f"warning: {event['reason']}")
            case "trial_failed":
                self.say(f"trial {event['trial']} failed on {event['child']}: {event['reason']}")
            case "report":
                self._reports += 1
                metric = event["metric"]
                if metric is not None and (self._best is None or metric > self._best[0]):
                    self._best = metric, event["trial"]
            case "trial_end":
                self._states[event["trial"]] = event["state"]
            case "exchange":
                pass
            case _:
                return
        self._refresh()

    def line(self) -> str:
        """The line as it stands."""
        states = Counter(self._states.values())
        share = self._share()
        parts = [
            f"{self._name} {bar(share)} {share:4.0%}",
            f"{len(self._states)} of {self._search.trials} trials",
        ]
        parts.append(
            ", ".join(
                f"{states[state]} {state}"
                for state in ("completed", "stopped", "failed", "running")
                if states[state]
            )
            or "none"
        )
        if self._best is not None:
            parts.append(f"best {self._best[0]:.1f} (trial {self._best[1]})")
        elapsed = 0.0 if self._began is None else self._now - self._began
        parts += [f"{len(self._nodes)} nodes", duration(elapsed)]
        done = share - self._resumed / self._expected
        if done > 0.02:
            parts.append(f"about {duration(elapsed * (1 - share) / done)} left")
        return " · ".join(parts)

    @property
    def _expected(self) -> float:
        """How many reports are expected in all: every phase of every trial, or as many as equation 9 says."""
        search = self._search
        if search.method == "random" or not search.decide_after:
            return float(search.trials * search.phases)
        lengths = [
            after - before
            for before, after in pairwise(
                (0, *(phase + 1 for phase in search.decide_after), search.phases)
            )
        ]
        return search.trials * sum(
            length * (1 - search.eviction_rate) ** p for p, length in enumerate(lengths)
        )

    def _share(self) -> float:
        share = min(1.0, self._reports / self._expected)
        if self._search.seconds and self._began is not None:
            share = max(share, min(1.0, (self._now - self._began) / self._search.seconds))
        return share

    def close(self) -> None:
        """Leaves the last line standing."""
        if self._began is not None:
            self._leave_standing()
