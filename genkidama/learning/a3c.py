"""Asynchronous advantage actor-critic: one update from each batch of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from genkidama.config.sections import Algorithm
from genkidama.learning.learners import (
    Loss,
    actor_critic_losses,
    actor_critic_slopes,
    entropy_coefficient,
    normalized,
    share_of_step,
)
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, advantages, vtrace
from genkidama.protocol.diagnostics import approximate_kl

if TYPE_CHECKING:
    from torch import Generator, Tensor

Array = npt.NDArray[Any]

#: The entropies of n steps, (n,), when it is called.
Entropy = Callable[[], Array]


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

    Shapes: all (n,); the result is a scalar. `advantage` and `returns` carry no gradient, and the
    former is normalized already if that is asked for. Mnih et al. 2016, §4.2 and algorithm S3; the
    thesis has c_v = 1 and c_e = 0. By hand, with s = 1/n for a mean and 1 for a sum, ∂/∂log π_t is
    −s·A_t.
    """
    each = algorithm.value_coefficient * (value - returns).square() - log_pi * advantage
    if c_e:
        each = each - c_e * entropy
    return each.sum() if algorithm.reduction == "sum" else each.mean()


class A3C:
    """The learner `algorithm.name = "a3c"`: one loss a batch.

    The weights that learn are those that acted, or later ones: then V-trace corrects for it.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model
        self._off_policy = algorithm.vtrace

    def losses(self, rollout: Rollout, rng: Generator) -> Iterator[Tensor]:
        n, head = len(rollout.rewards), self._model.head
        model = self._model
        outputs, values = model.network(model.joined(rollout), *model.sequences(rollout))
        log_pi = head.log_probability(outputs[:n], rollout.actions)
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        entropy = head.entropy(outputs[:n]) if c_e else log_pi
        known, valued = (part.detach().cpu().numpy() for part in (log_pi, values))
        targets = self._targets(
            rollout, c_e, known, valued, lambda: head.entropy(outputs[:n].detach()).cpu().numpy()
        )
        advantage, returns = map(self._model.native, targets[:2])
        yield a3c_loss(log_pi, entropy, values[:n], advantage, returns, c_e, self._algorithm)

    def gradients(self, rollout: Rollout, rng: np.random.Generator) -> Iterator[Loss]:
        """The gradient of `losses` in NumPy."""
        n, network = len(rollout.rewards), self._model.network
        outputs, values = network(self._model.joined(rollout), *self._model.sequences(rollout))
        log_pi, back, entropy = self._model.head.slopes(outputs[:n], rollout.actions)
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        advantage, returns, loss = self._targets(rollout, c_e, log_pi, values, entropy)
        # The observations after the cuts give targets alone: no gradient comes back from there.
        at_outputs, at_values = np.zeros_like(outputs), np.zeros_like(values)
        at_values[:n], at_entropy = actor_critic_slopes(values[:n], returns, c_e, self._algorithm)
        at_outputs[:n] = back(-share_of_step(self._algorithm, n) * advantage, at_entropy)
        network.backward(at_outputs, at_values)
        yield loss

    def _targets(
        self, rollout: Rollout, c_e: float, log_pi: Array, values: Array, entropy: Entropy
    ) -> tuple[Array, Array, Loss]:
        """A_t and R_t, corrected by V-trace if an older policy has acted, both (n,), and the loss.

        The values are those of the n steps, and of the observations after the cuts if these are not
        known; all else is (n,).
        """
        algorithm, n = self._algorithm, len(rollout.rewards)
        behind = values[n:] if rollout.cut_values is None else rollout.cut_values
        values = values[:n]
        known = rollout, values, behind, algorithm.gamma, algorithm.gae_lambda
        if self._off_policy and rollout.log_mu is not None:
            log_ratio = log_pi - rollout.log_mu
            returns, advantage = vtrace(*known, log_ratio, algorithm.vtrace_rho, algorithm.vtrace_c)
        else:
            advantage = advantages(*known)
            returns = values + advantage
        if algorithm.normalize_advantages:
            advantage = normalized(advantage)

        def measured() -> dict[str, float]:
            policy_loss = -float(np.dot(log_pi, advantage)) / n
            mean = float(entropy().mean())
            return actor_critic_losses(algorithm, c_e, policy_loss, returns - values, mean)

        diagnostics = rollout.diagnostics
        if diagnostics is not None and diagnostics.due(n):
            more = {}
            if rollout.log_mu is not None:
                more["approximate_kl"] = approximate_kl(log_pi - rollout.log_mu)
            diagnostics.add(n, **measured(), **more)
            diagnostics.add_values(values, returns)
        return advantage, returns, lambda: measured()["loss"]
