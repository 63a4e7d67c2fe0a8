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
from genkidama.learning.learners import entropy_coefficient, evaluated, normalized, note_losses
from genkidama.learning.model import Model
from genkidama.learning.numpy_gradients import ppo_slopes
from genkidama.learning.rollout import Rollout, advantages
from genkidama.protocol.diagnostics import Diagnostics, approximate_kl

__all__ = ["PPO", "ppo_loss"]

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


class PPO:
    """The learner `algorithm.name = "ppo"`: `epochs` passes of minibatches.

    Each loss is taken at the newest weights.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        head, network = self._model.head, self._model.network
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        for state, action, old, advantage, returns in self._minibatches(rollout, rng):
            outputs, value = network(state)
            log_pi = head.log_probability(outputs, action)
            entropy = head.entropy(outputs) if c_e else log_pi
            if rollout.diagnostics is not None and rollout.diagnostics.due(len(old)):
                known = (log_pi.detach(), old, value.detach(), advantage, returns)
                arrays = [one.cpu().numpy() for one in known]
                self._note(rollout.diagnostics, outputs.detach(), c_e, *arrays)
            yield ppo_loss(log_pi, old, entropy, value, advantage, returns, c_e, self._algorithm)

    def gradients(self, rollout: Rollout, rng: torch.Generator) -> Iterator[None]:
        """The gradients of `losses` in NumPy."""
        network = self._model.by_hand
        assert network is not None
        slopes = self._model.head.slopes  # type: ignore[attr-defined]
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        for minibatch in self._minibatches(rollout, rng):
            state, action, old, advantage, returns = (column.numpy() for column in minibatch)
            outputs, value = network.forward(state)
            log_pi, back = slopes(outputs, action)
            known = (log_pi, old, value, advantage, returns)
            if rollout.diagnostics is not None and rollout.diagnostics.due(len(old)):
                self._note(rollout.diagnostics, torch.from_numpy(outputs), c_e, *known)
            at_log_pi, at_value, at_entropy = ppo_slopes(*known, c_e, self._algorithm)
            network.backward(back(at_log_pi, at_entropy), at_value)
            yield

    def _minibatches(self, rollout: Rollout, rng: torch.Generator) -> Iterator[tuple[Tensor, ...]]:
        """The columns of `_batch` in minibatches, shuffled anew for each epoch."""
        batch = self._batch(rollout)
        size = rollout.minibatch_size or self._algorithm.minibatch_size
        for _ in range(self._algorithm.epochs):
            order = torch.randperm(len(batch[0]), generator=rng).to(self._model.device)
            # One shuffled copy an epoch, cut into minibatches: to index each of them costs more.
            shuffled = (column[order].split(size) for column in batch)
            yield from zip(*shuffled, strict=True)

    def _note(
        self,
        diagnostics: Diagnostics,
        outputs: Tensor,
        c_e: float,
        log_pi: Array,
        old: Array,
        value: Array,
        advantage: Array,
        returns: Array,
    ) -> None:
        """Notes how the update of a minibatch goes; the arrays are (m,)."""
        log_ratio = log_pi - old
        ratio = np.exp(log_ratio)
        clipped = ratio.clip(1.0 - self._algorithm.clip, 1.0 + self._algorithm.clip)
        note_losses(
            diagnostics,
            self._algorithm,
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
