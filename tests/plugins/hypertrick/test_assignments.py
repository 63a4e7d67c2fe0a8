"""Which node trains which trial: the laws of a roster, and what nodes see of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from genkidama.plugins.hypertrick.assignments import Assignments, SearchTrial
from genkidama.protocol.messages import Weights
from tests.plugins.hypertrick.test_search import Node, make, offer, restore, searching
from tests.server.test_parameter_server import heard

NODES = "abc"
DEEDS = ["find", "find its own", "vanish", "release", "end"]


def roster(trials: int) -> Assignments:
    """So many new trials, which wait; a node may be away for 10 seconds."""
    roster = Assignments(return_seconds=10.0)
    for number in range(trials):
        roster.trials[number] = SearchTrial(window=1, number=number)
        roster.waiting.append(number)
    return roster


def found(roster: Assignments, node: str, now: float, training: int | None = None) -> int | None:
    """The trial that the node gets and owns from now on."""
    trial = roster.find(node, now, training, more=False)
    if trial is None:
        return None
    roster.own(node, trial)
    return trial.number


@given(
    st.lists(
        st.tuples(st.sampled_from(NODES), st.sampled_from(DEEDS), st.integers(0, 3)), max_size=40
    )
)
def test_a_trial_has_one_node_and_a_node_one_trial(deeds: list[tuple[str, str, int]]) -> None:
    subject = roster(4)
    for now, (node, deed, number) in enumerate(deeds):
        if deed.startswith("find"):
            told = found(subject, node, now, number if deed == "find its own" else None)
            assert (told is None) == (node in subject.hungry)
        elif deed == "vanish":
            subject.vanished(node, now)
        elif deed == "release":
            subject.released(node)
        elif node in subject.owned:
            trial = subject.trials[subject.owned[node]]
            subject.retire(trial)
            trial.state = "completed"
        owned, waiting = list(subject.owned.values()), list(subject.waiting)
        under_way = [number for number, trial in subject.trials.items() if not trial.ended]
        assert sorted(owned + waiting) == under_way
        assert all(subject.trials[mine].owner == name for name, mine in subject.owned.items())
        assert all(not subject.trials[number].owner for number in waiting)
        assert set(subject.absent) <= set(owned)


def test_a_node_that_vanished_has_until_the_last_second_to_return() -> None:
    subject = roster(1)
    assert found(subject, "a", 0.0) == 0
    subject.vanished("a", 5.0)
    assert found(subject, "b", 14.9) is None
    assert subject.hungry == {"b"}
    assert found(subject, "b", 15.0) == 0
    assert (subject.owned, subject.hungry, subject.absent) == ({"b": 0}, set(), {})


def test_fresh_are_the_trials_that_wait_untried() -> None:
    subject = roster(3)
    assert found(subject, "a", 0.0) == 0
    assert subject.fresh == 2
    subject.trials[1].failed_on.add("b")
    assert subject.fresh == 1


def test_a_node_that_returns_in_time_keeps_its_trial_and_its_weights() -> None:
    server = make()
    offer(server, 2)
    a, b = Node(server, "a"), Node(server, "b")
    a.enter(0.0)
    a.push(1.0, 5.0, value=3.0, steps=5)
    a.vanish(6.0)
    assert b.enter(30.0) == 1
    assert a.enter(35.9) == 0
    a.push(1.0, 36.0)
    assert searching(server).trials[0].phases[0].node == "a"
    assert not searching(server).roster.absent


def test_a_node_that_was_started_again_goes_on_with_its_trial() -> None:
    server = make()
    offer(server, 2)
    a = Node(server, "a")
    a.enter(0.0)
    a.push(1.0, 5.0, value=3.0, steps=5)
    a.vanish(6.0)
    again = Node(server, "a", "s2")
    assert again.hello(7.0).trial == 0
    assert heard(again.join(7.0)) == (Weights(version=1, progress=5 / 30), [3.0] * 3)


def test_after_a_while_another_node_goes_on_with_the_trial_and_its_weights() -> None:
    server = make()
    offer(server, 2)
    a, b = Node(server, "a"), Node(server, "b")
    a.enter(0.0)
    a.push(1.0, 5.0, value=3.0)
    a.vanish(6.0)
    b.hello(36.0)
    assert b.trial == 0
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


def test_the_only_node_gets_a_trial_back_that_it_could_not_train() -> None:
    server = make(trials=1)
    offer(server)
    a = Node(server)
    a.enter()
    a.leave(failed=True, reason="once")
    assert a.enter() == 0
    a.leave(failed=True, reason="twice")
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
