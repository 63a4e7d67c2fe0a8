"""Notices that follow from a run's events, in made-up time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from genkidama.plugins.hypertrick.search import Search
from genkidama.plugins.notify.notifier import BEST_SECONDS, SILENT_SECONDS, Notices, _Notifier
from genkidama.plugins.notify.posting import Notice
from genkidama.protocol.messages import PROTOCOL, Hello, Join, Push
from genkidama.protocol.vector import DTYPE
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.status import RunStatus
from genkidama.server.events import Resumed, Started, Stopped, Warned
from genkidama.server.parameter_server import ParameterServer
from tests.helpers import small, untrained
from tests.stories import PLAN, exchange, join, measures, report


def begun(**stop: float) -> Notices:
    notices = Notices(small(stop={"window": 10, **stop}), lambda: "all well")
    (first,) = notices.take([Started(time=0.0, run="shelf", software="1")], {}, 0.0)
    assert first == ("begun", "shelf", "shelf: begun", "all well")
    return notices


def test_the_best_is_told_at_most_once_in_ten_minutes_and_only_if_it_is_better() -> None:
    notices = begun()
    early = exchange(1.0, episodes=9, mean=400.0)  # the window is not full
    assert not notices.take([early, exchange(2.0, episodes=10, mean=30.0)], {}, 2.0)
    (best,) = notices.take([], {}, BEST_SECONDS)
    assert best == ("best", "shelf", "shelf: best so far 30.0", "all well")
    assert not notices.take([exchange(700.0, episodes=20, mean=40.0)], {}, 700.0)
    assert [each.title for each in notices.take([], {}, 2 * BEST_SECONDS)] == [
        "shelf: best so far 40.0"
    ]
    lower = exchange(5000.0, episodes=20, mean=39.0)
    assert not notices.take([lower], {}, 5000.0)


def test_in_a_search_the_best_is_that_of_all_trials() -> None:
    notices = begun()
    notices.take([report(1.0, 0, 30.0), report(2.0, 1, 50.0), report(3.0, 2, None)], {}, 3.0)
    assert notices.take([], {}, BEST_SECONDS)[0].title == "shelf: best so far 50.0"


def test_after_a_resume_the_best_is_better_than_those_before_it(tmp_path: Path) -> None:
    plain, search = small(stop={"window": 10}), small(search=PLAN)
    found = untrained(tmp_path / "run", plain).load()
    snapshot = msgspec.structs.replace(found.snapshot, mean_return=230.0)
    CheckpointFolder(tmp_path / "run" / "checkpoints").save_best(
        found.signature, found.vector, snapshot
    )
    for experiment, before, after in (
        (plain, [], lambda mean: exchange(2.0, episodes=10, mean=mean)),
        (search, [report(1.0, 0, 230.0)], lambda mean: report(2.0, 1, mean)),
    ):
        told: list[Notice] = []
        parent: Any = SimpleNamespace(
            experiment=experiment,
            server=SimpleNamespace(children={}),
            now=lambda: 2.0,
            out=tmp_path / "run",
            status=RunStatus(experiment),
        )
        poster: Any = SimpleNamespace(post=told.append)
        notifier = _Notifier(parent, [poster])
        parent.status.take(before)
        notifier.take([Resumed(time=1.0, run="run", software="1"), after(187.3)])
        parent.now = lambda: 2.0 * BEST_SECONDS
        notifier.take([])
        notifier.take([after(231.0)])
        titles = [notice.title for notice in told]
        assert titles == ["run: resumed", "run: best so far 231.0"], experiment.name


def test_a_silent_child_is_told_once_and_so_is_its_return() -> None:
    notices = begun()
    assert not notices.take([join(10.0, "pi"), join(10.0, "other")], {"pi": 0, "other": 0}, 10.0)
    assert not notices.take([], {"pi": 3, "other": 1}, 20.0)
    at = 20.0 + SILENT_SECONDS
    (silent,) = notices.take([], {"pi": 3, "other": 2}, at)
    assert silent[0] == "silent" and silent.title == "shelf: pi is silent"
    assert silent.text == "no push for 5:00; the run goes on"
    assert not notices.take([join(at + 1.0, "pi")], {"pi": 3, "other": 3}, at + 1.0)
    (back,) = notices.take([], {"pi": 4, "other": 4}, at + 60.0)
    assert back[2:] == ("shelf: pi is back", "after 6:00 without a push")
    # One that has said goodbye is not missed.
    assert not notices.take([], {"pi": 5}, at + 61.0)
    assert not notices.take([], {"pi": 6}, at + 61.0 + SILENT_SECONDS)


def test_many_that_fall_silent_at_once_are_one_notice() -> None:
    notices = begun()
    names = [f"pi-{number}" for number in range(200)]
    notices.take([join(10.0, name) for name in names], dict.fromkeys(names, 0), 10.0)
    (silent,) = notices.take([], dict.fromkeys(names, 0), 10.0 + SILENT_SECONDS)
    assert silent[2:] == (
        "shelf: 200 children are silent",
        "pi-0, pi-1, pi-2 and 197 more: no push for 5:00; the run goes on",
    )
    (back,) = notices.take([], dict.fromkeys(names, 1), 400.0)
    assert back[2:] == (
        "shelf: 200 children are back",
        "pi-0, pi-1, pi-2 and 197 more: after 6:30 without a push",
    )


def test_one_that_does_not_come_back_after_a_restart_is_missed() -> None:
    notices = Notices(small())
    notices.take([Resumed(time=5.0, run="shelf", software="1")], {"pi": 50, "dead": 50}, 5.0)
    notices.take([join(6.0, "pi")], {"pi": 50, "dead": 50}, 6.0)
    found = notices.take([], {"pi": 51, "dead": 50}, 5.0 + SILENT_SECONDS)
    assert [notice.title for notice in found] == ["shelf: dead is silent"]


def test_a_node_that_has_no_trial_is_not_missed() -> None:
    experiment = small(search={**PLAN, "method": "successive_halving", "trials": 2, "phases": 3})
    search = Search(experiment)
    server = ParameterServer(experiment, "run", search)
    told: list[Notice] = []
    now = 0.0
    parent: Any = SimpleNamespace(experiment=experiment, server=server, now=lambda: now)
    poster: Any = SimpleNamespace(post=told.append)
    notifier = _Notifier(parent, [poster])
    for number, name in enumerate("ab"):
        search.offer(number, {"optimizer.learning_rate": 0.1}, now)
        server.handle("", Hello(protocol=PROTOCOL, name=name, session=name), now)
        server.handle(name, Join(signature=[("w", [1])]), now)
    vector = np.zeros(1, DTYPE)
    push = Push(version=0, sequence=1, steps=10, returns=[1.0], trial=0, vector=vector)
    server.handle("a", push, now)  # the trial waits at its rung for the other
    notifier.take(server.take_events())
    now = 2 * SILENT_SECONDS
    notifier.take(server.take_events())
    assert [notice.title for notice in told] == [": b is silent"]


def test_rare_exchanges_are_no_silence() -> None:
    experiment = small(child={"exchange": "free", "exchange_seconds": 600.0})
    notices = Notices(experiment)
    notices.take([join(0.0)], {"pi": 0}, 0.0)
    assert not notices.take([], {"pi": 0}, 1700.0)
    assert notices.take([], {"pi": 0}, 1800.0)


def test_a_warning_with_other_numbers_is_the_same_warning() -> None:
    notices = begun()
    full = [Warned(time=float(t), reason=f"disk: {t} bytes left") for t in range(5)]
    found = notices.take(full, {}, 5.0)
    assert [each[2:] for each in found] == [("shelf: warning", "disk: 0 bytes left")]
    again = [Warned(time=t, reason=f"disk: {t} bytes left") for t in (600.0, 601.0)]
    assert len(notices.take(again, {}, 601.0)) == 1
    other = Warned(time=602.0, reason="history: cannot be written")
    assert len(notices.take([other], {}, 602.0)) == 1


def test_a_machine_that_is_throttled_is_told_once_an_hour() -> None:
    notices = begun()
    cool = measures(1.0, throttled=0.0, undervoltage=0.0, celsius=60.0)
    assert not notices.take([cool], {}, 1.0)
    hot = [measures(float(t), throttled=0.0, undervoltage=1.0) for t in (2, 3, 3602, 3603)]
    found = notices.take(hot, {}, 3603.0)
    assert [each.title for each in found if each.kind == "throttled"] == [
        "shelf: pi is throttled"
    ] * 2


def test_the_end_says_whether_it_is_solved_and_no_child_is_missed_after_it() -> None:
    for stop, reason, kind in (
        ({"mean_return": 400.0}, "mean return 401.0 over 10 episodes reached 400", "solved"),
        ({"mean_return": 400.0}, "SIGTERM", "ended"),
        ({"steps": 10}, "10 steps done", "ended"),
    ):
        notices = begun(**stop)
        notices.take([join(1.0)], {"pi": 0}, 1.0)
        (end,) = notices.take([Stopped(time=2.0, reason=reason)], {"pi": 0}, 2.0)
        assert end == (kind, "shelf", f"shelf: {kind}", f"{reason}\nall well")
        assert not notices.take([], {"pi": 0}, 9999.0)
