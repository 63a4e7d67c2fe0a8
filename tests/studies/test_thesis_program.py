"""The harness around the thesis' own programs; the programs here are ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import store
from studies.thesis import program

#: It has all that is replaced, and sets networks aside as the thesis' program does.
SOURCE = """
import gym
import matplotlib.pyplot as plt
import torch
from torch import nn
NUM_CPUS: int = 9
GAMMA = .9
env = gym.make('LunarLander-v2')
steps = 0
env.reset()
done = False
while not done:
    state, reward, done, _ = env.step(steps % 4)
    steps += 1
assert len(state) == 8 and steps > 20
torch.manual_seed(5)
glob_net = nn.Sequential(nn.Linear(8, 128), nn.Linear(128, 4), nn.Linear(8, 128), nn.Linear(128, 1))
opt = torch.optim.SGD(glob_net.parameters(), 1e-4)
glob_net[3].bias.sum().backward()
opt.zero_grad()
assert glob_net[3].bias.grad is not None and (NUM_CPUS, GAMMA) == (4, 0.999)
for i in range(99, 2000, 100):
    torch.save(glob_net, f'lunar_lander_{i}_99.pt')
print(f'EPISODE {NOWHERE}')
plt.show()
"""

#: Children that listen, and a parent that talks to both of them.
OPTIONS = """
import argparse
options = argparse.ArgumentParser()
options.add_argument("-ip", nargs="+")
options.add_argument("-p", type=int)
options = options.parse_args()
"""
SEVERAL = {
    "init_child.py": OPTIONS
    + """
import socket
import gym
from MARL.CoresOrchestrator import cores
from MARL.SingleCore import wait
assert gym.make("LunarLander-v2").observation_space.shape == (8,)
with socket.create_server((options.ip[0], options.p)) as server:
    print(f"[LISTENING] {cores}")
    connection, _ = server.accept()
    wait(connection)
""",
    "init_parent.py": OPTIONS
    + """
from MARL.Sockets.parent import run
run(options.ip, options.p)
""",
    "MARL/CoresOrchestrator.py": """
import multiprocessing as mp
cores = mp.cpu_count()
""",
    "MARL/SingleCore.py": """
import gym
import pandas as pd
def wait(connection):
    class Optimizer:
        def zero_grad(self, set_to_none):
            assert set_to_none is False
    Optimizer().zero_grad()
    print(f'EPISODE {connection}')
    df_res = pd.DataFrame()
    ready = []
    while not ready:
        ready.append(connection.recv(1))
        pass
    connection.send(b"4")
""",
    "MARL/Sockets/parent.py": """
import socket
import time
import gym
import torch
import pandas as pd
from torch import nn
def run(hosts, port):
    connections = [socket.create_connection((host, port)) for host in hosts]
    for connection in connections:
        connection.send(b"1")
        assert connection.recv(1) == b"4"
    torch.manual_seed(5)
    sizes = (8, 128), (128, 4), (8, 128), (128, 1)
    net = nn.Sequential(*(nn.Linear(*size) for size in sizes))
    for count in range(200, 4001, 200):
        torch.save(net, f'Tests/lunar_lander_a4c_{count//2}.pt')
    time.sleep(60)
""",
}


def clone(path: Path, files: Mapping[str, str]) -> Path:
    for name, source in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(source)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("children", "files"), [(1, {program.SCRIPT: SOURCE}), (2, SEVERAL)], ids=["one", "two"]
)
def test_a_run_is_trained_judged_and_not_repeated(
    children: int, files: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, work = tmp_path / "rows.jsonl", tmp_path / "work"
    words = [str(clone(tmp_path / "clone", files)), "--runs", "3", "--episodes", "2"]
    words += ["--children", str(children), "--results", str(results), "--work", str(work)]
    assert program.main(words) == 0
    (row,) = store.read(results)
    assert [moment for moment, _, _ in row["curve"]] == list(range(100, 2001, 100))
    assert row["seed"] == 3 and len(row["returns"]) == 2
    assert not (work / "3").exists()
    assert "run 3: judging 20/20" in capsys.readouterr().out
    assert program.main(words) == 0
    assert len(store.read(results)) == 1
