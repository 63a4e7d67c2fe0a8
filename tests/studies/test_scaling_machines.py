"""What studies/scaling makes of this computer, for real: shares, links, and a short run.

It takes root, control groups and TUN devices, as the benchmark does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studies.scaling import __main__ as command
from studies.scaling.links import Network
from studies.scaling.matrix import LINKS, Condition

GROUPS = Path("/sys/fs/cgroup")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (GROUPS / "cpu").exists() or not Path("/dev/net/tun").exists(),
        reason="takes root, control groups and TUN devices",
    ),
]

#: Sends back what it is sent, byte by byte.
ECHO = """
import socket
with socket.create_server(("0.0.0.0", 4711)) as server:
    print("ready", flush=True)
    link, _ = server.accept()
    while byte := link.recv(1):
        link.sendall(byte)
"""

#: Prints the seconds that five bytes take, one after the other.
ASK = """
import socket, sys, time
link = socket.create_connection((sys.argv[1], 4711), timeout=10)
begin = time.monotonic()
for _ in range(5):
    link.sendall(b"x")
    link.recv(1)
print(time.monotonic() - begin)
"""


def test_a_link_takes_its_time_and_can_be_cut() -> None:
    python = [sys.executable, "-c"]
    with Network(2, LINKS["wifi"], seed=0) as network:
        listen = network.at_parent([*python, ECHO])
        with subprocess.Popen(listen, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            address = network.parents_address(1)
            seconds = float(subprocess.check_output(network.at(1, [*python, ASK, address])))
            assert seconds >= 5 * 0.02
        with subprocess.Popen(listen, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            network.cut([1])
            ask = network.at(1, ["timeout", "2", *python, ASK, address])
            assert subprocess.run(ask, check=False).returncode == 124  # the time was over
            server.kill()
    assert not list(Path("/run/netns").glob(f"scaling-{os.getpid()}-*"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "condition",
    [Condition("blend", 2, 0), Condition("average", 2, 0, task="cartpole", disturbance="churn")],
    ids=str,
)
def test_two_children_train_and_are_judged(condition: Condition) -> None:
    limit = 26.0 if condition.disturbance == "churn" else 8.0
    row = json.loads(json.dumps(command.measure(condition, limit)))
    assert Condition.of(row) == condition
    assert row["steps"] > 0 and row["seconds"] <= limit + 1.0
    assert len(row["use"]) == 2 and max(row["use"]) < 1.1
    assert row["sent"] > 1_000 and row["received"] > 1_000
    reached = row["reached"]
    assert reached is None or 0.0 < reached["seconds"] <= row["seconds"] + 1.0
