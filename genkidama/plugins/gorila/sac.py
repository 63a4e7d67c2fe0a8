"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905): continuous actions, learned from
samples of the replay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import choices, supported
from genkidama.learning.heads import Gaussian, Slopes, gaussian_slopes
from genkidama.learning.learners import Loss, TargetReader
from genkidama.learning.model import Model
from genkidama.learning.rollout import TOGETHER, Rollout, Transitions, parts_of
from genkidama.learning.soft_actor_critic import (
    LEAST_LOG_DEVIATION,
    MOST_LOG_DEVIATION,
    SoftActorCritic,
    dropout,
    log_slope,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

Array = npt.NDArray[Any]

#: Minibatches that are drawn together at most beside the parent, where a turn may end after each.
_IN_A_TURN = 8

#: Stored actions are taken for no nearer to ±1 than this when u = artanh a is asked for.
_INSIDE = np.float32(1.0 - 1e-6)


class SquashedGaussian(Gaussian):
    """Continuous actions within the bounds of their space: a = tanh u, where u is normal with the
    mean and log σ that are the outputs. An action is stored as a, in [−1, 1], and the environment
    gets it scaled to its bounds. Densities are those of a; the entropy is that of u."""

    squashes = True

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        space = supported(space)
        if not isinstance(space, gymnasium.spaces.Box) or choices(space):
            other = "'dqn' or 'ppo'" if isinstance(space, gymnasium.spaces.Discrete) else "'ppo'"
            raise ConfigurationError(
                f"algorithm.name = 'sac': its actions are continuous, but the action space is "
                f"{space}; take {other}"
            )
        if not (space.is_bounded() and (space.low < space.high).all()):
            raise ConfigurationError(
                f"algorithm.name = 'sac': scales actions to their bounds, but the action space is "
                f"{space}; put a wrapper with finite bounds around the environment, or take 'ppo'"
            )
        super().__init__(space)
        exact = space.low.reshape(-1), space.high.reshape(-1)
        low, high = (bound.astype(np.float32) for bound in exact)
        centre, reach = (high + low) / 2, (high - low) / 2
        shape = space.shape
        self._low[:], self._high[:] = -1.0, 1.0

        def scaled(action: Array) -> Array:
            return np.clip(centre + reach * action, *exact).reshape(shape)

        self.to_environment = scaled

    def log_probability(self, outputs: Tensor, actions: Tensor) -> Tensor:
        u = actions.clamp(-float(_INSIDE), float(_INSIDE)).atanh()
        size = u.abs()
        slope = 2.0 * (math.log(2.0) - size - (-2.0 * size).exp().log1p())
        return super().log_probability(self._bounded(outputs), u) - slope.sum(1)

    def entropy(self, outputs: Tensor) -> Tensor:
        return super().entropy(self._bounded(outputs))

    def sample(self, outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
        return super().sample(self._bounded(outputs), epsilon, generator)

    def _bounded(self, outputs: Tensor) -> Tensor:
        bounded = outputs.clone()
        bounded[:, self.columns :].clamp_(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)
        return bounded

    @staticmethod
    def deviation(log_deviation: Array) -> Any:
        return np.exp(log_deviation.clip(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION))

    def mode(self, outputs: Array) -> Array:
        actions: Array = np.tanh(outputs[: self.columns])
        return actions

    @staticmethod
    def slopes(outputs: Array, actions: Array) -> Slopes:
        u = np.arctanh(actions.clip(-_INSIDE, _INSIDE))
        width = actions.shape[1]
        bounded = outputs.copy()
        bounded[:, width:] = outputs[:, width:].clip(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)
        log_pi, back, entropy = gaussian_slopes(bounded, u)
        within = bounded == outputs

        def bounded_back(at_log_pi: Array, at_entropy: float) -> Array:
            result: Array = back(at_log_pi, at_entropy) * within
            return result

        return Slopes(log_pi - log_slope(u).sum(1), bounded_back, entropy)


class SAC(TargetReader):
    """The learner `algorithm.name = "sac"`: `updates_per_step` updates from samples for each step.

    One gradient has three parts, over separate numbers: of the critics, towards the smaller target
    critic; of the policy, up the smaller critic and towards entropy; of log α, which weighs the
    entropy and keeps it near H̄ (§5 and §6). Time limits do not end a trajectory: s′ counts.
    """

    head = SquashedGaussian
    network = SoftActorCritic
    reads_replay = True
    #: θ⁻ follows θ by `target_rate`, instead of being replaced now and then.
    averages_target = True

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model
        entropy = algorithm.target_entropy
        self._entropy = -float(model.head.columns) if entropy == "auto" else float(entropy)
        given = algorithm.updates_per_step
        self._per_step = 1.0 if given == "auto" else float(given)
        #: Updates that are due: the fraction left by the batches before.
        self._left = 0.0

    def losses(self, rollout: Rollout, rng: Generator) -> Iterator[Tensor]:
        network, native = self._model.network, self._model.native
        behind, columns = self._behind(rollout), self._model.head.columns
        rate = self._algorithm.critic_dropout
        for steps in self._samples(rollout):
            count = len(steps.rewards)
            like = native(steps.rewards)
            noise = tensor_noise(like, (2, count, columns), rng)
            shapes = [(2, count, width) for width in network.critic_widths] if rate else []
            factors = partial(tensor_dropout, like, rate, shapes, rng)
            targets = network.target(
                native(steps.following),
                native(steps.rewards),
                native(steps.discounts),
                noise[0],
                behind,
                factors(),
            )
            seen, actions = native(steps.observations), native(steps.actions)
            loss, found = network.loss(
                seen, actions, targets, noise[1], self._entropy, factors(), factors()
            )
            if self._due(rollout, count):
                arrays = {name: part.detach().numpy() for name, part in found.items()}
                self._note(rollout, targets.numpy(), **arrays)
            yield loss

    def gradients(self, rollout: Rollout, rng: np.random.Generator) -> Iterator[Loss]:
        """The gradients of `losses` in NumPy."""
        network, behind = self._model.network, self._behind(rollout)
        columns, rate = self._model.head.columns, self._algorithm.critic_dropout
        for steps in self._samples(rollout):
            count = len(steps.rewards)
            noise = rng.standard_normal((2, count, columns), np.float32)
            shapes = [(2, width, count) for width in network.critics.widths] if rate else []
            factors = partial(dropout, rng, rate, shapes)
            found = network.learn(steps, noise, self._entropy, behind, factors)
            if self._due(rollout, count):
                self._note(rollout, **found)
            yield partial(_critic_loss, found["known"], found["targets"])

    def _samples(self, rollout: Rollout) -> Iterator[Transitions]:
        """The samples of the updates after a batch; none while the replay has too few steps."""
        algorithm, replay = self._algorithm, rollout.replay
        if replay is None or len(replay) < max(1, algorithm.start_steps):
            return
        count = algorithm.minibatch_size
        most = max(1, TOGETHER // (count * self._model.observation_size))
        if rollout.due is not None:
            drawn: Iterator[Transitions] = iter(())
            most = min(most, _IN_A_TURN)
            while rollout.due():
                if (part := next(drawn, None)) is None:
                    drawn = parts_of(replay.sample(count * most), count)
                    part = next(drawn)
                yield part
            return
        # A core that only learns has no steps, and goes on as if it had a batch.
        self._left += self._per_step * (len(rollout.rewards) or algorithm.batch_size)
        while (now := min(int(self._left), most)) > 0:
            self._left -= now
            yield from parts_of(replay.sample(count * now), count)

    @staticmethod
    def _due(rollout: Rollout, count: int) -> bool:
        return rollout.diagnostics is not None and rollout.diagnostics.due(count)

    def _note(
        self, rollout: Rollout, targets: Array, known: Array, own: Array, log_pi: Array
    ) -> None:
        """Notes an update's losses, the mean |δ|, the mean Q(s, a) and the policy's entropy.

        Its arrays: y (m,), Q₁ and Q₂ of the observed actions and of the policy's (2, m), log π.
        """
        assert rollout.diagnostics is not None
        alpha = math.exp(float(self._model.network.log_alpha))
        rollout.diagnostics.add(
            len(targets),
            loss=_critic_loss(known, targets),
            policy_loss=float((alpha * log_pi - own.min(0)).mean()),
            td_error=float(np.abs(known - targets).mean()),
            q_mean=float(known.mean()),
            entropy=-float(log_pi.mean()),
        )


def tensor_noise(like: Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Standard normal numbers of this shape, on the device and of the type of `like`."""
    return like.new_empty(shape).normal_(generator=generator)


def tensor_dropout(
    like: Tensor, rate: float, shapes: Sequence[tuple[int, ...]], generator: Generator
) -> list[Tensor]:
    """As `dropout`, with numbers as for `tensor_noise`."""
    kept = 1.0 - rate
    return [like.new_empty(shape).bernoulli_(kept, generator=generator) / kept for shape in shapes]


def _critic_loss(known: Array, targets: Array) -> float:
    """The mean of ½(Q₁ − y)² + ½(Q₂ − y)²."""
    return float(0.5 * np.square(known - targets).sum(0).mean())
