"""The processes that play an evaluation: each has its share of the episodes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from genkidama.errors import EnvironmentFailure
from genkidama.runtime.process import failure
from genkidama.runtime.script import mark
from genkidama.runtime.user_errors import describe_exit

__all__ = ["ignore", "play"]


def ignore(_: float) -> None:
    """Watches nothing."""


def play(
    request: dict[str, Any], shares: list[list[int]], watch: Callable[[float], None], log: Path
) -> list[dict[str, Any]]:
    """Plays each share in a process of its own, all at once.

    Args:
        request: what all of them are told, but for their episodes.
        shares: the numbers of each one's episodes.
        watch: is called with each return as it comes.
        log: the folder where a traceback is written.

    Returns:
        What each process answers.

    Raises:
        GenkidamaError: what a process ended with.
    """
    variables = {
        **os.environ,
        **mark(),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "genkidama.runs.play"]
    with ExitStack() as stack:
        # A pipe would fill up. The last line says why a process died.
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in shares]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=variables,
                )
            )
            for file in said
        ]
        try:
            for process, share in zip(processes, shares, strict=True):
                _ask(process, request | {"episodes": share})
            answers = _answers(processes, said, watch, log)
        finally:
            for process in processes:
                process.kill()
        for answer, file in zip(answers, said, strict=True):
            if "error" in answer:
                raise failure(answer["exit_code"], answer["error"] + _kept(file, log))
    return answers


def _ask(process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it is dead already, as `_answer` will find
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()


def _answers(
    processes: list[subprocess.Popen[bytes]],
    said: Sequence[IO[bytes]],
    watch: Callable[[float], None],
    log: Path,
) -> list[dict[str, Any]]:
    """What the processes answer. A thread listens to each, so each return is told at once."""
    lock = threading.Lock()

    def tell(value: float) -> None:
        with lock:
            watch(value)

    listeners = ThreadPoolExecutor(len(processes))
    try:
        heard = [listeners.submit(_last_line, process, tell) for process in processes]
        return [
            _answer(process, file, lines.result(), log)
            for process, file, lines in zip(processes, said, heard, strict=True)
        ]
    finally:
        for process in processes:
            process.kill()
        listeners.shutdown()


def _last_line(process: subprocess.Popen[bytes], tell: Callable[[float], None]) -> bytes:
    """The last line that it writes; each before is a return."""
    assert process.stdout is not None
    last = b""
    for line in process.stdout:
        with suppress(ValueError):
            tell(float(line))
        last = line
    return last


def _answer(
    process: subprocess.Popen[bytes], said: IO[bytes], line: bytes, log: Path
) -> dict[str, Any]:
    """What the process answers in its last line."""
    if process.wait() == 0 and line:
        with suppress(json.JSONDecodeError):
            answer: dict[str, Any] = json.loads(line)
            return answer
    said.seek(0)
    last = _last_words(said.read().decode(errors="replace")) or "it said nothing"
    raise EnvironmentFailure(
        "a process that plays evaluation episodes ended: "
        f"{describe_exit(process.returncode)}: {last}{_kept(said, log)}"
    )


def _kept(said: IO[bytes], log: Path) -> str:
    """Writes a traceback, if there is one, to a file, and says to which."""
    said.seek(0)
    text = said.read()
    if b"Traceback (most recent call last):" not in text:
        return ""
    try:
        log.mkdir(exist_ok=True)
        path = log / "evaluation.log"
        path.write_bytes(text)
    except OSError:
        return ""
    return f"; the whole traceback is in {path}"


def _last_words(text: str) -> str:
    """The exception behind a traceback, whose lines are indented, or else the last line."""
    lines = text.rstrip().splitlines()
    behind = list(itertools.takewhile(lambda line: not line.startswith(" "), reversed(lines)))
    return " ".join(reversed(behind)) if len(behind) < len(lines) else "".join(lines[-1:])
