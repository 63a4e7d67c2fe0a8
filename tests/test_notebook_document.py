"""`examples/notebook/first.ipynb`: it runs as it stands there, in a real kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

nbformat = pytest.importorskip("nbformat", reason="pip install 'genkidama[dev]'")
NOTEBOOK = ROOT / "examples/notebook/first.ipynb"

#: Two ways to name a class of the notebook itself, and one to pass it.
OF_ITS_OWN = """
import genkidama, gymnasium
from genkidama.experiment import Environment, Experiment, Stop

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

gymnasium.register("Mine-v0", Mine)
gymnasium.register("Mine-v1", "__main__:Mine")
for name in (Mine, "__main__:Mine", "Mine-v0", "Mine-v1"):
    try:
        environment = Environment(id=name)
        genkidama.train(Experiment(environment=environment), children=1, out="runs/own")
    except genkidama.ConfigurationError as error:
        print(error)
"""


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
    trained, plotted, explained, acted, evaluated, filmed, _, mine = map(outputs, cells[1:])
    assert "CartPole-v1" in trained  # the display
    assert "<th style='text-align:left'>mean training return</th>" in trained  # the run
    assert "learning.png" in plotted
    assert "<Policy for CartPole-v1: runs/cart/checkpoints/" in explained
    assert "Explanation(kind='probabilities'" in explained
    assert acted.strip() in ("0", "1", "np.int64(0)", "np.int64(1)")
    assert "over 20 episodes" in evaluated
    assert any("image/gif" in output.get("data", {}) for output in cells[6].outputs), filmed
    assert "runs/mine" in mine


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_class_of_the_notebook_itself_is_refused_with_the_way_out(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(OF_ITS_OWN)])
    lines = outputs(executed(notebook, tmp_path).cells[0]).split("\n")
    lines = [line for line in lines if line]
    assert len(lines) == 4
    for line in lines:
        assert "defined in a notebook or a script, from which the processes of a child" in line
        assert line.endswith("name it 'my_module:Mine'")
    assert not (tmp_path / "runs").exists()
