"""Asynchronous advantage actor-critic: one update from each batch of steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from genkidama.config.schedules import SCHEDULES
from genkidama.config.sections import Algorithm
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, advantages, vtrace
from genkidama.protocol.diagnostics import Diagnostics, approximate_kl

__all__ = [
    "A3C",
    "a3c_loss",
    "a3c_slopes",
    "entropy_coefficient",
    "evaluated",
    "normalized",
    "note_losses",
]

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


def a3c_slopes(
    value: Array, advantage: Array, returns: Array, c_e: float, algorithm: Algorithm
) -> tuple[Array, Array, float]:
    """The derivatives of `a3c_loss` with respect to log π, V and each entropy.

    With s = 1/n for the mean and 1 for the sum: −s·A_t, 2·s·c_v·(V_t − R_t) and −s·c_e.
    """
    share = np.float32(1.0 if algorithm.reduction == "sum" else 1.0 / len(value))
    if algorithm.normalize_advantages:
        advantage = normalized(torch.from_numpy(advantage)).numpy()
    at_value = (2.0 * share * np.float32(algorithm.value_coefficient)) * (value - returns)
    return -share * advantage, at_value, -float(share) * c_e


def normalized(advantage: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1; a batch of one step stays as it is."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def note_losses(
    diagnostics: Diagnostics,
    algorithm: Algorithm,
    c_e: float,
    policy_loss: float,
    residual: Array,
    entropy: float,
    **more: float,
) -> None:
    """Notes the losses of an actor-critic's update: means over its n steps, and what it minimizes.

    Args:
        policy_loss: of a step.
        residual: R_t − V(s_t), (n,).
        entropy: of a step.
        more: further diagnostics.
    """
    n = len(residual)
    value_loss = float(np.dot(residual, residual)) / n
    loss = policy_loss + algorithm.value_coefficient * value_loss - c_e * entropy
    diagnostics.add(
        n,
        loss=loss * (n if algorithm.reduction == "sum" else 1),
        policy_loss=policy_loss,
        value_loss=value_loss,
        entropy=entropy,
        **more,
    )


def entropy_coefficient(algorithm: Algorithm, progress: float) -> float:
    """c_e when so much of the run is done."""
    return SCHEDULES[algorithm.entropy_schedule](
        algorithm.entropy_coefficient,
        algorithm.final_entropy_coefficient,
        progress / algorithm.entropy_fraction,
    )


def evaluated(model: Model, rollout: Rollout) -> tuple[Tensor, Tensor, Array, Array]:
    """What the network says of a rollout's n steps and k cuts, for any learner.

    Returns:
        The policy's outputs (n, outputs) and the values (n,) of the steps, on the model's device;
        these values again, and those of the observations after the cuts (k,), as arrays.
    """
    n, cut_values = len(rollout.rewards), rollout.cut_values
    if model.by_hand is not None and not torch.is_grad_enabled():
        seen = rollout.observations
        if cut_values is None:
            seen = torch.cat((seen, rollout.cut_observations))
        found, known = model.by_hand.evaluate(seen.numpy())
        behind = known[n:] if cut_values is None else cut_values
        return torch.from_numpy(found[:n]), torch.from_numpy(known[:n]), known[:n], behind
    if cut_values is not None:
        outputs, values = model.network(rollout.observations.to(model.device))
        return outputs, values, values.detach().cpu().numpy(), cut_values
    outputs, values = model.network(
        torch.cat((rollout.observations, rollout.cut_observations)).to(model.device)
    )
    known = values.detach().cpu().numpy()
    return outputs[:n], values[:n], known[:n], known[n:]


class A3C:
    """The learner `algorithm.name = "a3c"`: one loss a batch.

    The weights that learn are those that acted, or later ones: then V-trace corrects for it.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        head = self._model.head
        device = self._model.device
        outputs, value, values, cut_values = evaluated(self._model, rollout)
        log_pi = head.log_probability(outputs, rollout.actions.to(device))
        known = log_pi.detach().cpu().numpy()
        advantage, returns = (
            torch.from_numpy(array).to(device)
            for array in self._targets(rollout, known, values, cut_values)
        )
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        entropy = head.entropy(outputs) if c_e else log_pi
        if rollout.diagnostics is not None and rollout.diagnostics.due(len(values)):
            arrays = advantage.cpu().numpy(), returns.cpu().numpy()
            self._note(rollout, outputs.detach(), known, values, *arrays, c_e)
        yield a3c_loss(log_pi, entropy, value, advantage, returns, c_e, self._algorithm)

    def gradients(self, rollout: Rollout, rng: torch.Generator) -> Iterator[None]:
        """The gradient of the loss, written by hand."""
        network = self._model.by_hand
        assert network is not None
        n, cut_values = len(rollout.rewards), rollout.cut_values
        seen = rollout.observations
        if cut_values is None:
            seen = torch.cat((seen, rollout.cut_observations))
        outputs, values = network.forward(seen.numpy())
        actions = rollout.actions.numpy()
        log_pi, back = self._model.head.slopes(outputs[:n], actions)  # type: ignore[attr-defined]
        known, behind = values[:n], values[n:] if cut_values is None else cut_values
        advantage, returns = self._targets(rollout, log_pi, known, behind)
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        at_log_pi, at_value, at_entropy = a3c_slopes(
            known, advantage, returns, c_e, self._algorithm
        )
        # The observations after the cuts were only looked at: nothing comes back from there.
        at_outputs = np.zeros_like(outputs)
        at_outputs[:n] = back(at_log_pi, at_entropy)
        at_values = np.zeros_like(values)
        at_values[:n] = at_value
        if rollout.diagnostics is not None and rollout.diagnostics.due(n):
            seen_outputs = torch.from_numpy(outputs[:n])
            self._note(rollout, seen_outputs, log_pi, known, advantage, returns, c_e)
        network.backward(at_outputs, at_values)
        yield

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
        """Notes how this update goes; all but `outputs` are (n,)."""
        diagnostics = rollout.diagnostics
        assert diagnostics is not None
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

    def _targets(
        self, rollout: Rollout, log_pi: Array, values: Array, cut_values: Array
    ) -> tuple[Array, Array]:
        """A_t and R_t, corrected by V-trace if it is asked for: both (n,)."""
        algorithm = self._algorithm
        gamma, gae_lambda = algorithm.gamma, algorithm.gae_lambda
        if algorithm.vtrace and rollout.log_mu is not None:
            targets, weights = vtrace(
                rollout,
                log_pi - rollout.log_mu,
                values,
                cut_values,
                gamma,
                gae_lambda,
                algorithm.vtrace_rho,
                algorithm.vtrace_c,
            )
            return weights, targets
        weights = advantages(rollout, values, cut_values, gamma, gae_lambda)
        return weights, values + weights
