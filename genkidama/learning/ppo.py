"""Proximal policy optimization: each batch is used several times, in shuffled minibatches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from genkidama.learning.a3c import entropy_coefficient, evaluated, normalized
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, advantages
from genkidama.settings import Algorithm

__all__ = ["PPO", "ppo_loss"]


def ppo_loss(
    log_pi: Tensor,
    old_log_pi: Tensor,
    entropy: Tensor,
    value: Tensor,
    advantage: Tensor,
    returns: Tensor,
    c_e: float,
    algorithm: Algorithm,
) -> Tensor:
    """Mean or sum over the minibatch of −L^CLIP + c_v·(R_t − V(s_t))² − c_e·H(π(·|s_t)).

    Shapes: all (m,); the result is a scalar. Only `log_pi`, `entropy` and `value` carry gradients.
    L^CLIP = min(ρ_t·A_t, clip(ρ_t, 1−ε, 1+ε)·A_t) with ρ_t = π(a_t|s_t)/π_old(a_t|s_t):
    Schulman et al. 2017, eq. 7 and 9.
    """
    reduce = torch.sum if algorithm.reduction == "sum" else torch.mean
    ratio = torch.exp(log_pi - old_log_pi)
    clipped = ratio.clamp(1.0 - algorithm.clip, 1.0 + algorithm.clip)
    surrogate = reduce(torch.minimum(ratio * advantage, clipped * advantage))
    loss = (
        algorithm.value_coefficient
        * functional.mse_loss(value, returns, reduction=algorithm.reduction)
        - surrogate
    )
    if c_e:
        loss = loss - c_e * reduce(entropy)
    return loss


class PPO:
    """The learner `algorithm.name = "ppo"`: `epochs` passes of minibatches.

    Each loss is taken at the newest weights.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        algorithm = self._algorithm
        head = self._model.head
        network = self._model.network
        device = self._model.device
        observations, actions = rollout.observations.to(device), rollout.actions.to(device)
        with torch.no_grad():
            outputs, value, values, cut_values = evaluated(self._model, rollout)
            # Where agents and trainers do not wait for each other, an older policy has acted.
            acted = rollout.log_mu
            old_log_pi = (
                head.log_probability(outputs, actions)
                if acted is None
                else torch.from_numpy(acted).to(device)
            )
        advantage = torch.from_numpy(
            advantages(rollout, values, cut_values, algorithm.gamma, algorithm.gae_lambda)
        ).to(device)
        returns = advantage + value
        c_e = entropy_coefficient(algorithm, rollout.progress)
        if algorithm.normalize_advantages:
            advantage = normalized(advantage)
        batch = (observations, actions, old_log_pi, advantage, returns)
        for _ in range(algorithm.epochs):
            order = torch.randperm(len(actions), generator=rng).to(device)
            # One shuffled copy an epoch, cut into minibatches: gathering each of them costs more.
            shuffled = (column[order].split(algorithm.minibatch_size) for column in batch)
            for state, action, old, weight, target in zip(*shuffled, strict=True):
                outputs, value = network(state)
                log_pi = head.log_probability(outputs, action)
                entropy = head.entropy(outputs) if c_e else log_pi
                yield ppo_loss(log_pi, old, entropy, value, weight, target, c_e, algorithm)
