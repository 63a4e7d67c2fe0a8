"""Days of a learner beside the parent: its process, children that only act, and their robots.

The learner's process is a few callbacks of the parent's loop: it learns after a while, hangs, or
dies of rows that are poison. A child's core is a task that steps a `RealTime` robot, whose clock
runs ahead of the world's by a block at most, and fills blocks of the real `Outbox`.

Laws, beside those of `Books`:
- A step counts once, and the learner learns from it once, or it is dropped and counted as such, or
  it was in the batch with which the learner died.
- A child gives up no steps but those that have counted.
- No step is learned from that was older than `max_lag` batches when it came.
- Weights are those of a batch that was learned, and a child's never become older.
- Rows are refused only of a child that has sent poison.
- A robot is stepped by one thread at a time, no sooner than its tick, and no later than the bound
  of its safe action. No reward is lost. Safe actions are taken when they are due, and only then.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.child.backend import Work
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.learning import real_time
from genkidama.parent import Parent
from genkidama.plugins.actors.backend import ActorPool, Actors
from genkidama.plugins.actors.outbox import BLOCKS, Outbox, Outboxes, block_rows
from genkidama.plugins.actors.rule import Columns, Experience
from genkidama.protocol.diagnostics import CYCLE_COUNTS
from genkidama.protocol.messages import Join, Push, Refusal, Reply, Weights
from genkidama.protocol.session import Decision, Session
from genkidama.protocol.vector import DTYPE, Signature, Vector
from tests.simulation.books import Books
from tests.simulation.world import World

COLUMNS = Columns(observation=1, action=1, choices=(2,))

#: Steps of a block.
_BATCH = 16

#: The observation that kills the learner.
_POISON = -7.0

_ROBOT = Environment(
    id="CartPole-v1", period=0.1, safe_action=(1.0,), safe_seconds=0.4, offline_seconds=5.0
)
_SAFE = 1


def settings(chance: random.Random) -> dict[str, Any]:
    """What such a day's `[parent]` has in place of the other rules'."""
    options = {"batch": chance.choice([16, 64]), "max_lag": chance.choice([1, 4]), "backlog": 2}
    return {"rule": "experience", "rule_options": options}


@dataclass
class Life:
    """What one life of a parent has done with the steps of its children."""

    counted: set[int] = field(default_factory=set)
    too_old: set[int] = field(default_factory=set)
    learned: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    learning: list[int] = field(default_factory=list)
    batches: int = 0
    #: By child, the batches after which its last push was answered, or its first join.
    given: dict[str, int] = field(default_factory=dict)


class _Unsteady(dict[int, Vector]):
    """Nothing: a version has several θ_P, as the learner goes on."""

    def __setitem__(self, version: int, vector: Vector) -> None:
        pass


@dataclass
class ExperienceBooks(Books):
    """The books of a parent with a learner."""

    steady: bool = False
    vectors: dict[int, Vector] = field(default_factory=_Unsteady)
    life: Life = field(default_factory=Life)
    #: The steps that have ever counted.
    ever: set[int] = field(default_factory=set)
    #: Children that have sent poison.
    poisoners: set[str] = field(default_factory=set)
    #: θ of each batch, and of each start, in their order, through all restarts.
    _thetas: dict[bytes, int] = field(default_factory=dict)
    #: By session, the place of its θ, and the life that it is of.
    _taken: dict[str, tuple[int, Life]] = field(default_factory=dict)

    def attach(self, parent: Parent) -> None:
        super().attach(parent)
        self.life = Life()

    def started(self) -> None:
        if self.durable or self._trial.version:
            super().started()
        else:
            self._go_back(0)
        self.vectors = _Unsteady()
        assert self._trial.vector is not None
        self.learns(self._trial.vector)

    def learns(self, weights: Vector) -> None:
        """There are new weights."""
        self._thetas[weights.tobytes()] = len(self._thetas)

    def takes(self, session: Session, decision: Decision, version: int) -> None:
        vector = getattr(decision, "vector", None)
        if vector is None:
            return
        place = self._thetas.get(vector.tobytes())
        if place is None:
            self._break(f"{session.name} takes weights that nobody has learned")
            return
        before, life = self._taken.get(session.name, (place, self.life))
        if life is self.life and place < before:
            self._break(f"{session.name} takes older weights than it has")
        self._taken[session.name] = place, self.life

    def _handle(self, handle: Any, child: str, message: Any, now: float) -> Reply:
        reply = super()._handle(handle, child, message, now)
        if isinstance(message, Join) and isinstance(reply, Weights):
            self.life.given.setdefault(child, self.life.batches)
        if (
            isinstance(message, Push)
            and isinstance(reply, Refusal)
            and reply.code == "experience"
            and child not in self.poisoners | {"liar"}
        ):
            self._break(f"rows of {child} are refused: {reply.reason}")
        return reply

    def _count(self, child: str, message: Push, before: Any, vector: Vector | None) -> None:
        super()._count(child, message, before, vector)
        life, steps = self.life, step_numbers(message.vector)
        if life.counted.intersection(steps):
            self._break(f"steps of {child} count twice")
        life.counted.update(steps)
        self.ever.update(steps)
        if life.batches - life.given.get(child, life.batches) > self._rule.max_lag:
            life.too_old.update(steps)
        life.given[child] = life.batches

    def hands(self, rows: npt.NDArray[Any]) -> None:
        """The learner is given a batch."""
        life = self.life
        life.learning = step_numbers(rows)
        for what, known in (
            ("twice", life.learned | life.killed),
            ("though they are too old", life.too_old),
        ):
            if known.intersection(life.learning):
                self._break(f"steps are learned from {what}")
        if not life.counted.issuperset(life.learning):
            self._break("steps are learned from that nobody has pushed")

    def learned(self, weights: Vector) -> None:
        """The learner has learned from that batch."""
        self.learns(weights)
        self.life.learned.update(self.life.learning)
        self.life.learning = []
        self.life.batches += 1

    def died(self) -> None:
        """The learner has died, perhaps with a batch."""
        self.life.killed.update(self.life.learning)
        self.life.learning = []

    def gives_up(self, child: str, rows: npt.NDArray[Any]) -> None:
        """A push is answered: the child keeps its rows no longer."""
        if not (self.over or self.ever.issuperset(step_numbers(rows))):
            self._break(f"{child} gives up steps that never counted")

    def is_deadly(self, child: str) -> bool:
        """Whether this child's rows are refused from now on."""
        return self.parent is not None and self._rule.is_deadly(child)

    def closes(self) -> None:
        super().closes()
        life, rule = self.life, self._rule
        waiting = [number for block in rule._blocks for number in step_numbers(block.rows)]
        dropped = rule.too_old + rule.too_many
        found = len(life.learned) + len(life.killed) + len(life.learning) + len(waiting) + dropped
        deadly = any(map(rule.is_deadly, rule._strikes))  # whose rows are thrown away
        if found != len(life.counted) and not deadly:
            self._break(f"{len(life.counted)} steps were pushed, and {found} are found")

    @property
    def _rule(self) -> Experience:
        assert self.parent is not None
        rule = self.parent.server.trials.rule
        assert isinstance(rule, Experience)
        return rule


def step_numbers(rows: npt.NDArray[Any] | None) -> list[int]:
    """The numbers of the steps in some rows; a step's number is its reward."""
    if rows is None or rows.size % COLUMNS.count:
        return []
    table = rows.reshape(-1, COLUMNS.count)
    return [int(row[COLUMNS.reward]) for row in table if row[COLUMNS.following]]


class LearnerWorker:
    """In place of `WorkerProcess`: one life of a learner's process, as callbacks of its parent."""

    pid = 1

    def __init__(self, owner: Any, world: World, books: dict[str, Any]) -> None:
        self.failure = ""
        self._owner, self._world, self._books = owner, world, books
        self._dead = self._listened_to = False
        self._chance = world.chance(f"learner {world.now}")
        self._loop = asyncio.get_running_loop()
        self._host = world.running.host  # type: ignore[union-attr]

    async def describe(self, experiment: Any, launch: Any, spaces: Any) -> tuple[Any, ...]:
        await asyncio.sleep(self._chance.uniform(0.1, 3.0))
        if self._dead:
            raise EOFError
        signature = self._signature
        vector = np.zeros(signature.size, DTYPE)
        return signature.entries, vector.tobytes(), (1, signature.size), COLUMNS, False

    _signature = Signature.of([("layer", (2, 3)), ("bias", (3,))])

    def hand_over(self, layout: Any, descriptor: int) -> None:
        self._memory = self._owner._memory

    def listen(self) -> None:
        """From now on it calls its owner itself."""
        self._listened_to = True

    def send(self, message: tuple[int, float]) -> None:
        rows = self._memory.rows[: message[0]].copy()
        self._books[self._host].hands(rows)
        if self._chance.random() < 0.01:
            return  # it hangs
        late = self._chance.expovariate(1.0) + 0.01
        self._loop.call_later(late, self._learn, rows)

    def _learn(self, rows: npt.NDArray[Any]) -> None:
        if self._dead:
            return
        if (rows[:, 0] == _POISON).any():
            self.die("poison")
            return
        memory = self._memory
        memory.weights += np.float32(self._chance.uniform(0.01, 0.02))
        memory.beat[0] += 1
        self._books[self._host].learned(memory.weights)
        steps = float(np.count_nonzero(rows[:, COLUMNS.following]))
        self._owner.heard(self, ("learned", {"steps": steps}))

    def die(self, reason: str) -> None:
        """Ends without being asked to; `describe` fails if that is not over."""
        if self._dead:
            return
        self._dead, self.failure = True, reason
        if self._listened_to:
            self._books[self._host].died()
            self._owner.lost(self)

    def hung(self, seconds: float) -> None:
        self.die("it hung")

    def wait(self) -> int:
        return -9

    @property
    def reason(self) -> str:
        return self.failure

    async def end(self) -> None:
        self._dead = True


class _Pool(ActorPool):
    """The pool of one core, which is a task of the child's loop."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()
        self._fatal = None
        self.has_clock = True

    def release(self) -> None:
        self._wake.set()

    # The pipe of the core's outbox.

    def report(self, kind: int, episode_return: float = 0.0, steps: int = 0) -> None:
        self.outboxes.given(0, steps)
        self._wake.set()


class SimulatedActors(Actors):
    """The backend of a child that acts, with a robot in place of its processes."""

    def __init__(self, experiment: Experiment, cores: int, name: str, day: Any) -> None:
        self.experiment, self.name, self.cores = experiment, name, 1
        self._day = day
        self._robot = Robot(day.world, day.world.chance(f"robot {name} {day.world.now}"))
        self._actor_pool = _Pool()
        self._steps = 0

    async def startup(self) -> Signature:
        size = LearnerWorker._signature.size
        rows = block_rows(_BATCH)
        memory: Any = SimpleNamespace(
            replay=np.zeros((1, BLOCKS * rows, COLUMNS.count), np.float32),
            sizes=np.zeros((1, BLOCKS), np.int64),
            share=np.zeros(1, np.int64),
            news=np.zeros(1, np.int64),
            head=np.zeros(1, np.int64),
            weights=np.zeros(size, DTYPE),
        )
        self._memory = memory
        self._outboxes = self._actor_pool.outboxes = Outboxes(memory, rows)
        pipe: Any = self._actor_pool
        self._outbox = Outbox(memory, 0, COLUMNS, (1,), 0.99, pipe)
        return LearnerWorker._signature

    @property
    def memory(self) -> Any:
        return self._memory

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        if weights is not None:
            self._take(weights)
        self._core = asyncio.get_running_loop().create_task(self._collect())

    async def due(self) -> None:
        await self._actor_pool.due()

    def answered(self, steps: int) -> None:
        self._robot.answered[0] = self._day.world.running.time()
        if self._outboxes._push is not None:
            (books,) = self._day.books.values()
            books.gives_up(self.name, self._outboxes._push)
        super().answered(steps)

    def pulled(self, weights: Vector | None, steps: int) -> None:
        self._robot.answered[0] = self._day.world.running.time()
        super().pulled(weights, steps)

    async def _collect(self) -> None:
        while True:
            while not self._outboxes.has_room(0):
                await asyncio.sleep(0.5)
            rows = self._outbox.begin(True)
            stem = self.name.partition("-")[0]
            poison = stem in self._day.diverging
            self._day.diverging.discard(stem)
            if poison:
                self._day.poisons(self.name)
            for step in range(_BATCH):
                self._robot.step()
                rows.observations[step] = _POISON if poison else 0.0
                rows.actions[step] = 1.0
                rows.rewards[step] = next(self._day.steps)
            rows.terminated[:] = 0.0
            rows.truncated[:] = 0.0
            await asyncio.sleep(max(0.0, self._robot.clock - self._day.world.running.time()))
            self._outbox.end(_BATCH, [_BATCH - 1], [np.zeros(1)], np.zeros(_BATCH))
            self._steps += _BATCH

    def take_work(self) -> Work:
        steps, self._steps = self._steps, 0
        return Work(steps, [], {})

    def state(self) -> dict[str, Any]:
        return {"weights": self.memory.weights.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        self._take(state["weights"])

    def set_progress(self, progress: float) -> None:
        """Nothing follows it."""

    def heard(self, version: int) -> None:
        """Nothing follows it."""

    def averaged(self, children: float) -> None:
        """Nothing follows it."""

    def release(self) -> None:
        self._actor_pool.release()

    async def shutdown(self) -> None:
        if hasattr(self, "_core"):
            self._core.cancel()


class Robot:
    """A policy, the guard's thread and a machine that both move, on a clock of their own.

    The guard's thread is turns of its loop, which are taken while the policy sleeps or thinks.
    """

    def __init__(self, world: World, chance: random.Random) -> None:
        assert world.running is not None
        self._world, self._chance = world, chance
        self.clock = world.running.time()
        #: The machine's clock when the parent answered last.
        self.answered = np.array([self.clock])
        self.plant = Plant(self)
        with mock.patch.object(real_time.threading, "Thread", mock.Mock()):
            self._env = real_time.RealTime(self.plant, _ROBOT, lambda: self.clock, self.pass_time)
            self.counts = np.zeros(CYCLE_COUNTS, np.int64)
            self._env.report(self.counts, self.answered, np.zeros(1, np.bool_))
            #: When the guard looks next.
            self._turn = self.clock + _ROBOT.safe_seconds
            self._env._closed = self  # type: ignore[assignment]
            self._env.reset()
        self.plant.begin()
        self._asked = False
        self._paid = 0.0

    def step(self) -> None:
        """One step of the policy, which thinks before it."""
        period = _ROBOT.period
        self.pass_time(self._chance.choices([0.3, 1.5, 6.0, 60.0], [90, 6, 3, 1])[0] * period)
        _, reward, *_ = self._env.step(0)
        self._paid += float(reward)
        if self._paid != self.plant.steps:
            self.breaks(f"the policy is paid {self._paid:g} of {self.plant.steps}")
        if self.counts[: CYCLE_COUNTS - 2].sum() != self.plant.total:
            self.breaks("a cycle is not counted")

    def pass_time(self, seconds: float) -> None:
        """Lets time pass, and the guard look at its moments."""
        end = self.clock + max(seconds, 1e-6)
        while self._turn <= end:
            self.clock = max(self.clock, self._turn)
            self._asked = False
            self._env._watch()
        self.clock = max(self.clock, end)

    def wait(self, seconds: float) -> bool:
        """The guard waits: its turn ends at the second call, and the next is then."""
        if not self._asked:
            self._asked = True
            return False
        self._turn = self.clock + max(1e-3, seconds)
        return True

    def breaks(self, law: str) -> None:
        assert self._world.running is not None
        self._world.breaks(f"the robot of {self._world.running.host}: {law}")


class Plant(gymnasium.Env[Any, Any]):
    """A machine that is paid 1 for each step, and knows when a step may begin."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self.total = self.steps = 0
        self._before = 0.0

    def begin(self) -> None:
        self._before = self._robot.clock

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        robot, now = self._robot, self._robot.clock
        since = now - self._before
        if since < 0.89 * _ROBOT.period:
            robot.breaks(f"a step begins {since:.4f} s after the one before")
        if since > _ROBOT.safe_seconds + 1.2 * _ROBOT.period:
            robot.breaks(f"nothing is done for {since:.4f} s")
        silent = now - robot.answered[0]
        if action != _SAFE and silent > _ROBOT.offline_seconds:
            robot.breaks("the policy acts, though its parent is silent")
        answers = silent < _ROBOT.offline_seconds - 1e-6
        if action == _SAFE and answers and since < _ROBOT.safe_seconds - 1e-6:
            late = self._safe_before and since >= 0.89 * _ROBOT.period
            if not late:
                robot.breaks(f"a safe action after {since:.4f} s, and the parent answers")
        self._safe_before = action == _SAFE
        self._before = now
        self.steps += 1
        self.total += 1
        return np.zeros(1, np.float32), 1.0, False, False, {}

    _safe_before = False


def worker_of(day: Any) -> Any:
    """What `WorkerProcess` is on a day."""

    def made(owner: Any) -> LearnerWorker:
        worker = LearnerWorker(owner, day.world, day.books)
        day.learners.append(worker)
        return worker

    return made
