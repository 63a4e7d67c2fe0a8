"""Steps as children send them to a learner beside the parent, and the rule that hands them on.

With `parent.rule = "experience"` a push carries no weights but rows, as a core writes them: a row
is a step, or only the observation that followed where a trajectory was cut (a *stop*). The learner
turns them into θ_P. Pure NumPy.

Laws of this file:
- Rows are checked before they are used, so the learner may rely on them.
- The rule never waits. Blocks that the learner cannot use in time are dropped, the oldest first,
  and counted by child.
- The age of a block is the number of the learner's batches since the child received the θ with
  which it can have begun the block: the one in the answer to its previous push, also if that was
  before its connection was lost, or the one that it joined with.
- Each child is asked for as many steps as it makes in the time of one batch. So all data are
  equally fresh, and slow children send less at a time.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from genkidama.errors import ProtocolError
from genkidama.protocol.vector import LARGEST, Vector, are_actions, are_numbers
from genkidama.server.rules.blend import Rule, RuleState, Update

if TYPE_CHECKING:
    from genkidama.learning.model import Model

Rows = npt.NDArray[np.float32]

#: The weight of the last batch in a child's pace.
_PACE_SHARE = 0.2

#: The smallest share of a child: shorter trajectories would hardly be worth their push.
_LEAST_SHARE = 16

#: Children that are remembered, as many as the parent remembers.
_MOST_NAMES = 4096

#: Numbers of a push, at most, unless a single block needs more: 16 MB.
_NUMBERS = 1 << 22

#: Batches for which a drop is worth a note; the counts stay for ever.
_LATELY = 100

#: Deaths of the learner by one child's rows alone, within `_LATELY` batches, that ban the child.
_STRIKES = 3

#: A probability is no smaller than e^−_LOG_MU, and neither is the density of an action; a density
#: is no larger than e^_LOG_MU. The probability of a discrete action is 1 at most, but for rounding.
_LOG_MU = 1e5
_LOG_1 = 1e-3


@dataclass(frozen=True)
class Columns:
    """The numbers of a row, in their order.

    Observation, action, reward, terminated, truncated, log μ of the action, how many rows further
    down the observation is that followed (0 says that this row is a stop), and for normalized
    rewards the discounted return of the episode so far.
    """

    #: Numbers of an observation.
    observation: int
    #: Numbers of an action.
    action: int
    #: True if there is a column for the discounted return.
    discounted: bool = False
    #: The number of discrete actions in each of the first columns, counted from 0.
    choices: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """M: numbers of a row."""
        return self.observation + self.action + 5 + self.discounted

    @property
    def actions(self) -> slice:
        return slice(self.observation, self.observation + self.action)

    @property
    def reward(self) -> int:
        return self.observation + self.action

    @property
    def terminated(self) -> int:
        return self.reward + 1

    @property
    def truncated(self) -> int:
        return self.reward + 2

    @property
    def log_mu(self) -> int:
        return self.reward + 3

    @property
    def following(self) -> int:
        return self.reward + 4

    def problem(self, rows: Rows) -> str:
        """The fault of a push's rows, (n, M) and finite; empty if there is none."""
        flags = rows[:, self.terminated : self.truncated + 1]
        if not np.isin(flags, (0.0, 1.0)).all():
            return "a flag that is neither 0 nor 1"
        distance = rows[:, self.following]
        if (distance < 0.0).any() or (distance != np.floor(distance)).any():
            return "an observation that follows at no row"
        terminated = (rows[:, self.terminated] > 0.0) | (distance == 0.0)
        if (np.arange(len(rows)) + distance >= len(rows))[~terminated].any():
            return "a step whose following observation is missing"
        if not are_numbers(rows.reshape(1, -1)).all():
            return f"a number beyond ±{LARGEST:g}"
        steps = rows[distance > 0.0]
        if len(rows) - len(steps) > max(1, len(steps)):
            return "more observations that follow than steps"
        if not are_actions(steps[:, self.actions], self.choices).all():
            most = ", ".join(str(number - 1) for number in self.choices)
            return f"an action that is none of 0 to {most}"
        log_mu = steps[:, self.log_mu]
        highest = _LOG_1 if len(self.choices) == self.action else _LOG_MU
        if (log_mu > highest).any() or (log_mu < -_LOG_MU).any():
            return "a log-probability that no action has"
        return ""


def columns_of(model: Model) -> Columns:
    """The columns of a row of this model's experience."""
    discounted = model.experiment.environment.normalize_rewards
    return Columns(model.observation_size, model.head.columns, discounted, model.choices)


def most_rows(columns: int, block: int) -> int:
    """The largest number of rows of M columns in a push, which has room for one whole block."""
    return max(block, _NUMBERS // columns)


class _Block(NamedTuple):
    rows: Rows
    steps: int
    #: The number of the batch whose θ the child was given before.
    born: int
    child: str


@dataclass
class LearnedBatch:
    """The result of a learner after all batches so far."""

    #: θ, float32 (size,).
    weights: Vector
    #: The optimizer's vectors, float32 (rows, trainable), and its steps, float64 (1,).
    state: npt.NDArray[np.float32]
    clock: npt.NDArray[np.float64]


class Experience(Rule):
    """θ_P is the newest θ of the learner, which is given the children's steps.

    The parent's shell calls `begin` before the first push, takes a batch with `take` whenever the
    learner is idle, and says with `learned` what came of it.

    Args:
        alpha: unused; every rule is given it.
        batch: steps that the learner learns from together, at least.
        in_flight: steps that all children together collect at a time: each gets a share of them.
            0 means as many as a batch.
        max_lag: steps that were begun more batches ago than this are dropped.
        backlog: batches that may wait for the learner.
    """

    takes = "experience"
    convex = True  # θ_P is the learner's, which looks itself

    def __init__(
        self,
        alpha: float,
        batch: int = 2048,
        in_flight: int = 0,
        max_lag: int = 16,
        backlog: int = 2,
    ) -> None:
        for name, value, least in (
            ("batch", batch, 1),
            ("in_flight", in_flight, 0),
            ("max_lag", max_lag, 1),
            ("backlog", backlog, 1),
        ):
            if type(value) is not int or value < least:
                raise ValueError(
                    f"{name} = {value!r}: a whole number of at least {least} is needed"
                )
        self.batch = batch
        self.in_flight = in_flight or batch
        self.max_lag = max_lag
        self.backlog = backlog
        #: Whether the learner samples steps that it keeps: it takes all, of any age.
        self.replays = False
        #: Steps that were dropped: too old, or too many for the learner.
        self.too_old = self.too_many = 0
        #: The batch at which the newest ones were dropped; the former by child.
        self._old_at: dict[str, int] = {}
        self._many_at = -_LATELY
        #: Batches that the learner has learned from.
        self.batches = 0
        #: The mean age, in batches, of the steps in the batch that was taken last.
        self.lag = 0.0
        self._columns: Columns | None = None
        self._rows = 0
        self._learned: LearnedBatch | None = None
        self._blocks: deque[_Block] = deque()
        #: Whose rows the learner has at the moment.
        self._learning: set[str] = set()
        #: Whose rows were in a batch that killed the learner. Each is learned from by itself until
        #: it is known whose rows it was.
        self.suspects: set[str] = set()
        #: By child: after how many batches its rows alone have killed the learner.
        self._strikes: dict[str, deque[int]] = {}
        self._waiting = 0
        #: By child: after how many batches it was given the θ in the answer to its last push, or at
        #: first any.
        self._given: dict[str, int] = {}
        #: By child: after how many batches it was given the newest θ that it has.
        self._newest: dict[str, int] = {}
        #: By child: steps since the last batch, and how many it brings in the time of one.
        self._brought: Counter[str] = Counter()
        self._pace: dict[str, float] = {}
        self._remembered: RuleState = {}

    # What the shell calls.

    def begin(self, columns: Columns, block: int, learned: LearnedBatch) -> LearnedBatch:
        """There is a learner, for rows of these columns and blocks of so many rows at most.

        Returns what it begins with, whose vector is θ_P, with the optimizer's state of a checkpoint
        if that fits.
        """
        self._columns = columns
        self._rows = most_rows(columns.count, block)
        state = self._remembered.get("state")
        clock = self._remembered.get("clock")
        if state is not None and clock is not None and state.shape == learned.state.shape:
            learned.state[:] = state
            learned.clock[:] = clock
        self._learned = learned
        return learned

    @property
    def room(self) -> int:
        """Rows that a batch has at most."""
        return self._rows + 2 * self.batch

    def take(self) -> list[Rows] | None:
        """The oldest blocks that make a batch together; None if there are too few steps.

        While there are suspects, a batch may be smaller, and has only the rows of one of them, or
        of none.
        """
        if self._waiting < (1 if self.replays else self.batch):
            return None
        first = self._blocks[0].child
        taken: list[_Block] = []
        left: deque[_Block] = deque()
        steps = 0
        for block in self._blocks:
            suspected = {first, block.child} & self.suspects
            if steps < self.batch and (block.child == first or not suspected):
                taken.append(block)
                steps += block.steps
            else:
                left.append(block)
        self._blocks = left
        self._waiting -= steps
        self._learning = {block.child for block in taken}
        self.lag = sum((self.batches - block.born) * block.steps for block in taken) / steps
        return [block.rows for block in taken]

    def figures(self) -> dict[str, float]:
        """The age of the steps of the last batch, and the number of dropped ones so far."""
        return {
            "batches": float(self.batches),
            **({} if self.replays else {"lag": self.lag}),
            "too_old": float(self.too_old),
            "too_many": float(self.too_many),
        }

    def learned(self, learned: LearnedBatch) -> None:
        """The learner has learned from a batch. Its arrays are kept."""
        self._learned = learned
        self.batches += 1
        self.suspects -= self._learning
        self._learning.clear()
        for child in self._pace.keys() | self._brought.keys():
            before = self._pace.get(child)
            now = float(self._brought[child])
            self._pace[child] = now if before is None else before + _PACE_SHARE * (now - before)
        self._brought.clear()

    def killed(self) -> list[str]:
        """The learner has died, and with it the batch that it had: whose rows were in it. If they
        are one child's alone, that counts against it."""
        children = sorted(self._learning)
        self._learning.clear()
        if len(children) > 1:
            self.suspects.update(children)
        for child in children if len(children) == 1 else ():
            self._strikes.setdefault(child, deque(maxlen=_STRIKES)).append(self.batches)
            if self.is_deadly(child):
                self.suspects.discard(child)
                kept = [block for block in self._blocks if block.child != child]
                self._blocks = deque(kept)
                self._waiting = sum(block.steps for block in kept)
        return children

    def is_deadly(self, child: str) -> bool:
        """True if this child's rows have killed the learner too often: no more are accepted."""
        strikes = self._strikes.get(child)
        if strikes is None or len(strikes) < _STRIKES:
            return False
        return strikes[-1] - strikes[0] < _LATELY

    # What every rule does.

    def fits(self, count: int, size: int) -> str:
        if self._columns is None:
            return "nothing before there is a learner"
        width = self._columns.count
        if count and not count % width and count // width <= self._rows:
            return ""
        return f"rows of {width} numbers each, {self._rows} rows at most"

    def largest(self, size: int) -> int:
        return size if self._columns is None else max(size, self._rows * self._columns.count)

    def share(self, child: str, children: int) -> int:
        if self.replays:
            return 0
        everybody = sum(self._pace.values())
        even = self.in_flight / max(1, children)
        pace = self._pace.get(child, 0.0)
        share = self.in_flight * pace / everybody if pace and everybody else even
        return max(_LEAST_SHARE, round(min(share, self.in_flight)))

    def apply(self, parent: Vector, push: Update) -> None:
        """Keeps the push's rows for the learner; θ_P becomes the learner's newest θ.

        Raises:
            ProtocolError: the rows make no sense.
        """
        assert self._columns is not None, "begin() comes first"
        if self.is_deadly(push.child):
            raise ProtocolError(
                "experience",
                f"child {push.child!r}: its rows have killed the learner {_STRIKES} times; "
                "no more are taken before the parent is started again",
            )
        rows = push.vector.reshape(-1, self._columns.count)
        if problem := self._columns.problem(rows):
            raise ProtocolError("experience", f"child {push.child!r} pushes {problem}")
        steps = int(np.count_nonzero(rows[:, self._columns.following]))
        if steps:
            self._keep(rows, steps, push.child)
        self.pull(parent, push.child)
        self._given[push.child] = self.batches

    def pull(self, parent: Vector, child: str) -> bool:
        assert self._learned is not None, "begin() comes first"
        parent[:] = self._learned.weights
        before = self._newest.get(child)
        self._newest[child] = self.batches
        self._given.setdefault(child, self.batches)
        return before != self.batches

    def forget(self, child: str) -> None:
        # When it comes back, what it brings first was begun before.
        self._newest.pop(child, None)
        self._pace.pop(child, None)
        self._brought.pop(child, None)
        if len(self._given) > _MOST_NAMES:
            gone = [name for name in self._given if name not in self._newest and name != child]
            self._given.pop(min(gone, key=self._given.__getitem__, default=""), None)

    def _keep(self, rows: Rows, steps: int, child: str) -> None:
        self._brought[child] += steps
        born = self._given.get(child, self.batches)
        if self.batches - born > self.max_lag and not self.replays:
            self.too_old += steps
            self._old_at[child] = self.batches
            return
        self._blocks.append(_Block(rows.copy(), steps, born, child))
        self._waiting += steps
        # A block that is larger than all that may wait is kept by itself.
        while self._waiting > self.backlog * self.batch and len(self._blocks) > 1:
            oldest = self._blocks.popleft()
            self._waiting -= oldest.steps
            self.too_many += oldest.steps
            self._many_at = self.batches

    def state(self) -> RuleState:
        if self._learned is None:
            return {}
        return {"state": self._learned.state, "clock": self._learned.clock}

    def restore(self, state: RuleState) -> None:
        if set(state) != {"state", "clock"}:
            raise ValueError(f"it holds {sorted(state)}, expected ['clock', 'state']")
        self._remembered = state

    def diagnose(self, beta: float, children: int) -> list[str]:
        found = [
            f"{child!r} is so slow, or was away so long, that its steps are older than max_lag = "
            f"{self.max_lag} batches when they come, and are dropped; give it more cores, or raise "
            "max_lag"
            for child, at in self._old_at.items()
            if self.batches - at < _LATELY
        ]
        if self.batches - self._many_at < _LATELY:
            found.append(
                "the learner is slower than its children, and the oldest steps are dropped; "
                + (
                    "start fewer children"
                    if self.replays
                    else "raise algorithm.minibatch_size, lower algorithm.epochs, or start fewer "
                    "children"
                )
            )
        return found
