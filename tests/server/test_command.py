"""What the run's owner may ask of a parameter server, and what comes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from genkidama.errors import ProtocolError
from genkidama.plugins.hypertrick.search import Search
from genkidama.protocol.messages import Push, Refusal, Weights, Welcome
from genkidama.protocol.shard import Shard
from genkidama.runs.status import RunStatus
from genkidama.server.child_record import absent_children
from genkidama.server.events import Commanded, Event, Left, Stopped, as_lines, from_line
from genkidama.server.parameter_server import ACTIONS, ParameterServer
from genkidama.server.trial import SingleTrialRun
from tests.helpers import small
from tests.server.test_parameter_server import SIGNATURE, hello, join, vector


def trained(**sections: dict[str, Any]) -> ParameterServer:
    """A server with a child "pi" that has pushed once."""
    server = ParameterServer(small(**sections))
    assert isinstance(server.handle("", hello("pi"), 0.0), Welcome)
    server.handle("pi", join(), 0.0)
    assert isinstance(server.handle("pi", push(1), 1.0), Weights)
    server.take_events()
    return server


def push(sequence: int) -> Push:
    return Push(version=0, sequence=sequence, vector=vector(1.0, 1.0, 1.0), steps=10, returns=[1.0])


def refused(server: ParameterServer, *given: Any, **more: Any) -> str:
    before = server.snapshot(2.0), server.experiment, set(server.asked), server.stop
    with pytest.raises(ProtocolError) as error:
        server.command(*given, **more)
    assert (server.snapshot(2.0), server.experiment, set(server.asked), server.stop) == before
    assert not server.take_events()
    return str(error.value)


def again(event: Event) -> Event | None:
    return from_line(as_lines([event]))


def test_stop_ends_the_run_for_all_and_says_who() -> None:
    server = trained()
    server.command("stop", "anna", 2.0)
    asked, over = server.take_events()
    assert again(asked) == Commanded(time=2.0, action="stop", by="anna")
    assert isinstance(over, Stopped) and over.reason == "stopped by anna" == server.stop
    reply = server.handle("pi", push(2), 3.0)
    assert isinstance(reply, Weights) and reply.stop == "stopped by anna"
    for action in ("stop", "extend", "exclude", "admit"):
        assert refused(server, action, "anna", 3.0, "pi") == "the run is over: stopped by anna"


def test_more_time_makes_each_limit_longer() -> None:
    server = trained(stop={"steps": 15, "seconds": 100.0, "mean_return": 500.0})
    status = RunStatus(server.experiment)
    assert server.progress(2.0) == 10 / 15
    event = server.command("extend", "anna", 2.0)
    assert event.limits == {"steps": 23, "seconds": 150.0}
    assert server.progress(2.0) == 10 / 23
    assert server.experiment.stop.steps == 23 and server.experiment.stop.mean_return == 500.0
    assert server.snapshot(2.0).experiment["stop"]["steps"] == 23
    told = again(event)
    assert told is not None
    status.take([told])
    assert status.experiment.stop == server.experiment.stop
    server.take_events()
    server.handle("pi", push(2), 3.0)
    assert not server.stop  # 20 steps would have been the end
    server.handle("pi", push(3), 4.0)
    assert server.stop == "23 steps done"
    for share in (0.0, -1.0, 10.5, float("nan")):
        assert "expected a number above 0" in refused(
            trained(stop={"steps": 100}), "extend", "anna", 2.0, share=share
        )
    longest = trained(stop={"steps": 100}).command("extend", "anna", 2.0, share=10.0)
    assert longest.limits == {"steps": 1100}
    endless = trained(stop={"mean_return": 500.0})
    assert refused(endless, "extend", "anna", 2.0).startswith("the run has no limit")


def test_an_excluded_child_is_gone_and_stays_away_until_it_is_admitted() -> None:
    server = trained()
    server.command("exclude", "anna", 2.0, "pi")
    asked, left = server.take_events()
    assert isinstance(asked, Commanded) and asked.child == "pi"
    assert left == Left(time=2.0, child="pi", reason="excluded by anna")
    late = server.handle("pi", push(2), 3.0)
    assert isinstance(late, Refusal) and server.exchanges == 1
    back = server.handle("", hello("pi"), 3.0)
    assert isinstance(back, Refusal) and back.code == "excluded"
    resumed = ParameterServer(server.experiment)
    resumed.restore(server.snapshot(4.0), SIGNATURE, vector(1.0, 1.0, 1.0))
    for each in (server, resumed):
        assert absent_children(each.children) == []  # nobody waits for it
        assert isinstance(each.handle("", hello("pi"), 5.0), Refusal)
        each.command("admit", "ben", 6.0, "pi")
        assert isinstance(each.handle("", hello("pi"), 7.0), Welcome)
        each.take_events()
        assert "no child of this name is excluded" in refused(each, "admit", "ben", 8.0, "pi")
    assert "there is no child of this name" in refused(server, "exclude", "anna", 8.0, "no-one")


def test_a_checkpoint_and_a_film_are_the_shells_work() -> None:
    empty = ParameterServer(small())
    for action in ("checkpoint", "film"):
        assert refused(empty, action, "anna", 0.0) == "there are no weights yet"
    server = trained()
    server.command("checkpoint", "anna", 2.0)
    assert server.asked == {"checkpoint"}
    server.command("film", "anna", 2.0)
    assert server.asked == {"checkpoint", "film"}
    assert [event.event for event in server.take_events()] == ["command", "command"]
    assert refused(server, "film", "anna", 3.0) == "a film is being made"


@pytest.mark.parametrize("settings", [{"exclusive": True}, {"period": 0.02}], ids=str)
def test_a_robot_is_not_moved_for_a_film(settings: dict[str, Any]) -> None:
    server = ParameterServer(small(environment=settings, child={"cores": 1}))
    server.trial.vector = np.zeros(4, np.float32)
    said = "a film would need a second environment, and move it"
    assert refused(server, "film", "anna", 3.0) == said
    server.command("checkpoint", "anna", 3.0)


ASK_FIRST = "this is part 2/2 of the parent; ask the first"


@pytest.mark.parametrize(
    ("number", "action", "said"),
    [
        (1, "film", "a parent in parts makes no film: play its checkpoint with `genkidama play`"),
        (
            1,
            "extend",
            "a parent in parts keeps its limits: its parts have proven them to each other",
        ),
        (2, "stop", ASK_FIRST),
        (2, "exclude", ASK_FIRST),
        (1, "checkpoint", ""),
        (2, "checkpoint", ""),
        (1, "stop", ""),
    ],
)
def test_a_parent_in_parts_does_what_one_part_can(number: int, action: str, said: str) -> None:
    experiment = small(stop={"steps": 100})
    trials = SingleTrialRun(experiment, part=Shard(number, 2))
    server = ParameterServer(experiment, trials=trials)
    server.trial.vector = np.zeros(2, np.float32)
    if said:
        assert refused(server, action, "anna", 3.0) == said
    else:
        assert server.command(action, "anna", 3.0).action == action


def test_a_search_ends_with_its_trials_and_plays_none() -> None:
    plan = {"space": {"algorithm.gamma": [0.9, 0.99]}, "phase_steps": 10}
    experiment = small(search=plan)
    server = ParameterServer(experiment, trials=Search(experiment))
    for action, said in (
        ("film", "a film of a search: play its best trial with `genkidama play`"),
        ("extend", "a search ends with its trials; search.trials and search.seconds say when"),
    ):
        assert refused(server, action, "anna", 1.0) == said
    server.command("checkpoint", "anna", 1.0)
    assert server.asked == {"checkpoint"}


def test_another_word_is_no_command() -> None:
    said = refused(trained(), "format", "anna", 2.0)
    assert said.startswith("action = 'format': expected one of ") and all(
        a in said for a in ACTIONS
    )
