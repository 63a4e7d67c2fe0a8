"""The replay of all children: what a core writes to it, and what a learner draws from it.

It is the counterpart of `replay.py`, whose tensor is the cores' of one child. What a learner sees
of it is the same.

Laws of this file:
- A core gathers what it has played, and sends it when there are `GATHERED_ROWS` rows or when the
  first of them is `GATHERED_SECONDS` old. It goes on when the engine has them.
- Within what is gathered, a trajectory goes on from batch to batch. It is cut where it is sent: the
  n-step returns of its last steps then have fewer steps, and their s′ is exact.
- Without an engine a core waits, acting as well as learning.
- Who has the engine's password may write anything there. What no core can have written, as NaN or
  an action that does not exist, is left out at reading, and that is said once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
import torch

from genkidama.child.replay_tensor import ReplayRows, RingSegment
from genkidama.errors import ConfigurationError
from genkidama.learning.model import Model, scaled
from genkidama.learning.rollout import Rollout, Transitions
from genkidama.plugins.actors.learner import columns_of
from genkidama.plugins.actors.rule import are_actions, are_numbers
from genkidama.plugins.gorila.engine_ring import EngineRing, RingSettings
from genkidama.plugins.gorila.ring import (
    GATHERED_ROWS,
    Drawn,
    RingRows,
    describe,
    join_blocks,
    rows_for,
)

__all__ = ["GlobalReplay", "GlobalShare", "ring_settings", "shared_by_all"]

Array = npt.NDArray[Any]

GATHERED_SECONDS = 0.1

#: So often a learner draws again if nothing that it has drawn makes sense.
_DRAWS = 20

#: Of so many drawn steps, half must make sense, or the replay is called spoilt.
_JUDGED = 1000

log = structlog.get_logger()

#: Added to each error, so that no step is forgotten.
_LEAST = 1e-3


def ring_settings(model: Model) -> RingSettings:
    """Which ring a model's experiment has, as children are told it."""
    experiment = model.experiment
    replay, environment = experiment.replay, experiment.environment
    rows = RingRows(model.observation_shape, model.sees_bytes, model.head.columns)
    capacity = rows_for(replay.steps, experiment.algorithm.batch_size, environment.lanes)
    prioritized = replay.priority_exponent > 0.0
    description = describe(experiment.to_dict()["environment"], rows, capacity, prioritized)
    return RingSettings(replay.url, replay.name, rows, capacity, description, prioritized)


class GlobalShare:
    """Takes a core's batches, as `RingSegment` does, and sends them to the ring.

    Args:
        batch: where a batch is collected.
        rows: what a row of the ring is made of.
        ring: where it goes.
    """

    def __init__(self, batch: RingSegment, rows: RingRows, ring: EngineRing) -> None:
        self._batch = batch
        self._rows = rows
        self._ring = ring
        self._gathered: list[Array] = []
        self._since = 0.0
        self._goes_on = False
        self._written: ReplayRows

    def begin(self, goes_on: bool) -> ReplayRows:
        """As `RingSegment.begin`."""
        self._goes_on = goes_on
        self._written = self._batch.begin(goes_on)
        return self._written

    def end(self, steps: int, cuts: list[int], following: list[Array], log_mu: Any) -> None:
        """As `RingSegment.end`. Returns when the engine has what was to be sent."""
        self._batch.end(steps, cuts, following, log_mu)
        if not steps:
            return
        seen, actions, rewards, terminated, truncated = (each[:steps] for each in self._written)
        block = self._rows.block(
            seen, actions, rewards, terminated, truncated, cuts, following, log_mu
        )
        now = time.monotonic()
        self._since = self._since if self._gathered else now
        join_blocks(self._gathered, block, self._goes_on)
        enough = sum(map(len, self._gathered)) >= GATHERED_ROWS
        if enough or now - self._since >= GATHERED_SECONDS:
            gathered, self._gathered = self._gathered, []
            self._ring.add(np.concatenate(gathered))

    def rehearse(self) -> None:
        """As `RingSegment.rehearse`."""
        self._batch.rehearse()


class GlobalReplay:
    """The ring as a learner sees it: a `genkidama.learning.rollout.Replay`.

    Args:
        ring: where the steps are.
        model: for its head, its settings and its running statistics.
        rng: decides what is drawn.
    """

    def __init__(self, ring: EngineRing, model: Model, rng: np.random.Generator) -> None:
        self._ring = ring
        self._model = model
        self._rng = rng
        self._gamma = model.experiment.algorithm.gamma
        self._capacity = ring.settings.capacity
        self._exponent = model.experiment.replay.priority_exponent
        self._choices = columns_of(model).choices
        #: How many steps were drawn, and how many of them made no sense.
        self._drawn = 0
        self._senseless = 0
        self._said_spoilt = False

    def __len__(self) -> int:
        return len(self._ring)

    def sample(
        self,
        count: int,
        *,
        own: bool = False,
        replacement: bool = True,
        steps: int = 1,
        correction: float | None = None,
    ) -> Transitions:
        _check_own(own)
        mode = "uniform" if replacement else "distinct"
        if correction is not None:
            if not self._exponent:
                raise ValueError("no priorities are kept: set replay.priority_exponent above 0")
            if not replacement:
                raise ConfigurationError(
                    "replacement = False: the global replay draws by priority with replacement "
                    "alone; take one of the two, or replay.url = 'local'"
                )
            mode = "priority"
        drawn, found = self._sample(count, steps, mode)
        discounts = np.power(self._gamma, drawn.lengths).astype(np.float32)
        discounts[drawn.terminated] = 0.0
        weights = np.ones(count, np.float32)
        if correction is not None:
            priorities = found[:, 2]
            weights = np.power(priorities / priorities.min(), -correction).astype(np.float32)
        return Transitions(
            self._model.seen(drawn.observations),
            drawn.actions.astype(self._model.head.dtype),
            drawn.rewards,
            self._model.seen(drawn.following),
            drawn.terminated,
            drawn.truncated,
            drawn.log_mu,
            discounts,
            weights,
            (found[:, 1] * self._capacity + found[:, 0]).astype(np.int64),
        )

    def prioritize(self, places: Array, errors: Array) -> None:
        if not self._exponent:
            return
        given = np.power(np.abs(errors).astype(np.float64) + _LEAST, self._exponent)
        given[~np.isfinite(given)] = 0.0
        laps, rows = np.divmod(places, self._capacity)
        self._ring.prioritize(np.stack((rows, laps, given), 1))

    def trajectories(self, count: int, length: int, *, own: bool = False) -> Rollout:
        _check_own(own)
        found = self._stretches(count, length)
        lengths = np.array([len(actions) for _, actions, _ in found])
        rewards, terminated, _, log_mu = np.concatenate([numbers for _, _, numbers in found]).T
        last = np.cumsum(lengths) - 1
        ends = np.zeros(len(rewards), np.bool_)
        ends[last] = True
        cut = terminated[last] == 0.0
        observations = np.concatenate([seen[:-1] for seen, _, _ in found])
        behind = np.stack([seen[-1] for seen, _, _ in found])[cut]
        actions = np.concatenate([actions for _, actions, _ in found])
        return Rollout(
            torch.from_numpy(self._model.seen(observations)),
            torch.from_numpy(actions.astype(self._model.head.dtype)),
            self._scaled(rewards.copy()),
            ends,
            last[cut],
            torch.from_numpy(self._model.seen(behind)),
            log_mu=log_mu.copy(),
            replay=self,
        )

    def _sample(self, count: int, steps: int, mode: str) -> tuple[Drawn, Array]:
        """As `EngineRing.sample`. What makes no sense is left out, and others stand in for it."""
        for _ in range(_DRAWS):
            drawn, places = self._ring.sample(
                self._seed(), count, steps, mode, self._gamma, self._scaled
            )
            numbers = np.stack((drawn.rewards, drawn.log_mu), 1)
            good = are_numbers(numbers) & are_actions(drawn.actions, self._choices)
            for seen in (drawn.observations, drawn.following):
                good &= are_numbers(seen)
            if good.all():
                self._drawn += count
                return drawn, places
            self._judge(count, int(np.count_nonzero(~good)))
            if self._exponent:
                rows, laps, _ = places[~good].T
                self._ring.prioritize(np.stack((rows, laps, np.zeros(len(rows))), 1))
            if good.any():
                taken = np.resize(np.flatnonzero(good), count)
                return Drawn(*(each[taken] for each in drawn)), places[taken]
        raise self._spoilt()

    def _stretches(self, count: int, length: int) -> list[tuple[Array, Array, Array]]:
        """As `EngineRing.stretches`, without those in which something makes no sense."""
        for _ in range(_DRAWS):
            found = self._ring.stretches(self._seed(), count, length)
            good = [
                each
                for each in found
                if are_numbers(each[0]).all()
                and are_numbers(each[2]).all()
                and are_actions(each[1], self._choices).all()
                and are_numbers(each[1]).all()
            ]
            self._judge(len(found), len(found) - len(good))
            if good:
                return good
        raise self._spoilt()

    def _judge(self, drawn: int, senseless: int) -> None:
        """Counts what was drawn, and says once that some of it makes no sense, once that most."""
        if senseless and not self._senseless:
            log.warning(
                "the replay holds steps that no core can have written; they are left out",
                replay=self._ring.settings.name,
            )
        self._drawn += drawn
        self._senseless += senseless
        mostly = self._drawn >= _JUDGED and 2 * self._senseless > self._drawn
        if mostly and not self._said_spoilt:
            self._said_spoilt = True
            log.error(str(self._spoilt()))

    def _spoilt(self) -> ConfigurationError:
        return ConfigurationError(
            f"replay.name = {self._ring.settings.name!r}: this replay is spoilt: most of its steps "
            "are none that a core can have written (NaN, or an action that does not exist); choose "
            "another replay.name"
        )

    def _seed(self) -> int:
        return int(self._rng.integers(2**31))

    def _scaled(self, rewards: Array) -> Array:
        model = self._model
        return scaled(rewards, model.experiment.environment, model.moments("returns"))


def shared_by_all(
    batch: RingSegment,
    model: Model,
    rng: np.random.Generator,
    writer: str,
    check: Callable[[], None],
) -> tuple[GlobalShare, GlobalReplay]:
    """What a core writes of the replay of all children, and what its learner draws from it.

    Arguments as for `GlobalShare`, `GlobalReplay` and `EngineRing`.
    """
    settings = ring_settings(model)
    ring = EngineRing(settings, writer, check)
    ring.open()
    return GlobalShare(batch, settings.rows, ring), GlobalReplay(ring, model, rng)


def _check_own(own: bool) -> None:
    if own:
        raise ConfigurationError(
            "own = True: the global replay does not tell whose steps are whose; "
            "leave it out, or set replay.url to 'local'"
        )
