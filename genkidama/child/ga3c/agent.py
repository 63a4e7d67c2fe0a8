"""An agent: a process that steps environments and knows no model. It imports no torch.

Babaeizadeh et al. 2017, §4: it asks the prediction queue for each action, and every t_max steps or at an episode's end puts
what it has experienced into the training queue. Unlike the authors' program, the reward of the last step is part of that.

Laws of this file:
- The agent writes observations, rewards and lengths into its own slots (`slots`), and nothing into another's.
- V of the observation that follows a full rollout is the one that comes with the next action. Where an episode is cut by a
  time limit, its last observation is asked for by itself.
- It sleeps in a read of its bell: until its predictions are there, or a slot is free. The bell's end is the child's end.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.capacity import GROWTH_BYTES
from genkidama.child.ga3c.queues import put
from genkidama.child.ga3c.slots import Ends, Slots
from genkidama.child.records import EPISODE, FAILED, PROGRESS, READY, RECORD, RECYCLED, REPORT_STEPS
from genkidama.errors import ConfigurationError
from genkidama.experiment import Experiment
from genkidama.learning.actions import converter
from genkidama.learning.lanes import make_lanes
from genkidama.system.machine import resident_bytes

__all__ = ["Agent", "run_agent"]

Array = npt.NDArray[Any]

#: How many steps pass between two looks at the memory.
_LOOK_STEPS = 4096


class _Ended(Exception):
    """The child wants this agent to end, or is gone."""


class Agent:
    """The agent number `index` of a child.

    Args:
        index: which lanes, bell and element of the semaphore vector are its own.
        experiment: all settings.
        slots: the shared memory.
        ends: its ends of the queues and of its bell.
        line: this end of the pipe to the orchestrator.
        seed: distinguishes this agent from every other one of the run, and from its own predecessors.
    """

    def __init__(
        self,
        index: int,
        experiment: Experiment,
        slots: Slots,
        ends: Ends,
        line: Connection,
        seed: tuple[int, ...],
    ) -> None:
        self._index, self._slots, self._line = index, slots, line
        self._predictions, self._training, self._bell = (
            ends.predictions.fileno(),
            ends.training.fileno(),
            ends.bell.fileno(),
        )
        self._lanes = make_lanes(experiment.environment, experiment.ga3c.environments)
        self._convert = converter(self._lanes.action_space)
        self._seed = int(np.random.SeedSequence(seed).generate_state(1)[0]) % 2**31
        self._gamma = experiment.algorithm.gamma
        self._waits = experiment.child.exchange == "episode"
        layout = slots.layout
        self._length, self._rollouts = layout.steps, layout.rollouts
        count = layout.environments
        self._first = index * count
        self._all = list(range(count))
        #: By environment: the row of the observation to act on; its full slot, which the trainers have not got yet, or −1.
        self._rows, self._full = [-1] * count, [-1] * count
        self._returns, self._discounted = [0.0] * count, [0.0] * count
        self._unsaid = 0
        self._ended: set[int] = set()

    def run(self) -> int:
        """Acts until the child ends it; returns the process' exit code."""
        try:
            observations = self._lanes.reset(self._seed)
            for i in self._all:
                self._enter(i, observations[i])
            self._report(READY, 0.0)
            self._pause()
            steps, limit = 0, 0
            while True:
                self._ask(self._all)
                self._step()
                steps += 1
                if self._unsaid >= REPORT_STEPS:
                    self._report(PROGRESS, 0.0)
                if not steps % _LOOK_STEPS:
                    # Its slots are part of what it resides in, and all of them were used by the time of the first look.
                    limit = limit or resident_bytes() + GROWTH_BYTES
                    if resident_bytes() > limit:
                        self._report(PROGRESS, 0.0)
                        return RECYCLED
        except (_Ended, EOFError, BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._lanes.close()
        return 0

    def _step(self) -> None:
        """One step of each environment, with the actions that were predicted."""
        slots, length = self._slots, self._length
        for i in self._all:
            if self._full[i] >= 0:
                self._submit(i, length, slots.values[self._rows[i]], cut=True)
        actions = [self._convert(slots.actions[row]) for row in self._rows]
        observations, rewards, terminated, truncated, finals = self._lanes.step(actions)
        self._unsaid += len(self._all)
        for i in self._all:
            row, reward = self._rows[i], float(rewards[i])
            self._returns[i] += reward
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
        self._report(EPISODE, self._returns[i])
        self._returns[i] = self._discounted[i] = 0.0
        self._ended.add(i)
        if len(self._ended) == len(self._all):
            self._ended.clear()
            self._pause()

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
        slots.lengths[slot], slots.bootstraps[slot], slots.cut[slot] = steps, bootstrap, cut
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
        if not os.read(self._bell, 4096) or self._slots.stop[self._index]:
            raise _Ended

    def _report(self, kind: int, episode_return: float) -> None:
        if self._slots.stop[self._index]:
            raise _Ended
        self._line.send_bytes(RECORD.pack(kind, episode_return, self._unsaid))
        self._unsaid = 0

    def _pause(self) -> None:
        """The semaphore: lights this agent's element and sleeps until the orchestrator releases all."""
        if not self._waits:
            return
        self._slots.semaphore[self._index] = True
        self._line.send_bytes(b"")
        self._line.recv_bytes()
        if self._slots.stop[self._index]:
            raise _Ended


def run_agent(
    index: int,
    experiment: Experiment,
    slots: Slots,
    ends: Ends,
    line: Connection,
    seed: tuple[int, ...],
) -> None:
    """The life of an agent process, from its fork to its exit code."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the orchestrator decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        code = Agent(index, experiment, slots, ends, line, seed).run()
    except Exception as error:  # the user's environment may raise anything: report it, do not hang
        if not isinstance(error, ConfigurationError):
            traceback.print_exc()
        line.send_bytes(
            RECORD.pack(FAILED, 0.0, 0) + f"{type(error).__name__}: {error}".encode()[:1000]
        )
        sys.exit(1)
    sys.exit(code)
