"""Tasks: functions in processes of their own, which may do whatever an environment does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.runtime.forkserver import ForkServer
from genkidama.runtime.task import Task, call
from tests.helpers import small


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """It has this module warm, so that no task imports it anew."""
    with closing(ForkServer(__name__)) as found:
        yield found


@pytest.fixture
def begin(server: ForkServer, tmp_path: Path) -> Callable[..., Task]:
    """Starts `perform` as a task, whose log is `task.log`."""

    def started(*plan: str) -> Task:
        entry = f"{__name__}:perform"
        return Task(server, small(), entry, (plan,), "it fails", tmp_path / "logs" / "task.log")

    return started


def perform(receive: Callable[[], Any], send: Callable[[Any], None], plan: tuple[str, ...]) -> None:
    for word in plan:
        match word:
            case "echo":
                send(receive())
            case "print":
                print("words of an environment")
            case "mistake":
                raise ConfigurationError("environment.id = 'x': is wrong")
            case "raise":
                raise KeyError("my bug")
            case "cut":
                raise ConnectionResetError("simulator")
            case "exit":
                sys.exit(3)
            case "kill":
                os.kill(os.getpid(), 9)


def test_it_answers_and_ends_when_nobody_asks_any_more(begin: Callable[..., Task]) -> None:
    with closing(begin(*["echo"] * 9)) as task:
        task.send({"a": 1})
        assert task.receive() == {"a": 1}
        task.send(2.5)
        assert task.receive() == 2.5
        process = task._process
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("plan", "kind", "words", "kept"),
    [
        (["mistake"], ConfigurationError, "environment.id = 'x': is wrong", False),
        (["raise"], EnvironmentFailure, "it fails: KeyError: 'my bug' (", True),
        (["cut"], EnvironmentFailure, "it fails: ConnectionResetError: simulator (", True),
        (["exit"], EnvironmentFailure, "it fails: SystemExit: 3 (", True),
        (["print", "kill"], EnvironmentFailure, "killed (SIGKILL), perhaps for want of", False),
        ([], EnvironmentFailure, "the process ended: exit code 0: it said nothing", False),
    ],
)
def test_its_end_says_why_and_a_traceback_is_kept(
    plan: list[str],
    kind: type[GenkidamaError],
    words: str,
    kept: bool,
    begin: Callable[..., Task],
    tmp_path: Path,
) -> None:
    with closing(begin(*plan)) as task, pytest.raises(kind) as raised:
        task.receive()
    log = tmp_path / "logs" / "task.log"
    assert words in str(raised.value)
    assert str(raised.value).endswith(f"; the whole traceback is in {log}") == kept == log.exists()
    if kept:
        assert log.read_text().startswith("Traceback ")


def test_a_single_answer() -> None:
    task = "genkidama.learning.spaces:look", (small().environment,)
    assert call(small(), *task, "it fails")[1] == {"discrete": 2, "start": 0}
