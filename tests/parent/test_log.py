"""The log sums up what would otherwise fill a disk."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import structlog
from structlog.testing import CapturingLogger

from genkidama.child.backend import _BUILT_IN
from genkidama.config.experiment import Experiment
from genkidama.parent.log import EventLog
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push
from genkidama.protocol.vector import DTYPE
from genkidama.server.events import Exchange, Joined, Measures, PushesRefused
from genkidama.server.parameter_server import ParameterServer


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


@pytest.mark.parametrize("backend", [*_BUILT_IN, "tests.helpers:ConstantBackend"])
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
