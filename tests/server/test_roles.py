"""Who does what, and what each child is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config.experiment import Experiment
from genkidama.errors import ProtocolError
from genkidama.protocol.messages import Hello
from genkidama.protocol.session import resolve_host, with_free_exchange
from genkidama.server import parameter_server as module
from genkidama.server.parameter_server import RoleAssignment


def experiment(**child: Any) -> Experiment:
    settings = {"replay": {"steps": 1000, "url": "embedded"}, "child": child}
    return Experiment.from_dict(settings)


def hello(name: str, role: Any = "", protocol: int = 2) -> Hello:
    return Hello(protocol=protocol, name=name, session="word", role=role)


def role_of(told: dict[str, Any]) -> str:
    (role,) = set(told["child"]["roles"])
    return str(role)


@given(
    st.lists(st.sampled_from(["act", "learn", "bundle"]), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_children_are_shared_out_in_the_ratio_that_was_asked_for(
    wanted: list[str], children: int
) -> None:
    of_all = experiment(roles=wanted)
    roles, there, connected = RoleAssignment(of_all), [], []
    for number in range(children):
        connected.append(f"child-{number}")
        there.append(
            role_of(roles.experiment_for(hello(connected[-1]), of_all.to_dict(), connected))
        )
        for role in set(wanted):
            share = wanted.count(role) / len(wanted)
            assert abs(there.count(role) - len(there) * share) < 1 + share * len(set(wanted))
    assert roles.pushing(connected) == max(1, len(there) - there.count("act"))


def test_a_child_keeps_its_role_and_one_that_is_gone_is_made_up_for() -> None:
    of_all = experiment(roles=["act", "learn"])
    settings = of_all.to_dict()
    roles = RoleAssignment(of_all)
    assert role_of(roles.experiment_for(hello("a"), settings, ["a"])) == "act"
    assert role_of(roles.experiment_for(hello("b"), settings, ["a", "b"])) == "learn"
    assert role_of(roles.experiment_for(hello("a"), settings, ["a", "b"])) == "act"
    assert role_of(roles.experiment_for(hello("c"), settings, ["a", "c"])) == "learn"
    assert role_of(roles.experiment_for(hello("b"), settings, ["a", "b", "c"])) == "learn"
    # A parent that has started again.
    assert (
        role_of(RoleAssignment(of_all).experiment_for(hello("b", "learn"), settings, ["b"]))
        == "learn"
    )


def test_names_of_children_that_are_gone_are_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_NAMES", 8)
    of_all = experiment(roles=["act", "learn"])
    roles = RoleAssignment(of_all)
    for number in range(40):
        roles.experiment_for(hello(f"child-{number}"), of_all.to_dict(), [f"child-{number}"])
        assert len(roles._of) <= 8
    assert roles.pushing([f"child-{number}" for number in (38, 39)]) >= 1


def test_a_machine_that_says_what_it_does_does_that() -> None:
    of_all = experiment()
    roles = RoleAssignment(of_all)
    told = roles.experiment_for(hello("a", "act"), of_all.to_dict(), ["a"])
    assert role_of(told) == "act"
    assert Experiment.from_dict(told).role == "act"


def test_a_role_without_a_replay_for_all_is_refused_by_the_setting_that_is_missing() -> None:
    plain = Experiment()
    roles = RoleAssignment(plain)
    with pytest.raises(ProtocolError) as caught:
        roles.experiment_for(hello("a", "learn"), plain.to_dict(), ["a"])
    assert caught.value.code == "role"
    assert str(caught.value) == (
        "child 'a' with role = 'learn': child.roles = ['learn']: children that only act, or only "
        "learn, share a replay; set replay.url to 'embedded'"
    )
    assert role_of(roles.experiment_for(hello("a"), plain.to_dict(), ["a"])) == "bundle"


@pytest.mark.parametrize(
    ("exchange", "role", "kept"),
    [
        ("episode", "bundle", "episode"),
        ("episode", "act", "episode"),
        ("episode", "learn", "free"),
        ("update", "act", "free"),
        ("update", "learn", "update"),
    ],
)
def test_who_lacks_what_an_exchange_counts_exchanges_freely(
    exchange: str, role: str, kept: str
) -> None:
    child = experiment(exchange=exchange, roles=[role], exchange_seconds=0.0, exchange_steps=5)
    found = with_free_exchange(child)
    assert found.child.exchange == kept
    assert (found is child) == (kept == exchange)
    # Some limit there is always: the steps or the seconds that were set, or a second.
    for steps, seconds, limit in ((5, 0.0, 0.0), (5, 2.5, 2.5), (0, 2.5, 2.5), (0, 0.0, 1.0)):
        changes = {"child.exchange_steps": steps, "child.exchange_seconds": seconds}
        found = with_free_exchange(child.with_settings(changes))
        assert found.child.exchange_steps == steps
        assert found.child.exchange_seconds == (seconds if kept == exchange else limit)


def test_where_the_replay_is_is_told_and_kept_nowhere() -> None:
    of_all = experiment()
    roles, settings = RoleAssignment(of_all), of_all.to_dict()
    roles.replay = {"url": "redis://:word@:4711", "name": "run-1"}
    told = roles.experiment_for(hello("a"), settings, ["a"])
    assert told["replay"]["url"] == "redis://:word@:4711"
    assert settings == of_all.to_dict()
    child = Experiment.from_dict(told)
    for parent, url in (
        ("ws://10.0.0.1:8765", "redis://:word@10.0.0.1:4711"),
        ("wss://[fe80::1]:8765", "redis://:word@[fe80::1]:4711"),
    ):
        found = resolve_host(child, parent).replay
        assert (found.url, found.name) == (url, "run-1")


@pytest.mark.parametrize(
    ("url", "parent", "resolved"),
    [
        ("redis://:4711/2", "ws://10.0.0.1:8765", "redis://10.0.0.1:4711/2"),
        ("redis:///2", "ws://10.0.0.1:8765", "redis://10.0.0.1/2"),
        ("rediss://", "wss://[fe80::1]:8765/x", "rediss://[fe80::1]"),
        ("redis://me:word@", "ws://10.0.0.1:8765", "redis://me:word@10.0.0.1"),
        ("redis://:4711", "the parent", "redis://127.0.0.1:4711"),
        ("local", "ws://10.0.0.1:8765", "local"),
    ],
)
def test_an_engine_of_yours_without_a_host_is_on_the_parents_machine_too(
    url: str, parent: str, resolved: str
) -> None:
    child = Experiment.from_dict({"replay": {"steps": 1000, "url": url}})
    assert resolve_host(child, parent).replay.url == resolved


def test_an_engine_with_a_host_stays_where_it_is() -> None:
    child = Experiment.from_dict({"replay": {"steps": 1000, "url": "redis://:word@far:4711"}})
    assert resolve_host(child, "ws://10.0.0.1:8765") is child


def test_a_plain_run_tells_everybody_the_same() -> None:
    plain = Experiment()
    settings = plain.to_dict()
    roles = RoleAssignment(plain)
    assert roles.experiment_for(hello("a"), settings, ["a"]) is settings
    assert [roles.pushing(joined) for joined in ((), ("a",), ("a", "b", "c"))] == [1, 1, 3]


def test_without_a_replay_in_the_experiment_a_role_is_refused() -> None:
    plain = Experiment()
    settings = plain.to_dict()
    with pytest.raises(ProtocolError, match=r"with role = 'act': child\.roles = \['act'\]"):
        RoleAssignment(plain).experiment_for(hello("a", "act"), settings, ["a"])
