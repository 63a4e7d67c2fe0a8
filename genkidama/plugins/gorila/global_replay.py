"""The replay of all children: rows in one ring on an engine, as cores write and learners draw them.

It is the counterpart of the replay tensor, which is shared by the cores of one child. A learner
sees the same of both.

Rows:
- A row is a step, or a *stop*: the observation that followed where a trajectory was cut.
- The row behind a step has the observation that followed it, unless the step has terminated. So a
  step's s′ is exact, and n-step returns need no more than the rows behind it.
- A block is one write of one core. It begins with a step, and ends with a stop or with a step that
  has terminated. So no step needs a row of another block, and whichever rows of a block are
  overwritten first, the others stay whole.
- Where a block continues the trajectory of the last one, and that one has not been sent, its stop
  gives way to the step.

The ring:
- The engine carries out each request as one script, so nobody sees half a block.
- A block is sent until it is answered, under a unique number, and counts once. After the answer
  it is in the engine's memory, and in its file if it keeps one.
- An absent engine is awaited, with jittered backoff, for as long as this process lives; a core that
  writes and a learner that draws both wait. A ring that is gone is made anew.
- A ring belongs to every experiment that agrees with its description.

Cores and learners:
- A core sends its rows when there are `SEND_ROWS` or when the first of them is
  `SEND_SECONDS` old, and continues when the engine has them.
- A trajectory continues from batch to batch until it is sent. There it is cut: the n-step returns
  of its last steps then have fewer steps, and their s′ is exact.
- Whoever has the engine's password may write anything there. Rows that no core can have written, as
  NaN or an action that does not exist, are left out at reading, with one warning.
"""

from __future__ import annotations

import random
import secrets
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from genkidama.child.shared_memory import BatchSink, ReplayRows
from genkidama.config.formatting import megabytes
from genkidama.errors import ConfigurationError
from genkidama.learning.model import Model
from genkidama.learning.rollout import NoSteps, Rollout, Transitions
from genkidama.plugins.gorila.redis_client import EngineGone, RedisClient
from genkidama.plugins.gorila.sampling import priorities_of
from genkidama.protocol.vector import are_actions, are_numbers
from genkidama.runtime.log import get_logger
from genkidama.runtime.pacing import Backoff

Array = npt.NDArray[Any]

#: Behind the actions: reward, terminated, truncated, log μ, and 1 for a step or 0 for a stop.
_REWARD, _TERMINATED, _TRUNCATED, _LOG_MU, _IS_STEP = range(-5, 0)

#: Rows that a core collects before it sends them.
SEND_ROWS = 64


@dataclass(frozen=True)
class RingRows:
    """The format of a row: an observation's shape, whether it is kept as uint8 instead of float32
    (`pixels`), and the numbers of one action.
    """

    shape: tuple[int, ...]
    pixels: bool
    actions: int

    @property
    def observation_bytes(self) -> int:
        return int(np.prod(self.shape)) * (1 if self.pixels else 4)

    @property
    def numbers(self) -> int:
        """Numbers of a row beside the observation."""
        return self.actions + 5

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self.observation_bytes + 4 * self.numbers

    @property
    def _kind(self) -> str:
        return "u1" if self.pixels else "<f4"

    def _dtype(self, steps: int | None = None) -> np.dtype[Any]:
        """Of a row or, with `steps`, of what is sent of a step: s, the numbers of all, s′."""
        first = ("observation", self._kind, self.shape)
        if steps is None:
            return np.dtype([first, ("numbers", "<f4", (self.numbers,))])
        last = ("following", self._kind, self.shape)
        return np.dtype([first, ("numbers", "<f4", (steps, self.numbers)), last])

    def block(
        self,
        observations: Array,
        actions: Array,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        cuts: list[int],
        following: list[Array],
        log_mu: Any,
    ) -> Array:
        """The rows of a batch: its n steps in their order, and a stop behind each cut.

        `cuts` are the steps after which the trajectory is cut, in their order; `following` are the
        observations that followed there.
        """
        steps = len(rewards)
        block = np.zeros(steps + len(cuts), self._dtype())
        where = np.arange(steps) + np.searchsorted(cuts, np.arange(steps))
        block["observation"][where] = observations
        numbers = block["numbers"]
        numbers[where, : self.actions] = actions
        numbers[where, _REWARD] = rewards
        numbers[where, _TERMINATED] = terminated
        numbers[where, _TRUNCATED] = truncated
        numbers[where, _LOG_MU] = log_mu
        numbers[where, _IS_STEP] = 1.0
        if cuts:
            stops = np.array(cuts) + np.arange(1, len(cuts) + 1)
            block["observation"][stops] = following
        return block

    def drawn(
        self,
        reply: bytes,
        steps: int,
        gamma: float,
        scale: Callable[[Array], Array] = lambda rewards: rewards,
    ) -> Transitions:
        """Decodes an engine's reply: of each step s, the numbers of n rows from it on, and s′.
        `scale` is applied to the rewards before they are summed with γ. Observations are as they
        are kept, and places unknown."""
        found = np.frombuffer(reply, self._dtype(steps))
        numbers = found["numbers"]
        alive = np.ones((len(found), steps), np.bool_)
        for k in range(1, steps):
            over = numbers[:, k - 1, _TERMINATED] > 0.0
            alive[:, k] = alive[:, k - 1] & ~over & (numbers[:, k, _IS_STEP] > 0.0)
        lengths = alive.sum(1)
        last = numbers[np.arange(len(found)), lengths - 1]
        # A number that is not alive may be anything, even NaN.
        rewards = scale(np.where(alive, numbers[:, :, _REWARD], np.float32(0.0)))
        powers = np.where(alive, np.power(gamma, np.arange(steps)).astype(np.float32), 0.0)
        observations = found["observation"].copy()
        following = found["following"].copy()
        terminated = last[:, _TERMINATED] > 0.0
        # Nothing follows a termination; its own observation is as good as any other there.
        following[terminated] = observations[terminated]
        return Transitions(
            observations,
            numbers[:, 0, : self.actions].copy(),
            (rewards * powers).sum(1, dtype=np.float32),
            following,
            terminated,
            last[:, _TRUNCATED] > 0.0,
            numbers[:, 0, _LOG_MU].copy(),
            np.where(terminated, 0.0, np.power(gamma, lengths)).astype(np.float32),
            np.ones(len(found), np.float32),
            np.zeros(len(found), np.int64),
        )

    def trajectories(self, reply: bytes, lengths: list[int]) -> list[tuple[Array, Array, Array]]:
        """Trajectories that an engine has sent: the rows of each, and the observation behind.

        Of one with m steps: observations (m + 1, ...), as they are kept; actions (m, columns); and
        of each step reward, terminated, truncated, log μ (m, 4), float32.
        """
        found = []
        start = 0
        for length in lengths:
            rows = np.frombuffer(reply, self._dtype(), length, start)
            start += length * self.width
            size = self.observation_bytes
            behind = np.frombuffer(reply[start : start + size], self._kind).reshape(1, *self.shape)
            start += size
            observations = np.concatenate((rows["observation"], behind))
            numbers = rows["numbers"]
            found.append(
                (
                    observations,
                    numbers[:, : self.actions].copy(),
                    numbers[:, _REWARD:_IS_STEP].copy(),
                )
            )
        return found


def rows_for(steps: int, batch: int, lanes: int) -> int:
    """The number of rows that hold these steps, if none is truncated within a batch."""
    return steps + lanes * (-(-steps // batch) + 1) + 2 * batch + SEND_ROWS


def describe(environment: dict[str, Any], rows: RingRows, steps: int, prioritized: bool) -> str:
    """The description of a ring. Two experiments can share one if theirs are equal. It has none of
    what a child may have for itself, as options and lanes."""
    settled = {key: environment[key] for key in ("id", "wrappers", "vectorized")}
    kind = "uint8" if rows.pixels else "float32"
    return (
        f"{environment['id']} ({zlib.crc32(repr(settled).encode()):08x}), {kind} {rows.shape}, "
        f"{rows.actions} a, {steps} steps, {megabytes(steps * rows.width)}"
        + (", priorities" if prioritized else "")
    )


#: The shortest and the longest wait for an engine that is not there.
BACKOFF_SECONDS = (0.1, 5.0)

#: The age up to which a known length is good enough.
_LENGTH_SECONDS = 0.2

_LUA = Path(__file__).with_name("lua")

log = get_logger()


class RingSettings(NamedTuple):
    """A ring, and its contents."""

    #: Of the engine.
    url: str
    #: Of the ring, on the engine.
    name: str
    rows: RingRows
    #: The number of rows, if this process makes the ring.
    capacity: int
    description: str
    prioritized: bool


class EngineRing:
    """One process' hand on a ring.

    `writer` is the process' name among all that write, the same for its successors. `check` is
    called while the engine is waited for; it raises if this process should end.
    """

    def __init__(
        self, settings: RingSettings, writer: str, check: Callable[[], None] = lambda: None
    ) -> None:
        self.settings = settings
        self._engine = RedisClient(settings.url)
        self._check = check
        self._writer = writer
        self._word = secrets.token_hex(8)
        self._number = 0
        #: Cluster engines keep together what has the same words in braces.
        self._keys = [f"genkidama:{{{settings.name}}}:{part}" for part in _PARTS]
        tree = _script("tree")
        make = self._engine.client.register_script
        self._scripts = {name: make(tree + _script(name)) for name in _SCRIPTS}
        self._length = 0
        self._length_at = -1e9

    def open(self) -> None:
        """Makes the ring, unless it is there.

        Raises:
            ConfigurationError: it is another experiment's, or the engine is no good.
            EnvironmentFailure: it does not fit there.
        """
        self._retrying(self._open)

    def _open(self) -> None:
        warning = self._engine.check()
        kept = self.settings
        key = self._keys[1]
        there = self._engine.ask(lambda client: client.hget(key, "description"))
        if there is None:
            if warning:
                log.warning(warning, replay=self._engine.url)
            self._engine.check_room(kept.capacity * kept.rows.width)
        row = (kept.capacity, kept.rows.width, kept.rows.observation_bytes, int(kept.prioritized))
        self._check_description(self._once("open", kept.description, *row))

    def add(self, block: Array) -> None:
        """Writes a block of rows, and returns when the engine has it; errors as `open`."""
        self._number += 1
        kept = self.settings
        self._ask(
            "add",
            block.tobytes(),
            len(block),
            kept.rows.width,
            self._writer,
            self._word,
            self._number,
            int(kept.prioritized),
        )

    def sample(
        self,
        seed: int,
        count: int,
        steps: int,
        mode: str,
        gamma: float,
        scale: Callable[[Array], Array],
    ) -> tuple[Transitions, Array]:
        """Random steps, and of each its row, lap and priority, float64 (count, 3).

        The mode is `"uniform"`, `"distinct"`, which is without replacement, or `"priority"`. A
        ValueError says that there are fewer than `count` different ones, `NoSteps` that there are
        none.
        """
        reply, places, _ = self._draw(seed, count, steps, mode)
        drawn = self.settings.rows.drawn(reply, steps, gamma, scale)
        return drawn, np.frombuffer(places, "<f8").reshape(count, 3)

    def trajectories(self, seed: int, count: int, length: int) -> list[tuple[Array, Array, Array]]:
        """Random trajectories of at most `length` steps, as `RingRows.trajectories` gives them."""
        reply, _, lengths = self._draw(seed, count, length, "stretch")
        found = np.frombuffer(lengths, "<f8").astype(int).tolist()
        return self.settings.rows.trajectories(reply, found)

    def _draw(self, seed: int, count: int, steps: int, mode: str) -> tuple[bytes, bytes, bytes]:
        rows = self.settings.rows
        size = (rows.observation_bytes, rows.width)
        reply = self._ask("sample", count, seed, steps, *size, mode)
        if isinstance(reply, int):
            self._length_at = -1e9
            kind = ValueError if reply else NoSteps
            raise kind(f"{count} steps asked for, {reply} are there")
        first, second, third = reply
        return first, second, third

    def prioritize(self, places: Array) -> None:
        """Gives steps other priorities, unless they have been overwritten. `places` has of each its
        row, its lap and its new priority, (B, 3)."""
        self._ask("prioritize", places.astype("<f8").tobytes())

    def __len__(self) -> int:
        """The number of readable rows; a moment old."""
        now = time.monotonic()
        if now - self._length_at > _LENGTH_SECONDS:
            key = self._keys[1]
            found = self._retrying(
                lambda: self._engine.ask(lambda client: client.hget(key, "filled"))
            )
            self._length = int(found or 0)
            self._length_at = now
        return self._length

    def close(self) -> None:
        self._engine.close()

    # Asking.

    def _ask(self, name: str, *arguments: Any) -> Any:
        return self._retrying(lambda: self._once(name, self.settings.description, *arguments), name)

    def _once(self, name: str, *arguments: Any) -> Any:
        script, keys = self._scripts[name], self._keys
        return self._engine.ask(lambda _: script(keys, arguments))

    def _retrying(self, work: Callable[[], Any], name: str = "") -> Any:
        """The result of `work`, however long the engine is away."""
        backoff = Backoff(BACKOFF_SECONDS, random.random)
        problem = ""
        while True:
            try:
                result = work()
            except EngineGone as error:
                if not problem:
                    log.warning("replay not reachable, still trying", reason=str(error))
                problem = str(error)
                self._engine.client.connection_pool.disconnect()
                self._rest(backoff.wait())
                continue
            except Exception as error:
                kind, _, rest = str(error).partition(" ")
                if name == "sample" and kind == "FEW":
                    return int(rest)
                if not name or kind != "RING":
                    raise
                self._check_description(rest.encode() if rest else None)
                log.warning("the replay was gone, and begins anew", replay=self._engine.url)
                self._length_at = -1e9
                self.open()
                continue
            if problem:
                log.info("replay reachable again", replay=self._engine.url)
            return result

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._check()
            time.sleep(min(left, 0.1))

    def _check_description(self, there: bytes | None) -> None:
        """Checks that a ring of this description is ours; None for no ring."""
        ours = self.settings
        if there is not None and there.decode(errors="replace") != ours.description:
            raise ConfigurationError(
                f"replay.name = {ours.name!r}: this ring on {self._engine.url} is another "
                f"experiment's ({there.decode(errors='replace')}; here: {ours.description}); "
                "choose another replay.name"
            )


#: The ends of the names of a ring's keys.
_PARTS = ("rows", "state", "priorities")

_SCRIPTS = ("open", "add", "sample", "prioritize")


def _script(name: str) -> str:
    return (_LUA / f"{name}.lua").read_text(encoding="utf-8")


SEND_SECONDS = 0.1

#: No ring has more rows: a place is its lap times this, and its row.
_MOST_ROWS = 1 << 32

#: Draws of a learner, at most, until one has a valid step.
_DRAWS = 20

#: After this many drawn steps half must be valid, or the replay is called spoilt.
_JUDGED = 1000


def ring_settings(model: Model) -> RingSettings:
    """The ring of a model's experiment."""
    experiment = model.experiment
    replay, environment = experiment.replay, experiment.environment
    rows = RingRows(model.observation_shape, model.sees_bytes, model.head.columns)
    capacity = rows_for(replay.steps, experiment.algorithm.batch_size, environment.lanes)
    prioritized = replay.priority_exponent > 0.0
    description = describe(experiment.to_dict()["environment"], rows, replay.steps, prioritized)
    return RingSettings(replay.url, replay.name, rows, capacity, description, prioritized)


class GlobalReplayWriter:
    """Takes a core's batches, as a `RolloutSink`, and sends them to the ring."""

    def __init__(self, batch: BatchSink, ring: EngineRing) -> None:
        self._batch = batch
        self._rows = ring.settings.rows
        self._ring = ring
        self._unsent: list[Array] = []
        self._since = 0.0
        self._goes_on = False
        self._written: ReplayRows

    def begin(self, goes_on: bool) -> ReplayRows:
        """As `RolloutSink.begin`."""
        self._goes_on = goes_on
        self._written = self._batch.begin(goes_on)
        return self._written

    def end(self, steps: int, cuts: list[int], following: list[Array], log_mu: Any) -> None:
        """As `RolloutSink.end`. Returns when the engine has what was to be sent."""
        self._batch.end(steps, cuts, following, log_mu)
        if not steps:
            return
        seen, actions, rewards, terminated, truncated = (each[:steps] for each in self._written)
        block = self._rows.block(
            seen, actions, rewards, terminated, truncated, cuts, following, log_mu
        )
        now = time.monotonic()
        self._since = self._since if self._unsent else now
        if self._goes_on and self._unsent:  # its first step is where the last block was cut
            self._unsent[-1] = self._unsent[-1][:-1]
        self._unsent.append(block)
        enough = sum(map(len, self._unsent)) >= SEND_ROWS
        if enough or now - self._since >= SEND_SECONDS:
            blocks, self._unsent = self._unsent, []
            self._ring.add(np.concatenate(blocks))

    def rehearse(self) -> None:
        """As `RolloutSink.rehearse`."""
        self._batch.rehearse()


class GlobalReplay:
    """The ring as a learner sees it: a `genkidama.learning.rollout.Replay`."""

    def __init__(self, ring: EngineRing, model: Model, rng: np.random.Generator) -> None:
        self._ring = ring
        self._model = model
        self._rng = rng
        self._gamma = model.experiment.algorithm.gamma
        self._exponent = model.experiment.replay.priority_exponent
        self._choices = model.choices
        #: Whether the learner reads log μ. If not, cores write NaN for it.
        self.needs_log_mu = True
        #: The number of drawn steps, and of the invalid ones among them.
        self._drawn = 0
        self._invalid = 0
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
        drawn.observations = self._model.seen(drawn.observations)
        drawn.following = self._model.seen(drawn.following)
        drawn.actions = drawn.actions.astype(self._model.head.dtype)
        drawn.places = (found[:, 1] * _MOST_ROWS + found[:, 0]).astype(np.int64)
        if correction is not None:
            priorities = found[:, 2]
            drawn.weights = np.power(priorities / priorities.min(), -correction).astype(np.float32)
        return drawn

    def prioritize(self, places: Array, errors: Array) -> None:
        if not self._exponent:
            return
        given = priorities_of(errors, self._exponent)
        laps, rows = np.divmod(places, _MOST_ROWS)
        self._ring.prioritize(np.stack((rows, laps, given), 1))

    def trajectories(self, count: int, length: int, *, own: bool = False) -> Rollout:
        _check_own(own)
        found = self._trajectories(count, length)
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
            self._model.native(self._model.seen(observations)),
            self._model.native(actions.astype(self._model.head.dtype)),
            self._model.scaled(rewards.copy()),
            ends,
            last[cut],
            self._model.native(self._model.seen(behind)),
            log_mu=log_mu.copy(),
        )

    def _sample(self, count: int, steps: int, mode: str) -> tuple[Transitions, Array]:
        """As `EngineRing.sample`. What makes no sense is left out, and others stand in for it."""
        for _ in range(_DRAWS):
            drawn, places = self._ring.sample(
                self._seed(), count, steps, mode, self._gamma, self._model.scaled
            )
            good = are_numbers(drawn.rewards[:, None])
            if self.needs_log_mu:
                good &= are_numbers(drawn.log_mu[:, None])
            good &= are_actions(drawn.actions, self._choices)
            for numbers in (drawn.observations, drawn.following, drawn.actions):
                good &= are_numbers(numbers)
            if good.all():
                self._drawn += count
                return drawn, places
            self._count(count, int(np.count_nonzero(~good)))
            if self._exponent:
                rows, laps, _ = places[~good].T
                self._ring.prioritize(np.stack((rows, laps, np.zeros(len(rows))), 1))
            if good.any():
                taken = np.resize(np.flatnonzero(good), count)
                kept = {name: column[taken] for name, column in vars(drawn).items()}
                return Transitions(**kept), places[taken]
        raise self._spoilt()

    def _trajectories(self, count: int, length: int) -> list[tuple[Array, Array, Array]]:
        """As `EngineRing.trajectories`, without those in which something makes no sense."""
        for _ in range(_DRAWS):
            found = self._ring.trajectories(self._seed(), count, length)
            good = [
                each
                for each in found
                if are_numbers(each[0]).all()
                and are_numbers(each[2][:, : None if self.needs_log_mu else -1]).all()
                and are_actions(each[1], self._choices).all()
                and are_numbers(each[1]).all()
            ]
            self._count(len(found), len(found) - len(good))
            if good:
                return good
        raise self._spoilt()

    def _count(self, drawn: int, invalid: int) -> None:
        """Counts what was drawn, and says once that some of it makes no sense, once that most."""
        if invalid and not self._invalid:
            log.warning(
                "the replay holds steps that no core can have written; they are left out",
                replay=self._ring.settings.name,
            )
        self._drawn += drawn
        self._invalid += invalid
        mostly = self._drawn >= _JUDGED and 2 * self._invalid > self._drawn
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


def _check_own(own: bool) -> None:
    if own:
        raise ConfigurationError(
            "own = True: the global replay does not tell whose steps are whose; "
            "leave it out, or set replay.url to 'local'"
        )
