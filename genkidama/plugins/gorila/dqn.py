"""Deep Q-networks: values of actions, learned from samples of the replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genkidama.config.schedules import linear
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import supported
from genkidama.learning.heads import Categorical
from genkidama.learning.model import Model, NetworkView
from genkidama.learning.numpy_gradients import dqn_slopes
from genkidama.learning.rollout import Replay, Rollout, Transitions
from genkidama.protocol.diagnostics import Diagnostics

__all__ = ["DQN", "Greedy", "dqn_loss"]

Array = npt.NDArray[Any]

#: Numbers of the observations that are drawn together, at most, unless one update needs more.
_TOGETHER = 1 << 16


class Greedy(Categorical):
    """Discrete actions: outputs are their values, and the best one is taken.

    Its `log_probability` is that of the softmax of the values, which nothing here uses.
    """

    greedy = True

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        space = supported(space)
        if not isinstance(space, gymnasium.spaces.Discrete):
            raise ConfigurationError(
                f"algorithm.name = 'dqn': values a number of actions, but the action space is "
                f"{space}; take 'ppo' or 'a3c'"
            )
        super().__init__(space)

    def sampler(self, rng: np.random.Generator, epsilon: float) -> Callable[[Array], np.int64]:
        """ε-greedy."""
        random, number = rng.random, self.outputs

        def sample(outputs: Array) -> np.int64:
            if epsilon and random() < epsilon:
                return rng.integers(number)
            action: np.int64 = outputs.argmax()
            return action

        return sample

    def sample(self, outputs: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
        actions = outputs.argmax(1, keepdim=True)
        if not epsilon:
            return actions
        random = torch.empty_like(actions).random_(self.outputs, generator=generator)
        chosen = torch.rand(actions.shape, generator=generator, device=actions.device) < epsilon
        return torch.where(chosen, random, actions)

    def together(
        self, rng: np.random.Generator, epsilon: float, lanes: int
    ) -> Callable[[Array], tuple[Array, list[Any]]]:
        """As `samples_of_lanes` says."""
        number, start = self.outputs, self._start

        def sample(outputs: Array) -> tuple[Array, list[Any]]:
            actions = outputs.argmax(1)
            if epsilon:
                random = np.flatnonzero(rng.random(lanes) < epsilon)
                if len(random):
                    actions[random] = rng.integers(number, size=len(random))
            return actions[:, None], (actions + start).tolist()

        return sample


def dqn_loss(error: Tensor, weights: Tensor, algorithm: Algorithm) -> Tensor:
    """Mean or sum over the minibatch of w·h(δ), with δ = Q(s, a) − y. Shapes: (m,); a scalar.

    h(δ) = ½δ² up to |δ| = κ, and κ(|δ| − ½κ) beyond: its slope stays within ±κ, as the clipped
    error of Mnih et al. 2015. κ = `algorithm.huber`; 0 means ½δ² everywhere.
    """
    reduce = torch.sum if algorithm.reduction == "sum" else torch.mean
    size = error.abs()
    within = size.clamp(max=algorithm.huber) if algorithm.huber else size
    return reduce(weights * within * (size - 0.5 * within))


class DQN:
    """The learner `algorithm.name = "dqn"`: `batch_updates` minibatches after each batch of steps.

    δ = Q(s, a) − R − γ^m·Q⁻(s′, a*), with the rewards R of m steps and Q⁻ of older weights θ⁻. a*
    is the action that θ⁻ values most (Mnih et al. 2015) or, with `double`, that θ does (van Hasselt
    et al. 2016). With `dueling`, Q = V + A − mean A (Wang et al. 2016, eq. 9), where V is the
    network's value and A what its policy emits; otherwise Q is that.
    """

    head = Greedy
    reads_replay = True
    reads_target = True

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model
        settings = model.experiment.replay
        self._correction = settings.correction if settings.priority_exponent else None
        self._twin: NetworkView | None = None

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        network = self._model.network
        dueling = self._algorithm.dueling
        for replay, steps in self._samples(rollout):
            targets = self._targets(self._behind(rollout), steps)
            outputs, values = network(torch.from_numpy(steps.observations))
            q = outputs + (values[:, None] - outputs.mean(1, keepdim=True)) if dueling else outputs
            known = q.gather(1, torch.from_numpy(steps.actions).long()).squeeze(1)
            error = known - torch.from_numpy(targets)
            replay.prioritize(steps.places, error.detach().numpy())
            loss = dqn_loss(error, torch.from_numpy(steps.weights), self._algorithm)
            if rollout.diagnostics is not None and rollout.diagnostics.due(len(targets)):
                _note(rollout.diagnostics, loss, error.detach().numpy(), known.detach().numpy())
            yield loss

    def gradients(self, rollout: Rollout, rng: torch.Generator) -> Iterator[None]:
        """The gradients of `losses` in NumPy."""
        network = self._model.by_hand
        assert network is not None
        dueling = self._algorithm.dueling
        for replay, steps in self._samples(rollout):
            targets = self._targets(self._behind(rollout), steps)
            outputs, values = network.forward(steps.observations)
            rows = np.arange(len(outputs))
            actions = steps.actions[:, 0]
            known = outputs[rows, actions]
            if dueling:
                known = known + values - outputs.mean(1)
            error = known - targets
            replay.prioritize(steps.places, error)
            if rollout.diagnostics is not None and rollout.diagnostics.due(len(targets)):
                arrays = torch.from_numpy(error), torch.from_numpy(steps.weights)
                _note(rollout.diagnostics, dqn_loss(*arrays, self._algorithm), error, known)
            slopes = dqn_slopes(error, steps.weights, self._algorithm)
            at_outputs = np.zeros_like(outputs)
            if dueling:
                at_outputs -= (slopes / np.float32(outputs.shape[1]))[:, None]
            at_outputs[rows, actions] += slopes
            network.backward(at_outputs, slopes if dueling else None)
            yield

    def _samples(self, rollout: Rollout) -> Iterator[tuple[Replay, Transitions]]:
        """The samples of the updates after a batch; none while the replay has too few steps."""
        algorithm, replay = self._algorithm, rollout.replay
        if replay is None or len(replay) < algorithm.start_steps:
            return
        count, left = algorithm.minibatch_size, algorithm.batch_updates
        if self._correction is None:
            # To draw for several updates costs little more than for one. Priorities would change.
            most = max(1, _TOGETHER // (count * self._model.observation_size))
            while left > 0:
                drawn = replay.sample(count * min(left, most), steps=algorithm.n_steps)
                left -= most
                for first in range(0, len(drawn.rewards), count):
                    yield replay, _part(drawn, slice(first, first + count))
            return
        correction = linear(self._correction, 1.0, rollout.progress)
        for _ in range(left):
            yield replay, replay.sample(count, steps=algorithm.n_steps, correction=correction)

    def _behind(self, rollout: Rollout) -> NetworkView:
        """The network over θ⁻, which others refresh in place."""
        if self._twin is None:
            assert rollout.target is not None
            self._twin = self._model.twin(rollout.target)
        return self._twin

    def _targets(self, behind: NetworkView, steps: Transitions) -> Array:
        """y = R + γ^m·Q⁻(s′, a*): float32 (m,)."""
        outputs, values = _seen(behind, steps.following)
        if self._algorithm.double:
            now = NetworkView(self._model.network, self._model.by_hand)
            best = _seen(now, steps.following)[0].argmax(1)
        else:
            best = outputs.argmax(1)
        valued = outputs[np.arange(len(outputs)), best]
        if self._algorithm.dueling:
            valued = valued + values - outputs.mean(1)
        result: Array = steps.rewards + steps.discounts * valued
        return result


def _part(steps: Transitions, rows: slice) -> Transitions:
    """Some of these steps."""
    return Transitions(**{name: column[rows] for name, column in vars(steps).items()})


def _note(diagnostics: Diagnostics, loss: Tensor, error: Array, q: Array) -> None:
    """Notes an update's loss, the mean |δ| and the mean Q(s, a); the arrays are (m,)."""
    diagnostics.add(
        len(error),
        loss=loss.item(),
        td_error=float(np.abs(error).mean()),
        q_mean=float(q.mean()),
    )


def _seen(twin: NetworkView, observations: Array) -> tuple[Array, Array]:
    """Outputs and values of observations, without gradients."""
    if twin.by_hand is not None:
        return twin.by_hand.forward(observations)
    with torch.no_grad():
        outputs, values = twin.network(torch.from_numpy(observations))
    return outputs.numpy(), values.numpy()
