"""Where torch is not installed: training, evaluating and acting, and what is said of the rest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from tests.helpers import ROOT, python, untrained

#: Every process of Python's imports this at its start: it finds no torch, and notes who looks.
CUSTOMIZED = """
import os, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            with open(os.environ["LOOKED_FOR_TORCH"], "a") as file:
                print(sys.argv, file=file)
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Missing())
"""

LEARNS = """
import sys, genkidama
experiment = genkidama.Experiment.load(sys.argv[1]).with_settings({
    "stop": {"steps": 3000},
    "child.exchange_seconds": 0.1,
    "child.cores": 1,
    **eval(sys.argv[2]),
})
run = genkidama.train(experiment, children=1, out="run")
assert len(genkidama.evaluate(run, episodes=2, cores=1).returns) == 2
policy = run.policy()
environment = policy.make_environment()
observation, _ = environment.reset(seed=0)
action, _ = policy.predict(observation)
assert environment.action_space.contains(action)
assert all(path.exists() for path in (policy.to_c("policy.h"), policy.to_js("policy.js")))
assert policy.explain(observation).kind in ("probabilities", "means", "values")
assert not any("Traceback" in path.read_text() for path in run.path.glob("logs/*"))
"""

ASKS = """
import sys, genkidama
for changes in (
    {"network.name": "convolutional"},
    {"network.activation": "silu"},
    {"network.name": "mine:Mine"},
    {"algorithm.name": "mine:Learner"},
    {"child.backend": "ga3c"},
):
    given = {"stop": {"steps": 10}, "child.cores": 1, **changes}
    try:
        experiment = genkidama.Experiment(environment="CartPole-v1").with_settings(given)
        genkidama.train(experiment, children=1, out="none")
    except genkidama.GenkidamaError as error:
        print(error)
try:
    genkidama.Policy.load(sys.argv[1]).module
except genkidama.GenkidamaError as error:
    print(error)
"""

EXAMPLES = {
    "lunarlander": ("lunarlander/lunarlander", {}),  # actors, and a learner beside the parent
    "a gradient's loss": (
        "cartpole/cartpole",
        {
            "parent.rule": "gradient",
            "parent.rule_options": {"outlier_sigmas": 3.0},
            "child.exchange": "update",
        },
    ),
    "dqn": ("cartpole/dqn", {"stop": {"steps": 1000}}),
}


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(CUSTOMIZED)
    paths, looked = os.pathsep.join(map(str, (folder, ROOT))), str(folder / "looked")
    words = ("-c", script, *arguments)
    return python(*words, folder=folder, PYTHONPATH=paths, LOOKED_FOR_TORCH=looked)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_trains_evaluates_and_acts_and_no_process_imports_torch(
    tmp_path: Path, name: str
) -> None:
    file, changes = EXAMPLES[name]
    done = run(tmp_path, LEARNS, str(ROOT / "examples" / f"{file}.toml"), repr(changes))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "looked").exists()


def test_what_needs_torch_names_the_setting_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import genkidama\n"
        "class Mine(genkidama.Network): ...\n"
        "class Learner(genkidama.PPO):\n"
        "    def losses(self, rollout, rng):\n"
        "        yield from super().losses(rollout, rng)\n"
    )
    experiment = Experiment(environment=Environment(id="CartPole-v1"))
    saved = untrained(tmp_path / "saved", experiment)
    (checkpoint,) = (saved.path / "checkpoints").glob("*.safetensors")
    done = run(tmp_path, ASKS, str(checkpoint))
    assert done.returncode == 0, done.stderr
    install = "which is not installed: pip install 'genkidama-rl[torch]'"
    said = done.stdout.splitlines()
    assert said[:3] == [
        f"network.name = 'convolutional': needs torch, {install}",
        f"network.activation = 'silu': needs torch, {install}",
        f"network.name = 'mine:Mine': needs torch, {install}",
    ]
    assert said[3].startswith("algorithm.name = 'mine:Learner': cannot import 'mine': No module")
    assert "; pip install 'genkidama-rl[torch]'" in said[3]
    assert said[4:] == [
        f"child.backend = 'ga3c': needs torch, {install}",
        f"Policy.module: needs torch, {install}",
    ]
