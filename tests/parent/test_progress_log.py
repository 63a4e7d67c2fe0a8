"""Progress in the parent's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import structlog
from structlog.testing import capture_logs

from genkidama.parent.log import ProgressLog
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push
from genkidama.protocol.vector import Signature
from genkidama.runs.status import RunStatus
from genkidama.server.parameter_server import ParameterServer
from tests.helpers import small

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
    pulse = ProgressLog(server, status, tmp_path / "run", structlog.get_logger(), 0.0)
    with capture_logs() as lines:
        for second in range(1, 31):
            if second <= 20:
                push(server, second, float(second))
            status.take(server.take_events())
            pulse.beat(float(second))
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
    pulse = ProgressLog(server, status, Path("runs/a b"), structlog.get_logger(), 0.0)
    push(server, 1, 1.0)
    with capture_logs() as lines:
        pulse.end(5.0, "stopped")
        push(server, 2, 5.0)
        pulse.end(5.0, "stopped")
    early, late = lines
    assert (early["reason"], early["steps"], early["seconds"]) == ("stopped", 100, 5)
    assert early["next"] == (
        "python -m genkidama.parent 'runs/a b'/experiment.toml --out 'runs/a b'"
    )
    assert (late["reason"], late["steps"]) == ("2 updates done", 200)
    assert late["next"] == "genkidama evaluate 'runs/a b'"
