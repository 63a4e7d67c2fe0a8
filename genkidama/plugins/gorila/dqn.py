"""Deep Q-networks: values of actions, learned from samples of the replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.config.schedules import linear
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import INVALID, supported
from genkidama.learning.heads import Categorical
from genkidama.learning.learners import Loss, TargetReader, share_of_step
from genkidama.learning.model import Model
from genkidama.learning.rollout import TOGETHER, Numbers, Replay, Rollout, Transitions, parts_of
from genkidama.protocol.diagnostics import Diagnostics

if TYPE_CHECKING:
    from torch import Generator, Tensor

Array = npt.NDArray[Any]


class Greedy(Categorical):
    """Discrete actions: outputs are their values, and the best one is taken. Its `log_probability`
    is that of the softmax of the values, which nothing here uses."""

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
                outputs = np.where(outputs > INVALID, random(number), outputs)
            action: np.int64 = outputs.argmax()
            return action

        return sample

    def sample(self, outputs: Tensor, epsilon: float, generator: Generator) -> Tensor:
        actions = outputs.argmax(1, keepdim=True)
        if not epsilon:
            return actions
        keys = outputs.new_empty(outputs.shape).uniform_(generator=generator)
        random = keys.where(outputs > float(INVALID), outputs).argmax(1, keepdim=True)
        chosen = outputs.new_empty(actions.shape).uniform_(generator=generator) < epsilon
        return random.where(chosen, actions)

    def together(
        self, rng: np.random.Generator, epsilon: float, lanes: int
    ) -> Callable[[Array], tuple[Array, list[Any]]]:
        """As `samples_of_lanes` says."""
        start = self._start

        def sample(outputs: Array) -> tuple[Array, list[Any]]:
            actions = outputs.argmax(1)
            if epsilon:
                random = np.flatnonzero(rng.random(lanes) < epsilon)
                if len(random):
                    some = outputs[random]
                    keys = np.where(some > INVALID, rng.random(some.shape), some)
                    actions[random] = keys.argmax(1)
            return actions[:, None], (actions + start).tolist()

        return sample


def dqn_loss(error: Numbers, weights: Numbers, algorithm: Algorithm) -> Any:
    """Mean or sum over the minibatch of w·h(δ), with δ = Q(s, a) − y, of arrays or of tensors.

    Shapes: (m,); the result is a scalar.

    h(δ) = ½δ² up to |δ| = κ, and κ(|δ| − ½κ) beyond: its slope stays within ±κ, as the clipped
    error of Mnih et al. 2015. κ = `algorithm.huber`; 0 means ½δ² everywhere.
    """
    size = abs(error)
    within = size.clip(max=algorithm.huber) if algorithm.huber else size
    each = weights * within * (size - 0.5 * within)
    return each.sum() if algorithm.reduction == "sum" else each.mean()


def dqn_slope(error: Array, weights: Array, algorithm: Algorithm) -> Array:
    """The derivative of `dqn_loss` with respect to each Q(s, a), (m,): s·w·δ, with δ cut to ±κ."""
    if algorithm.huber:
        error = error.clip(-algorithm.huber, algorithm.huber)
    slope = weights * error * share_of_step(algorithm, len(error))
    return slope.astype(np.float32, copy=False)


class DQN(TargetReader):
    """The learner `algorithm.name = "dqn"`: `batch_updates` minibatches after each batch of steps.

    δ = Q(s, a) − R − γ^m·Q⁻(s′, a*), with the rewards R of m steps and Q⁻ of older weights θ⁻. a*
    is the action that θ⁻ values most (Mnih et al. 2015) or, with `double`, that θ does (van Hasselt
    et al. 2016). With `dueling`, Q = V + A − mean A (Wang et al. 2016, eq. 9), where V is the
    network's value and A what its policy emits; otherwise Q is that.
    """

    head = Greedy
    reads_replay = True

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._algorithm = algorithm
        self._model = model
        settings = model.experiment.replay
        self._correction = settings.correction if settings.priority_exponent else None
        if model.mask and algorithm.dueling:
            raise ConfigurationError(
                "algorithm.dueling = True: its mean over all actions has no form with an action "
                "mask; set it to false"
            )

    def losses(self, rollout: Rollout, rng: Generator) -> Iterator[Tensor]:
        network, native = self._model.network, self._model.native
        dueling = self._algorithm.dueling
        for replay, steps in self._samples(rollout):
            targets = self._targets(self._behind(rollout), steps)
            outputs, values = network(native(steps.observations))
            q = outputs + (values[:, None] - outputs.mean(1, keepdim=True)) if dueling else outputs
            known = q.gather(1, native(steps.actions).long()).squeeze(1)
            error = known - native(targets)
            replay.prioritize(steps.places, error.detach().numpy())
            loss: Tensor = dqn_loss(error, native(steps.weights), self._algorithm)
            if rollout.diagnostics is not None and rollout.diagnostics.due(len(targets)):
                found = error.detach().numpy(), known.detach().numpy()
                _note(rollout.diagnostics, loss.item(), *found)
            yield loss

    def gradients(self, rollout: Rollout, rng: np.random.Generator) -> Iterator[Loss]:
        """The gradients of `losses` in NumPy."""
        network = self._model.network
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
            loss = partial(dqn_loss, error, steps.weights, self._algorithm)
            if rollout.diagnostics is not None and rollout.diagnostics.due(len(targets)):
                _note(rollout.diagnostics, float(loss()), error, known)
            slopes = dqn_slope(error, steps.weights, self._algorithm)
            at_outputs = np.zeros_like(outputs)
            if dueling:
                at_outputs -= (slopes / np.float32(outputs.shape[1]))[:, None]
            at_outputs[rows, actions] += slopes
            network.backward(at_outputs, slopes if dueling else None)
            yield loss

    def _samples(self, rollout: Rollout) -> Iterator[tuple[Replay, Transitions]]:
        """The samples of the updates after a batch; none while the replay has too few steps."""
        algorithm, replay = self._algorithm, rollout.replay
        if replay is None or len(replay) < max(1, algorithm.start_steps):
            return
        count, left = algorithm.minibatch_size, algorithm.batch_updates
        if self._correction is None:
            # To draw for several updates costs little more than for one. Priorities would change.
            most = max(1, TOGETHER // (count * self._model.observation_size))
            while left > 0:
                drawn = replay.sample(count * min(left, most), steps=algorithm.n_steps)
                left -= most
                for part in parts_of(drawn, count):
                    yield replay, part
            return
        correction = linear(self._correction, 1.0, rollout.progress)
        for _ in range(left):
            yield replay, replay.sample(count, steps=algorithm.n_steps, correction=correction)

    def _targets(self, behind: Any, steps: Transitions) -> Array:
        """y = R + γ^m·Q⁻(s′, a*): float32 (m,)."""
        following = self._model.native(steps.following)
        outputs, values = self._model.evaluate(following, behind)
        if self._algorithm.double:
            best = self._model.evaluate(following)[0].argmax(1)
        else:
            best = outputs.argmax(1)
        valued = outputs[np.arange(len(outputs)), best]
        if self._algorithm.dueling:
            valued = valued + values - outputs.mean(1)
        result: Array = steps.rewards + steps.discounts * valued
        return result


def _note(diagnostics: Diagnostics, loss: float, error: Array, q: Array) -> None:
    """Notes an update's loss, the mean |δ| and the mean Q(s, a); the arrays are (m,)."""
    diagnostics.add(
        len(error), loss=loss, td_error=float(np.abs(error).mean()), q_mean=float(q.mean())
    )
