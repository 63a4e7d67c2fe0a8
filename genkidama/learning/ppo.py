"""Proximal policy optimization: each batch is used several times, in shuffled minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from genkidama.config.sections import Algorithm
from genkidama.learning.a3c import entropy_coefficient, evaluated, normalized, note_losses
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, advantages
from genkidama.protocol.diagnostics import approximate_kl

__all__ = ["PPO", "ppo_loss", "ppo_slopes"]

Array = npt.NDArray[Any]


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


def ppo_slopes(
    log_pi: Array,
    old_log_pi: Array,
    value: Array,
    advantage: Array,
    returns: Array,
    c_e: float,
    algorithm: Algorithm,
) -> tuple[Array, Array, float]:
    """The derivatives of `ppo_loss` with respect to log π, V and each entropy.

    With s = 1/m for the mean and 1 for the sum, ∂/∂log π_t = −s·A_t·ρ_t, or 0 where the clipped
    ratio is the smaller term; ∂/∂V_t = 2·s·c_v·(V_t − R_t); ∂/∂H_t = −s·c_e.
    """
    share = np.float32(1.0 if algorithm.reduction == "sum" else 1.0 / len(log_pi))
    ratio = np.exp(log_pi - old_log_pi)
    counts = np.where(advantage > 0.0, ratio <= 1.0 + algorithm.clip, ratio >= 1.0 - algorithm.clip)
    at_value = (2.0 * share * np.float32(algorithm.value_coefficient)) * (value - returns)
    return -share * advantage * ratio * counts, at_value, -float(share) * c_e


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
        batch = self._batch(rollout)
        c_e = entropy_coefficient(algorithm, rollout.progress)
        for _ in range(algorithm.epochs):
            order = torch.randperm(len(batch[0]), generator=rng).to(self._model.device)
            # One shuffled copy an epoch, cut into minibatches: gathering each of them costs more.
            shuffled = (column[order].split(algorithm.minibatch_size) for column in batch)
            for state, action, old, weight, target in zip(*shuffled, strict=True):
                outputs, value = network(state)
                log_pi = head.log_probability(outputs, action)
                entropy = head.entropy(outputs) if c_e else log_pi
                if rollout.diagnostics is not None and rollout.diagnostics.due(len(old)):
                    seen = (log_pi.detach(), old, value.detach(), weight, target)
                    arrays = [one.cpu().numpy() for one in seen]
                    self._note(rollout, outputs.detach(), c_e, *arrays)
                yield ppo_loss(log_pi, old, entropy, value, weight, target, c_e, algorithm)

    def gradients(self, rollout: Rollout, rng: torch.Generator) -> Iterator[None]:
        """The gradients of `losses`, written by hand."""
        algorithm = self._algorithm
        network = self._model.by_hand
        assert network is not None
        batch = [column.numpy() for column in self._batch(rollout)]
        c_e = entropy_coefficient(algorithm, rollout.progress)
        n = len(batch[0])
        for _ in range(algorithm.epochs):
            order = torch.randperm(n, generator=rng).numpy()
            shuffled = [column[order] for column in batch]
            for start in range(0, n, algorithm.minibatch_size):
                part = slice(start, start + algorithm.minibatch_size)
                state, action, old, weight, target = (column[part] for column in shuffled)
                outputs, value = network.forward(state)
                log_pi, back = self._model.head.slopes(outputs, action)  # type: ignore[attr-defined]
                at_log_pi, at_value, at_entropy = ppo_slopes(
                    log_pi, old, value, weight, target, c_e, algorithm
                )
                if rollout.diagnostics is not None and rollout.diagnostics.due(len(old)):
                    seen = torch.from_numpy(outputs)
                    self._note(rollout, seen, c_e, log_pi, old, value, weight, target)
                network.backward(back(at_log_pi, at_entropy), at_value)
                yield

    def _note(
        self,
        rollout: Rollout,
        outputs: Tensor,
        c_e: float,
        log_pi: Array,
        old: Array,
        value: Array,
        advantage: Array,
        returns: Array,
    ) -> None:
        """Notes how the update of a minibatch goes; the arrays are (m,)."""
        diagnostics = rollout.diagnostics
        assert diagnostics is not None
        algorithm = self._algorithm
        log_ratio = log_pi - old
        ratio = np.exp(log_ratio)
        clipped = ratio.clip(1.0 - algorithm.clip, 1.0 + algorithm.clip)
        note_losses(
            diagnostics,
            algorithm,
            c_e,
            -float(np.minimum(ratio * advantage, clipped * advantage).mean()),
            returns - value,
            self._model.head.entropy(outputs).mean().item(),
            approximate_kl=approximate_kl(log_ratio),
            clip_fraction=np.count_nonzero(clipped != ratio) / len(ratio),
        )

    def _batch(self, rollout: Rollout) -> tuple[Tensor, ...]:
        """Observations, actions, log π_old, advantages and returns of its n steps."""
        algorithm = self._algorithm
        device = self._model.device
        observations, actions = rollout.observations.to(device), rollout.actions.to(device)
        with torch.no_grad():
            outputs, value, values, cut_values = evaluated(self._model, rollout)
            # Where agents and trainers do not wait for each other, an older policy has acted.
            acted = rollout.log_mu
            old_log_pi = (
                self._model.head.log_probability(outputs, actions)
                if acted is None
                else torch.from_numpy(acted).to(device)
            )
        advantage = torch.from_numpy(
            advantages(rollout, values, cut_values, algorithm.gamma, algorithm.gae_lambda)
        ).to(device)
        returns = advantage + value
        if rollout.diagnostics is not None:
            rollout.diagnostics.add_values(values, returns.cpu().numpy())
        if algorithm.normalize_advantages:
            advantage = normalized(advantage)
        return observations, actions, old_log_pi, advantage, returns
