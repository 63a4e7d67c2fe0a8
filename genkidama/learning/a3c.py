"""Asynchronous advantage actor-critic: one update from each batch of steps."""

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
from genkidama.learning.numpy_gradients import a3c_slopes
from genkidama.learning.rollout import Rollout, advantages, vtrace
from genkidama.protocol.diagnostics import approximate_kl

__all__ = ["A3C", "a3c_loss"]

Array = npt.NDArray[Any]


def a3c_loss(
    log_pi: Tensor,
    entropy: Tensor,
    value: Tensor,
    advantage: Tensor,
    returns: Tensor,
    c_e: float,
    algorithm: Algorithm,
) -> Tensor:
    """Mean or sum over the batch of −log π(a_t|s_t)·A_t + c_v·(R_t − V(s_t))² − c_e·H(π(·|s_t)).

    Shapes: all (n,); the result is a scalar. `advantage` and `returns` carry no gradient. Mnih et
    al. 2016, §4.2 and algorithm S3; the thesis has c_v = 1 and c_e = 0.
    """
    reduce = torch.sum if algorithm.reduction == "sum" else torch.mean
    if algorithm.normalize_advantages:
        advantage = normalized(advantage)
    value_loss = functional.mse_loss(value, returns, reduction=algorithm.reduction)
    loss = algorithm.value_coefficient * value_loss - reduce(log_pi * advantage)
    if c_e:
        loss = loss - c_e * reduce(entropy)
    return loss


class A3C:
    """The learner `algorithm.name = "a3c"`: one loss a batch.

    The weights that learn are those that acted, or later ones: then V-trace corrects for it.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model
        self._off_policy = algorithm.vtrace

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        head, device = self._model.head, self._model.device
        outputs, value, values, cut_values = evaluated(self._model, rollout)
        log_pi = head.log_probability(outputs, rollout.actions.to(device))
        known = log_pi.detach().cpu().numpy()
        targets = self._targets(rollout, known, values, cut_values)
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        self._note(rollout, outputs.detach(), known, values, *targets, c_e)
        advantage, returns = (torch.from_numpy(array).to(device) for array in targets)
        entropy = head.entropy(outputs) if c_e else log_pi
        yield a3c_loss(log_pi, entropy, value, advantage, returns, c_e, self._algorithm)

    def gradients(self, rollout: Rollout, rng: torch.Generator) -> Iterator[None]:
        """The gradient of `losses` in NumPy."""
        network = self._model.by_hand
        assert network is not None
        n, cut_values = len(rollout.rewards), rollout.cut_values
        seen = rollout.observations
        if cut_values is None:
            seen = torch.cat((seen, rollout.cut_observations))
        outputs, values = network.forward(seen.numpy())
        known, behind = values[:n], values[n:] if cut_values is None else cut_values
        slopes = self._model.head.slopes  # type: ignore[attr-defined]
        log_pi, back = slopes(outputs[:n], rollout.actions.numpy())
        advantage, returns = self._targets(rollout, log_pi, known, behind)
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        self._note(rollout, torch.from_numpy(outputs[:n]), log_pi, known, advantage, returns, c_e)
        if self._algorithm.normalize_advantages:
            advantage = normalized(torch.from_numpy(advantage)).numpy()
        # The observations after the cuts give targets alone: no gradient comes back from there.
        at_outputs, at_values = np.zeros_like(outputs), np.zeros_like(values)
        at_log_pi, at_values[:n], at_entropy = a3c_slopes(
            known, advantage, returns, c_e, self._algorithm
        )
        at_outputs[:n] = back(at_log_pi, at_entropy)
        network.backward(at_outputs, at_values)
        yield

    def _targets(
        self, rollout: Rollout, log_pi: Array, values: Array, cut_values: Array
    ) -> tuple[Array, Array]:
        """A_t and R_t, corrected by V-trace if an older policy has acted: both (n,)."""
        algorithm = self._algorithm
        known = rollout, values, cut_values, algorithm.gamma, algorithm.gae_lambda
        if self._off_policy and rollout.log_mu is not None:
            log_ratio = log_pi - rollout.log_mu
            returns, weights = vtrace(*known, log_ratio, algorithm.vtrace_rho, algorithm.vtrace_c)
            return weights, returns
        weights = advantages(*known)
        return weights, values + weights

    def _note(
        self,
        rollout: Rollout,
        outputs: Tensor,
        log_pi: Array,
        values: Array,
        advantage: Array,
        returns: Array,
        c_e: float,
    ) -> None:
        """Notes how this update goes, if somebody asks; all but `outputs` are (n,)."""
        diagnostics = rollout.diagnostics
        if diagnostics is None or not diagnostics.due(len(values)):
            return
        if self._algorithm.normalize_advantages:
            advantage = normalized(torch.from_numpy(advantage)).numpy()
        more = {}
        if rollout.log_mu is not None:
            more["approximate_kl"] = approximate_kl(log_pi - rollout.log_mu)
        note_losses(
            diagnostics,
            self._algorithm,
            c_e,
            -float(np.dot(log_pi, advantage)) / len(log_pi),
            returns - values,
            self._model.head.entropy(outputs).mean().item(),
            **more,
        )
        diagnostics.add_values(values, returns)
