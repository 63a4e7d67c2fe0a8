"""Log lines of a parent: events that are summed up, and progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from structlog.testing import CapturingLogger, capture_logs

from genkidama.config.experiment import Experiment
from genkidama.parent.event_log import EventLog, ProgressLog
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push
from genkidama.protocol.vector import DTYPE, Signature
from genkidama.runs.status import RunStatus
from genkidama.server.events import Exchange, Joined, Measures, PushesRefused
from genkidama.server.parameter_server import ParameterServer
from tests.helpers import small


def refused(code: str = "finite", child: str = "pi") -> PushesRefused:
    return PushesRefused(time=0.0, child=child, code=code, reason=f"{child} did it")


@pytest.fixture
def capture() -> CapturingLogger:
    return CapturingLogger()


@pytest.fixture
def log(capture: CapturingLogger) -> EventLog:
    return EventLog(
        structlog.wrap_logger(capture, processors=[lambda logger, method, event: event])
    )


def lines(capture: CapturingLogger) -> list[dict[str, Any]]:
    return [call.kwargs for call in capture.calls]


def test_exchanges_are_not_logged(log: EventLog, capture: CapturingLogger) -> None:
    exchange = Exchange(
        time=0.0,
        child="pi",
        version=1,
        update=1.0,
        staleness=0,
        episodes=0,
        steps=0,
        mean_return=None,
    )
    log.report([exchange, Joined(time=0.0, child="pi", version=0, parameters=3)], 0.0)
    assert lines(capture) == [{"event": "join", "child": "pi", "version": 0, "parameters": 3}]


@pytest.mark.parametrize("backend", ["hogwild", "ga3c", "tests.helpers:ConstantBackend"])
def test_measures_are_not_logged(log: EventLog, capture: CapturingLogger, backend: str) -> None:
    experiment = Experiment().with_settings({"child.backend": backend})
    server = ParameterServer(experiment)
    server.handle("pi", Hello(protocol=PROTOCOL, name="pi", session="s"), 0.0)
    server.handle("pi", Join(signature=[("w", [1])]), 0.0)
    server.handle(
        "pi", Push(version=0, sequence=1, measures={"pps": 1.0}, vector=np.zeros(1, DTYPE)), 0.0
    )
    events = server.take_events()
    assert [type(event) for event in events] == [Joined, Exchange, Measures]
    log.report(events, 0.0)
    assert [line["event"] for line in lines(capture)] == ["join"]


def test_a_refusal_is_logged_with_how_many_it_stands_for(
    log: EventLog, capture: CapturingLogger
) -> None:
    log.report(
        [refused(), PushesRefused(time=1.0, child="nuc", code="length", reason="no", count=7)], 1.0
    )
    assert lines(capture) == [
        {"event": "refused", "child": "pi", "code": "finite", "reason": "pi did it"},
        {"event": "refused", "child": "nuc", "code": "length", "reason": "no", "count": 7},
    ]


def test_advice_is_given_once(log: EventLog, capture: CapturingLogger) -> None:
    log.advise(["alpha is odd"])
    log.advise(["alpha is odd", "beta too"])
    assert [line["reason"] for line in lines(capture)] == ["alpha is odd", "beta too"]


def test_lines_are_json_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.get_logger().info("join", child="pi")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["child"] == "pi"


def test_pushes_that_the_rule_leaves_out_are_told_like_refusals(
    log: EventLog, capture: CapturingLogger
) -> None:
    exchange = Exchange(
        time=0.0,
        child="pi",
        version=1,
        update=1.0,
        staleness=9,
        episodes=0,
        steps=0,
        mean_return=None,
        left_out="stale",
    )
    log.report([exchange, exchange, exchange], 0.0)
    log.report([], 0.5, last=True)
    words = {"child": "pi", "code": "stale", "reason": "the parent's rule leaves this push out"}
    assert lines(capture) == [
        {"event": "refused", **words},
        {"event": "refused", **words, "count": 2},
    ]


# Progress.

NETWORK = Signature.of([("w", (2,))])


def serving(**stop: Any) -> ParameterServer:
    server = ParameterServer(small(stop=stop), run="first")
    server.handle("", Hello(protocol=PROTOCOL, name="pi", session="s"), 0.0)
    server.handle("pi", Join.of(NETWORK), 0.0)
    return server


def push(server: ParameterServer, number: int, now: float) -> None:
    message = Push(
        sequence=number,
        version=server.trial.version,
        vector=np.ones(2, np.float32),
        steps=100,
        returns=[float(number)],
    )
    server.handle("pi", message, now)


def test_every_ten_seconds_it_says_how_learning_stands(tmp_path: Path) -> None:
    server = serving(updates=100)
    status = RunStatus(server.experiment)
    progress = ProgressLog(server, status, tmp_path / "run", "again", structlog.get_logger(), 0.0)
    with capture_logs() as lines:
        for second in range(1, 31):
            if second <= 20:
                push(server, second, float(second))
            status.take(server.take_events())
            progress.beat(float(second))
    # Of the third ten seconds there is nothing to say: nobody has exchanged.
    assert [line["event"] for line in lines] == ["learning", "learning"]
    assert lines[1] == {
        "event": "learning",
        "log_level": "info",
        "children": 1,
        "mean_return": 10.5,
        "episodes": 20,
        "steps": 2000,
        "steps_per_second": 100,
        "done": "20%",
        "left": "at most 1:24",
    }


def test_the_end_says_what_came_out_why_and_what_to_type(tmp_path: Path) -> None:
    server = serving(updates=2)
    status = RunStatus(server.experiment)
    progress = ProgressLog(
        server, status, Path("runs/a b"), "again --out", structlog.get_logger(), 0.0
    )
    push(server, 1, 1.0)
    with capture_logs() as lines:
        progress.end(5.0, "stopped")
        push(server, 2, 5.0)
        progress.end(5.0, "stopped")
    early, late = lines
    assert (early["reason"], early["steps"], early["seconds"]) == ("stopped", 100, 5)
    assert early["next"] == "again --out 'runs/a b'"
    assert (late["reason"], late["steps"]) == ("2 exchanges a child done", 200)
    assert late["next"] == "genkidama evaluate 'runs/a b'"
