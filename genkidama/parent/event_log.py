"""Log lines of a parent, for people: events and progress, but no individual exchanges.

The history has every exchange.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from genkidama.config.formatting import duration
from genkidama.runs.status import RunStatus
from genkidama.runtime.log import FilteringBoundLogger
from genkidama.runtime.pacing import Throttle
from genkidama.server.child_record import absent_children
from genkidama.server.events import Event, Exchange, Measures, PhaseReported, PushesRefused
from genkidama.server.parameter_server import ParameterServer

#: Seconds between two lines about progress.
PULSE_SECONDS = 10.0


class EventLog:
    """Logs the events of a run, except exchanges, measures and reports: too many to read.

    Pushes that the rule leaves out are logged like refusals, which are summed up.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._left_out = Throttle[Exchange](1.0)
        self._advice: set[str] = set()

    def report(self, events: Iterable[Event], now: float, last: bool = False) -> None:
        """Logs events, and the sums that are due at `now` (seconds); `last`: all of them."""
        for event in events:
            match event:
                case Exchange(left_out=str(code)):
                    if self._left_out.add(code, event, event.time):
                        self._log_left_out(event)
                case Exchange() | Measures() | PhaseReported():
                    pass
                case PushesRefused(code="name"):
                    # Children of one host have one name; the second adds a number and asks again.
                    self._logger.info("name taken", child=event.child, reason=event.reason)
                case PushesRefused():
                    self._refused(event.child, event.code, event.reason, event.times)
                case _:
                    fields = msgspec.to_builtins(event)
                    del fields["time"]
                    self._logger.info(fields.pop("event"), **fields)
        for exchange, count in self._left_out.due(now, last):
            self._log_left_out(exchange, count)

    def advise(self, sentences: Iterable[str]) -> None:
        """Logs each of these sentences, unless it was logged before."""
        for sentence in sentences:
            if sentence not in self._advice:
                self._advice.add(sentence)
                self._logger.warning("settings", reason=sentence)

    def _log_left_out(self, exchange: Exchange, count: int = 1) -> None:
        reason = "the parent's rule leaves this push out"
        self._refused(exchange.child, str(exchange.left_out), reason, count)

    def _refused(self, child: str, code: str, reason: str, count: int) -> None:
        many = {"count": count} if count > 1 else {}
        self._logger.warning("refused", child=child, code=code, reason=reason, **many)


class ProgressLog:
    """Logs the progress of a run: every ten seconds while children exchange, and at the end.

    The server counts all exchanges, also those that the history leaves out. `command` is what it
    takes to start this parent again, but for the directory at its end.
    """

    def __init__(
        self,
        server: ParameterServer,
        status: RunStatus,
        out: Path,
        command: str,
        log: FilteringBoundLogger,
        now: float,
    ) -> None:
        self._server = server
        self._status = status
        self._out = out
        self._command = command
        self._log = log
        self._said = now
        self._exchanges = server.exchanges

    def beat(self, now: float) -> None:
        """Logs the progress, if ten seconds have passed and there were exchanges."""
        server, status = self._server, self._status
        if now - self._said < PULSE_SECONDS:
            return
        self._said = now
        if server.exchanges == self._exchanges or server.stop:
            return
        self._exchanges = server.exchanges
        if not server.trials.shared:
            self._log.info("searching", how=server.trials.describe(len(server.connected), now))
            return
        fields = {"children": len(server.joined), **self._counts()}
        fields["steps_per_second"] = round(status.speed(now))
        if share := status.share(now):
            fields["done"] = f"{share:.0%}"
        if (left := status.left(now)) is not None:
            fields["left"] = f"at most {duration(left)}"
        self._log.info("learning", **fields)

    def end(self, now: float, reason: str) -> None:
        """Logs the result, the reason of the end, and the next command to type."""
        server = self._server
        out = shlex.quote(str(self._out))
        then = f"genkidama {'evaluate' if server.trials.shared else 'report'} {out}"
        if not server.stop:
            then = f"{self._command} {out}"
        fields = self._counts() if server.trials.shared else {}
        fields["seconds"] = round(server.seconds(now))
        self._log.info("ended", reason=server.stop or reason, **fields, next=then)

    def _counts(self) -> dict[str, Any]:
        trial = self._server.trial
        mean = trial.mean_return
        counts = {"episodes": trial.episodes, "steps": trial.steps}
        return counts if mean is None else {"mean_return": round(mean, 1), **counts}


def describe(server: ParameterServer, now: float) -> str:
    """The state of a run for a service manager: `3 children, version 1234, 41 %`."""
    words = server.trials.describe(len(server.connected), now)
    missing = len(absent_children(server.children)) if server.stop else 0
    return f"{words}, over, waits for {missing} cut off" if missing else words
