"""Children in control groups as small as boards: they train, are killed, and join again.

GENKIDAMA_SMALL_SECONDS is how long each trains, half of it before it is killed; 300 in a nightly
run. It takes root on Linux.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.groups import Group
from genkidama.errors import EnvironmentFailure
from tests.helpers import ROOT, free_port, history, starting, until

#: How long a child trains in all.
SECONDS = float(os.environ.get("GENKIDAMA_SMALL_SECONDS", "60"))

MB = 10**6

#: By board: the memory that its system leaves, and the cores of a CPU of today that its four are
#: worth.
BOARDS = {"Raspberry Pi Zero 2 W": (430 * MB, 4 * 0.4), "Raspberry Pi 3": (900 * MB, 4 * 0.5)}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]


@pytest.fixture(params=BOARDS)
def board(request: pytest.FixtureRequest) -> Iterator[Group]:
    memory, cores = BOARDS[request.param]
    try:
        group = Group(f"board-{os.getpid()}", memory)
    except EnvironmentFailure as error:
        pytest.skip(str(error))
    group.hold(cores)
    yield group
    group.close()


@pytest.mark.parametrize("example", ["lunarlander", "a3c"])
def test_four_cores_train_on_a_small_board_and_join_again(
    board: Group, example: str, tmp_path: Path
) -> None:
    out, log = tmp_path / "run", tmp_path / "child.log"
    address = f"127.0.0.1:{free_port()}"
    toml = (ROOT / f"examples/lunarlander/{example}.toml").read_text()
    endless = tmp_path / "endless.toml"
    endless.write_text(toml[: toml.index("[stop]")] + "[stop]\nmean_return = 1000.0\n")
    command = [sys.executable, "-m", "genkidama.child", "--parent", f"ws://{address}"]
    command += ["--name", "pi", "--cores", "4", "--state", str(tmp_path / "state")]

    def steps() -> int:
        return max((line["steps"] for line in history(out, "exchange")), default=0)

    def life(end: signal.Signals) -> int:
        """Trains for half of the time, ends as told, and returns the exit code."""
        before = steps()
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                start_new_session=True,
                preexec_fn=board.enter,
            )
        with child:
            try:
                until(lambda: steps() > before or child.poll() is not None, "steps", 300)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(SECONDS / 2)
                assert child.returncode is None, log.read_text(errors="replace")[-3000:]
                child.send_signal(end)
                return child.wait(60)
            finally:
                child.kill()

    with starting(tmp_path) as start:
        start("genkidama.parent", endless, "--listen", address, "--out", out)
        until(lambda: history(out, "start"), "a parent", 60)
        assert life(signal.SIGKILL) == -signal.SIGKILL
        assert life(signal.SIGTERM) == 0
        joins = [line for line in history(out, "join") if line["child"] == "pi"]
    assert len(joins) == 2
    assert board.killed() == 0
    print(f"{steps()} steps, at most {board.peak() / MB:.0f} MB")
