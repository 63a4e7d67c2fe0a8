"""How learning stands, in the parent's log: every ten seconds while children learn, and at the end.

It reads what the parent's mind counts anyway, so an exchange costs nothing more.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

from genkidama.formats import duration, remaining
from genkidama.parameter_server import ParameterServer

__all__ = ["PULSE_SECONDS", "Pulse"]

#: There is a line this often.
PULSE_SECONDS = 10.0


class Pulse:
    """Logs how a run stands.

    Args:
        server: what is counted.
        out: the run's directory, for the commands that go on with it.
        log: where people read.
        now: seconds, as all moments here.
    """

    def __init__(
        self, server: ParameterServer, out: Path, log: FilteringBoundLogger, now: float
    ) -> None:
        self._server = server
        self._out = out
        self._log = log
        self._said = now
        self._exchanges = server.exchanges
        self._steps = server.trial.steps
        #: What was done already when the first exchange came, and when that was.
        self._first: tuple[float, float] | None = None

    def beat(self, now: float) -> None:
        """Logs how learning stands, if ten seconds have passed and there were exchanges."""
        server = self._server
        if self._first is None and server.exchanges != self._exchanges:
            self._first = (now, server.progress(now))
        seconds = now - self._said
        if seconds < PULSE_SECONDS:
            return
        self._said = now
        if server.exchanges == self._exchanges or server.stop:
            return
        self._exchanges = server.exchanges
        if not server.trials.shared:
            self._log.info("searching", how=server.trials.describe(len(server.connected), now))
            return
        speed = round((server.trial.steps - self._steps) / seconds)
        self._steps = server.trial.steps
        children = len(server.joined)
        self._log.info(
            "learning",
            children=children,
            **self._counts(),
            steps_per_second=speed,
            **self._left(now),
        )

    def end(self, now: float, reason: str) -> None:
        """Logs what came out, why it ended, and what to type next."""
        server = self._server
        out = shlex.quote(str(self._out))
        if not server.stop:
            then = f"python -m genkidama.parent {out}/experiment.toml --out {out}"
        else:
            then = f"genkidama {'evaluate' if server.trials.shared else 'report'} {out}"
        fields: dict[str, Any] = self._counts() if server.trials.shared else {}
        fields["seconds"] = round(server.seconds(now))
        self._log.info("ended", reason=server.stop or reason, **fields, next=then)

    def _counts(self) -> dict[str, Any]:
        trial = self._server.trial
        mean = trial.mean_return
        counts = {"episodes": trial.episodes, "steps": trial.steps}
        return counts if mean is None else {"mean_return": round(mean, 1), **counts}

    def _left(self, now: float) -> dict[str, str]:
        share = self._server.progress(now)
        if not share or self._first is None:
            return {}
        began, before = self._first
        left = remaining(now - began, before, share)
        done = {"done": f"{share:.0%}"}
        return done if left is None else {**done, "left": f"at most {duration(left)}"}
