"""Experiments on problems whose optima are known, and whether weights solve them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from genkidama.config.experiment import Experiment
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.protocol.vector import Vector
from tests.environments import BANDIT_BEST, bandit_contexts, corridor_cells, corridor_values


def experiment(
    name: str, options: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> Experiment:
    environment = {
        "id": f"tests.environments:{name}",
        "options": options or {},
        **sections.pop("environment", {}),
    }
    return Experiment.from_dict(
        {"environment": environment, "network": {"hidden": [16]}, **sections}
    )


class Unbuilt:
    """A learner that cannot be built, and needs no torch for that."""

    def __init__(self, algorithm: Any, model: Any) -> None:
        raise ValueError("no idea")

    def gradients(self, rollout: Any, rng: Any) -> Any: ...


FREE = {"exchange": "free"}


def a3c(**settings: Any) -> dict[str, Any]:
    return {"name": "a3c", "gamma": 0.5, **settings}


class Judge:
    """What the weights say about a list of observations."""

    def __init__(self, settings: Experiment, observations: np.ndarray) -> None:
        self._model = Model(settings, make_environment(settings.environment))
        self._observations = observations

    def __call__(self, weights: Vector) -> tuple[np.ndarray, np.ndarray]:
        """π(·|s) and V(s) of each."""
        self._model.numbers[:] = weights
        outputs, values = self._model.evaluate(self._observations)
        powers = np.exp(outputs - outputs.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True), values


def bandit_solved(settings: Experiment) -> Callable[[Vector], bool]:
    """The best action is taken with 95 % in every context, and its value 1 is known."""
    judge = Judge(settings, bandit_contexts())

    def solved(weights: Vector) -> bool:
        policy, values = judge(weights)
        return bool(
            (policy[np.arange(3), BANDIT_BEST] > 0.95).all() and (np.abs(values - 1.0) < 0.1).all()
        )

    return solved


def corridor_solved(settings: Experiment) -> Callable[[Vector], bool]:
    """It goes right in every cell with 90 %, and the values are those of going right."""
    judge = Judge(settings, corridor_cells())

    def solved(weights: Vector) -> bool:
        policy, values = judge(weights)
        return bool(
            (policy[:, 1] > 0.9).all()
            and (np.abs(values - corridor_values(settings.algorithm.gamma)) < 0.15).all()
        )

    return solved
