"""Where torch is not installed: training, evaluating and acting, and what is said of the rest."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

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
import json, sys, genkidama
for out, (file, changes, episodes, write) in json.loads(sys.argv[1]).items():
    experiment = genkidama.Experiment.load(file).with_settings(changes)
    run = genkidama.train(experiment, children=1, cores=1, out=out, episodes=episodes)
    assert run.load(best=False).snapshot.version > 1
    assert (run.evaluation or {"episodes": 0})["episodes"] == episodes
    policy = run.policy()
    environment = policy.make_environment()
    observation, _ = environment.reset(seed=0)
    action, _ = policy.predict(observation)
    assert environment.action_space.contains(action)
    assert policy.explain(observation).kind in ("probabilities", "means", "values")
    assert not write or getattr(policy, write)(f"{out}.{write}").exists()
    assert not any("Traceback" in path.read_text() for path in run.path.glob("logs/*"))
"""

ASKS = """
import asyncio, sys, genkidama
from genkidama.child.backend import make_backend
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model

def train(experiment):
    genkidama.train(experiment, children=1, cores=1, out="none")

def build(experiment):
    Model(experiment, make_environment(experiment.environment))

def begin(experiment):
    asyncio.run(make_backend(experiment, 1, "pi").startup())

def act(_):
    genkidama.Policy.load(sys.argv[1]).module

for ask, changes in (
    (train, {"network.name": "convolutional"}),
    (build, {"network.name": "mine:Mine"}),
    (build, {"algorithm.name": "mine:Learner"}),
    (begin, {"child.backend": "ga3c"}),
    (act, {}),
):
    try:
        ask(genkidama.Experiment(environment="CartPole-v1").with_settings(changes))
    except genkidama.GenkidamaError as error:
        print(error)
"""

SHORT = {"stop": {"steps": 800}, "child.exchange_seconds": 0.1, "algorithm.batch_size": 128}

#: Examples, what is changed of them, the episodes of their evaluation, and a form that their policy
#: is written in. One of each will do: policies act alike, but for the values of DQN.
EXAMPLES = {
    "actors, and a learner beside the parent": (
        "lunarlander/lunarlander",
        {**SHORT, "environment.id": "CartPole-v1", "parent.rule_options.batch": 128},
        2,
        "to_c",
    ),
    "a gradient's loss": (
        "cartpole/cartpole",
        {
            **SHORT,
            "parent.rule": "gradient",
            "parent.rule_options": {"outlier_sigmas": 3.0},
            "child.exchange": "update",
        },
        0,
        "",
    ),
    "dqn": (
        "cartpole/dqn",
        {
            **SHORT,
            "stop": {"steps": 400},
            "child.exchange": "update",  # a fast machine is done before 0.1 s are over twice
            "algorithm.batch_size": 4,
            "algorithm.start_steps": 200,
        },
        0,
        "to_js",
    ),
}


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(CUSTOMIZED)
    paths, looked = os.pathsep.join(map(str, (folder, ROOT))), str(folder / "looked")
    words = ("-c", script, *arguments)
    return python(*words, folder=folder, PYTHONPATH=paths, LOOKED_FOR_TORCH=looked)


def test_it_trains_evaluates_and_acts_and_no_process_imports_torch(tmp_path: Path) -> None:
    examples = {
        name: (str(ROOT / "examples" / f"{file}.toml"), *others)
        for name, (file, *others) in EXAMPLES.items()
    }
    done = run(tmp_path, LEARNS, json.dumps(examples))
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
    assert said[:2] == [
        f"network.name = 'convolutional': needs torch, {install}",
        f"network.name = 'mine:Mine': needs torch, {install}",
    ]
    assert said[2].startswith("algorithm.name = 'mine:Learner': cannot import 'mine': No module")
    assert "; pip install 'genkidama-rl[torch]'" in said[2]
    assert said[3:] == [
        f"child.backend = 'ga3c': needs torch, {install}",
        f"Policy.module: needs torch, {install}",
    ]
