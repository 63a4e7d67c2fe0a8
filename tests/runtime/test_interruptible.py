"""Ctrl-C while a command imports."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from genkidama.runtime import signals
from tests.helpers import ROOT

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
