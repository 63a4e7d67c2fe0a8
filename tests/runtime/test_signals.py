"""Signals that come at a moment when nothing may be left half done."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from genkidama.runtime import signals
from genkidama.runtime.signals import deferred
from tests.helpers import ROOT

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that the program has heard."""
    numbers: list[int] = []
    before = [
        signal.signal(number, lambda number, frame: numbers.append(number)) for number in BOTH
    ]
    yield numbers
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


def test_what_comes_within_is_heard_at_the_end(heard: list[int]) -> None:
    with deferred():
        with deferred():
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert heard == []
    assert heard == [signal.SIGTERM, signal.SIGINT]
    signal.raise_signal(signal.SIGTERM)
    assert len(heard) == 3


def test_an_exception_passes_and_the_signal_is_heard(heard: list[int]) -> None:
    def fail() -> None:
        with deferred():
            signal.raise_signal(signal.SIGTERM)
            raise OSError("no more processes")

    with pytest.raises(OSError, match="no more processes"):
        fail()
    assert heard == [signal.SIGTERM]


def test_a_signal_that_is_ignored_stays_ignored(heard: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # what is started inherits that
        signal.raise_signal(signal.SIGINT)
    assert heard == [] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_hears_no_signals_and_defers_none(heard: list[int]) -> None:
    def work() -> None:
        with deferred():
            handlers.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    handlers: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [before]


#: The first of the commands' imports takes its time, and says when it begins.
SLOW = """
import sys, time
if "genkidama" in sys.argv[0]:
    print("importing", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("module", ["genkidama", "genkidama.parent", "genkidama.child"])
def test_a_command_that_is_interrupted_while_it_imports_says_nothing(
    module: str, tmp_path: Path
) -> None:
    (tmp_path / "argparse.py").write_text(SLOW)  # all of them import that
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20.0)
    assert (process.returncode, errors) == (-signal.SIGINT, "")


def test_any_other_program_is_left_as_it_is() -> None:
    before = signal.getsignal(signal.SIGINT)
    signals.exit_on_interrupt()
    assert signal.getsignal(signal.SIGINT) is before
