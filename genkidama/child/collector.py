"""Collectors: the collection of a batch of steps by a core, in one environment or in several.

Laws of this file:
- A batch is `algorithm.batch_size` steps in the core's share of the replay tensor T[C × N × M]: C
  cores, N rows, M numbers a row. With L lanes it is L trajectories of T = batch_size / L steps, one
  after the other.
- A trajectory is cut at the batch's end and where an episode is truncated. The observations that
  follow there are for the learner to bootstrap from.
- All lanes act with one forward pass. So a step costs less, and a batch has steps of L episodes.
- With `child.exchange = "episode"` the core waits as soon as each lane has ended an episode since
  the last exchange. With one lane this is the thesis' form.
- The state of a network's memory belongs to a lane: it is nothing at an episode's beginning, and
  goes on over the ends of batches. Each row has the state that its step began with.
- NaN and infinity from an environment would spoil the weights for good, so they end the core
  before it learns from them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from genkidama.child.shared_memory import ReplayRows, RolloutSink
from genkidama.child.worker import EPISODE, PROGRESS, REPORT_STEPS, WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import (
    Check,
    as_number,
    make_environment,
    make_lanes,
)
from genkidama.learning.heads import samples_of_lanes
from genkidama.learning.model import Model
from genkidama.learning.observations import check_numbers
from genkidama.protocol.diagnostics import Diagnostics
from genkidama.runtime.import_strings import is_gymnasiums

Array = npt.NDArray[Any]

#: Newer weights are looked for after this many steps of each environment.
LOOK_STEPS = 8


def may_be_nan(space: Any) -> bool:
    """True if observations of a Gymnasium space can be NaN or infinite; pixels cannot."""
    return np.dtype(space.dtype or np.float64).kind == "f"


class ActionSampler:
    """Draws actions with an ε that may change between batches.

    `changing` returns ε of the next batch; it is None if that never changes. `make` makes a
    function that draws actions with an ε.
    """

    def __init__(
        self, changing: Callable[[], float] | None, epsilon: float, make: Callable[[float], Any]
    ) -> None:
        self._changing = changing
        self._epsilon = epsilon
        self._make = make
        self._sample = make(epsilon)

    def sampler(self) -> Any:
        """The function that draws the actions of the next batch."""
        if self._changing is not None:
            epsilon = self._changing()
            if epsilon != self._epsilon:
                self._epsilon = epsilon
                self._sample = self._make(epsilon)
        return self._sample


class BehaviourNotes:
    """The policy's outputs at each step of a batch, if the learner asks for log μ."""

    def __init__(self, model: Model, wanted: bool, lanes: int, length: int) -> None:
        self._model = model
        shape = (lanes, length, model.head.outputs)
        self.outputs = np.zeros(shape, np.float32) if wanted else None

    def log_mu(self, rows: ReplayRows, steps: int, lanes: int = 0) -> Array | None:
        """log μ of the actions of a batch in all lanes or so many, float32 (steps,)."""
        if self.outputs is None:
            return None
        lanes = lanes or len(self.outputs)
        # A batch that was stopped early has shorter trajectories.
        played = self.outputs[:lanes, : steps // lanes]
        head = self._model.head
        outputs = played.reshape(steps, head.outputs)
        return self._model.log_probability(outputs, rows.actions[:steps].astype(head.dtype))


class CollectedBatch(NamedTuple):
    """The steps that a core has just collected, in `rows`."""

    rows: ReplayRows
    #: n: the number of steps.
    steps: int
    #: Steps after which a trajectory is cut though its episode continues.
    cuts: list[int]
    #: The observations that follow there.
    following: list[Array]
    #: (n,) float32: log μ of the actions, if the learner asks for it.
    log_mu: Array | None = None
    #: Whether the last step ended its episode.
    ended: bool = False


class SlidingWindow:
    """The newest chunks of a core as one batch, in which each lane's trajectory continues.

    A lane has at most `length` steps, unless a single chunk has more.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        #: Columns (lanes, steps, ...) and cuts by lane and step, oldest first.
        self._chunks: list[tuple[list[Array], dict[tuple[int, int], Array]]] = []

    def add(self, chunk: CollectedBatch, lanes: int) -> None:
        """Adds a chunk of `lanes` trajectories, with log μ; the oldest chunks leave.

        Those with fewer lanes leave, too, and all before them.
        """
        length = chunk.steps // lanes
        assert chunk.log_mu is not None
        columns = [
            column[: chunk.steps].reshape(lanes, length, *column.shape[1:]).copy()
            for column in (*chunk.rows, chunk.log_mu)  # which the next chunk overwrites
        ]
        cuts = zip(chunk.cuts, chunk.following, strict=True)
        newest = [(columns, {divmod(cut, length): seen for cut, seen in cuts})]
        for each in reversed(self._chunks):
            length += each[0][0].shape[1]
            if len(each[0][0]) < lanes or length > self._length:
                break
            newest.insert(0, each)
        self._chunks = newest

    def batch(self) -> CollectedBatch:
        """All chunks, without the lanes that the newest one lacks."""
        lanes = len(self._chunks[-1][0][0])
        joined = [
            np.concatenate([column[:lanes] for column in columns], 1)
            for columns in zip(*(columns for columns, _ in self._chunks), strict=True)
        ]
        total, truncated = joined[0].shape[1], joined[4]
        found: dict[int, Array] = {}
        begin = 0
        for columns, cuts in self._chunks:
            for (lane, t), seen in cuts.items():
                at = begin + t
                # A trajectory that was cut at the end of an older chunk goes on in the next one.
                if lane < lanes and (at == total - 1 or truncated[lane, at]):
                    found[lane * total + at] = seen
            begin += columns[0].shape[1]
        order = sorted(found)
        *rows, log_mu = (column.reshape(-1, *column.shape[2:]) for column in joined)
        following = [found[position] for position in order]
        return CollectedBatch(ReplayRows(*rows), lanes * total, order, following, log_mu)


class Collector(Protocol):
    """Collects the batches of a core."""

    def reset(self, seed: int, first: Any = None) -> None:
        """Begins the first episodes, or goes on from their first observations."""
        ...

    def collect(self, most: int = sys.maxsize) -> CollectedBatch:
        """Plays until the batch is full, or `most` steps are made in each lane."""
        ...

    def play(self, lanes: int) -> int:
        """Sets the number of lanes of further batches, the others rest; the number that it is."""
        ...


@dataclass(frozen=True)
class CollectorContext:
    """The parts of a core that its collector works with."""

    #: Acts.
    model: Model
    #: Takes the steps.
    sink: RolloutSink
    #: To the orchestrator.
    pipe: WorkerPipe
    #: Draws the actions.
    rng: np.random.Generator
    #: Notes the lengths of episodes.
    diagnostics: Diagnostics
    #: Whether batches have log μ.
    notes_log_mu: bool = False
    #: ε, asked for before each batch. Without it, it stays what the algorithm's settings say.
    epsilon: Callable[[], float] | None = field(default=None, kw_only=True)
    #: Takes newer weights over in the middle of a batch; whether there were any. Without it, a
    #: batch is played with one policy.
    renew: Callable[[], bool] | None = field(default=None, kw_only=True)


def make_collector(experiment: Experiment, slots: Any, context: CollectorContext) -> Collector:
    """The collector for the result of `make_slots` with this experiment."""
    kind = SingleEnvCollector if experiment.environment.lanes == 1 else VectorEnvCollector
    return kind(experiment, slots, context)


class Prepared(NamedTuple):
    """The environments of a core before it works, so that its first step can be at once."""

    #: As `make_slots` gives them.
    slots: Any
    #: The first observations, as a `reset` gives them; None if there was none yet.
    first: Any = None


def make_slots(experiment: Experiment, check: Check | None = None) -> Any:
    """The environment of a core, or its lanes; the check as for `make_environment`."""
    settings = experiment.environment
    if settings.lanes == 1:
        environment = make_environment(settings, lean=True, check=check)
        if (agents := getattr(environment.unwrapped, "agents_in_turn", 1)) > 1:
            raise ConfigurationError(
                f"environment.lanes = 1: each of its {agents} agents is a lane; set it to "
                f"{agents} or a multiple of that"
            )
        return environment
    return make_lanes(settings, settings.lanes, check)


def first_observations(experiment: Experiment, slots: Any, seed: int) -> Any:
    """The first observations for `Prepared`; None with a clock, which begins with its core, and of
    Gymnasium's own environments: they begin at once, and those that will rest would keep memory."""
    settings = experiment.environment
    if settings.period or is_gymnasiums(settings):
        return None
    single = settings.lanes == 1
    return slots.reset(seed=seed)[0] if single else slots.reset(seed)


class SingleEnvCollector:
    """One environment, as documented. A batch may end with its episode."""

    def __init__(self, experiment: Experiment, environment: Any, context: CollectorContext) -> None:
        model = context.model
        self._renew = context.renew
        self._algorithm = experiment.algorithm
        self._environment = _Recalled(environment, model) if model.memory else environment
        self._may_be_nan = may_be_nan(environment.observation_space)
        self._model = model
        self._sink = context.sink
        self._pipe = context.pipe
        self._diagnostics = context.diagnostics
        explored = model.exploration(context.rng, 1)
        #: State-dependent noise, if there is any: arguments of those who act by it.
        self._exploration = () if explored is None else (explored,)
        self._sampler = ActionSampler(
            context.epsilon,
            experiment.algorithm.epsilon,
            lambda epsilon: model.head.sampler(context.rng, epsilon, *self._exploration),
        )
        self._notes = BehaviourNotes(
            model, context.notes_log_mu, 1, experiment.algorithm.batch_size
        )
        self._observation: Any = None
        self._return = 0.0
        self._length = 0
        #: Steps of the episode that the orchestrator knows of.
        self._reported = 0

    def reset(self, seed: int, first: Any = None) -> None:
        given = first is not None
        observation = first if given else self._environment.reset(seed=seed)[0]
        self._observation = self._model.recalled(observation) if given else observation

    def play(self, lanes: int) -> int:
        return 1

    def collect(self, most: int = sys.maxsize) -> CollectedBatch:
        """As `Collector.collect`.

        Unless batches extend across episodes, it also stops at the episode's end.
        """
        # Everything in this loop costs every step; what can be looked up once is a local name.
        rows = self._sink.begin(self._length > 0)
        observations, actions, rewards, was_terminated, was_truncated = rows
        step = self._environment.step
        noted = iter(() if self._notes.outputs is None else self._notes.outputs[0])
        outputs = self._acting(noted)
        sample, renew = self._sampler.sampler(), self._renew
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
            if renew is not None and not t % LOOK_STEPS and renew():
                outputs, normalize = self._acting(noted), self._model.normalizer()
            observations[t] = observation
            action = sample(outputs(observation if normalize is None else normalize(observation)))
            actions[t] = action
            observation, reward, terminated, truncated, _ = step(to_environment(action))
            try:
                earned = float(reward)
            except TypeError:
                earned = as_number(reward)
            rewards[t] = earned
            episode_return += earned
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
                self._diagnostics.ended(length)
                self._pipe.report(EPISODE, episode_return, length - self._reported)
                episode_return = 0.0
                length = 0
                self._reported = 0
                if not across:
                    break
                self._pipe.pause()
        if length:
            cuts.append(t - 1)
            following.append(observation)
        check_numbers(rewards[:t], *((observations[:t], *following) if self._may_be_nan else ()))
        log_mu = self._notes.log_mu(rows, t)
        self._sink.end(t, cuts, following, np.nan if log_mu is None else log_mu)
        self._observation = observation
        self._return = episode_return
        self._length = length
        if length - self._reported >= REPORT_STEPS:
            self._pipe.report(PROGRESS, 0.0, length - self._reported)
            self._reported = length
        return CollectedBatch(rows, t, cuts, following, log_mu, ended=length == 0)

    def _acting(self, noted: Iterator[Array]) -> Callable[[Array], Array]:
        """A function from one observation to the policy's outputs, which it notes if asked to."""
        outputs: Callable[[Array], Array] = self._model.network.acting(*self._exploration)
        if self._notes.outputs is None:
            return outputs

        def noting(observation: Array) -> Array:
            result = outputs(observation)
            next(noted)[:] = result
            return result

        return noting


class _Recalled:
    """An environment that gives its observations behind the state of a model's memory."""

    def __init__(self, environment: Any, model: Model) -> None:
        self._environment, self._model = environment, model

    def reset(self, **options: Any) -> tuple[Any, Any]:
        observation, info = self._environment.reset(**options)
        return self._model.recalled(observation), info

    def step(self, action: Any) -> tuple[Any, ...]:
        observation, *rest = self._environment.step(action)
        return self._model.recalled(observation, self._model.network.state), *rest


class VectorEnvCollector:
    """L environments, a batch of L trajectories that extend across episodes."""

    def __init__(self, experiment: Experiment, lanes: Any, context: CollectorContext) -> None:
        count = lanes.count
        model = context.model
        self._context = context
        self._epsilon = experiment.algorithm.epsilon
        self._renew = context.renew
        self._lanes = lanes
        self._may_be_nan = may_be_nan(lanes.observation_space)
        self._length = experiment.algorithm.batch_size // count
        self._model = model
        self._sink = context.sink
        self._pipe = context.pipe
        self._diagnostics = context.diagnostics
        explored = model.exploration(context.rng, count)
        self._exploration = () if explored is None else (explored,)
        self._playing = 0
        #: The playing lanes that have ended an episode since the last pause.
        self._ended: set[int] = set()
        self.play(count)
        self._notes = BehaviourNotes(model, context.notes_log_mu, count, self._length)
        self._observations = np.zeros((count, *model.observation_shape), np.float32)
        #: The parts of these that the lanes give, and that are the states of a memory.
        self._seen, self._states = self._observations, self._observations[:0]
        if model.memory:
            self._states, seen = np.split(self._observations, [model.memory], 1)
            self._seen = seen.reshape(count, *(lanes.observation_space.shape or ()))
        self._returns = np.zeros(count)
        #: Steps that each lane has made before this batch, and when its episode began.
        self._made = 0
        self._began = [0] * count
        self._unreported = 0

    def reset(self, seed: int, first: Any = None) -> None:
        self._seen[:] = self._lanes.reset(seed) if first is None else first
        self._states[:] = 0.0

    def play(self, lanes: int) -> int:
        if not self._lanes.may_rest:
            lanes = self._lanes.count
        if lanes != self._playing:
            self._playing, context = lanes, self._context
            self._ended.clear()
            self._sampler = ActionSampler(
                context.epsilon,
                self._epsilon,
                lambda epsilon: samples_of_lanes(
                    context.model.head, context.rng, epsilon, lanes, *self._exploration
                ),
            )
        return lanes

    def collect(self, most: int = sys.maxsize) -> CollectedBatch:
        rows = self._sink.begin(False)
        count, length = self._playing, min(self._length, most)
        observations, actions, rewards, was_terminated, was_truncated = (
            column[: count * length].reshape(count, length, *column.shape[1:]) for column in rows
        )
        outputs, normalize = self._acting(), self._model.normalizer()
        noted = self._notes.outputs
        current, step = self._observations[:count], self._lanes.step
        visible = self._seen[:count]
        returns = self._returns[:count]
        sample = self._sampler.sampler()
        was_terminated[:] = 0.0
        was_truncated[:] = 0.0
        cuts: dict[int, Array] = {}
        for t in range(length):
            if self._renew is not None and not t % LOOK_STEPS and self._renew():
                outputs, normalize = self._acting(), self._model.normalizer()
            observations[:, t] = current
            policy = outputs(current if normalize is None else normalize(current))
            if noted is not None:
                noted[:count, t] = policy
            actions[:, t], chosen = sample(policy)
            seen, earned, terminated, _, finals = step(chosen)
            rewards[:, t] = earned = np.asarray(earned[:count], np.float64)
            returns += earned
            self._unreported += count
            if isinstance(seen, np.ndarray):
                visible[:] = seen
            else:
                for lane in range(count):
                    visible[lane] = seen[lane]
            for lane, final in finals.items():
                if terminated[lane]:
                    was_terminated[lane, t] = 1.0
                else:
                    was_truncated[lane, t] = 1.0
                    final = self._model.recalled(final, self._states[lane : lane + 1])
                    cuts[lane * length + t] = np.array(final, np.float32)
                self._end_episode(lane, self._made + t + 1)
        self._made += length
        for lane in range(count, self._lanes.count):
            self._began[lane] += length
        over = (was_terminated[:, -1] + was_truncated[:, -1]) > 0.0
        for lane in np.flatnonzero(~over).tolist():
            cuts[lane * length + length - 1] = current[lane].copy()
        order = sorted(cuts)
        following = [cuts[position] for position in order]
        steps = count * length
        check_numbers(rewards, *((observations, *following) if self._may_be_nan else ()))
        log_mu = self._notes.log_mu(rows, steps, count)
        self._sink.end(steps, order, following, np.nan if log_mu is None else log_mu)
        if self._unreported >= REPORT_STEPS:
            self._report(PROGRESS, 0.0)
        return CollectedBatch(rows, steps, order, following, log_mu)

    def _acting(self) -> Callable[[Array], Array]:
        outputs: Callable[[Array], Array]
        network = self._model.network
        outputs = network.acting_together(*self._exploration)
        if not self._model.memory:
            return outputs

        def remembering(rows: Array) -> Array:
            result = outputs(rows)
            self._states[: len(rows)] = network.state
            return result

        return remembering

    def _end_episode(self, lane: int, made: int) -> None:
        self._diagnostics.ended(made - self._began[lane])
        self._began[lane] = made
        self._report(EPISODE, float(self._returns[lane]))
        self._returns[lane] = 0.0
        self._states[lane : lane + 1] = 0.0
        self._ended.add(lane)
        if len(self._ended) == self._playing:
            self._ended.clear()
            self._pipe.pause()

    def _report(self, kind: int, episode_return: float) -> None:
        self._pipe.report(kind, episode_return, self._unreported)
        self._unreported = 0
