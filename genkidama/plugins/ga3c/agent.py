"""An agent: a process that steps environments and knows no model. It imports no torch.

Babaeizadeh et al. 2017, §4: it asks the prediction queue for each action. Every t_max steps, and at
an episode's end, it puts what it has experienced into the training queue. Unlike in the authors'
program, the reward of the last step is part of that.

Laws of this file:
- The agent writes observations, rewards and lengths into its own slots (`slots`), and nothing into
  another's.
- V of the observation that follows a full rollout comes with the next action. Where a time limit
  cuts an episode, the agent asks for V of the last observation by itself.
- It sleeps in a read of its bell, until its predictions are there or a slot is free. The bell's end
  is the child's end.
- Agents are forked from a server that has imported this module and has called `warm_up`.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.child.worker import (
    EPISODE,
    PROGRESS,
    READY,
    RECYCLED,
    REPORT_STEPS,
    MemoryGuard,
    StopWorker,
    WorkerPipe,
    run_worker,
)
from genkidama.config.experiment import Experiment
from genkidama.learning.actions import converter
from genkidama.learning.environments import close, import_environment, make_lanes
from genkidama.learning.observations import check_numbers
from genkidama.plugins.ga3c.slots import Ends, Slots, put
from genkidama.protocol.diagnostics import Diagnostics

Array = npt.NDArray[Any]

#: Steps between two looks of its memory guard.
_GUARD_STEPS = 64


class Agent:
    """The agent number `index` of a child: its lanes, bell and element of the semaphore vector. The
    seed distinguishes it from every other one of the run, and from its own predecessors."""

    def __init__(
        self,
        index: int,
        experiment: Experiment,
        slots: Slots,
        ends: Ends,
        line: WorkerPipe,
        seed: tuple[int, ...],
    ) -> None:
        self._slots = slots
        self._line = line
        self._stop = slots.stop[index : index + 1]
        self._predictions = ends.predictions.fileno()
        self._training = ends.training.fileno()
        self._bell = ends.bell.fileno()
        self._lanes = make_lanes(experiment.environment, experiment.ga3c.environments)
        self._convert = converter(self._lanes.action_space)
        self._seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**31
        self._gamma = experiment.algorithm.gamma
        layout = slots.layout
        self._length, self._rollouts = layout.steps, layout.rollouts
        count = layout.environments
        self._first = index * count
        self._all = list(range(count))
        #: By environment: the row of the observation to act on.
        self._rows = [-1] * count
        #: By environment: its full slot, which the trainers have not got yet, or −1.
        self._full = [-1] * count
        self._returns = [0.0] * count
        self._discounted = [0.0] * count
        self._lengths = [0] * count
        self._note_length = Diagnostics(slots.diagnostics[layout.threads + index]).ended
        self._unreported = 0
        self._ended: set[int] = set()

    def run(self) -> int:
        """Acts until the child ends it; returns the process' exit code."""
        guard = MemoryGuard()
        try:
            observations = self._lanes.reset(self._seed)
            for i in self._all:
                self._enter(i, observations[i])
            self._report(READY, 0.0)
            self._line.pause()
            steps = 0
            while True:
                self._ask(self._all)
                self._step()
                steps += 1
                if self._unreported >= REPORT_STEPS:
                    self._report(PROGRESS, 0.0)
                if not steps % _GUARD_STEPS and guard.leaks(self._line.episodes):
                    self._report(PROGRESS, 0.0)
                    return RECYCLED
        except StopWorker:
            return 0
        finally:
            close(self._lanes)

    def _step(self) -> None:
        """One step of each environment, with the actions that were predicted."""
        slots, length = self._slots, self._length
        for i in self._all:
            if self._full[i] >= 0:
                self._submit(i, length, slots.values[self._rows[i]], cut=True)
        actions = [self._convert(slots.actions[row]) for row in self._rows]
        observations, rewards, terminated, truncated, finals = self._lanes.step(actions)
        self._unreported += len(self._all)
        for i in self._all:
            row, reward = self._rows[i], float(rewards[i])
            self._returns[i] += reward
            self._lengths[i] += 1
            self._discounted[i] = self._gamma * self._discounted[i] + reward
            slots.rewards[row], slots.discounted[row] = reward, self._discounted[i]
            slot, t = divmod(row, length)
            if terminated[i] or truncated[i]:
                self._full[i] = slot
                bootstrap = 0.0 if terminated[i] else self._value_of(i, finals[i])
                self._submit(i, t + 1, bootstrap, cut=not terminated[i])
                self._end_episode(i)
                self._enter(i, observations[i])
            elif t + 1 == length:
                self._full[i] = slot
                self._enter(i, observations[i])
            else:
                self._place(i, row + 1, observations[i])

    def _end_episode(self, i: int) -> None:
        self._note_length(self._lengths[i])
        self._report(EPISODE, self._returns[i])
        self._returns[i] = self._discounted[i] = 0.0
        self._lengths[i] = 0
        self._ended.add(i)
        if len(self._ended) == len(self._all):
            self._ended.clear()
            self._line.pause()

    def _enter(self, i: int, observation: Array) -> None:
        """The observation becomes the first of a free slot."""
        self._place(i, self._free(i) * self._length, observation)

    def _place(self, i: int, row: int, observation: Array) -> None:
        self._slots.observations[row] = observation
        self._rows[i] = row

    def _free(self, i: int) -> int:
        """A slot of this environment that nobody needs any more."""
        busy, start = self._slots.busy, (self._first + i) * self._rollouts
        while True:
            for slot in range(start, start + self._rollouts):
                if not busy[slot] and slot != self._full[i]:
                    return slot
            self._sleep()

    def _submit(self, i: int, steps: int, bootstrap: float, cut: bool) -> None:
        """Gives the full slot to the trainers."""
        slots, slot = self._slots, self._full[i]
        rows = slice(slot * self._length, slot * self._length + steps)
        check_numbers(slots.rewards[rows], slots.observations[rows])
        slots.lengths[slot] = steps
        slots.bootstraps[slot] = bootstrap
        slots.cut[slot] = cut
        slots.busy[slot] = True
        self._full[i] = -1
        put(self._training, (slot,))

    def _value_of(self, i: int, observation: Array) -> float:
        """V of an observation that is not acted on."""
        self._enter(i, observation)
        self._ask([i])
        return float(self._slots.values[self._rows[i]])

    def _ask(self, environments: list[int]) -> None:
        """Has the rows of these environments predicted, and sleeps until that is done."""
        slots, first = self._slots, self._first
        for i in environments:
            slots.position[first + i] = self._rows[i]
            slots.asked[first + i] += 1
        put(self._predictions, [first + i for i in environments])
        lanes = slice(first + environments[0], first + environments[-1] + 1)
        asked, answered = slots.asked[lanes], slots.answered[lanes]
        while True:
            self._sleep()
            if (answered == asked).all():
                return

    def _sleep(self) -> None:
        """Until the bell rings."""
        if not os.read(self._bell, 4096) or self._stop[0]:
            raise StopWorker

    def _report(self, kind: int, episode_return: float) -> None:
        self._line.report(kind, episode_return, self._unreported)
        self._unreported = 0


def run_agent(
    index: int,
    experiment: Experiment,
    slots: Slots,
    ends: Ends,
    pipe: Connection,
    seed: tuple[int, ...],
) -> None:
    """The life of an agent process, from its fork to its exit code."""
    own = slice(index, index + 1)
    element = slots.semaphore[own] if experiment.child.exchange == "episode" else None
    line = WorkerPipe(pipe, slots.stop[own], element)
    among = experiment.ga3c.max_agents
    run_worker(pipe, lambda: Agent(index, experiment, slots, ends, line, seed).run(), among)


def warm_up(experiment: Experiment) -> None:
    """Imports the environment in the forkserver, where none is built."""
    import_environment(experiment.environment)
