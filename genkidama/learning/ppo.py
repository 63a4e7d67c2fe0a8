"""Proximal policy optimization: each batch is used several times, in shuffled minibatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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
from genkidama.learning.recurrence import shuffled
from genkidama.learning.rollout import Rollout, advantages
from genkidama.protocol.diagnostics import approximate_kl

if TYPE_CHECKING:
    from torch import Tensor

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
    ratio = (log_pi - old_log_pi).exp()
    clipped = ratio.clamp(1.0 - algorithm.clip, 1.0 + algorithm.clip)
    surrogate = (ratio * advantage).minimum(clipped * advantage)
    each = algorithm.value_coefficient * (value - returns).square() - surrogate
    if c_e:
        each = each - c_e * entropy
    return each.sum() if algorithm.reduction == "sum" else each.mean()


def ppo_slope(log_pi: Array, old_log_pi: Array, advantage: Array, algorithm: Algorithm) -> Array:
    """The derivative of `ppo_loss` with respect to log π (m,).

    It is −s·A_t·ρ_t, or 0 where the clipped ratio is the smaller term; s = 1/m for a mean.
    """
    ratio = np.exp(log_pi - old_log_pi)
    counts = np.where(advantage > 0.0, ratio <= 1.0 + algorithm.clip, ratio >= 1.0 - algorithm.clip)
    slope: Array = -share_of_step(algorithm, len(log_pi)) * advantage * ratio * counts
    return slope


def weight_of_step(old_log_pi: Array, log_mu: Array) -> Array:
    """min(1, π_old/μ), (n,): what the advantage of a step counts if an older policy μ has acted.

    The ratio stays near that to π_old, the policy that learns, not near μ. Else each batch would
    repeat the step away from μ that the batches before it have made already (Hilton et al. 2022,
    "Batch size-invariance for policy optimization", §3, with the cut of IMPALA's ρ̄).
    """
    weight: Array = np.exp(np.minimum(old_log_pi - log_mu, 0.0))
    return weight


class PPO:
    """The learner `algorithm.name = "ppo"`: `epochs` passes of minibatches.

    Each loss is taken at the newest weights.
    """

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model

    def losses(self, rollout: Rollout, rng: Any) -> Iterator[Tensor]:
        head, network = self._model.head, self._model.network
        c_e = entropy_coefficient(self._algorithm, rollout.progress)
        for minibatch in self._minibatches(rollout, rng):
            state, action, old, advantage, returns, *starts = minibatch
            outputs, value = network(state, *starts)
            log_pi = head.log_probability(outputs, action)
            entropy = head.entropy(outputs) if c_e else log_pi
            if rollout.diagnostics is not None and rollout.diagnostics.due(len(old)):
                known = (log_pi, old, value, advantage, returns, head.entropy(outputs))
                *arrays, entropies = (one.detach().cpu().numpy() for one in known)
                seen: Any = (c_e, *arrays, entropies.copy)
                rollout.diagnostics.add(len(old), **self._measured(*seen))
            yield ppo_loss(log_pi, old, entropy, value, advantage, returns, c_e, self._algorithm)

    def gradients(self, rollout: Rollout, rng: np.random.Generator) -> Iterator[Loss]:
        """The gradients of `losses` in NumPy."""
        network, algorithm = self._model.network, self._algorithm
        c_e = entropy_coefficient(algorithm, rollout.progress)
        for state, action, old, advantage, returns, *starts in self._minibatches(rollout, rng):
            outputs, value = network.forward(state, *starts)
            log_pi, back, entropy = self._model.head.slopes(outputs, action)
            known = (c_e, log_pi, old, value, advantage, returns, entropy)
            if rollout.diagnostics is not None and rollout.diagnostics.due(len(old)):
                rollout.diagnostics.add(len(old), **self._measured(*known))
            at_value, at_entropy = actor_critic_slopes(value, returns, c_e, algorithm)
            at_log_pi = ppo_slope(log_pi, old, advantage, algorithm)
            network.backward(back(at_log_pi, at_entropy), at_value)
            yield partial(self._loss, *known)

    def _minibatches(self, rollout: Rollout, rng: Any) -> Iterator[tuple[Any, ...]]:
        """The columns of `_batch` in minibatches, shuffled anew for each epoch.

        A memory's sequences are shuffled as wholes, and a last column says where each begins.
        """
        batch = self._batch(rollout)
        n = len(rollout.rewards)
        size = rollout.minibatch_size or self._algorithm.minibatch_size
        starts = [rows[:n] for rows in self._model.sequences(rollout)]
        for _ in range(self._algorithm.epochs):
            order, parts = shuffled(n, size, rng, *starts)
            # One shuffled copy an epoch, cut into minibatches: to index each of them costs more.
            columns = [column[order] for column in (*batch, *starts)]
            for begin, end in parts:
                yield tuple(column[begin:end] for column in columns)

    def _measured(
        self,
        c_e: float,
        log_pi: Array,
        old: Array,
        value: Array,
        advantage: Array,
        returns: Array,
        entropy: Callable[[], Array],
    ) -> dict[str, float]:
        """The losses of a minibatch, and how far its policy has moved; the arrays are (m,)."""
        log_ratio = log_pi - old
        ratio = np.exp(log_ratio)
        clipped = ratio.clip(1.0 - self._algorithm.clip, 1.0 + self._algorithm.clip)
        policy_loss = -float(np.minimum(ratio * advantage, clipped * advantage).mean())
        mean = float(entropy().mean())
        return {
            **actor_critic_losses(self._algorithm, c_e, policy_loss, returns - value, mean),
            "approximate_kl": approximate_kl(log_ratio),
            "clip_fraction": np.count_nonzero(clipped != ratio) / len(ratio),
        }

    def _loss(self, *known: Any) -> float:
        return self._measured(*known)["loss"]

    def _batch(self, rollout: Rollout) -> tuple[Any, ...]:
        """Observations, actions, log π_old, advantages and returns of its n steps."""
        algorithm, model = self._algorithm, self._model
        n = len(rollout.rewards)
        outputs, values = model.evaluate(model.joined(rollout))
        behind = values[n:] if rollout.cut_values is None else rollout.cut_values
        old_log_pi = model.log_probability(outputs[:n], rollout.actions)
        known = rollout, values[:n], behind, algorithm.gamma, algorithm.gae_lambda
        advantage = advantages(*known)
        returns = advantage + values[:n]
        if rollout.diagnostics is not None:
            rollout.diagnostics.add_values(values[:n], returns)
        if algorithm.normalize_advantages:
            advantage = normalized(advantage)
        if rollout.log_mu is not None:
            advantage = advantage * weight_of_step(old_log_pi, rollout.log_mu)
        targets = map(model.native, (old_log_pi, advantage, returns))
        return rollout.observations, rollout.actions, *targets
