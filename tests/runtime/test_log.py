"""What the commands share: the log, the one line of an error, the end of standard input."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.runtime.log import configure_logging, fail
from tests.helpers import PATIENCE, ROOT

# The log.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def _as_before() -> Iterator[None]:
    yield
    configure_logging()


def test_where_no_terminal_is_each_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging()
    log = structlog.get_logger()
    log.debug("not told")
    log.warning("told", child="pi")
    out, err = capsys.readouterr()
    line = json.loads(err)
    assert out == ""
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "told", "level": "warning", "child": "pi"}


@pytest.mark.usefixtures("_as_before")
def test_on_a_terminal_lines_are_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    configure_logging()
    structlog.get_logger().info("told", child="pi")
    assert "told" in terminal.getvalue()
    assert "pi" in terminal.getvalue()
    assert not terminal.getvalue().startswith("{")


def test_no_command_stops_because_nobody_reads_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    reader, writer = os.pipe()
    os.close(reader)
    closed = io.StringIO()
    closed.close()
    configure_logging()
    with suppress(OSError), open(writer, "w", buffering=1) as broken:  # the end writes once more
        for stream in (broken, closed):
            monkeypatch.setattr(sys, "stderr", stream)
            structlog.get_logger().info("told")
            told.append(stream)
    assert told == [broken, closed]


# An error.


def test_errors_of_several_lines_become_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(EnvironmentFailure("ValueError: the cable\nis loose")) == 1
    assert capsys.readouterr().err == "error: ValueError: the cable is loose\n"


def test_a_users_mistake_has_an_exit_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail(ConfigurationError("seed = -1: expected int >= 0")) == 2
    assert capsys.readouterr() == ("", "error: seed = -1: expected int >= 0\n")


# The end of standard input.


def test_a_process_ends_when_its_standard_input_is_closed() -> None:
    program = """
import signal
from genkidama.runtime.log import stop_at_eof
stop_at_eof()
print("begun", flush=True)
signal.pause()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.stdin.write(b"what is said does not matter")
        process.stdin.flush()
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(PATIENCE) == -signal.SIGTERM


@pytest.mark.parametrize(
    "command",
    [("genkidama.child", "--help"), ("genkidama.parent", "cartpole", "--listen", "nowhere")],
    ids=["child", "parent"],
)
def test_a_process_that_draws_nothing_imports_no_rich(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    words = [sys.executable, "-X", "importtime", "-m", *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "structlog.dev" in imported
    assert not {name for name in imported if name.startswith("rich.")}


def test_in_a_users_program_structlog_is_as_it_was() -> None:
    code = "import genkidama.child.child, structlog; assert structlog.dev.rich is not None"
    subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, check=True)
