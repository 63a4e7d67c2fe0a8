"""GA3C: a child's agents and the engine that predicts and trains for them. The backend `"ga3c"`.

Laws of this file:
- It never computes and imports no torch: it sleeps until an agent, the engine or a timer wakes it.
- An exchange is due as with Hogwild. With `exchange = "free"` it is due after so much time or so
  many steps, with `"episode"` when every agent has ended an episode in each of its environments,
  and waits. Trainers never wait.
- An agent that dies is replaced. So is the engine: on a CPU nothing is lost with it, on a GPU what
  it has learned since the last exchange. A process that dies again and again without getting
  anywhere ends the child, with the reason.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.child.backend import Work
from genkidama.child.shared_memory import DiagnosticsReader, SharedWeights, change
from genkidama.child.worker_pool import PooledBackend, WorkerPool
from genkidama.config.decoding import check_least
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.forms import check_torch
from genkidama.plugins.ga3c.adjustment import Adjustment, Setting
from genkidama.plugins.ga3c.slots import (
    Count,
    Ends,
    SlotLayout,
    Slots,
    pipe,
    put,
    ring,
    take,
    waiting,
)
from genkidama.protocol.vector import Signature, Vector
from genkidama.runtime.forkserver import ForkedProcess, ForkServer
from genkidama.runtime.log import get_logger
from genkidama.runtime.machine import ONE_THREAD, descriptors_left
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.process import WorkerProcess, start_program
from genkidama.runtime.task import see_spaces
from genkidama.runtime.watchdog import Watchdog

#: Forks agents, without torch.
AGENTS = ForkServer("genkidama.plugins.ga3c.agent", ONE_THREAD)

#: N_A for each core, if `ga3c.agents` is "auto".
_AGENTS_PER_CORE = 8

#: Files of an agent: its bell, its process and what it says have two, two and one.
_DESCRIPTORS = 5

#: An engine may do nothing for this many times as long as an agent.
_ENGINE_PATIENCE = 2.0

#: Between two attempts to start an engine.
_RETRY_SECONDS = 1.0

#: How long a copy of a device's weights is waited for, if the child does not wait for `due`.
_PUBLISH_SECONDS = 0.5

#: This share of a window passes before the window begins. Meanwhile agents start, and whatever else
#: a change has stirred up settles.
_SETTLING = 0.25

log = get_logger()


class GA3C(PooledBackend):
    """Owns a child's agents and its engine. See `Backend` and `WorkerStarter` for its methods."""

    def __init__(self, experiment: Experiment, cores: int, name: str = "child") -> None:
        check_least(cores=cores)
        self.experiment = experiment
        settings = self._settings = experiment.ga3c
        many = min(-(-_AGENTS_PER_CORE * cores // settings.environments), settings.max_agents)
        agents = many if settings.agents == "auto" else settings.agents
        #: N_P, N_T and N_A as they are now.
        self.setting = Setting(settings.predictors, settings.trainers, agents)
        #: The settings that the dynamic adjustment has tried, a row a window; None if it is off.
        self.adjustment: Adjustment | None = None
        self._pool = WorkerPool(experiment, "agent", name, self)
        #: Of the engine, which compiles before its first batch and warms its device up.
        self._watch = Watchdog(
            _ENGINE_PATIENCE * experiment.child.hang_seconds,
            lambda _: self.slots.mark_of_engine(),
            self._engine_hung,
        )
        fit = max(0, descriptors_left(_DESCRIPTORS * settings.max_agents) // _DESCRIPTORS)
        if fit < settings.max_agents:
            raise ConfigurationError(
                f"ga3c.max_agents = {settings.max_agents}: this process may open files for {fit} "
                "agents; set it to no more, or raise the limit: ulimit -n, or LimitNOFILE of a unit"
            )
        self._predictions, self._training = pipe(), pipe()
        self._bells = [pipe() for _ in range(settings.max_agents)]
        for _, end in self._bells:
            # An agent that hangs must not hold up the thread that rings for it.
            os.set_blocking(end.fileno(), False)
        self._engine: EngineProcess | None = None
        self._slots: Slots | None = None
        self._restart: asyncio.Task[None] | None = None
        self._adjusting: asyncio.Task[None] | None = None
        self._policy = RestartPolicy(3)
        self._updates_at_death = 0
        self._rates = Rates()
        self._diagnosis = DiagnosticsReader(experiment)
        self._on_device = False
        #: As `genkidama.learning.spaces.describe_spaces` gives them; None of Gymnasium's own.
        self._spaces: Any = None

    @property
    def slots(self) -> Slots:
        assert self._slots is not None, "startup() comes first"
        return self._slots

    async def startup(self) -> Signature:
        check_torch("child.backend = 'ga3c'")
        # The forkserver imports the environment while the engine imports torch.
        with suppress(OSError):  # if it dies of the environment, agents will, too, and say so
            AGENTS.warm_up(self.experiment)
        self._engine = self._launch()
        self._spaces = await see_spaces(self.experiment)
        entries, vector, facts, device = await self._engine.build(self.experiment, self._spaces)
        self.signature = Signature.of(entries)
        self._on_device = device != "cpu"
        settings = self._settings
        self._slots = Slots(
            SlotLayout(
                agents=settings.max_agents,
                environments=settings.environments,
                rollouts=settings.rollouts,
                steps=self.experiment.algorithm.batch_size,
                size=self.signature.size,
                # A thread that leaves counts in its row to the end, while another takes its place.
                threads=2
                * (
                    max(settings.predictors, settings.max_predictors)
                    + max(settings.trainers, settings.max_trainers)
                ),
                **facts,
            )
        )
        self._weights = SharedWeights(self._slots, vector)
        self._engine.attach(self.slots)
        return self.signature

    def _launch(self) -> EngineProcess:
        ends = (*self._predictions, *self._training, *(bell for _, bell in self._bells))
        return EngineProcess([end.fileno() for end in ends], self)

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        self._weights.begin(weights)
        self._put_to_work()
        self._watch.ages.wake(0)
        self._watch.begin()
        await self._pool.begin(self.setting.agents, version, self.slots.semaphore)
        self._rates = Rates()
        if self._settings.dynamic:
            most = Setting(
                self._settings.max_predictors,
                self._settings.max_trainers,
                self._settings.max_agents,
            )
            self.adjustment = Adjustment(
                self.setting, most, np.random.default_rng((self.experiment.seed, version))
            )
            self._adjusting = asyncio.get_running_loop().create_task(self._adjust(self.adjustment))

    def _put_to_work(self) -> None:
        assert self._engine is not None
        self._engine.tell("reset")
        self._engine.tell("resize", self.setting.predictors, self.setting.trainers)

    def trace(self, index: int) -> int | None:
        return self.slots.mark_of(index)

    def start_worker(self, index: int, line: Connection, seed: tuple[int, ...]) -> ForkedProcess:
        self.slots.stop[index] = False
        ends = Ends(self._predictions[1], self._training[1], self._bells[index][0])
        return AGENTS.start(
            "genkidama.plugins.ga3c.agent:run_agent",
            (index, self.experiment, self.slots, ends, line, seed),
            self.experiment,
        )

    # The engine.

    def _engine_hung(self, index: int, seconds: float) -> None:
        log.warning("engine hung", reason=f"it did nothing for {seconds:.0f} s, and is killed")
        if self._engine is not None:
            self._engine.kill()

    def engine_lost(self, reason: str, alive: bool) -> None:
        """The engine says that training cannot go on, or, not `alive`, ended by itself."""
        self._watch.ages.forget(0)
        updates = self.slots.updates
        if updates > self._updates_at_death:
            self._policy.worked()
        self._policy.died(time.monotonic())
        self._updates_at_death = updates
        if alive:
            self._pool.fail(EnvironmentFailure(f"training cannot go on: {reason}"))
        elif self._policy.given_up:
            times = f"{self._policy.deaths} times without an update"
            self._pool.fail(
                EnvironmentFailure(f"the process that holds the model died {times}: {reason}")
            )
        else:
            log.warning("engine lost", reason=reason)
            self._restart = asyncio.get_running_loop().create_task(self._start_again())

    async def _start_again(self) -> None:
        """Starts another engine, with the weights and the work that are in the shared memory."""
        slots = self.slots
        try:
            engine = self._engine = self._launch()
        except OSError as error:  # of memory or of processes there are none left at present
            await asyncio.sleep(_RETRY_SECONDS)
            self.engine_lost(f"it cannot be started: {error.strerror or error}", False)
            return
        try:
            await engine.build(self.experiment, self._spaces)
        except EnvironmentFailure:
            self.engine_lost(f"exit code {engine.wait()}", False)
            return
        except ConfigurationError as error:
            # It was built before, so a device is gone, or a module.
            self.engine_lost(str(error), True)
            return
        # What the lost one had taken from the queues is put there again. By now every agent sleeps,
        # so nothing is put twice.
        queues = (self._predictions, len(slots.asked)), (self._training, len(slots.busy))
        for (queue, _), size in queues:
            if waiting(queue.fileno()):
                take(queue.fileno(), 2 * size)
        engine.attach(slots)
        self._watch.ages.wake(0)
        self._put_to_work()
        put(self._predictions[1].fileno(), np.flatnonzero(slots.asked != slots.answered).tolist())
        put(self._training[1].fileno(), np.flatnonzero(slots.busy).tolist())

    # The dynamic adjustment.

    async def _adjust(self, adjustment: Adjustment) -> None:
        window = self._settings.window_seconds
        while True:
            await asyncio.sleep(_SETTLING * window)
            before, began = self._rollouts(), time.monotonic()
            await asyncio.sleep(window)
            rate = (self._rollouts() - before) / (time.monotonic() - began)
            await self._apply(adjustment.judge(rate))

    def _rollouts(self) -> int:
        return int(self.slots.counters[:, Count.ROLLOUTS].sum())

    async def _apply(self, setting: Setting) -> None:
        before, self.setting = self.setting, setting
        assert self._engine is not None
        if setting[:2] != before[:2]:
            self._engine.tell("resize", setting.predictors, setting.trainers)
        if setting.agents != before.agents:
            self._wake(await self._pool.resize(setting.agents))

    def _wake(self, agents: list[int]) -> None:
        """Makes these agents see that they should end."""
        self.slots.stop[agents] = True
        for agent in agents:
            ring(self._bells[agent][1].fileno())

    # Exchanges.

    async def due(self) -> None:
        try:
            await self._pool.due()
        except asyncio.CancelledError:  # an exchange comes all the same, or the end
            with suppress(TimeoutError):
                async with asyncio.timeout(_PUBLISH_SECONDS):
                    await self._publish()
            raise
        await self._publish()

    async def _publish(self) -> None:
        if self._on_device and self._engine is not None:
            await self._engine.publish()

    def snapshot(self) -> Vector:
        return self._weights.snapshot()

    def take_work(self) -> Work:
        work = self._pool.take_work()
        measures = {
            **self._rates.figures(self.slots.counters.sum(0)),
            **dict(zip(Setting._fields, self.setting, strict=True)),
            "queue_prediction": waiting(self._predictions[0].fileno()),
            "queue_training": waiting(self._training[0].fileno()),
            **self._diagnosis.figures(self.slots.diagnostics, float(self.slots.progress[0])),
        }
        return Work(work.steps, work.returns, measures)

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        free = self.experiment.child.exchange == "free"
        self._weights.blend(sent, parent, beta, keep_changes=free or self._on_device)
        if beta and self._on_device and self._engine is not None:
            trainable = len(self.slots.change)
            self.slots.change[:] = change(sent[:trainable], parent[:trainable], beta)
            self._engine.tell("change")

    def reset(self, weights: Vector) -> None:
        self._weights.reset(weights)
        if self._on_device and self._engine is not None:
            self._engine.tell("reset")

    async def shutdown(self) -> None:
        self._watch.end()
        for task in (self._adjusting, self._restart):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        if self._slots is not None:
            self._wake(list(range(self._slots.layout.agents)))
        await self._pool.shutdown()
        if self._engine is not None:
            await self._engine.end()
        for end in (
            *self._predictions,
            *self._training,
            *(end for bell in self._bells for end in bell),
        ):
            end.close()
        if self._slots is not None:
            self._slots.close()


class Rates:
    """Rates of the engine's threads, and the size and lag of their batches, from now on."""

    def __init__(self) -> None:
        self._counted = np.zeros(len(Count), np.int64)
        self._counted_at = time.monotonic()

    def figures(self, counters: npt.NDArray[Any]) -> dict[str, float]:
        """The rates since the last call, from counters by `Count`, of all threads together."""
        now = time.monotonic()
        done, seconds = counters - self._counted, now - self._counted_at
        self._counted, self._counted_at = counters, now
        predictions, batches, rollouts, steps, updates, lag = done.tolist()
        return {
            "tps": rollouts / seconds,
            "pps": predictions / seconds,
            "updates": updates / seconds,
            # A mean of nothing is no figure. NaN is left out.
            "prediction_batch": predictions / batches if batches else math.nan,
            "training_batch": steps / updates if updates else math.nan,
            "lag": lag / steps if steps else math.nan,
        }


class EngineProcess(WorkerProcess):
    """One engine process. It inherits the queues' and bells' ends, in the engine's order."""

    def __init__(self, descriptors: Sequence[int], backend: GA3C) -> None:
        super().__init__(self)
        self._backend = backend
        self._attached = False
        self._published: asyncio.Future[None] | None = None
        module = "genkidama.plugins.ga3c.engine"
        self.start(lambda pipe: start_program(module, (os.getpid(),), pipe, *descriptors))

    async def build(self, experiment: Experiment, spaces: Any = None) -> tuple[Any, ...]:
        """Builds the experiment's network in the engine. Returns signature entries, the vector's
        bytes, facts, the device's type."""
        try:
            description = await self.describe(experiment, spaces=spaces)
        except (EOFError, OSError):
            raise EnvironmentFailure(
                f"the process that holds the model died with exit code {self.wait()}; "
                f"try `{sys.executable} -c 'import torch'` on this machine, "
                f"and the environment {experiment.environment.id!r} by itself"
            ) from None
        self.listen()
        return description

    def attach(self, slots: Slots) -> None:
        """Hands the shared memory over; from now on the engine takes orders."""
        self.hand_over(slots.layout, slots.descriptor)
        self._attached = True

    def tell(self, *message: Any) -> None:
        """Sends an order that needs no answer; nothing happens before `attach`."""
        if self._attached:
            self.send(message)

    async def publish(self) -> None:
        """Orders a copy of weights and optimizer state into the shared memory. Returns when that is
        done, or the engine is gone."""
        if self._attached and not self.pipe.closed:
            self._published = asyncio.get_running_loop().create_future()
            self.tell("publish")
            await self._published

    def heard(self, _: WorkerProcess, message: tuple[Any, ...]) -> None:
        """It has copied what it was to publish, or has failed."""
        if message[0] == "failed":
            self._backend.engine_lost(message[1], True)
        else:
            self._release()

    def lost(self, _: WorkerProcess) -> None:
        self._release()
        self._backend.engine_lost(f"exit code {self.wait()}", False)

    def _release(self) -> None:
        if self._published is not None and not self._published.done():
            self._published.set_result(None)
