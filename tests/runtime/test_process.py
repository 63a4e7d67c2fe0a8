"""One process: started, started again, ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime import process as process_module
from genkidama.runtime.process import Attended, Process, failure
from tests.helpers import until

Run = Callable[..., Process]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Starts a module of the test's own."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found: list[Process] = []

    def start(code: str, **options: dict[str, str]) -> Process:
        (tmp_path / "part.py").write_text(f"import os, signal, sys, time\n{code}\n")
        found.append(Process("part", ["part"], tmp_path / "part.log", **options))  # type: ignore[arg-type]
        return found[-1]

    yield start
    for process in found:
        process.end(0.0)
        process.close()


def said(process: Process) -> str:
    return process.log.read_text()


def test_what_it_is_told_and_what_it_says(run: Run) -> None:
    process = run(
        "print(sys.argv[1:], os.environ['WORD'], flush=True)", environment={"WORD": "hello"}
    )
    process.wait(30.0)
    assert process.code == 0
    assert said(process) == "['--until-eof'] hello\n"


def test_its_error_is_the_last_that_it_has_said_itself(run: Run, tmp_path: Path) -> None:
    (tmp_path / "part.log").write_text("error: of yesterday\n")
    process = run("sys.exit(3)")
    process.wait(30.0)
    assert process.error() == f"part ended with exit code 3; see {process.log}"
    process = run("print('error: first'); print('error: last', flush=True); print(1); sys.exit(2)")
    process.wait(30.0)
    assert (process.code, process.error()) == (2, "last")


@pytest.mark.parametrize(
    ("code", "kind"), [(1, EnvironmentFailure), (2, ConfigurationError), (-9, EnvironmentFailure)]
)
def test_an_exit_code_says_whose_fault_it_is(code: int, kind: type[Exception]) -> None:
    found = failure(code, "the cable is loose")
    assert type(found) is kind and str(found) == "the cable is loose"


def test_one_that_heeds_sigterm_ends_in_order_and_another_is_killed(run: Run) -> None:
    process = run("print('up', flush=True); time.sleep(60)")
    until(lambda: said(process))
    process.end(10.0)
    assert process.code == -15
    process = run(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)\ntime.sleep(60)"
    )
    until(lambda: "deaf" in said(process))
    began = time.monotonic()
    process.end(0.2)
    assert process.code == -9 and time.monotonic() - began < 5.0
    process.end(0.0)  # it may be said twice


def test_its_input_closes_with_its_starter(run: Run) -> None:
    process = run("sys.stdin.read()")
    process.close()
    process.wait(30.0)
    assert process.code == 0


def test_it_is_started_again_but_not_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MOST_LOSSES", 2)
    process = run("print('up', flush=True); time.sleep(60)")
    for count in (1, 2, 3):
        until(lambda goal=count: said(process).count("up") == goal)
        process.kill()
        process.wait()
        if count < 3:
            process.restart()
    with pytest.raises(EnvironmentFailure, match=r"part was killed 3 times within a minute; see "):
        process.restart()


# What becomes of a child that ends early.


class FakeProcess:
    """A process that ends when the test wants it to."""

    name = "child-1"
    log = Path("child-1.log")

    def __init__(self) -> None:
        self.code: int | None = None
        self.starts = 0
        self.restarts = 0

    def error(self) -> str:
        return "the cable is loose"

    def start_again(self) -> None:
        self.starts += 1
        self.code = None

    def restart(self) -> None:
        self.restarts += 1
        if self.restarts > 2:
            raise EnvironmentFailure("child-1 was killed too often")
        self.code = None


@pytest.fixture
def process() -> Any:
    return FakeProcess()


def attended(process: Any) -> tuple[Attended, list[str]]:
    said: list[str] = []
    return Attended(process, said.append), said


def test_one_that_fails_before_it_has_trained_is_left_out_and_that_is_said(process: Any) -> None:
    child, said = attended(process)
    child.look(0.0)
    assert said == []
    process.code = 1
    child.look(1.0)
    child.look(100.0)
    assert isinstance(child.failure, EnvironmentFailure) and not process.starts
    assert said == ["child-1 is left out: the cable is loose"]


def test_one_whose_settings_are_wrong_is_left_out_although_it_has_trained(process: Any) -> None:
    child, _ = attended(process)
    child.trained()
    process.code = 2
    child.look(0.0)
    assert isinstance(child.failure, ConfigurationError)


def test_one_that_has_trained_rests_before_it_is_started_again(process: Any) -> None:
    child, said = attended(process)
    child.trained()
    process.code = 1
    child.look(0.0)
    assert said == ["child-1 failed, and is started again in 1 s: the cable is loose"]
    child.look(0.9)
    assert not process.starts
    child.look(1.0)
    assert process.starts == 1 and child.failure is None
    for number in range(8):
        process.code = 1
        child.look(100.0 * number)
        child.look(100.0 * number + 60.0)
    assert process.starts == 8 and str(child.failure) == "the cable is loose"


def test_one_that_is_killed_is_started_again_at_once_but_not_for_ever(process: Any) -> None:
    child, said = attended(process)
    for _ in range(3):
        process.code = -9
        child.look(0.0)
    assert said == ["child-1 was killed, and is started again"] * 2 + [
        "child-1 is left out: child-1 was killed too often"
    ]


def test_one_that_has_left_in_order_is_done(process: Any) -> None:
    child, said = attended(process)
    process.code = 0
    child.look(0.0)
    assert child.done and child.failure is None and said == []
