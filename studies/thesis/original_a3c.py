"""A3C with the faults of the thesis' own program, to see what they are worth.

If a batch ends within an episode, that program bootstraps with the value of the last stored state
instead of the state that follows (`OriginalBootstrap`). It also treats an episode that reaches the
time limit as if it had terminated (`OriginalTruncation`). `OriginalA3C` has both faults,
`examples/lunarlander/thesis.toml` has neither. These are plugs, as users write them:

    PYTHONPATH=. genkidama train examples/lunarlander/thesis.toml --children 2 --cores 4 \
        --set algorithm.name=studies.thesis.original_a3c:OriginalA3C

`OriginalWeights` is that program's network, with the weights that it begins with in every run:

    PYTHONPATH=. genkidama train examples/lunarlander/thesis.toml --children 2 --cores 4 \
        --set network.name=studies.thesis.original_a3c:OriginalWeights

`SummedGradients` reads the thesis' Algorithm 1 to the letter instead: gradients are reset where an
episode begins (line 4), not where a batch does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from genkidama.config.sections import Algorithm
from genkidama.config.sections import Network as NetworkSettings
from genkidama.errors import ConfigurationError
from genkidama.learning.a3c import A3C
from genkidama.learning.learners import Loss
from genkidama.learning.model import Model
from genkidama.learning.perceptron import Perceptron
from genkidama.learning.rollout import Rollout
from genkidama.learning.tensors.networks import ActorCritic


class OriginalA3C(A3C):
    """For batches that end with their episode (`across_episodes = false`)."""

    bootstrap: ClassVar[bool] = True
    truncation: ClassVar[bool] = True

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        super().__init__(algorithm, model)
        self._full = algorithm.batch_size

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        self._spoil(rollout)
        yield from super().losses(rollout, rng)

    def gradients(self, rollout: Rollout, rng: np.random.Generator) -> Iterator[Loss]:
        self._spoil(rollout)
        yield from super().gradients(rollout, rng)

    def _spoil(self, rollout: Rollout) -> None:
        if len(rollout.cuts):
            at_limit = len(rollout.rewards) < self._full  # cut before it was full
            if at_limit and self.truncation:
                rollout.cuts = rollout.cuts[:0]
                rollout.cut_observations = rollout.cut_observations[:0]
            elif not at_limit and self.bootstrap:
                rollout.cut_observations = rollout.observations[-1:]


class OriginalBootstrap(OriginalA3C):
    """The first fault alone."""

    truncation = False


class OriginalTruncation(OriginalA3C):
    """The second fault alone."""

    bootstrap = False


class SummedGradients(A3C):
    """Each batch steps along the sum of its episode's gradients so far.

    For batches that end with their episode (`across_episodes = false`), without a limit of the
    gradient's norm, and with a network that has gradients by hand.

    Raises:
        ConfigurationError: the network has none; its gradients would not be summed.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        super().__init__(algorithm, model)
        if not isinstance(model.network, Perceptron):
            raise ConfigurationError(
                f"network.name = {model.experiment.network.name!r}: SummedGradients needs "
                "'actor-critic' with activation 'tanh' or 'relu'"
            )
        self._full = algorithm.batch_size
        self._sum = np.zeros_like(model.gradient)

    def gradients(self, rollout: Rollout, rng: np.random.Generator) -> Iterator[Loss]:
        goes_on = len(rollout.cuts) > 0 and len(rollout.rewards) == self._full
        for loss in super().gradients(rollout, rng):
            self._sum += self._model.gradient
            self._model.gradient[:] = self._sum
            yield loss
        if not goes_on:
            self._sum[:] = 0.0


class OriginalWeights(ActorCritic):
    """Begins with the weights of torch's seed 0, whatever the run's seed is.

    That program sets the seed once a network's layers are there, and then draws the weights of the
    policy's layers, and of the value's.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
        settings: NetworkSettings,
    ) -> None:
        super().__init__(observation_space, action_space, settings)
        torch.manual_seed(0)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, settings.initial_deviation)
