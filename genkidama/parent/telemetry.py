"""What a parent tells people while it runs: a log line for what matters, none for an exchange.

The history has every exchange; the log is for eyes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from structlog.typing import FilteringBoundLogger

from genkidama.events import Event, Exchange, Measures, PhaseReported, Refused
from genkidama.parameter_server import ParameterServer

__all__ = ["SUMMARY_SECONDS", "EventLog", "describe"]

#: Refusals of one kind are summed up at most this often: a child gone mad must not fill a disk.
SUMMARY_SECONDS = 1.0


class EventLog:
    """Logs the events of a run, but for exchanges, measures and reports: they are too many to read.

    The first refusal of a kind is logged at once; further ones are counted and summed up.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._quiet_until: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self._last: dict[str, tuple[str, str]] = {}
        self._said: set[str] = set()

    def report(self, events: Iterable[Event], now: float) -> None:
        """Logs what is worth a line, and the summaries that are due at `now` (seconds)."""
        for event in events:
            match event:
                case Exchange(left_out=str(code)):
                    self._refused(event, code, "the parent's rule leaves this push out", now)
                case Exchange() | Measures() | PhaseReported():
                    pass
                case Refused(code="name"):
                    # Children of one host have one name; the second adds a number and asks again.
                    self._logger.info("name taken", child=event.child, reason=event.reason)
                case Refused():
                    self._refused(event, event.code, event.reason, now)
                case _:
                    fields = msgspec.to_builtins(event)
                    del fields["time"]
                    self._logger.info(fields.pop("event"), **fields)
        for code in [code for code in self._held if now >= self._quiet_until[code]]:
            self._summarize(code)
            self._quiet_until[code] = now + SUMMARY_SECONDS

    def advise(self, sentences: Iterable[str]) -> None:
        """Logs each of these sentences, unless it was logged before."""
        for sentence in sentences:
            if sentence not in self._said:
                self._said.add(sentence)
                self._logger.warning("settings", reason=sentence)

    def close(self) -> None:
        """Logs the summaries that were not due yet."""
        for code in list(self._held):
            self._summarize(code)

    def _refused(self, event: Exchange | Refused, code: str, reason: str, now: float) -> None:
        if now >= self._quiet_until.get(code, now) and code not in self._held:
            self._quiet_until[code] = now + SUMMARY_SECONDS
            self._logger.warning("refused", child=event.child, code=code, reason=reason)
        else:
            self._held[code] = self._held.get(code, 0) + 1
            self._last[code] = (event.child, reason)

    def _summarize(self, code: str) -> None:
        child, reason = self._last.pop(code)
        self._logger.warning(
            "refused",
            code=code,
            count=self._held.pop(code),
            last_child=child,
            last_reason=reason,
        )


def describe(server: ParameterServer, now: float) -> str:
    """How a run stands, in a few words for a service manager: `3 children, version 1234, 41 %`."""
    return server.trials.describe(len(server.connected), now)
