"""What a parent tells people while it runs: a log line for what matters, none for an exchange.

The history has every exchange; the log is for eyes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from structlog.typing import FilteringBoundLogger

from genkidama.parameter_server import ParameterServer
from genkidama.system.plugs import is_plug

__all__ = ["SUMMARY_SECONDS", "EventLog", "describe"]

#: Refusals of one kind are summed up at most this often: a child gone mad must not fill a disk.
SUMMARY_SECONDS = 1.0

#: Come with every exchange or phase: too many to be read. A backend's measures are an event with the backend's name.
_SILENT = frozenset({"exchange", "report", "hogwild", "ga3c"})


class EventLog:
    """Logs the events of a run's history, all but the exchanges, the backends' measures and a search's reports.

    The first refusal of a kind is logged at once; further ones are counted and summed up.
    """

    def __init__(self, logger: FilteringBoundLogger) -> None:
        self._logger = logger
        self._quiet_until: dict[str, float] = {}
        self._held: dict[str, int] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._said: set[str] = set()

    def report(self, events: Iterable[dict[str, Any]], now: float) -> None:
        """Logs what is worth a line, and the summaries that are due at `now` (seconds)."""
        for event in events:
            kind = event["event"]
            if kind in _SILENT or is_plug(kind):
                continue
            if kind == "refused":
                self._refused(event, now)
            else:
                self._logger.info(
                    kind,
                    **{key: value for key, value in event.items() if key not in ("time", "event")},
                )
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

    def _refused(self, event: dict[str, Any], now: float) -> None:
        code = event["code"]
        if now >= self._quiet_until.get(code, now) and code not in self._held:
            self._quiet_until[code] = now + SUMMARY_SECONDS
            self._logger.warning("refused", child=event["child"], code=code, reason=event["reason"])
        else:
            self._held[code] = self._held.get(code, 0) + 1
            self._last[code] = event

    def _summarize(self, code: str) -> None:
        last = self._last.pop(code)
        self._logger.warning(
            "refused",
            code=code,
            count=self._held.pop(code),
            last_child=last["child"],
            last_reason=last["reason"],
        )


def describe(server: ParameterServer, now: float) -> str:
    """How a run stands, in a few words for who asks the service manager: `3 children, version 1234, mean return 201.3, 41 %`."""
    connected = len(server.connected)
    if (search := server.search) is not None:
        return f"{connected} node{'s'[: connected != 1]}, {len(search.trials)} of {search.settings.trials} trials: {search}"
    trial, stop = server.trial, server.experiment.stop
    parts = [f"{connected} child{'ren' if connected != 1 else ''}", f"version {trial.version}"]
    if trial.mean_return is not None:
        parts.append(f"mean return {trial.mean_return:.1f}")
    if stop.updates or stop.episodes or stop.seconds:
        parts.append(f"{100 * server.progress(now):.0f} %")
    return ", ".join(parts)
