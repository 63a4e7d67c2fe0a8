"""The harness around the thesis' own program; the program here is one of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies import store
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


def clone(path: Path, source: str = SOURCE) -> Path:
    path.mkdir()
    (path / program.SCRIPT).write_text(source)
    return path


@pytest.mark.slow
def test_a_run_is_trained_judged_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, work = tmp_path / "rows.jsonl", tmp_path / "work"
    words = [str(clone(tmp_path / "clone")), "--runs", "3", "--episodes", "2"]
    words += ["--results", str(results), "--work", str(work)]
    assert program.main(words) == 0
    (row,) = store.read(results)
    assert [moment for moment, _, _ in row["curve"]] == list(range(100, 2001, 100))
    assert row["seed"] == 3 and len(row["returns"]) == 2
    assert not (work / "3").exists()
    assert "run 3: judging 20/20" in capsys.readouterr().out
    assert program.main(words) == 0
    assert len(store.read(results)) == 1
