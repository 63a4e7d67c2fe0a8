"""Asynchronous advantage actor-critic: one update from each batch of steps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from genkidama.experiment import Algorithm
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, advantages

__all__ = ["A3C", "a3c_loss", "normalized"]


def a3c_loss(log_pi: Tensor, entropy: Tensor, value: Tensor, advantage: Tensor, algorithm: Algorithm) -> Tensor:
    """Mean over the batch of −log π(a_t|s_t)·A_t + c_v·(R_t − V(s_t))² − c_e·H(π(·|s_t)).

    Shapes: all (n,); the result is a scalar. `advantage` carries no gradient; R_t = A_t + V(s_t) is a
    constant too. Mnih et al. 2016, §4.2 and algorithm S3; the thesis has c_v = 1 and c_e = 0.
    """
    returns = advantage + value.detach()
    if algorithm.normalize_advantages:
        advantage = normalized(advantage)
    loss = algorithm.value_coefficient * functional.mse_loss(value, returns) - (log_pi * advantage).mean()
    if algorithm.entropy_coefficient:
        loss = loss - algorithm.entropy_coefficient * entropy.mean()
    return loss


def normalized(advantage: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1; a batch of one step stays as it is."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


class A3C:
    """The learner `algorithm.name = "a3c"`: one loss a batch, at the weights that acted."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm, self._model = algorithm, model

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        algorithm, n = self._algorithm, len(rollout.rewards)
        outputs, values = self._model.network(torch.cat((rollout.observations, rollout.cut_observations)))
        known = values.detach().numpy()
        advantage = torch.from_numpy(advantages(rollout, known[:n], known[n:], algorithm.gamma, algorithm.gae_lambda))
        head, outputs = self._model.head, outputs[:n]
        log_pi = head.log_probability(outputs, rollout.actions)
        entropy = head.entropy(outputs) if algorithm.entropy_coefficient else log_pi
        yield a3c_loss(log_pi, entropy, values[:n], advantage, algorithm)
