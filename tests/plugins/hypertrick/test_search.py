"""A search as the parent sees it, by values; the test is the clock, the nodes and the sampler."""

from __future__ import annotations

import math
import pickle
import random
from functools import cache
from typing import Any, ClassVar

import msgspec
import pytest

from genkidama.config.experiment import Experiment
from genkidama.plugins.hypertrick.rule import Verdict
from genkidama.plugins.hypertrick.search import PhaseRecord, Search
from genkidama.plugins.hypertrick.trial_store import _events
from genkidama.protocol.messages import (
    PROTOCOL,
    Goodbye,
    Hello,
    Join,
    Leave,
    Push,
    Refusal,
    Reply,
    Weights,
    Welcome,
)
from genkidama.runs.status import RunStatus
from genkidama.server.events import PhaseReported
from genkidama.server.parameter_server import ParameterServer, Snapshot
from tests.server.test_parameter_server import ENTRIES, heard, lines, vector
from tests.stories import as_json

NAN = float("nan")
SPACE: dict[str, Any] = {
    "optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True},
    "algorithm.gamma": [0.9, 0.99],
}


@cache
def checked(settings: bytes) -> Experiment:
    """Random courses ask for the same ones hundreds of times."""
    return Experiment.from_dict(pickle.loads(settings))


def make(base: dict[str, Any] | None = None, window: int = 100, **search: Any) -> ParameterServer:
    """A server with a search of 4 trials of 3 phases of 10 steps, unless told otherwise."""
    plan = {
        "trials": 4,
        "phases": 3,
        "phase_steps": 10,
        "space": SPACE,
        "return_seconds": 30.0,
        **search,
    }
    for key in ("phase_episodes", "phase_seconds"):
        if key in search:
            del plan["phase_steps"]
    experiment = checked(pickle.dumps({**(base or {}), "stop": {"window": window}, "search": plan}))
    return ParameterServer(experiment, run="run-1", trials=Search(experiment))


def searching(server: ParameterServer) -> Search:
    assert isinstance(server.trials, Search)
    return server.trials


def offer(server: ParameterServer, count: int = 1, now: float = 0.0) -> None:
    """So many new configurations, as the sampler gives them."""
    for _ in range(count):
        number = len(searching(server).trials)
        searching(server).offer(
            number, {"optimizer.learning_rate": 1e-4 * (number + 1), "algorithm.gamma": 0.99}, now
        )


class Node:
    """A child that keeps the rules; `now` is what the test says."""

    def __init__(self, server: ParameterServer, name: str = "a", session: str = "s") -> None:
        self.server, self.name, self.session = server, name, session
        self.sequence = self.version = 0
        self.trial: int | None = None

    def hello(self, now: float = 0.0) -> Welcome:
        reply = self.server.handle(
            self.name,
            Hello(protocol=PROTOCOL, name=self.name, session=self.session, trial=self.trial),
            now,
        )
        assert isinstance(reply, Welcome), reply
        self.trial = reply.trial
        return reply

    def join(self, now: float = 0.0) -> Weights:
        reply = self.server.handle(self.name, Join(signature=ENTRIES), now)
        assert isinstance(reply, Weights), reply
        self.version = reply.version
        return reply

    def enter(self, now: float = 0.0) -> int | None:
        """Hello and join; the trial."""
        if not self.hello(now).wait:
            self.join(now)
        return self.trial

    def say(
        self,
        now: float = 0.0,
        *,
        value: float = 0.0,
        steps: int = 10,
        returns: tuple[float, ...] = (),
        trial: int | None = -1,
        measures: dict[str, float] | None = None,
    ) -> Reply:
        self.sequence += 1
        number = self.trial if trial == -1 else trial
        push = Push(
            version=self.version,
            sequence=self.sequence,
            steps=steps,
            returns=list(returns),
            trial=number,
            measures=measures or {},
            vector=vector(value, value, value),
        )
        return self.server.handle(self.name, push, now)

    def push(self, metric: float, now: float = 0.0, **more: Any) -> Weights:
        """Ten steps and one episode; what is answered must be accepted."""
        reply = self.say(now, returns=(metric,), **more)
        assert isinstance(reply, Weights), reply
        self.version = reply.version
        if reply.next:
            self.trial = None
        return reply

    def leave(self, now: float = 0.0, failed: bool = False, reason: str = "") -> None:
        assert self.server.handle(self.name, Leave(reason=reason, failed=failed), now) == Goodbye()
        self.trial = None

    def vanish(self, now: float = 0.0) -> None:
        self.server.disconnected(self.name, "cut", now)


def events(server: ParameterServer, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in lines(server) if event["event"] in kinds]


def state(server: ParameterServer) -> str:
    """Everything that a refused message must leave as it was."""
    search = searching(server)
    owned = (search.owned, search.waiting, search.absent)
    return repr((search.trials, search.reports, owned, server.exchanges, server.stop))


# A trial from its first phase to its last.


def test_a_whole_search_of_one_node_by_values() -> None:
    server = make(trials=2, phases=2, window=1, eviction_rate=0.5)
    search = searching(server)
    assert search.wanted == 1
    offer(server)
    assert search.wanted == 0
    a = Node(server)
    welcome = a.hello(100.0)
    experiment = Experiment.from_dict(welcome.experiment)
    assert (welcome.trial, welcome.run, welcome.wait, welcome.stop) == (0, "run-1", 0.0, "")
    assert (experiment.optimizer.learning_rate, experiment.algorithm.gamma, experiment.search) == (
        1e-4,
        0.99,
        None,
    )
    assert search.wanted == 1
    offer(server)
    assert heard(a.join(101.0)) == (Weights(version=0), None)
    assert heard(a.push(5.0, 110.0)) == (
        Weights(version=1, progress=0.5),
        None,
    )  # what a child has pushed need not come back
    assert heard(a.push(7.0, 120.0)) == (
        Weights(version=2, progress=1.0, stop="all phases are done", next=True),
        None,
    )
    assert (a.enter(120.0), search.trials[1].version) == (1, 0)
    last = a.push(6.0, 130.0)
    assert (last.stop, last.next) == ("", False)
    assert a.push(4.0, 140.0).stop == "all trials are done: 2 completed"
    assert server.stop == "all trials are done: 2 completed"
    assert [trial.state for trial in search.trials.values()] == ["completed", "completed"]
    first = search.trials[0].phases
    assert first[0] == PhaseRecord(
        phase=0,
        node="a",
        start=0.0,
        end=10.0,
        metric=5.0,
        order=1,
        worse=0,
        mode="selection",
        verdict="continue",
        steps=10,
        episodes=1,
        report=0,
    )
    assert (first[1].start, first[1].end, first[1].mode, first[1].steps, first[1].report) == (
        10.0,
        20.0,
        "none",
        20,
        1,
    )
    assert (search.trials[1].phases[0].start, search.trials[1].phases[1].end) == (20.0, 40.0)
    told = [event["event"] for event in lines(server)]
    assert told == [*(["trial", "join"] + ["exchange", "report"] * 2 + ["trial_end"]) * 2, "stop"]
    assert a.hello(150.0).stop == server.stop


def test_the_seed_of_a_search_is_that_of_its_rule() -> None:
    rule: Any = searching(make({"seed": 5})).search_rule
    assert rule.seed == 5


def test_a_push_may_end_two_phases_at_once() -> None:
    server = make(trials=1)
    offer(server)
    a = Node(server)
    a.enter(1.0)
    assert a.push(3.0, 5.0, steps=25).stop == ""
    first, second = searching(server).trials[0].phases
    assert (first.phase, first.metric, first.start, first.end) == (0, 3.0, 0.0, 4.0)
    assert (second.phase, second.metric, second.start, second.end) == (1, 3.0, 4.0, 4.0)
    assert a.push(3.0, 6.0, steps=4).stop == ""
    assert a.push(3.0, 6.0, steps=1).stop.startswith("all trials are done")


def test_phases_of_episodes() -> None:
    server = make(phase_episodes=3)
    offer(server)
    a = Node(server)
    a.enter()
    trial = searching(server).trials[0]
    a.say(returns=(1.0, 2.0))
    assert not trial.phases
    a.say(returns=(6.0, 3.0))
    assert [(record.metric, record.episodes) for record in trial.phases] == [(3.0, 4)]
    a.say(returns=(0.0, 0.0))
    assert [(record.metric, record.episodes) for record in trial.phases] == [(3.0, 4), (2.0, 6)]


def test_phases_of_seconds_are_a_nodes_time() -> None:
    server = make(phase_seconds=10.0)
    offer(server)
    a = Node(server)
    a.enter(100.0)
    trial = searching(server).trials[0]
    a.push(1.0, 106.0)
    a.vanish(107.0)
    a.enter(127.0)  # the twenty seconds away do not count
    a.push(1.0, 130.0)
    assert (trial.seconds, len(trial.phases)) == (9.0, 0)
    a.push(1.0, 131.5)
    assert (trial.seconds, len(trial.phases)) == (10.5, 1)
    a.push(1.0, 141.0)
    assert len(trial.phases) == 2


def test_a_phase_without_an_episode_counts_as_the_worst() -> None:
    server = make(trials=2)
    offer(server, 2)
    a = Node(server)
    a.enter()
    reply = a.say(returns=())
    assert isinstance(reply, Weights)
    assert (reply.stop, reply.next) == ("no metric after phase 0", True)
    trial = searching(server).trials[0]
    assert (trial.state, trial.phases[0].metric, trial.phases[0].mode) == (
        "failed",
        None,
        "failure",
    )
    (warning,) = events(server, "warning")
    assert (
        warning["reason"].startswith("phase 0 of trial 0 ended without a single episode")
        and "make the phases" in warning["reason"]
    )


# Who trains what.


def test_a_report_in_the_history_has_the_fields_of_a_phases_record() -> None:
    own = ("time", "event", "trial")
    fields = [field for field in PhaseReported.__struct_fields__ if field not in own]
    assert fields == list(PhaseRecord.__struct_fields__)


def test_measures_name_their_trial_and_its_backend() -> None:
    server = make()
    for number, backend in enumerate(("hogwild", "ga3c")):
        searching(server).offer(number, {"child.backend": backend}, 0.0)
    nodes = [Node(server, "a"), Node(server, "b")]
    assert [node.enter() for node in nodes] == [0, 1]
    lines(server)
    for node in nodes:
        node.push(1.0, 2.0, measures={"pps": 7.0})
    told = [(line["backend"], line["trial"], line["pps"]) for line in events(server, "measures")]
    assert told == [("hogwild", 0, 7.0), ("ga3c", 1, 7.0)]


def test_trials_may_have_different_networks() -> None:
    server = make()
    offer(server, 2)
    Node(server, "a").enter()
    b = Node(server, "b")
    b.hello()
    assert isinstance(server.handle("b", Join(signature=[("other", [7])]), 0), Weights)


def test_a_node_that_finds_no_trial_waits_and_is_served_when_there_is_one() -> None:
    server = make(trials=2)
    a, b = Node(server, "a"), Node(server, "b")
    reply = a.hello()
    assert reply == Welcome(protocol=PROTOCOL, experiment={}, run="run-1", wait=0.2)
    assert b.hello().wait and searching(server).wanted == 2
    assert server.connected == ["a", "b"] and server.idle("a")
    offer(server, 2)
    assert searching(server).wanted == 0
    assert (a.enter(), b.enter()) == (0, 1)
    late = Node(server, "late")
    assert late.hello().wait == 2.0  # nothing is left but what another node may lose
    a.leave()
    assert late.enter() == 0


def test_a_node_that_fails_gives_its_trial_back_and_gets_another() -> None:
    server = make()
    offer(server, 2)
    a, b = Node(server, "a"), Node(server, "b")
    a.enter()
    a.push(2.0, value=3.0)
    a.leave(failed=True, reason="no memory")
    trial = searching(server).trials[0]
    assert (trial.state, trial.failures, len(trial.phases)) == ("waiting", 1, 1)
    assert [
        (event["trial"], event["child"], event["reason"])
        for event in events(server, "trial_failed")
    ] == [(0, "a", "no memory")]
    assert a.enter() == 1
    b.hello()
    assert b.trial == 0
    assert heard(b.join())[1] == [3.0] * 3
    b.leave(failed=True, reason="no memory here either")
    assert (trial.state, trial.stop) == ("failed", "no memory here either")
    assert [(record.metric, record.mode, record.node) for record in trial.phases] == [
        (2.0, "collection", "a"),
        (None, "failure", "b"),
    ]
    assert searching(server).search_rule.decisions[-1].trial == 0 and math.isnan(
        searching(server).search_rule.decisions[-1].metric
    )


def test_weights_that_are_no_numbers_end_the_trial_once() -> None:
    server = make()
    offer(server, 2)
    a = Node(server)
    a.enter()
    a.push(5.0)
    reply = a.say(value=NAN, returns=(6.0,))
    assert heard(reply) == (
        Weights(version=1, progress=1 / 3, stop="its weights became NaN or infinite", next=True),
        None,
    )
    trial = searching(server).trials[0]
    assert (trial.state, [record.metric for record in trial.phases], trial.steps) == (
        "failed",
        [5.0, None],
        10,
    )
    assert trial.vector is not None and trial.vector.tolist() == [0.0] * 3
    for _ in range(3):  # its reply may have got lost
        assert heard(a.say(value=NAN)) == heard(reply)
    assert (len(trial.phases), searching(server).reports) == (2, 2)
    assert not server.refusals
    a.trial = None
    assert a.enter() == 1


def test_settings_that_do_not_go_together_fail_without_a_node() -> None:
    server = make(
        {"algorithm": {"name": "ppo"}},
        space={"algorithm.batch_size": [32, 512], "algorithm.minibatch_size": [16, 64]},
    )
    search = searching(server)
    search.offer(0, {"algorithm.batch_size": 32, "algorithm.minibatch_size": 64}, 5.0)
    search.offer(1, {"algorithm.batch_size": 512, "algorithm.minibatch_size": 64}, 5.0)
    trial = search.trials[0]
    assert trial.state == "failed" and trial.stop.startswith(
        "trial 0: algorithm.minibatch_size = 64: at most"
    )
    assert [(record.node, record.metric) for record in trial.phases] == [("", None)]
    assert Node(server).enter() == 1
    # A restart before the study has heard of it.
    again = make({"algorithm": {"name": "ppo"}}, space=search.settings.space)
    search = searching(again)
    search.restore(0, trial.params, "running", [])
    search.restored(0.0)
    assert search.trials[0].state == "failed"
    assert search.take_changed() == [search.trials[0]]


# The end.


def test_the_time_is_over_while_trials_are_under_way() -> None:
    server = make(seconds=60.0)
    offer(server, 2)
    server.tick(1000.0)  # the time begins with the first trial
    a, b = Node(server, "a"), Node(server, "b")
    a.enter(2000.0)
    b.enter(2050.0)
    a.push(1.0, 2059.0)
    server.tick(2060.0)
    assert server.stop == "60 seconds are over: 2 running"
    reply = a.push(1.0, 2061.0)
    assert (reply.stop, reply.next) == (server.stop, False)
    assert searching(server).trials[0].steps == 10
    assert heard(a.say(2061.0, value=NAN))[0] == msgspec.structs.replace(reply, vector=None)
    assert Node(server, "c").hello(2062.0).stop == server.stop
    a.leave(2063.0)
    assert [event["reason"] for event in events(server, "stop")] == [server.stop]


def test_a_snapshot_of_a_trial_is_one_of_a_run() -> None:
    server = make()
    offer(server)
    a = Node(server)
    a.enter(10.0)
    a.push(4.0, 12.0)
    snapshot = searching(server).trials[0].as_run()
    assert snapshot == Snapshot(
        version=1,
        exchanges=1,
        updates=1,
        episodes=1,
        steps=10,
        seconds=2.0,
        alpha=snapshot.alpha,
        beta=snapshot.beta,
        mean_return=4.0,
        returns=[4.0],
        experiment=searching(server).trials[0].experiment,
    )


# After a restart.


def restore(old: Search, server: ParameterServer, now: float = 0.0, exact: bool = True) -> None:
    """What the study and the checkpoints hold, taken over by another server.

    Of the weights, those of a phase's end only, unless `exact`.
    """
    new = searching(server)
    for number, trial in old.trials.items():
        phases = msgspec.json.decode(msgspec.json.encode(trial.phases), type=list[PhaseRecord])
        taken = new.restore(
            number, dict(trial.params), trial.state if trial.ended else "running", phases
        )
        if (
            trial.vector is not None
            and trial.signature is not None
            and not trial.ended
            and (exact or phases)
        ):
            snapshot = trial.as_run()
            if not exact:
                snapshot = msgspec.structs.replace(
                    snapshot, steps=phases[-1].steps, episodes=phases[-1].episodes
                )
            taken.restore(snapshot, trial.signature, trial.vector.copy())
            taken.seconds = snapshot.seconds
    new.restored(now)


def test_a_restored_search_by_values() -> None:
    old = make(window=1, trials=4)
    offer(old, 4)
    a, b, c = (Node(old, name) for name in "abc")
    for node in (a, b, c):
        node.enter(10.0)
    a.push(5.0, 20.0, value=1.0)
    b.push(6.0, 21.0, value=2.0)
    c.push(1.0, 22.0, steps=5, value=3.0)
    new = make(window=1, trials=4)
    restore(searching(old), new, 1000.0)
    search = searching(new)
    assert (search.reports, search.seconds(1000.0)) == (2, 11.0)
    assert [(trial.state, trial.owner) for trial in search.trials.values()] == [
        ("running", "a"),
        ("running", "b"),
        ("waiting", ""),
        ("waiting", ""),
    ]
    fresh = Node(new, "fresh")
    assert fresh.enter(1001.0) == 2  # nobody has reported for it, and its owner has not come yet
    b2, a2, c2 = Node(new, "b"), Node(new, "a", "s2"), Node(new, "c")
    b2.trial, c2.trial = 1, 2
    assert b2.hello(1002.0).trial == 1
    assert heard(b2.join(1002.0)) == (Weights(version=1, progress=1 / 3), [2.0] * 3)
    assert a2.enter(1003.0) == 0
    assert c2.enter(1004.0) == 3
    a2.push(7.0, 1005.0)
    record = search.trials[0].phases[1]
    assert (record.start, record.end, record.report, record.steps) == (11.0, 15.0, 2, 20)


@pytest.mark.parametrize(
    ("phases", "metric", "verdict", "expected"),
    [
        (1, 5.0, Verdict.CONTINUE, "completed"),
        (3, NAN, Verdict.STOP, "failed"),
        (3, 5.0, Verdict.STOP, "stopped"),
        (3, 5.0, Verdict.CONTINUE, "running"),
    ],
)
def test_a_trial_whose_end_was_not_written_is_not_trained_again(
    phases: int, metric: float, verdict: Verdict, expected: str
) -> None:
    old = make(window=1, phases=phases)
    offer(old, 2)
    a = Node(old)
    a.enter()
    a.say(value=metric, returns=(5.0,))
    (record,) = searching(old).trials[0].phases
    new = make(window=1, phases=phases)
    search = searching(new)
    search.restore(0, {}, "running", [msgspec.structs.replace(record, verdict=verdict)])
    search.restored(0.0)
    assert search.trials[0].state == expected
    assert [trial.number for trial in search.take_changed()] == (
        [] if expected == "running" else [0]
    )


def test_a_trial_that_has_lost_its_weights_begins_again() -> None:
    old = make(window=1)
    offer(old)
    a = Node(old)
    a.enter()
    a.push(5.0)
    new = make(window=1)
    search = searching(new)
    search.restore(0, {}, "running", list(searching(old).trials[0].phases))
    search.restored(0.0)
    b = Node(new, "b")
    assert b.enter(100.0) == 0
    assert (search.trials[0].steps, len(search.trials[0].phases)) == (0, 1)
    b.push(1.0, 101.0)
    # The phase that was reported before is not reported again.
    assert len(search.trials[0].phases) == 1
    b.push(1.0, 102.0)
    assert len(search.trials[0].phases) == 2


# Whatever happens.

NAMES = "abc"
WAITING = ["successive_halving", "hyperband"]
HALVING = [*WAITING, "asynchronous_hyperband", "asha"]


class Known:
    """The experiment of random courses' trials, which ask for the same settings thousands of times.

    It is the same for all of them, so what was checked once is known.
    """

    experiments: ClassVar[dict[str, Experiment]] = {}

    def __init__(self, plain: Experiment) -> None:
        self.plain = plain

    def with_settings(self, settings: dict[str, Any], source: str = "") -> Experiment:
        if (words := repr(settings)) not in self.experiments:
            self.experiments[words] = self.plain.with_settings(settings, source)
        return self.experiments[words]


class World:
    """A search, its nodes, and a sampler that is always quick. `restart` replaces the parent."""

    #: Whether the laws are looked at after each deed.
    checks = True

    def __init__(self, method: str = "hypertrick", **search: Any) -> None:
        halving, pbt = method in HALVING, method == "pbt"
        self.plan = {
            "method": method,
            "trials": 5,
            "phases": 3,
            "return_seconds": 10.0,
            **({"reduction_factor": 2} if halving else {} if pbt else {"eviction_rate": 0.5}),
            **({"truncation": 0.5} if pbt else {}),
            **search,
        }
        self.server = self._begin()
        self.nodes: dict[str, Node | None] = dict.fromkeys(NAMES)
        self.sessions = 0
        self.now = 0.0
        #: The search of which all reports so far were judged again, and their number.
        self.judged: tuple[Search | None, int] = None, 0
        offer(self.server, searching(self.server).wanted)

    def _begin(self) -> ParameterServer:
        server = make(window=1, **self.plan)
        search: Any = searching(server)
        search.plain = Known(search.plain)
        return server

    def do(self, name: str, deed: str, metric: float = 0.0) -> None:
        self.now += 1.0
        node = self.nodes[name]
        if deed == "away":
            self.now += 7.0
        elif deed == "restart":
            self.restart(exact=False)
        elif node is None:
            if deed in ("work", "nan", "lost"):
                self.sessions += 1
                self.nodes[name] = node = Node(self.server, name, f"s{self.sessions}")
                self._enter(node)
        elif not self._connected(node):
            if deed == "crash":
                self.nodes[name] = None
            else:
                self._enter(node)
        elif deed in ("cut", "crash"):
            node.vanish(self.now)
            if deed == "crash":
                self.nodes[name] = None
        elif node.trial is None:
            self._enter(node)
        elif deed in ("leave", "fail"):
            node.leave(self.now, failed=deed == "fail")
        else:
            reply = node.say(self.now, value=NAN if deed == "nan" else metric, returns=(metric,))
            if isinstance(reply, Refusal) and self.plan["method"] in [*WAITING, "pbt"]:
                # The reply that would have told it so was lost, and another one has its trial.
                assert reply.code == "trial"
                node.sequence -= 1
                self._enter(node)
                return
            assert isinstance(reply, Weights), reply
            if deed == "lost":
                node.sequence -= 1
            else:
                node.version = reply.version
            if reply.next and deed != "lost":
                node.trial = None
        offer(self.server, searching(self.server).wanted, self.now)
        if self.checks:
            self.check()

    def _connected(self, node: Node) -> bool:
        record = self.server.children.get(node.name)
        return record is not None and record.connected and record.session == node.session

    def _enter(self, node: Node) -> None:
        if not node.hello(self.now).stop and node.trial is not None:
            node.join(self.now)

    def restart(self, exact: bool) -> None:
        old, self.server = searching(self.server), self._begin()
        restore(old, self.server, self.now, exact)
        for node in self.nodes.values():
            if node is not None:
                node.server = self.server

    def check(self) -> None:
        search = searching(self.server)
        assert len(search.trials) <= search.settings.trials
        places = [*search.waiting, *search.owned.values()]
        alive = [
            number
            for number, trial in search.trials.items()
            if not (trial.ended or trial.state == "paused")
        ]
        assert sorted(places) == sorted(alive)  # none is lost, none is in two places
        assert set(search.absent) <= set(search.owned.values())
        trained = [
            r.trial.number
            for name, r in self.server.children.items()
            if r.connected
            and r.trial is not None
            and not r.trial.stop
            # Whoever has paused a trial may not have asked for another one yet.
            and search.owned.get(name) == r.trial.number
        ]
        assert len(trained) == len(set(trained))
        for trial in search.trials.values():
            assert [record.phase for record in trial.phases] == list(range(len(trial.phases)))
            going_on = {Verdict.CONTINUE, Verdict.COPY}
            assert {record.verdict for record in trial.phases[:-1]} <= going_on
        if self.judged[0] is not search or self.judged[1] != search.reports:
            self.judged = search, search.reports
            self.judge(search)

    def judge(self, search: Search) -> None:
        """Another rule comes to the same decisions."""
        records = sorted(
            (r.report, trial.number, r) for trial in search.trials.values() for r in trial.phases
        )
        assert [report for report, *_ in records] == list(range(search.reports))
        rule = search.settings.rule()
        for _, number, record in records:
            assert number is not None
            metric = math.nan if record.metric is None else record.metric
            rule.report(number, record.phase, metric)
            rule.settle()
        assert rule.decisions == [record.decision(number) for _, number, record in records]

    def finish(self) -> None:
        """Whoever is there now is lost, and one new node does the rest."""
        for node in self.nodes.values():
            if node is not None and self._connected(node):
                node.vanish(self.now)
        self.nodes["z"] = None
        for _ in range(200):
            if self.server.stop:
                break
            self.do("z", "work", 1.0)
        else:
            raise AssertionError(f"never over: {searching(self.server)}, {state(self.server)}")
        assert all(trial.ended for trial in searching(self.server).trials.values())
        assert len(searching(self.server).trials) == searching(self.server).settings.trials


DEEDS = ["work"] * 6 + ["cut", "crash", "leave", "fail", "nan", "lost", "away", "restart"]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_no_trial_is_lost_or_trained_twice_and_all_end(seed: int) -> None:
    """By hundreds of random courses: hypothesis' lists are too alike to meet the rare ones."""
    rng = random.Random(seed)
    for _ in range(75):
        world = World(
            method=(method := rng.choice(["hypertrick", "random", "pbt", *HALVING])),
            retries=rng.randrange(3),
            restart=method in WAITING and rng.random() < 0.5,
        )
        for _ in range(80):
            if world.server.stop:
                break
            world.do(rng.choice(NAMES), rng.choice(DEEDS), float(rng.randrange(6)))
        world.finish()


@pytest.mark.parametrize("seed", range(4))
def test_a_restored_search_goes_on_as_if_nothing_had_happened(seed: int) -> None:
    """Both are cut off from their nodes at some moment, and one is another parent from then on."""
    rng = random.Random(seed)
    for _ in range(75):
        compare(rng)


def compare(rng: random.Random) -> None:
    deeds = [
        (rng.choice(NAMES), rng.choice(["work", "work", "work", "cut"]), rng.randrange(6))
        for _ in range(60)
    ]
    moment = rng.randrange(40)
    method = rng.choice(["hypertrick", "asynchronous_hyperband", "asha"])
    worlds = World(method=method), World(method=method)
    for world in worlds:
        world.checks = False  # the courses before have more deeds than these
        for number, (name, deed, metric) in enumerate(deeds):
            if number == moment:
                for node in world.nodes.values():
                    if node is not None and world._connected(node):
                        node.vanish(world.now)
                if world is worlds[1]:
                    world.restart(exact=True)
                for each in sorted(
                    NAMES,
                    key=lambda name: (node := world.nodes[name]) is None or node.trial is None,
                ):
                    node = world.nodes[each]
                    if node is not None and not world.server.stop:
                        world._enter(node)
                        offer(world.server, searching(world.server).wanted, world.now)
            if not world.server.stop:
                world.do(name, deed, float(metric))
    old, new = (searching(world.server) for world in worlds)
    assert new.search_rule.decisions == old.search_rule.decisions
    assert [
        (t.number, t.state, t.owner, t.steps, t.ended or t.version) for t in new.trials.values()
    ] == [(t.number, t.state, t.owner, t.steps, t.ended or t.version) for t in old.trials.values()]
    assert [trial.phases for trial in new.trials.values()] == [
        [
            msgspec.structs.replace(record, start=b.start, end=b.end)
            for record, b in zip(trial.phases, twin.phases, strict=True)
        ]
        for trial, twin in zip(old.trials.values(), new.trials.values(), strict=True)
    ]


def test_after_a_while_another_node_goes_on_with_the_trial_and_its_weights() -> None:
    server = make()
    offer(server, 2)
    a, b = Node(server, "a"), Node(server, "b")
    a.enter(0.0)
    a.push(1.0, 5.0, value=3.0)
    a.vanish(6.0)
    again = Node(server, "a", "s2")  # started anew
    assert again.hello(7.0).trial == 0
    assert heard(again.join(7.0)) == (Weights(version=1, progress=1 / 3), [3.0] * 3)
    again.vanish(6.0)
    c = Node(server, "c")
    assert c.enter(35.9) == 1
    b.hello(36.0)
    assert b.trial == 0
    c.leave(37.0)
    assert heard(b.join(36.0)) == (Weights(version=1, progress=1 / 3), [3.0] * 3)
    b.push(1.0, 40.0, value=4.0)
    assert [record.node for record in searching(server).trials[0].phases] == ["a", "b"]
    assert a.enter(41.0) == 1  # it says that it trains 0, and hears that it does not
    assert a.push(9.0, 42.0).version == 1


def test_a_node_that_leaves_gives_its_trial_up_at_once() -> None:
    server = make()
    offer(server, 2)
    a, b, c = (Node(server, name) for name in "abc")
    a.enter()
    a.push(1.0, value=3.0)
    a.leave()
    assert b.enter() == 0  # begun trials go before new ones
    assert c.enter() == 1


def test_a_new_trial_that_is_given_up_goes_behind() -> None:
    server = make()
    offer(server, 2)
    a = Node(server, "a")
    a.enter()
    a.leave()
    assert a.enter() == 1


@pytest.mark.parametrize("retries", [0, 1])
def test_the_only_node_gets_a_trial_back_that_it_could_not_train(retries: int) -> None:
    server = make(trials=1, retries=retries)
    offer(server)
    a = Node(server)
    for _ in range(1 + retries):
        assert not server.stop and a.enter() == 0
        a.leave(failed=True, reason="x")
    assert server.stop == "all trials are done: 1 failed"


def test_a_node_asks_for_a_new_trial_before_it_gets_one_back() -> None:
    server = make(trials=2)
    offer(server)
    a = Node(server)
    a.enter()
    a.leave(failed=True)
    assert a.hello().wait and searching(server).wanted == 1
    offer(server)
    assert a.enter() == 1


def test_a_node_is_with_the_trial_for_which_it_reported_last() -> None:
    old = make(window=1)
    offer(old, 2)
    a, b = Node(old, "a"), Node(old, "b")
    a.enter(0.0)
    a.push(5.0, 1.0)
    a.vanish(2.0)
    assert b.enter(40.0) == 0  # takes it over, and has not reported yet
    assert a.enter(41.0) == 1
    a.push(6.0, 42.0)
    new = make(window=1)
    restore(searching(old), new, 1000.0)
    a2, b2 = Node(new, "a"), Node(new, "b")
    a2.trial, b2.trial = 1, 0
    assert (a2.enter(1000.0), b2.enter(1000.0)) == (1, 0)
    for node in (a2, b2):
        node.vanish(1001.0)
    assert {Node(new, "c").enter(1040.0), Node(new, "d").enter(1040.0)} == {0, 1}


def test_a_node_keeps_the_trial_that_the_study_believes_to_be_anothers() -> None:
    old = make(window=1)
    offer(old, 2)
    a, b = Node(old, "a"), Node(old, "b")
    a.enter(0.0)
    a.push(5.0, 1.0)
    a.vanish(2.0)
    assert b.enter(40.0) == 0
    new = make(window=1)
    restore(searching(old), new, 1000.0)
    b2 = Node(new, "b")
    b2.trial = 0
    assert b2.enter(1001.0) == 0
    assert Node(new, "a").enter(1002.0) == 1


# Trials that wait for each other.


def test_nodes_wait_at_a_rung_and_the_best_go_on_by_values() -> None:
    server = make(method="successive_halving", reduction_factor=2, window=1, trials=4, phases=2)
    search = searching(server)
    offer(server, 4)
    a, b = Node(server, "a"), Node(server, "b")
    for node, metric, now in ((a, 1.0, 1.0), (b, 4.0, 2.0), (a, 2.0, 3.0)):
        node.enter(now)
        said = node.push(metric, now, value=metric)
        assert (said.next, said.stop) == (True, "it waits for the other trials of its rung")
    assert str(search) == "3 paused"
    assert (b.enter(3.0), a.hello(3.0).wait) == (3, 0.2)  # it asks soon, and loses nothing
    assert server.connected == ["a", "b"] and not search.owned.get("a")
    assert a.hello(60.0).wait == 0.2  # as long as it takes
    b.push(3.0, 61.0, value=3.0)
    assert [trial.state for trial in search.trials.values()] == [
        *("stopped", "waiting", "stopped", "waiting"),
    ]
    # The better one comes first, and goes on from its weights, on another node.
    assert a.enter(62.0) == 1
    assert a.version == 1 and search.trials[1].vector is not None
    assert list(search.trials[1].vector) == list(vector(4.0, 4.0, 4.0))
    assert (b.enter(62.0), search.trials[3].steps) == (3, 10)
    for node in (a, b):
        node.push(5.0, 63.0)
    assert server.stop == "all trials are done: 2 completed, 2 stopped"
    ends = events(server, "report", "trial_end")
    assert [end["verdict"] for end in ends if end["event"] == "report"] == [
        *["pause"] * 4,
        *["continue"] * 2,
    ]
    assert [(end["trial"], end["state"]) for end in ends if end["event"] == "trial_end"] == [
        *((2, "stopped"), (0, "stopped"), (1, "completed"), (3, "completed")),
    ]
    assert [record.verdict.value for record in search.trials[0].phases] == ["stop"]


#: A bracket whose first rung is full after three reports; trial 1 is the best.
RESTARTS: dict[str, Any] = {"method": "hyperband", "trials": 3, "phases": 3, "restart": True}


def full_rung() -> tuple[ParameterServer, Node]:
    server = make(window=1, **RESTARTS)
    offer(server, 3)
    a = Node(server, "a")
    for metric in (1.0, 3.0, 2.0):
        a.enter(1.0)
        a.push(metric, 2.0, value=metric)
    return server, a


@pytest.mark.parametrize("lost", [False, True])
def test_with_restarts_a_rung_begins_from_scratch(lost: bool) -> None:
    server, a = full_rung()
    search = searching(server)
    best = search.trials[1]
    assert (best.state, best.steps, best.vector is None) == ("waiting", 10, False)
    if lost:  # the node whose reply got lost has the old weights, and is told to forget them
        a.trial = 1
        assert a.hello(3.0).wait and a.trial is None
    assert a.enter(4.0) == 1
    assert (best.vector, best.steps, best.mean_return) == (None, 0, None)
    for phase in range(3):
        assert search.progress(best, 4.0) == phase / 3
        a.push(float(phase), 5.0, value=7.0)
    assert (best.state, [record.steps for record in best.phases]) == ("completed", [10, 10, 20, 30])
    assert server.stop


def test_after_a_restart_of_the_parent_a_rung_is_settled_and_begins_from_scratch() -> None:
    old, a = full_rung()
    # The parent was killed before the study had heard what the last report decided.
    for trial in searching(old).trials.values():
        trial.phases[-1] = msgspec.structs.replace(trial.phases[-1], verdict=Verdict.PAUSE)
        trial.state = "paused"
    new = make(window=1, **RESTARTS)
    restore(searching(old), new)
    search = searching(new)
    assert [trial.state for trial in search.trials.values()] == ["stopped", "waiting", "stopped"]
    a.server, a.session, a.trial = new, "s2", None
    assert a.enter(5.0) == 1 and search.trials[1].vector is None and a.version == 1


def test_a_trial_whose_rung_is_full_after_a_restart_is_in_one_place() -> None:
    plan: dict[str, Any] = {"method": "successive_halving", "reduction_factor": 2, "trials": 3}
    old = make(window=1, phases=2, **plan)
    offer(old, 3)
    nodes = [Node(old, name) for name in "abc"]
    for node in nodes:
        node.enter(1.0)
    for metric, node in enumerate(nodes[:2]):
        node.push(metric, 2.0)
    searching(old).trials[2].params["algorithm.gamma"] = 7.0  # a later release takes it no more
    new = make(window=1, phases=2, **plan)
    restore(searching(old), new)
    search = searching(new)
    assert [*search.waiting, *search.owned.values()] == [1]
    d = Node(new, "d")
    assert d.enter(3.0) == 1
    d.push(5.0, 4.0)
    assert new.stop == "all trials are done: 1 completed, 1 stopped, 1 failed"


def test_nobody_waits_for_a_trial_that_another_program_has_added_to_the_study() -> None:
    plan: dict[str, Any] = {"method": "successive_halving", "reduction_factor": 2}
    server = make(window=1, trials=2, phases=2, **plan)
    search = searching(server)
    offer(server)
    search.offer(2, {"optimizer.learning_rate": 1e-4, "algorithm.gamma": 0.99}, 0.0)
    a = Node(server)
    for metric in (1.0, 2.0):
        a.enter(1.0)
        a.push(metric, 2.0)
    assert [trial.state for trial in search.trials.values()] == ["stopped", "waiting"]


# Trials that copy each other.


def test_a_bad_trial_copies_a_good_one_by_values() -> None:
    server = make(method="pbt", truncation=0.5, window=2, trials=2, phases=3)
    search = searching(server)
    offer(server, searching(server).wanted)
    a, b = Node(server, "a"), Node(server, "b")
    a.enter(), b.enter()
    assert not a.push(5.0, 1.0, value=5.0).stop
    said = b.push(1.0, 2.0, value=1.0)
    assert (said.stop, said.next) == ("it goes on as trial 0", True)
    good, bad = search.trials[0], search.trials[1]
    assert bad.vector is not good.vector
    assert list(bad.vector) == list(good.vector) == list(vector(5.0, 5.0, 5.0))  # type: ignore[arg-type]
    assert good.params == {"optimizer.learning_rate": 1e-4, "algorithm.gamma": 0.99}
    assert bad.params["optimizer.learning_rate"] in (8e-5, 1.2e-4)
    assert bad.params["algorithm.gamma"] in (0.9, 0.99)
    assert (bad.mean_return, bad.steps) == (5.0, 10)
    record = bad.phases[0]
    assert (record.verdict, record.source, record.params) == (Verdict.COPY, 0, bad.params)
    # Nobody waits: the same node goes on, with the new settings.
    welcome = b.hello(3.0)
    assert (welcome.trial, welcome.wait) == (1, 0.0)
    rate = welcome.experiment["optimizer"]["learning_rate"]
    assert rate == bad.params["optimizer.learning_rate"]
    assert b.join(3.0).vector is not None
    b.push(7.0, 4.0, value=7.0)
    assert bad.phases[1].metric == 6.0  # the mean of two: what it has copied, and its own
    assert list(good.vector) == list(vector(5.0, 5.0, 5.0))  # type: ignore[arg-type]
    for node, now in ((a, 5.0), (a, 6.0), (b, 7.0)):
        node.enter(now)
        node.push(6.0, now)
    assert server.stop == "all trials are done: 2 completed"


def test_a_node_that_does_not_know_of_a_copy_forgets_what_it_had() -> None:
    server = make(method="pbt", truncation=0.5, window=1, trials=2)
    offer(server, 2)
    a, b = Node(server, "a"), Node(server, "b")
    a.enter(), b.enter()
    a.push(5.0, 1.0)
    b.say(2.0, returns=(1.0,))  # the reply is lost, and with it the connection
    b.vanish(2.0)
    assert (b.hello(3.0).wait, b.trial) == (0.2, None)
    assert b.enter(4.0) == 1
    # After a restart of the parent neither side knows more.
    new = make(method="pbt", truncation=0.5, window=1, trials=2)
    restore(searching(server), new)
    assert searching(new).trials[1].params == searching(server).trials[1].params
    b.server, b.session = new, "s2"
    assert b.hello(5.0).wait and b.enter(6.0) == 1


def test_trials_of_a_population_take_turns_if_nodes_are_few() -> None:
    server = make(method="pbt", window=1, trials=5, phases=3)
    search, status = searching(server), RunStatus(server.experiment)
    assert search.wanted == 5  # all of them at once
    offer(server, 5)
    nodes = [Node(server, "a"), Node(server, "b")]
    for now in range(15):
        node = nodes[now % 2]
        if node.trial is None:
            node.enter(now)
        node.push(5.0, now)
        done = [len(trial.phases) for trial in search.trials.values()]
        assert max(done) - min(done) <= 1
        status.take(server.take_events())
        shown = as_json(status.snapshot(now))["search"]
        held = {node.trial for node in nodes} - {None} if not server.stop else set()
        for trial in shown["trials"]:
            number = trial["number"]
            assert len(trial["phases"]) == done[number] + (number in held)
        assert shown["states"].get("running", 0) == len(held)
        # As a parent that is started again sees it.
        again = RunStatus(server.experiment)
        again.take(_events(search.trials.values(), now))
        assert as_json(again.snapshot(now))["search"]["states"].get("running", 0) <= 2
    assert server.stop


def test_a_node_whose_paused_trial_has_gone_on_elsewhere_asks_on_its_connection() -> None:
    server = make(method="successive_halving", reduction_factor=2, window=1, trials=2)
    offer(server, 2)
    a, b = Node(server, "a"), Node(server, "b")
    a.enter(), b.enter()
    a.push(5.0, 1.0)
    b.push(1.0, 2.0)
    assert b.enter(3.0) == 0 and server.idle("a")
    assert not server.idle("b")
    before = state(server)
    reply = a.say(4.0, returns=(9.0,), trial=0)  # it has not heard that its trial was paused
    assert isinstance(reply, Refusal) and (reply.code, state(server)) == ("trial", before)
    assert a.hello(4.0).wait and a.trial is None
