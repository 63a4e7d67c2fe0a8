"""A part of a launch: one actor after another, and one question at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from genkidama.plugins.ray.driver import Part
from genkidama.plugins.ray.node import ChildActor


class Here:
    """What a part uses of Ray, which itself is in `test_driver.py`. A call is its own answer."""

    def __init__(self) -> None:
        #: What each actor was made of.
        self.made: list[tuple[Any, ...]] = []
        self.killed: list[Any] = []

    def remote(self, kind: type[Any]) -> Plan:
        return Plan(self, kind)

    def get(self, call: Any) -> Any:
        return call

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


@dataclass
class Plan:
    """An actor that is not there yet."""

    ray: Here
    kind: type[Any]
    told: dict[str, Any] = field(default_factory=dict)

    def options(self, **options: Any) -> Plan:
        return Plan(self.ray, self.kind, options)

    def remote(self, *arguments: Any) -> Actor:
        self.ray.made.append((self.kind, self.told, arguments))
        return Actor()


class Actor:
    """Answers with what it was asked."""

    def __getattr__(self, method: str) -> Any:
        class Method:
            @staticmethod
            def remote(*arguments: Any) -> tuple[Any, ...]:
                return method, *arguments

        return Method


def part(ray: Here) -> Part:
    return Part(ray, "child-1", ChildActor, {"num_cpus": 2}, ("run",))


def test_ray_starts_no_actor_again_by_itself() -> None:
    ray = Here()
    child = part(ray)
    child.create(5.0)
    assert ray.made == [(ChildActor, {"max_restarts": 0, "num_cpus": 2}, ("run",))]
    assert (child.since, child.cores) == (5.0, 2)


def test_each_actor_has_a_new_name_and_nothing_of_the_one_before() -> None:
    child = part(Here())
    child.create(5.0)
    assert child.child_name == "child-1"
    child.url = "ws://127.0.0.1:1"
    child.log = 7
    child.placed = True
    child.waiting_said = True
    child.create(9.0)
    assert child.child_name == "child-1-2"
    assert (child.url, child.log, child.placed, child.waiting_said) == ("", 0, False, False)
    child.create(12.0)
    assert child.child_name == "child-1-3"


def test_an_answer_goes_to_the_question_that_was_asked_and_may_be_followed_by_another() -> None:
    heard: list[Any] = []
    child = part(Here())
    child.create(0.0)

    def again(answer: Any) -> None:
        heard.append(answer)
        child.ask(heard.append, "stop", 2)

    child.ask(again, "look", 1)
    child.resolve()
    assert heard == [("look", 1)]
    child.resolve()
    assert heard == [("look", 1), ("stop", 2)]
    assert child.call is None


def test_a_killed_one_is_asked_nothing_and_killed_once() -> None:
    ray = Here()
    child = part(ray)
    child.kill()
    assert ray.killed == []
    child.create(0.0)
    actor = child.actor
    child.ask(lambda _: None, "look")
    for _ in range(2):
        child.kill()
    assert ray.killed == [actor]
    assert (child.actor, child.call, child.then) == (None, None, None)
