"""Learning from the steps of other machines: rows (see `rule`) become a rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import learning_rate
from genkidama.learning.learners import make_learner, updates
from genkidama.learning.model import Model, Spaces, scaled
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.learning.rollout import Rollout
from genkidama.plugins.actors.rule import Columns
from genkidama.protocol.diagnostics import SHAPE, Diagnostics, Window
from genkidama.protocol.vector import is_finite

Array = npt.NDArray[Any]

#: Steps of a batch that the divergence of the policies is estimated from.
_MEASURED_STEPS = 256


def columns_of(model: Model) -> Columns:
    """The columns of a row of this model's experience."""
    discounted = model.experiment.environment.normalize_rewards
    return Columns(model.observation_size, model.head.columns, discounted, model.choices)


def rollout_of(rows: Array, columns: Columns, model: Model, progress: float) -> Rollout:
    """The rollout of the rows of one or several blocks, normalized and scaled.

    A trajectory continues from a step in the next row, if that is a step and holds the observation
    that followed. Wherever else it does not terminate it is cut, and its value continues from the
    observation that followed. The rows, (n, M), have no `Columns.problem` in any of the blocks.
    """
    distance = rows[:, columns.following].astype(np.intp)
    steps = np.flatnonzero(distance)
    terminated = rows[steps, columns.terminated] > 0.0
    after = steps + np.where(terminated, 0, distance[steps])
    goes_on = (distance[steps] == 1) & (distance[after] > 0) & ~terminated
    cut = ~goes_on & ~terminated
    observations = _observations(rows[steps], columns, model)
    cut_observations = _observations(rows[after[cut]], columns, model)
    normalize = model.normalizer()
    if normalize is not None:
        observations, cut_observations = normalize(observations), normalize(cut_observations)
    return Rollout(
        model.native(observations),
        model.native(rows[steps, columns.actions].astype(model.head.dtype)),
        scaled(rows[steps, columns.reward], model.experiment.environment, model.moments("returns")),
        ~goes_on,
        np.flatnonzero(cut),
        model.native(cut_observations),
        log_mu=rows[steps, columns.log_mu],
        progress=progress,
    )


def _observations(rows: Array, columns: Columns, model: Model) -> Array:
    flat = np.ascontiguousarray(rows[:, : columns.observation])
    return flat.reshape(len(rows), *model.observation_shape)


class RowLearner:
    """A model, its learner and its optimizer, which learn from rows alone."""

    def __init__(self, experiment: Experiment, spaces: Spaces) -> None:
        self.experiment = experiment
        self.model = Model(experiment, spaces)
        self.columns = columns_of(self.model)
        self._learner = make_learner(experiment.algorithm, self.model)
        trainable = self.model.trainable
        #: The optimizer's vectors, float32 (rows, trainable), and its steps, float64 (1,).
        self.state = np.zeros((STATE_ROWS[experiment.optimizer.name], trainable), np.float32)
        self.clock = np.zeros(1, np.float64)
        self._optimizer = make_optimizer(
            experiment.optimizer,
            self.model.vector[:trainable],
            self.state,
            self.clock,
        )
        self._rng = self.model.generator(experiment.seed)
        #: Figures about the batch that was learned from last.
        self.figures: dict[str, float] = {}
        self._sums = np.zeros(SHAPE)
        self._diagnostics = Diagnostics(self._sums)
        self._window = Window()

    def learn(self, rows: Array, progress: float) -> Iterator[None]:
        """Learns from a batch, as for `rollout_of`. Between two updates it is the caller's turn."""
        experiment = self.experiment
        model = self.model
        before = model.numbers.copy()
        rollout = rollout_of(rows, self.columns, model, progress)
        rollout.diagnostics = self._diagnostics
        self._take_statistics(rows)
        divergence = self._divergence(rollout)
        settings = experiment.optimizer
        rate = learning_rate(settings, progress)
        limit = experiment.algorithm.max_gradient_norm
        found = model.gradients(self._learner, rollout, self._rng)
        count = 0
        for _ in updates(found, model, self._optimizer, rate, limit, self._diagnostics):
            count += 1
            yield
        self.figures = self._window.read(self._sums) | {
            "learning_rate": rate,
            "kl": divergence,
            "steps": float(len(rollout.rewards)),
            "updates": float(count),
        }
        # With moments that are infinite, Adam would never make a step again.
        if not (is_finite(model.numbers) and is_finite(self.state.ravel())):
            # Training diverged: the batch is forgotten, and the optimizer begins anew.
            model.numbers[:] = before
            self.state[:] = 0.0
            self.clock[:] = 0.0
            self.figures["diverged"] = 1.0

    def _take_statistics(self, rows: Array) -> None:
        """Adds the batch to the running statistics, as the environment gave it."""
        steps = rows[rows[:, self.columns.following] > 0.0]
        observations = self.model.moments("observations")
        if observations is not None:
            observations.add(steps[:, : self.columns.observation])
        returns = self.model.moments("returns")
        if returns is not None:
            returns.add(steps[:, -1:])

    def _divergence(self, rollout: Rollout) -> float:
        """The divergence of the policy from those that acted: the mean of log μ − log π."""
        assert rollout.log_mu is not None
        some = slice(0, len(rollout.rewards), max(1, len(rollout.rewards) // _MEASURED_STEPS))
        outputs, _ = self.model.evaluate(rollout.observations[some])
        log_pi = self.model.log_probability(outputs, rollout.actions[some])
        return float(np.mean(rollout.log_mu[some] - log_pi))
