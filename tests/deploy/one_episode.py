"""What a machine must be able to do before it can be a child.

It plays an episode of LunarLander, learns from it, and falls as everywhere.

Run by the Python of an installed machine; writes one line of JSON. Nothing of it is imported by
tests.
"""

from __future__ import annotations

import json
import platform

import numpy as np

from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import make_learner, updates
from genkidama.learning.model import Model
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.learning.rollout import Rollout

experiment = Experiment.from_dict(
    {
        "environment": {"id": "LunarLander-v3"},
        "network": {"hidden": [16]},
        "algorithm": {"max_gradient_norm": 0.5},
    }
)
environment = make_environment(experiment.environment)

environment.reset(seed=7)
for step in range(60):
    fallen, *_ = environment.step(step % 4)

model = Model(experiment, environment)
sample, outputs = model.head.sampler(np.random.default_rng(7), 0.0), model.network.acting()
observations, actions, rewards, over = [], [], [], False
observation, _ = environment.reset(seed=7)
while not over:
    action = sample(outputs(observation))
    observations.append(observation)
    actions.append(action)
    observation, reward, terminated, truncated, _ = environment.step(
        model.head.to_environment(action)
    )
    rewards.append(float(reward))
    over = terminated or truncated
n = len(rewards)
ends = np.arange(n) == n - 1
rows = np.asarray(observations, np.float32)
columns = np.asarray(actions, model.head.dtype).reshape(n, -1)
rollout = Rollout(
    rows, columns, np.asarray(rewards, np.float32), ends, np.zeros(0, np.intp), rows[:0]
)

before = model.vector.copy()
settings = experiment.optimizer
state = np.zeros((STATE_ROWS[settings.name], model.trainable), np.float32)
optimizer = make_optimizer(settings, model.vector[: model.trainable], state, np.zeros(1))
learner = make_learner(experiment.algorithm, model)
found = model.gradients(learner, rollout, model.generator(0))
steps = sum(1 for _ in updates(found, model, optimizer, 1e-3))
print(
    json.dumps(
        {
            "machine": platform.machine(),
            "python": platform.python_version(),
            "steps": n,
            "return": sum(rewards),
            "fallen": [float(number) for number in fallen],
            "gradient_steps": steps,
            "moved": float(np.abs(model.vector - before).max()),
        }
    )
)
