"""Proximal policy optimization: each batch is used several times, in shuffled minibatches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from genkidama.experiment import Algorithm
from genkidama.learning.a3c import normalized
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, advantages

__all__ = ["PPO", "ppo_loss"]


def ppo_loss(
    log_pi: Tensor, old_log_pi: Tensor, entropy: Tensor, value: Tensor, advantage: Tensor, returns: Tensor, algorithm: Algorithm
) -> Tensor:
    """Mean over the minibatch of −L^CLIP + c_v·(R_t − V(s_t))² − c_e·H(π(·|s_t)).

    Shapes: all (m,); the result is a scalar. Only `log_pi`, `entropy` and `value` carry gradients.
    L^CLIP = min(ρ_t·A_t, clip(ρ_t, 1−ε, 1+ε)·A_t) with ρ_t = π(a_t|s_t)/π_old(a_t|s_t):
    Schulman et al. 2017, eq. 7 and 9.
    """
    ratio = torch.exp(log_pi - old_log_pi)
    clipped = ratio.clamp(1.0 - algorithm.clip, 1.0 + algorithm.clip)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
    loss = algorithm.value_coefficient * functional.mse_loss(value, returns) - surrogate
    if algorithm.entropy_coefficient:
        loss = loss - algorithm.entropy_coefficient * entropy.mean()
    return loss


class PPO:
    """The learner `algorithm.name = "ppo"`: `epochs` passes of minibatches; each loss at the newest weights."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm, self._model = algorithm, model

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        algorithm, head, network = self._algorithm, self._model.head, self._model.network
        n = len(rollout.rewards)
        with torch.no_grad():
            outputs, values = network(torch.cat((rollout.observations, rollout.cut_observations)))
            old_log_pi = head.log_probability(outputs[:n], rollout.actions)
        known = values.numpy()
        advantage = torch.from_numpy(advantages(rollout, known[:n], known[n:], algorithm.gamma, algorithm.gae_lambda))
        returns = advantage + values[:n]
        if algorithm.normalize_advantages:
            advantage = normalized(advantage)
        batch = (rollout.observations, rollout.actions, old_log_pi, advantage, returns)
        for _ in range(algorithm.epochs):
            order = torch.randperm(n, generator=rng)
            # One shuffled copy an epoch, of which minibatches are slices: gathering each of them costs more.
            shuffled = (column[order].split(algorithm.minibatch_size) for column in batch)
            for observations, actions, old, weight, target in zip(*shuffled, strict=True):
                outputs, value = network(observations)
                log_pi = head.log_probability(outputs, actions)
                entropy = head.entropy(outputs) if algorithm.entropy_coefficient else log_pi
                yield ppo_loss(log_pi, old, entropy, value, weight, target, algorithm)
