"""How a core collects a batch of steps: in one environment, or in several at once.

Laws of this file:
- A batch is `algorithm.batch_size` steps in the rows of the core's share of the replay tensor. With
  L lanes it is L trajectories of T = batch_size / L steps, one behind the other.
- A trajectory is cut at the batch's end and where an episode is truncated. The observations that
  followed there are the learner's to bootstrap from.
- All lanes act with one forward pass. So a step costs less, and a batch knows L places at once.
- With `child.exchange = "episode"` the core waits as soon as each lane has ended an episode since
  the last exchange. With one lane that is the documented form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from genkidama.child.replay_tensor import ReplayRows
from genkidama.child.worker import EPISODE, PROGRESS, REPORT_STEPS, WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.learning.environments import check_numbers, make_environment, make_lanes
from genkidama.learning.heads import samples_of_lanes
from genkidama.learning.model import Model, Spaces

__all__ = [
    "CollectedBatch",
    "Collector",
    "ActionSampler",
    "CollectorContext",
    "BehaviourNotes",
    "EnvironmentSlots",
    "check_numbers",
    "make_collector",
    "make_slots",
    "may_be_none",
]


# ------------------------------------------------------------------------------------------------
# What an environment gives must be numbers. One that is not would spoil the weights for good.


def may_be_none(space: Any) -> bool:
    """Whether observations from a space of Gymnasium's may be no numbers: pixels always are."""
    return np.dtype(space.dtype or np.float64).kind == "f"


# ------------------------------------------------------------------------------------------------
# How the actions of a batch are chosen, and what is noted of it.

Array = npt.NDArray[Any]


class ActionSampler:
    """How actions are drawn, with an ε that may change between batches.

    Args:
        changing: ε of the next batch; None if it stays as it is.
        epsilon: as it is at first.
        make: from ε to a function that draws actions.
    """

    def __init__(
        self, changing: Callable[[], float] | None, epsilon: float, make: Callable[[float], Any]
    ) -> None:
        self._changing = changing
        self._epsilon = epsilon
        self._make = make
        self._sample = make(epsilon)

    def sampler(self) -> Any:
        """What draws the actions of the next batch."""
        if self._changing is not None:
            epsilon = self._changing()
            if epsilon != self._epsilon:
                self._epsilon = epsilon
                self._sample = self._make(epsilon)
        return self._sample


class BehaviourNotes:
    """The policy's outputs at each step of a batch, if the learner asks how probable actions were.

    Args:
        model: whose policy it is.
        wanted: whether the learner asks.
        lanes, length: a batch has so many trajectories of so many steps.
    """

    def __init__(self, model: Model, wanted: bool, lanes: int, length: int) -> None:
        self._head = model.head
        shape = (lanes, length, model.head.outputs)
        self.outputs = np.zeros(shape, np.float32) if wanted else None

    def log_mu(self, rows: ReplayRows, steps: int) -> Array | None:
        """log μ of the batch's actions, float32 (steps,)."""
        if self.outputs is None:
            return None
        actions = torch.from_numpy(rows.actions[:steps].astype(self._head.dtype))
        # A batch that was stopped early has shorter trajectories.
        played = self.outputs[:, : steps // len(self.outputs)]
        outputs = torch.from_numpy(played.reshape(steps, self._head.outputs))
        result: Array = self._head.log_probability(outputs, actions).numpy()
        return result


class CollectedBatch(NamedTuple):
    """What a core has just collected; the steps themselves lie in `rows`."""

    rows: ReplayRows
    #: n: how many steps.
    steps: int
    #: After which of them a trajectory is cut though it could go on.
    cuts: list[int]
    #: The observations that followed there.
    following: list[Array]
    #: (n,) float32: log μ of the actions, if the learner asks for it.
    log_mu: Array | None = None
    #: Whether the last step ended its episode.
    ended: bool = False


#: Newer weights are looked for after so many steps of each lane.
_LOOK_STEPS = 8


class EnvironmentSlots(Spaces, Protocol):
    """An environment, or lanes of it."""

    def close(self) -> None: ...


class Collector(Protocol):
    """One core's way to collect."""

    def reset(self, seed: int) -> None:
        """Begins the first episodes."""
        ...

    def collect(self, most: int = sys.maxsize) -> CollectedBatch:
        """Plays until the batch is full, or `most` steps are made in each lane."""
        ...


@dataclass(frozen=True)
class CollectorContext:
    """What a core collects with."""

    #: Acts.
    model: Model
    #: Of the replay tensor: where the steps go.
    share: RolloutSink
    #: To the orchestrator.
    line: WorkerPipe
    #: Draws the actions.
    rng: np.random.Generator
    #: Whether batches have log μ.
    notes_log_mu: bool
    #: ε, asked for before each batch. Without it, it stays what the algorithm's settings say.
    epsilon: Callable[[], float] | None = field(default=None, kw_only=True)
    #: Takes newer weights over in the middle of a batch, and says whether there were any. Without
    #: it, a batch is played with one policy.
    renew: Callable[[], bool] | None = field(default=None, kw_only=True)
    #: Is told how many steps an episode had that has ended.
    ended: Callable[[int], None] = field(default=lambda length: None, kw_only=True)


class RolloutSink(Protocol):
    """Where a core's steps go: its `Share` of the replay tensor, or an outbox."""

    def begin(self, goes_on: bool) -> ReplayRows:
        """The rows that the next batch is written to; as `Share.begin`."""
        ...

    def end(self, steps: int, cuts: list[int], following: list[Array], log_mu: Any) -> None:
        """The batch is written; as `Share.end`."""
        ...


def make_collector(experiment: Experiment, places: Any, kit: CollectorContext) -> Collector:
    """The collector for what `make_slots` gave for this experiment."""
    kind = SingleEnvCollector if experiment.environment.lanes == 1 else VectorEnvCollector
    return kind(experiment, places, kit)


def make_slots(experiment: Experiment) -> Any:
    """The environment of a core, or its lanes.

    Raises:
        ConfigurationError: as `make_environment`.
    """
    settings = experiment.environment
    return (
        make_environment(settings) if settings.lanes == 1 else make_lanes(settings, settings.lanes)
    )


class SingleEnvCollector:
    """One environment, as documented. A batch may end with its episode.

    Args:
        experiment: all settings.
        environment: what is played.
        kit: what the core collects with.
    """

    def __init__(self, experiment: Experiment, environment: Any, kit: CollectorContext) -> None:
        model = kit.model
        self._renew = kit.renew
        self._algorithm = experiment.algorithm
        self._environment = environment
        self._fractions = may_be_none(environment.observation_space)
        self._model = model
        self._share = kit.share
        self._line = kit.line
        self._told = kit.ended
        self._explorer = ActionSampler(
            kit.epsilon, experiment.algorithm.epsilon, partial(model.head.sampler, kit.rng)
        )
        self._noted = BehaviourNotes(model, kit.notes_log_mu, 1, experiment.algorithm.batch_size)
        self._observation: Any = None
        self._return = 0.0
        self._length = 0
        #: Steps of the episode that the orchestrator has heard of.
        self._said = 0

    def reset(self, seed: int) -> None:
        self._observation, _ = self._environment.reset(seed=seed)

    def collect(self, most: int = sys.maxsize) -> CollectedBatch:
        """As `Collector.collect`.

        Unless batches go on across episodes, it also stops at the episode's end.
        """
        # Everything in this loop costs every step; what can be looked up once is a local name.
        rows = self._share.begin(self._length > 0)
        observations, actions, rewards, was_terminated, was_truncated = rows
        step = self._environment.step
        noted = iter(() if self._noted.outputs is None else self._noted.outputs[0])
        outputs = self._acting(noted)
        sample, renew = self._explorer.sampler(), self._renew
        normalize, to_environment = self._model.normalizer(), self._model.head.to_environment
        observation, across = self._observation, self._algorithm.across_episodes
        was_terminated[:] = 0.0
        was_truncated[:] = 0.0
        cuts: list[int] = []
        following: list[Array] = []
        n = min(self._algorithm.batch_size, most)
        episode_return, length = self._return, self._length
        t = 0
        while t < n:
            if renew is not None and not t % _LOOK_STEPS and renew():
                outputs, normalize = self._acting(noted), self._model.normalizer()
            observations[t] = observation
            action = sample(outputs(observation if normalize is None else normalize(observation)))
            actions[t] = action
            observation, reward, terminated, truncated, _ = step(to_environment(action))
            rewards[t] = reward
            episode_return += float(reward)
            length += 1
            t += 1
            if terminated or truncated:
                if terminated:
                    was_terminated[t - 1] = 1.0
                else:
                    was_truncated[t - 1] = 1.0
                    cuts.append(t - 1)
                    following.append(np.array(observation))  # the next one may overwrite it
                observation, _ = self._environment.reset()
                self._told(length)
                self._line.report(EPISODE, episode_return, length - self._said)
                episode_return = 0.0
                length = 0
                self._said = 0
                if not across:
                    break
                self._line.pause()
        if length:
            cuts.append(t - 1)
            following.append(observation)
        check_numbers(rewards[:t], *((observations[:t], *following) if self._fractions else ()))
        log_mu = self._noted.log_mu(rows, t)
        self._share.end(t, cuts, following, np.nan if log_mu is None else log_mu)
        self._observation = observation
        self._return = episode_return
        self._length = length
        if length - self._said >= REPORT_STEPS:
            self._line.report(PROGRESS, 0.0, length - self._said)
            self._said = length
        return CollectedBatch(rows, t, cuts, following, log_mu, ended=length == 0)

    def _acting(self, noted: Iterator[Array]) -> Callable[[Array], Array]:
        """A function from one observation to the policy's outputs, which it notes if asked for."""
        outputs = self._model.network.acting()
        if self._noted.outputs is None:
            return outputs

        def noting(observation: Array) -> Array:
            result = outputs(observation)
            next(noted)[:] = result
            return result

        return noting


class VectorEnvCollector:
    """L environments, a batch of L trajectories that go on across episodes.

    Args:
        experiment: all settings.
        lanes: what is played.
        kit: what the core collects with.
    """

    def __init__(self, experiment: Experiment, lanes: Any, kit: CollectorContext) -> None:
        count = lanes.count
        model = kit.model
        self._renew = kit.renew
        self._lanes = lanes
        self._fractions = may_be_none(lanes.observation_space)
        self._length = experiment.algorithm.batch_size // count
        self._model = model
        self._share = kit.share
        self._line = kit.line
        self._told = kit.ended
        self._explorer = ActionSampler(
            kit.epsilon,
            experiment.algorithm.epsilon,
            lambda epsilon: samples_of_lanes(model.head, kit.rng, epsilon, count),
        )
        self._noted = BehaviourNotes(model, kit.notes_log_mu, count, self._length)
        self._observations = np.zeros((count, *model.observation_shape), np.float32)
        self._returns = np.zeros(count)
        #: Steps that each lane has made before this batch, and when its episode began.
        self._made = 0
        self._began = [0] * count
        self._unsaid = 0
        self._ended: set[int] = set()

    def reset(self, seed: int) -> None:
        self._observations[:] = self._lanes.reset(seed)

    def collect(self, most: int = sys.maxsize) -> CollectedBatch:
        """As `Collector.collect`."""
        rows = self._share.begin(False)
        count, length = self._lanes.count, min(self._length, most)
        observations, actions, rewards, was_terminated, was_truncated = (
            column[: count * length].reshape(count, length, *column.shape[1:]) for column in rows
        )
        outputs, normalize = self._model.acting(), self._model.normalizer()
        noted = self._noted.outputs
        current, step = self._observations, self._lanes.step
        sample = self._explorer.sampler()
        was_terminated[:] = 0.0
        was_truncated[:] = 0.0
        cuts: dict[int, Array] = {}
        for t in range(length):
            if self._renew is not None and not t % _LOOK_STEPS and self._renew():
                outputs, normalize = self._model.acting(), self._model.normalizer()
            observations[:, t] = current
            found = outputs(current if normalize is None else normalize(current))
            if noted is not None:
                noted[:, t] = found
            actions[:, t], taken = sample(found)
            seen, earned, terminated, _, finals = step(taken)
            rewards[:, t] = earned = np.asarray(earned, np.float64)
            self._returns += earned
            self._unsaid += count
            if isinstance(seen, np.ndarray):
                current[:] = seen
            else:
                for lane, observation in enumerate(seen):
                    current[lane] = observation
            for lane, final in finals.items():
                if terminated[lane]:
                    was_terminated[lane, t] = 1.0
                else:
                    was_truncated[lane, t] = 1.0
                    cuts[lane * length + t] = np.array(final, np.float32)
                self._end_episode(lane, self._made + t + 1)
        self._made += length
        over = (was_terminated[:, -1] + was_truncated[:, -1]) > 0.0
        for lane in np.flatnonzero(~over).tolist():
            cuts[lane * length + length - 1] = current[lane].copy()
        order = sorted(cuts)
        following = [cuts[position] for position in order]
        steps = count * length
        check_numbers(rewards, *((observations, *following) if self._fractions else ()))
        log_mu = self._noted.log_mu(rows, steps)
        self._share.end(steps, order, following, np.nan if log_mu is None else log_mu)
        if self._unsaid >= REPORT_STEPS:
            self._say(PROGRESS, 0.0)
        return CollectedBatch(rows, steps, order, following, log_mu)

    def _end_episode(self, lane: int, made: int) -> None:
        self._told(made - self._began[lane])
        self._began[lane] = made
        self._say(EPISODE, float(self._returns[lane]))
        self._returns[lane] = 0.0
        self._ended.add(lane)
        if len(self._ended) == self._lanes.count:
            self._ended.clear()
            self._line.pause()

    def _say(self, kind: int, episode_return: float) -> None:
        self._line.report(kind, episode_return, self._unsaid)
        self._unsaid = 0
