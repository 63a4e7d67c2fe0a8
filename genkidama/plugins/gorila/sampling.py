"""Sampling from the replay tensor: single steps, n-step returns, trajectories, by priority or not.

Laws of this file:
- Steps that begin where a core's segment was overwritten during the copy are drawn again.
- n steps are consecutive, across blocks. They end with the episode, where it was cut, and where the
  next step is not in the tensor: at the write head, at a lap's end, and where a core has died.
  Their sum is then completed by s′, with fewer steps.
- Rewards are scaled and clipped one by one before they are summed.
- A row's probability is its priority over the sum of all (Schaul et al. 2016, §3.3). Each core has
  a tree of sums in shared memory: the priorities in its lowest level, and in each node above the
  sum of `_BRANCHES` below it.
- A step gets the largest priority of all as soon as its block is whole. Stops, and the rows that
  the core may write next, have 0.
- All cores write all trees, without a lock. A sum that two have written at once may be wrong until
  one of its rows changes again. So the row that a walk down ends at is checked, and drawn anew if
  it is no readable step.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.child.shared_memory import SharedMemory
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout, Transitions
from genkidama.plugins.gorila.replay_tensor import ReadView, ReplayTensor

Array = npt.NDArray[Any]


#: Of wide trees few levels have to be walked, and NumPy adds up many numbers as fast as two.
_BRANCHES = 32

#: After this many walks without a step there is none.
_TRIES = 1000


def _levels(rows: int) -> list[int]:
    """The number of nodes of each level, the lowest first."""
    sizes = [max(1, -(-rows // _BRANCHES)) * _BRANCHES]
    while sizes[-1] > _BRANCHES:
        sizes.append(-(-(sizes[-1] // _BRANCHES) // _BRANCHES) * _BRANCHES)
    return sizes


def nodes_of(rows: int) -> int:
    """The number of nodes of the tree over these rows."""
    return sum(_levels(rows))


def priorities_of(errors: Array, exponent: float) -> Array:
    """(|δ| + 0.001)^α, so that no step is forgotten; 0 where that is no number: float64 (B,)."""
    given = np.power(np.abs(errors).astype(np.float64) + 1e-3, exponent)
    return np.nan_to_num(given, copy=False, posinf=0.0)


class SumTrees:
    """The trees of all cores; `exponent` is the α of priorities."""

    def __init__(self, memory: SharedMemory, replay: ReplayTensor, exponent: float) -> None:
        self._replay = replay
        self._exponent = exponent
        self._largest = memory.largest
        sizes = _levels(replay.tensor.shape[1])
        bounds = np.cumsum([0, *sizes])
        trees = memory.priorities
        #: (C, nodes, _BRANCHES) each, the lowest first.
        self._levels = [
            trees[:, start:stop].reshape(len(trees), -1, _BRANCHES)
            for start, stop in pairwise(bounds)
        ]
        self._rows = trees[:, : sizes[0]]

    def totals(self) -> Array:
        """The sum of each tree: float64 (C,)."""
        result: Array = self._levels[-1][:, 0].sum(1)
        return result

    def written(self, index: int, start: int, stops: int, head: int) -> None:
        """A core has written steps from `start` on, and stops from there to `head`."""
        room = 2 * self._replay.batch
        size = self._replay.tensor.shape[1]
        steps = np.arange(start, stops)
        wraps = head + room > size
        ahead = np.arange(stops, size if wraps else head + room)
        if wraps:
            ahead = np.concatenate((ahead, np.arange(room)))
        rows = np.concatenate((steps, ahead))
        given = np.zeros(len(rows))
        given[: len(steps)] = self._largest.max() or 1.0
        self._set(np.full(len(rows), index), rows, given)

    def prioritize(self, index: int, places: Array, errors: Array) -> None:
        """As `Replay.prioritize`; `index` is the core that does so."""
        given = priorities_of(errors, self._exponent)
        cores, rows = np.divmod(places, self._replay.tensor.shape[1])
        # What has become unreadable since it was drawn stays so.
        fresh = self._rows[cores, rows] > 0.0
        self._largest[index] = max(self._largest[index], given.max(initial=0.0))
        self._set(cores[fresh], rows[fresh], given[fresh])

    def draw(
        self,
        rng: np.random.Generator,
        view: ReadView,
        count: int,
        share: int | None,
        replacement: bool,
    ) -> tuple[Array, Array, Array]:
        """Cores and rows of steps in proportion to their priorities, and these: (B,) each."""
        totals = self.totals()
        if share is not None:
            totals = np.where(np.arange(len(totals)) == share, totals, 0.0)
        if not replacement:
            return self._without(rng, view, count, share)
        # One of each of as many equal parts: less depends on chance.
        parts = (np.arange(count) + rng.random(count)) / count
        for _ in range(_TRIES):
            if not totals.any():
                break
            cores, rows = self._walk(totals, parts)
            priorities = self._rows[cores, rows]
            good = self._steps(view, cores, rows, priorities)
            if good.all():
                return cores, rows, priorities
            parts = np.where(good, parts, rng.random(count))
        raise ValueError(f"{count} steps asked for, 0 are there")

    def _steps(self, view: ReadView, cores: Array, rows: Array, priorities: Array) -> Array:
        """True for steps that can be read: (B,) bool. Other cores may set their priorities to 0 at
        any moment, so these are read once."""
        start = view.start[cores]
        back = (rows >= start) & (rows < start + view.back[cores])
        readable = (rows < view.front[cores]) | back
        result: Array = readable & (self._replay.following[cores, rows] > 0.0)
        return result & (priorities > 0.0)

    def _without(
        self, rng: np.random.Generator, view: ReadView, count: int, share: int | None
    ) -> tuple[Array, Array, Array]:
        """Each next one in proportion to what is left: Efraimidis & Spirakis 2006."""
        first = 0 if share is None else share
        shares = self._rows if share is None else self._rows[share : share + 1]
        cores, rows = np.nonzero(shares)
        cores += first
        priorities = self._rows[cores, rows]
        there = self._steps(view, cores, rows, priorities)
        cores, rows = cores[there], rows[there]
        priorities = priorities[there]
        if count > len(rows):
            raise ValueError(f"{count} steps asked for, {len(rows)} are there")
        keys = rng.exponential(size=len(rows)) / priorities
        chosen = np.argpartition(keys, count - 1)[:count]
        return cores[chosen], rows[chosen], priorities[chosen]

    def _walk(self, totals: Array, parts: Array) -> tuple[Array, Array]:
        """The leaves at these parts, in [0, 1), of the sum of all trees."""
        ends = np.cumsum(totals)
        left = parts * ends[-1]
        cores = np.minimum(np.searchsorted(ends, left, side="right"), len(ends) - 1)
        left -= (ends - totals)[cores]
        nodes = np.zeros(len(parts), np.intp)
        rows = np.arange(len(parts))
        for level in reversed(self._levels):
            sums = level[cores, nodes].cumsum(1)
            branch = np.minimum((sums <= left[:, None]).sum(1), _BRANCHES - 1)
            left -= np.where(branch > 0, sums[rows, branch - 1], 0.0)
            nodes = nodes * _BRANCHES + branch
        return cores, np.minimum(nodes, self._replay.tensor.shape[1] - 1)

    def _set(self, cores: Array, rows: Array, given: Array) -> None:
        """Priorities of rows, and all sums above them."""
        self._rows[cores, rows] = given
        nodes = rows // _BRANCHES
        for level, above in pairwise(self._levels):
            parents, branches = np.divmod(nodes, _BRANCHES)
            above[cores, parents, branches] = level[cores, nodes].sum(1)
            nodes = parents


class Sampler:
    """Draws steps as the environment gave them, by the priorities of `trees` if there are any;
    `scale` comes before rewards are summed up."""

    def __init__(
        self,
        replay: ReplayTensor,
        gamma: float = 1.0,
        scale: Callable[[Array], Array] | None = None,
        trees: SumTrees | None = None,
    ) -> None:
        self.replay = replay
        self._gamma = gamma
        self._scale = scale
        self._trees = trees
        cores, rows, columns = replay.tensor.shape
        self._table = replay.tensor.reshape(cores * rows, columns)
        self._size = rows

    def sample(
        self,
        rng: np.random.Generator,
        count: int,
        *,
        share: int | None = None,
        replacement: bool = True,
        steps: int = 1,
        correction: float | None = None,
    ) -> Transitions:
        """Random steps; copies. `share`: of this core's alone; the others are as `Replay.sample`
        has them.

        Raises:
            ValueError: as there.
        """
        if correction is not None and self._trees is None:
            raise ValueError("no priorities are kept: set replay.priority_exponent above 0")
        view = self.replay.view()
        weights = np.ones(count, np.float32)
        if correction is None:
            cores, rows = self._uniform(rng, view, count, share, replacement)
        else:
            assert self._trees is not None
            cores, rows, priorities = self._trees.draw(rng, view, count, share, replacement)
            weights = ((priorities / priorities.min()) ** -correction).astype(np.float32)
        found = self._copied(cores, rows, steps, weights)
        again = self.replay.overwritten(view, cores, rows)
        if not again.any():
            return found
        more = int(again.sum()) if replacement else count
        others = self.sample(
            rng, more, share=share, replacement=replacement, steps=steps, correction=correction
        )
        if not replacement:
            return others
        for name, column in vars(found).items():
            column[again] = getattr(others, name)
        return found

    def trajectories(
        self, rng: np.random.Generator, count: int, length: int, share: int | None
    ) -> tuple[Array, Array, Array, Array, Array]:
        """Random trajectories of at most `length` steps, one behind the other.

        Returns:
            The n rows of T that they are, copies (n, M), and their observations (n, ...); which of
            them end one (n,); which of these ends are cuts (n,); and the observations that followed
            the cuts.
        """
        replay = self.replay
        while True:
            view = replay.view()
            cores, rows = self._uniform(rng, view, count, share, True)
            chain, lengths, after = self._walk(cores, rows, length)
            there = np.arange(length) < lengths[:, None]
            places = (cores[:, None] * self._size + chain)[there]
            table = self._table[places]
            observations = replay.observations[np.divmod(places, self._size)]
            last = np.zeros_like(there)
            last[np.arange(count), lengths - 1] = True
            ends = last[there]
            terminated = replay.terminated[cores, chain[:, -1]] > 0.0
            cuts = ends.copy()
            cuts[ends] = ~terminated
            following = replay.observations[cores, after][~terminated]
            if not replay.overwritten(view, cores, rows).any():
                return table, observations, ends, cuts, following

    def _uniform(
        self,
        rng: np.random.Generator,
        view: ReadView,
        count: int,
        share: int | None,
        replacement: bool,
    ) -> tuple[Array, Array]:
        """Cores and rows of uniformly random steps."""
        front = view.front
        back = view.back
        if share is not None:
            elsewhere = np.arange(len(front)) != share
            front = np.where(elsewhere, 0, front)
            back = np.where(elsewhere, 0, back)
        ends = np.cumsum(front + back)
        total = int(ends[-1])

        def places(numbers: Array) -> tuple[Array, Array]:
            """Core and row of each of the readable rows with these numbers."""
            cores = np.searchsorted(ends, numbers, side="right")
            rows = numbers - (ends - front - back)[cores]
            rows += np.where(rows < front[cores], 0, (view.start - front)[cores])
            return cores, rows

        following = self.replay.following if total else np.zeros((1, 1))
        if replacement and total:
            cores, rows = places(rng.integers(total, size=count))
            # Stops are drawn again. They are as rare as cuts are.
            while (again := following[cores, rows] <= 0.0).any():
                cores[again], rows[again] = places(rng.integers(total, size=int(again.sum())))
            return cores, rows
        steps = np.arange(0)
        if total:
            steps = np.flatnonzero(following[places(np.arange(total))] > 0.0)
        if count > len(steps):
            raise ValueError(f"{count} steps asked for, {len(steps)} are there")
        return places(rng.choice(steps, count, replace=False))

    def _walk(self, cores: Array, rows: Array, most: int) -> tuple[Array, Array, Array]:
        """The chains of steps that follow these, as far as the tensor has them.

        Returns the rows of the steps (B, most), the last one again and again behind the end; their
        number (B,); and the row of s′, which is invalid after a termination (B,).
        """
        terminated, following = self.replay.terminated, self.replay.following
        chain = np.empty((len(rows), most), np.intp)
        chain[:, 0] = at = rows
        lengths = np.ones(len(rows), np.intp)
        going = np.ones(len(rows), np.bool_)
        for step in range(1, most):
            after = at + following[cores, at].astype(np.intp)
            going &= terminated[cores, at] == 0.0
            after[~going] = rows[~going]
            # A lane's stop says where the lane went on.
            after -= np.minimum(following[cores, after], 0.0).astype(np.intp)
            going &= following[cores, after] > 0.0
            at = np.where(going, after, at)
            chain[:, step] = at
            lengths += going
        over = terminated[cores, at] > 0.0
        return chain, lengths, np.where(over, at, at + following[cores, at].astype(np.intp))

    def _copied(self, cores: Array, rows: Array, steps: int, weights: Array) -> Transitions:
        replay = self.replay
        chain, lengths, after = self._walk(cores, rows, steps)
        places = cores * self._size + rows
        first = self._table.take(places, 0)
        last = first if steps == 1 else self._table.take(cores * self._size + chain[:, -1], 0)
        width = replay.width
        if width:
            shape = (len(rows), *replay.observations.shape[2:])
            observations = first[:, :width].reshape(shape)
        else:
            observations = replay.observations[cores, rows]
        at_reward = width + replay.actions.shape[2]
        terminated = last[:, at_reward + 1] > 0.0
        discounts = np.power(self._gamma, lengths).astype(np.float32)
        discounts[terminated] = 0.0
        return Transitions(
            observations=observations,
            actions=first[:, width:at_reward],
            rewards=self._returns(cores, chain, lengths),
            following=replay.observations[cores, after],
            terminated=terminated,
            truncated=last[:, at_reward + 2] > 0.0,
            log_mu=first[:, at_reward + 3],
            discounts=discounts,
            weights=weights,
            places=places,
        )

    def _returns(self, cores: Array, chain: Array, lengths: Array) -> Array:
        """Σ γ^k·r_k over each chain: float32 (B,)."""
        rewards = self.replay.rewards[cores[:, None], chain]
        if self._scale is not None:
            rewards = self._scale(rewards)
        steps = chain.shape[1]
        if steps == 1:
            result: Array = rewards[:, 0]
            return result
        powers = np.power(self._gamma, np.arange(steps)).astype(np.float32)
        powers = np.where(np.arange(steps) < lengths[:, None], powers, np.float32(0.0))
        summed: Array = (rewards * powers).sum(1)
        return summed


class LocalReplay:
    """The tensor as a learner on core `index` sees it: steps as its rollouts have them."""

    def __init__(
        self,
        replay: ReplayTensor,
        model: Model,
        rng: np.random.Generator,
        index: int,
        trees: SumTrees | None = None,
    ) -> None:
        self._replay = replay
        self._model = model
        self._rng = rng
        self._index = index
        self._trees = trees
        self._sampler = Sampler(replay, model.experiment.algorithm.gamma, model.scaled, trees)

    def __len__(self) -> int:
        view = self._replay.view()
        return int(view.front.sum() + view.back.sum())

    def sample(
        self,
        count: int,
        *,
        own: bool = False,
        replacement: bool = True,
        steps: int = 1,
        correction: float | None = None,
    ) -> Transitions:
        drawn = self._sampler.sample(
            self._rng,
            count,
            share=self._index if own else None,
            replacement=replacement,
            steps=steps,
            correction=correction,
        )
        drawn.actions = drawn.actions.astype(self._model.head.dtype)
        drawn.observations = self._model.seen(drawn.observations)
        drawn.following = self._model.seen(drawn.following)
        return drawn

    def prioritize(self, places: Array, errors: Array) -> None:
        if self._trees is not None:
            self._trees.prioritize(self._index, places, errors)

    def trajectories(self, count: int, length: int, *, own: bool = False) -> Rollout:
        share = self._index if own else None
        table, observations, ends, cuts, following = self._sampler.trajectories(
            self._rng, count, length, share
        )
        model = self._model
        width = self._replay.width
        columns = model.head.columns
        return Rollout(
            model.native(model.seen(observations)),
            model.native(table[:, width : width + columns].astype(model.head.dtype)),
            model.scaled(table[:, width + columns]),
            ends,
            np.flatnonzero(cuts),
            model.native(model.seen(following)),
            log_mu=table[:, width + columns + 3].copy(),
        )
