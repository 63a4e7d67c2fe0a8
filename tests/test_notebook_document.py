"""`examples/notebook/first.ipynb`: it runs as it stands there, in a real kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

nbformat = pytest.importorskip("nbformat", reason="pip install 'genkidama-rl[dev]'")
NOTEBOOK = ROOT / "examples/notebook/first.ipynb"

#: A class of the notebook itself, in several cells, of which one does not run twice.
OF_ITS_OWN = (
    "%matplotlib inline\nimport genkidama, gymnasium\nimport numpy as np\n"
    "from genkidama.config.experiment import *\nopen('once', 'x').close()",
    "class Mine: pass",
    "length = 3\n\ndef over(count):\n    return count == length",
    """
class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(1, np.float32), 1.0, over(self.count), False, {}
""",
    """
gymnasium.register("Mine-v0", Mine)
try:
    genkidama.train(Experiment(environment="Mine-v0"), out="runs/refused")
except genkidama.ConfigurationError as error:
    print(error)
experiment = Experiment(environment=Mine, stop=Stop(episodes=20))
run = genkidama.train(experiment, children=1, cores=1, episodes=2, out="runs/own")
print(genkidama.evaluate(run, episodes=2).mean, run.policy().make_environment().reset()[0])
""",
)


def executed(notebook: Any, folder: Path) -> Any:
    """The notebook after each of its cells has been run."""
    client = pytest.importorskip("nbclient").NotebookClient
    client(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def outputs(cell: Any) -> str:
    """All that a cell shows, as text and as HTML, but for warnings."""
    shown = []
    for output in cell.outputs:
        if output.get("name") == "stderr":
            continue
        data = output.get("data", {"text/plain": output.get("text", "")})
        shown += [str(value) for kind, value in data.items() if kind.startswith("text/")]
    return "\n".join(shown)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_notebook_works(tmp_path: Path) -> None:
    found = executed(nbformat.read(NOTEBOOK, as_version=4), tmp_path)
    cells = [cell for cell in found.cells if cell.cell_type == "code"]
    trained, plotted, explained, acted, evaluated, filmed, _, mine, last = map(outputs, cells[1:])
    assert "CartPole-v1" in trained  # the display
    assert "<th style='text-align:left'>status</th>" in trained  # the run
    assert "learning.png" in plotted
    assert "<Policy for CartPole-v1: runs/cart/checkpoints/" in explained
    assert "Explanation(kind='probabilities'" in explained
    assert acted.strip() in ("0", "1", "np.int64(0)", "np.int64(1)")
    assert float(evaluated.split()[0]) >= 60.0 and "over 20 episodes" in evaluated  # chance: 22
    assert any("image/gif" in output.get("data", {}) for output in cells[6].outputs), filmed
    assert "runs/mine" in mine
    assert float(last.split()[0]) >= 0.9  # 0.5 is chance
    assert "learning.png" in last


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_class_of_the_notebook_itself_is_trained(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in OF_ITS_OWN]
    lines = outputs(executed(nbformat.v4.new_notebook(cells=cells), tmp_path).cells[-1]).split("\n")
    assert [line for line in lines if line] == [
        "environment.id = 'Mine-v0': no other process can import by this name what a script or a "
        "notebook defines; give Mine itself, not its name in quotes",
        "3.0 [0.]",
    ]
    assert not (tmp_path / "runs/refused").exists()
    assert (tmp_path / "runs/own/notebook_own.py").read_text().startswith("import genkidama")
