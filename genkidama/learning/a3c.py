"""Asynchronous advantage actor-critic: one update from each batch of steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, advantages
from genkidama.learning.vtrace import vtrace
from genkidama.schedules import SCHEDULES
from genkidama.settings import Algorithm

__all__ = ["A3C", "a3c_loss", "entropy_coefficient", "evaluated", "normalized"]

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


def normalized(advantage: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1; a batch of one step stays as it is."""
    if len(advantage) < 2:
        return advantage
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


def entropy_coefficient(algorithm: Algorithm, progress: float) -> float:
    """c_e when so much of the run is done."""
    return SCHEDULES[algorithm.entropy_schedule](
        algorithm.entropy_coefficient, algorithm.final_entropy_coefficient, progress
    )


def evaluated(model: Model, rollout: Rollout) -> tuple[Tensor, Tensor, Array, Array]:
    """What the network says of a rollout's n steps and k cuts, for any learner.

    Returns:
        The policy's outputs (n, outputs) and the values (n,) of the steps, on the model's device;
        these values again, and those of the observations after the cuts (k,), as arrays.
    """
    n, cut_values = len(rollout.rewards), rollout.cut_values
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
        algorithm = self._algorithm
        head = self._model.head
        device = self._model.device
        outputs, value, values, cut_values = evaluated(self._model, rollout)
        log_pi = head.log_probability(outputs, rollout.actions.to(device))
        gamma, gae_lambda = algorithm.gamma, algorithm.gae_lambda
        if algorithm.vtrace and rollout.log_mu is not None:
            log_ratio = log_pi.detach().cpu().numpy() - rollout.log_mu
            targets, weights = vtrace(
                rollout,
                log_ratio,
                values,
                cut_values,
                gamma,
                gae_lambda,
                algorithm.vtrace_rho,
                algorithm.vtrace_c,
            )
        else:
            weights = advantages(rollout, values, cut_values, gamma, gae_lambda)
            targets = values + weights
        advantage, returns = (torch.from_numpy(array).to(device) for array in (weights, targets))
        c_e = entropy_coefficient(algorithm, rollout.progress)
        entropy = head.entropy(outputs) if c_e else log_pi
        yield a3c_loss(log_pi, entropy, value, advantage, returns, c_e, algorithm)
