"""A yard for one agent: all that it needs of a child, with the test in the engine's place."""

from __future__ import annotations

import multiprocessing
import random
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from genkidama.child.worker import RECORD, WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.plugins.ga3c.agent import Agent
from genkidama.plugins.ga3c.slots import Ends, SlotLayout, Slots, pipe, ring, take, waiting
from tests.helpers import PATIENCE, until
from tests.plugins.ga3c.numbered import action, value

#: Discounted returns with it are exact, in whatever order they are summed.
GAMMA = 0.5

#: What stands in memory that is not the agent's own.
_FOREIGN = 77


@dataclass
class Submitted:
    """A slot as it was when its number came out of the training queue."""

    slot: int
    length: int
    bootstrap: float
    cut: bool
    #: Observations, actions, values, log μ, rewards and discounted returns.
    rows: list[list[Any]]


class Yard:
    """The memory, the queues' other ends, and what has come out of them.

    The agent is the second of three, so that others' memory lies on both sides of its own. By the
    random numbers of `mischief` bells are rung for no reason and old questions are answered.
    """

    index, agents = 1, 3

    def __init__(
        self,
        environment: dict[str, Any],
        environments: int = 1,
        rollouts: int = 3,
        steps: int = 4,
        exchange: str = "free",
        mischief: random.Random | None = None,
    ) -> None:
        options = environment.get("options", {})
        self.environments, self.rollouts, self.steps, self._mischief = (
            environments,
            rollouts,
            steps,
            mischief,
        )
        self._waits = exchange == "episode"
        self.continuous: bool = options.get("continuous", False)
        self.experiment = Experiment.from_dict(
            {
                "environment": environment,
                "algorithm": {"name": "a3c", "gamma": GAMMA, "batch_size": steps},
                "child": {"backend": "ga3c", "exchange": exchange},
                "ga3c": {"environments": environments, "rollouts": rollouts},
            }
        )
        self.slots = Slots(
            SlotLayout(
                agents=self.agents,
                environments=environments,
                rollouts=rollouts,
                steps=steps,
                observation_shape=(3,),
                observation_type=options.get("dtype", "float32"),
                action_columns=2 if self.continuous else 1,
                size=1,
                trainable=1,
                state_rows=0,
                threads=1,
            )
        )
        #: The agent's lanes.
        self.lanes = range(self.index * environments, (self.index + 1) * environments)
        for part, own in self._foreign():
            part[: own.start] = part[own.stop :] = _FOREIGN
        self.predictions, self.training, self.bell = pipe(), pipe(), pipe()
        self.line, self.their_line = multiprocessing.Pipe()
        self.submitted: list[Submitted] = []
        #: Those of them whose slots were not given back yet.
        self.held: list[Submitted] = []
        #: Kind, return and steps of each record; None where the agent came to the semaphore.
        self.said: list[tuple[Any, ...] | None] = []
        #: The lanes of the last question, which nobody has answered yet.
        self.open: list[int] = []
        #: By lane: its environment's number, as the first observation shows it.
        self.numbers: dict[int, int] = {}
        #: Whether the agent waits at the semaphore.
        self.paused = False

    @property
    def ends(self) -> Ends:
        return Ends(self.predictions[1], self.training[1], self.bell[0])

    @property
    def agents_line(self) -> WorkerPipe:
        own = slice(self.index, self.index + 1)
        element = self.slots.semaphore[own] if self._waits else None
        return WorkerPipe(self.their_line, self.slots.stop[own], element)

    def _foreign(self) -> Iterator[tuple[npt.NDArray[Any], slice]]:
        """Each array of which parts belong to agents, and the part that is this one's."""
        slots, lanes = self.slots, self.environments
        for size, names in (
            (1, ("stop", "semaphore")),
            (lanes, ("position", "asked", "answered")),
            (lanes * self.rollouts, ("lengths", "bootstraps", "cut", "busy")),
            (
                lanes * self.rollouts * self.steps,
                ("observations", "actions", "values", "log_mu", "born", "rewards", "discounted"),
            ),
        ):
            for name in names:
                yield getattr(slots, name), slice(self.index * size, (self.index + 1) * size)

    def foreign_is_untouched(self) -> bool:
        return all(
            (part[: own.start] == part.dtype.type(_FOREIGN)).all()
            and (part[own.stop :] == part.dtype.type(_FOREIGN)).all()
            for part, own in self._foreign()
        )

    def close(self) -> None:
        for end in (*self.predictions, *self.training, *self.bell, self.line, self.their_line):
            end.close()
        self.slots.close()

    # The engine's part.

    def ring(self) -> None:
        ring(self.bell[1].fileno())

    def rung_in_vain(self) -> None:
        """Rings; returns once the agent has looked and sleeps again, or has asked for something.

        That it hears the second bell shows that it did nothing else after the first.
        """
        for _ in range(2):
            self.ring()
            until(lambda: not self.bell[0].poll(), "the agent hears its bell")

    def wait(self) -> bool:
        """Waits until the agent says something, and takes in its rollouts and records.

        If it asks a question, all that came before is taken in. Returns whether it asks one.
        """
        ready = select.select([self.predictions[0], self.training[0], self.line], [], [], PATIENCE)[
            0
        ]
        assert ready, "the agent neither asks nor submits nor says anything"
        self.listen()
        return self.predictions[0] in ready

    def listen(self) -> None:
        """Takes in the rollouts and records that are there."""
        while waiting(self.training[0].fileno()):
            for slot in take(self.training[0].fileno(), 8).tolist():
                assert slot // self.rollouts in self.lanes and self.slots.busy[slot]
                assert slot not in [rollout.slot for rollout in self.held]
                self.submitted.append(self._copy(slot))
                self.held.append(self.submitted[-1])
        while self.line.poll():
            record = self.line.recv_bytes()
            self.said.append(RECORD.unpack(record) if record else None)
            self.paused = not record

    def _copy(self, slot: int) -> Submitted:
        slots, length = self.slots, int(self.slots.lengths[slot])
        rows = slice(slot * self.steps, slot * self.steps + length)
        parts = (
            slots.observations,
            slots.actions,
            slots.values,
            slots.log_mu,
            slots.rewards,
            slots.discounted,
        )
        return Submitted(
            slot,
            length,
            float(slots.bootstraps[slot]),
            bool(slots.cut[slot]),
            [part[rows].tolist() for part in parts],
        )

    def give_back(self, keep: int = 0) -> None:
        """Gives slots back, except the last `keep` of each lane. The agent left them alone."""
        for rollout in list(self.held):
            lane = rollout.slot // self.rollouts
            if [other.slot // self.rollouts for other in self.held].count(lane) > keep:
                assert self._copy(rollout.slot) == rollout
                self.held.remove(rollout)
                self.slots.busy[rollout.slot] = False
                self.ring()

    def serve(self, questions: int, keep: int = 0) -> int:
        """Answers so many questions, first the open one if there is one.

        The question after them stays open. The agent sleeps then, and all that it has said is
        known. Stops before if the agent comes to the semaphore. Returns how many were answered.
        """
        answered = 0
        while not self.paused:
            if self.open and answered == questions:
                break
            if self.open:
                self.answer()
                answered += 1
            asks = self.wait()
            self.give_back(keep)
            if asks:
                self.open = take(self.predictions[0].fileno(), 64).tolist()
                assert set(self.open) <= set(self.lanes)
                for lane in self.open:
                    self.numbers.setdefault(
                        lane, int(self.slots.observations[self.slots.position[lane], 0])
                    )
        return answered

    def release(self) -> None:
        """Lets the agent go on from the semaphore."""
        self.paused = self.slots.semaphore[self.index] = False
        self.line.send_bytes(b"")

    def answer(self) -> None:
        """Answers the open question."""
        slots, lanes = self.slots, self.open
        self.open = []
        for lane in lanes:
            row = int(slots.position[lane])
            assert row // self.steps // self.rollouts == lane and not slots.busy[row // self.steps]
            if self._mischief is not None:
                self._disturb(self._mischief, lane, row)
            observation = slots.observations[row]
            slots.actions[row], slots.values[row] = (
                action(observation, self.continuous),
                value(observation),
            )
            slots.log_mu[row] = -slots.values[row]
            slots.answered[lane] = slots.asked[lane]
            self.ring()

    def _disturb(self, mischief: random.Random, lane: int, row: int) -> None:
        """An answer to what was asked before, and bells that mean nothing."""
        if mischief.random() < 0.3:
            self.slots.actions[row], self.slots.values[row] = 1.0, -1.0
            self.slots.answered[lane] = self.slots.asked[lane] - 1
        for _ in range(mischief.choice([0, 0, 1, 3])):
            self.ring()


class Acting:
    """An agent that acts in a thread of this process."""

    def __init__(self, yard: Yard) -> None:
        agent = Agent(
            yard.index, yard.experiment, yard.slots, yard.ends, yard.agents_line, (1, 2, 3)
        )
        self.code: int | None = None

        def run() -> None:
            self.code = agent.run()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def ended(self) -> int | None:
        """Waits for the agent's end; its exit code."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the agent has not ended"
        return self.code


@contextmanager
def acting(environment: dict[str, Any], **sizes: Any) -> Iterator[tuple[Yard, Acting]]:
    """A yard with an agent that acts, which has ended at the end."""
    yard = Yard(environment, **sizes)
    agent = Acting(yard)
    try:
        yield yard, agent
    finally:
        yard.slots.stop[yard.index] = True
        if not yard.bell[1].closed:
            yard.ring()
        yard.line.close()
        agent.ended()
        yard.close()
