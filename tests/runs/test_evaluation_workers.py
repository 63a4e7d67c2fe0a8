"""The processes that play an evaluation: what they say, and what becomes of an error."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.runs.evaluation_workers import _answers, ignore


@contextmanager
def saying(*codes: str) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[IO[bytes]]]]:
    """Processes that run these lines of Python, and what they write to standard error."""
    with ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in codes]
        yield (
            [
                stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=file
                    )
                )
                for code, file in zip(codes, said, strict=True)
            ],
            [*said],
        )


def test_each_return_is_told_as_it_comes_and_the_last_line_is_the_answer(tmp_path: Path) -> None:
    told: list[float] = []
    first, second = """print("1.5\\nNaN\\n{\\"returns\\": [1.5]}")""", "print(2.5); print({})"
    with saying(first, second) as (processes, said):
        answers = _answers(processes, said, told.append, tmp_path)
    assert answers == [{"returns": [1.5]}, {}]
    assert sorted(value for value in told if value == value) == [1.5, 2.5] and len(told) == 3


def test_a_watcher_that_fails_ends_the_processes(tmp_path: Path) -> None:
    def watch(value: float) -> None:
        raise KeyError("my bug")

    with saying("print(1.0, flush=True); import time; time.sleep(60)") as (processes, said):
        with pytest.raises(KeyError):
            _answers(processes, said, watch, tmp_path)
        assert processes[0].wait() == -9


@pytest.mark.parametrize(
    ("code", "words", "kept"),
    [
        ("1 / 0", "exit code 1: ZeroDivisionError: division by zero; the whole traceback", True),
        ("import os; os.kill(os.getpid(), 9)", "killed (SIGKILL), perhaps for want of", False),
        ("", "exit code 0: it said nothing", False),
    ],
)
def test_what_dies_says_of_what_and_a_traceback_is_kept(
    tmp_path: Path, code: str, words: str, kept: bool
) -> None:
    with saying(code) as (processes, said), pytest.raises(EnvironmentFailure) as raised:
        _answers(processes, said, ignore, tmp_path / "logs")
    assert words in str(raised.value)
    log = tmp_path / "logs" / "evaluation.log"
    assert log.exists() == kept
    if kept:
        assert str(raised.value).endswith(f"is in {log}")
        assert log.read_text().startswith("Traceback ")
