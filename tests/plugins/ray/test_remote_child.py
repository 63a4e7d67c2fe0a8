"""A child on a node, from the driver's side: one actor after another. Ray is made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.plugins.ray import start
from genkidama.plugins.ray.child_actor import ChildActor
from genkidama.plugins.ray.start import RemoteChild


class RayError(Exception):
    pass


class Ray:
    """The part of Ray that a child uses; its answers are put in by hand."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self) -> None:
        #: By actor, its arguments.
        self.made: list[tuple[Any, ...]] = []
        self.killed: list[Any] = []
        #: Requests without an answer.
        self.asked: list[tuple[Any, ...]] = []
        self.answers: list[Any] = []

    def remote(self, kind: type[Any]) -> Any:
        assert kind is ChildActor
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self._make))

    def _make(self, *arguments: Any) -> Any:
        self.made.append(arguments)

        def method(name: str) -> Any:
            def ask(*arguments: Any) -> Any:
                self.asked.append((name, *arguments))
                return self.asked[-1]

            return SimpleNamespace(remote=ask)

        return SimpleNamespace(poll=method("poll"), stop=method("stop"))

    def wait(self, calls: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return (calls, []) if self.answers else ([], calls)

    def get(self, call: Any) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(start, "time", clock)
    return clock


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def ray() -> Ray:
    return Ray()


@pytest.fixture
def child(tmp_path: Path, ray: Any, clock: Clock, said: list[str]) -> RemoteChild:
    access = ("token", "ws://here:1")
    log = tmp_path / "child-1.log"
    return RemoteChild(ray, "child-1", log, access, {"num_cpus": 2, "num_gpus": 0.0}, said.append)


def test_a_child_is_asked_once_a_second_and_its_log_is_copied(
    child: RemoteChild, ray: Ray, clock: Clock
) -> None:
    assert ray.made[0][1:] == ("token", "ws://here:1", "child-1", 2)
    ray.answers.append((None, "", b"words"))
    assert child.code is None
    clock.now = 0.9
    assert child.code is None and len(ray.asked) == 1
    clock.now = 1.0
    assert child.code is None and ray.asked[-1] == ("poll", 5)
    ray.answers.append((2, "no such thing (node 10.0.0.7)", b" more"))
    assert child.code == 2
    assert child.error() == "child-1: no such thing (node 10.0.0.7)"
    assert child.log.read_bytes() == b"words more"


def test_a_log_that_cannot_be_written_here_is_asked_for_again(
    child: RemoteChild, ray: Ray, clock: Clock
) -> None:
    child.log.symlink_to("/dev/full")
    ray.answers.append((None, "", b"words"))
    assert child.code is None
    clock.now = 1.0
    assert child.code is None and ray.asked[-1] == ("poll", 0)


def test_a_lost_child_gets_another_actor_and_name_after_a_rest_until_it_is_given_up(
    child: RemoteChild, ray: Ray, clock: Clock
) -> None:
    for losses, rest in enumerate([0.0, 1.0, 2.0, 4.0, 8.0], start=1):
        ray.answers.append(RayError("the actor died\nand more"))
        assert child.code is not None and child.code < 0
        child.restart()
        assert len(ray.killed) == losses
        clock.now += rest - 0.1
        if rest:
            assert child.code is None and len(ray.made) == losses
        clock.now += 0.1
        assert child.code is None
        assert ray.made[-1][3] == f"child-1-{losses + 1}"
        clock.now += 1.0
    ray.answers.append(RayError("the actor died\nand more"))
    assert child.code is not None
    with pytest.raises(EnvironmentFailure, match="child-1 was lost 6 times within a minute: the "):
        child.restart()
    assert b"and more" in child.log.read_bytes()


def test_a_node_that_cannot_import_us_is_no_loss(child: RemoteChild, ray: Ray) -> None:
    ray.answers.append(RayError("x\n  ModuleNotFoundError: No module named 'genkidama'\ny"))
    assert child.code == 1
    assert "cannot run genkidama" in child.error()
    assert "(ModuleNotFoundError: No module named 'genkidama')" in child.error()


@pytest.mark.parametrize(
    ("gpus", "more"),
    [(0.0, ""), (0.5, " and 0.5 free GPUs"), (1.0, " and 1 free GPU"), (2.0, " and 2 free GPUs")],
)
def test_a_child_without_room_says_once_what_it_needs(
    child: RemoteChild, ray: Ray, clock: Clock, said: list[str], gpus: float, more: str
) -> None:
    child._options["num_gpus"] = gpus
    for clock.now in (20.0, 20.1, 60.0):
        assert child.code is None
    assert said == [f"child-1 waits for a node with 2 free CPUs{more}"]
    child.terminate()
    child.end(3.0)  # nobody is there to answer
    assert clock.now == 60.0


def test_the_end_waits_for_the_last_of_the_log(child: RemoteChild, ray: Ray) -> None:
    ray.answers.append((None, "", b"words"))
    assert child.code is None
    child.terminate()
    assert ray.asked[-1] == ("stop", 5)
    ray.answers.append((0, "", b" and the end"))
    child.end(3.0)
    child.close()
    child.close()
    assert child.log.read_bytes() == b"words and the end" and len(ray.killed) == 1
