"""Child: keeps a backend training and exchanges its weights with the parent whenever it is ready.

Laws of this file:
- The first thing that a child needs is its parent, which tells it the experiment. Afterwards it
  needs the parent no more: cut off, it keeps training, and reconnects.
- Reconnected, it keeps its own weights and pushes them. A parent that has lost everything takes
  them.
- In a search, a child trains one trial after another. It gives back a trial that it cannot train,
  and asks for the next one.

`genkidama.protocol.session` decides what is said and what a reply means; `conversation.py` says it.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog

from genkidama.child.backend import Backend, make_backend, notify_reply
from genkidama.child.credentials import read_token
from genkidama.child.local_checkpoint import LocalCheckpoint
from genkidama.child.transport import FAILURES
from genkidama.config.allowlist import ANYTHING, check_imports
from genkidama.config.experiment import Experiment
from genkidama.config.role import Role
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.gorila.sharded_connection import ShardedConnection
from genkidama.protocol.session import Begin
from genkidama.protocol.vector import Signature
from genkidama.runtime.machine import available_cores, loop_factory, on_signals
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.script import begin
from genkidama.runtime.systemd import supervised

__all__ = ["Child"]

#: How long an exchange may go on when the child is told to stop.
_LAST_REPLY_SECONDS = 1.0

#: How long a last push and a goodbye may take after that.
_FAREWELL_SECONDS = 2.0

#: After so many failed trials in a row, this machine is taken to be unable to train any.
_MOST_FAILURES = 3

T = TypeVar("T")

log = structlog.get_logger()


class Child:
    """One machine that trains.

    Args:
        parent: `ws://HOST:PORT` or `wss://HOST:PORT`; of a parent in parts all addresses, in their
            order, with commas between them.
        name: unique among the parent's children; empty means the machine's name, numbered if that
            is taken.
        cores: core processes; None takes what the experiment says, `"auto"` as many as the CPU has
            cores and the memory has room for.
        state: a directory for this child's own state, None for none.
        token: the parent knows this child by it; empty for none.
        ca_file: PEM certificates of the authority that signed the parent's; None means the
            system's.
        role: `"act"`, `"learn"` or `"bundle"`; `"experiment"` leaves it to the parent.
        fingerprint: SHA-256 of the parent's certificate, instead of an authority.
        allow: modules that the parent may have it import; `*` for all. A program that embeds a
            child allows all, unless it says otherwise, and `python -m genkidama.child` none.

    `await child.serve()` trains until the parent says that the run is over or `stop()` is called.
    """

    def __init__(
        self,
        parent: str,
        *,
        name: str = "",
        cores: int | str | None = None,
        state: str | Path | None = None,
        token: str = "",
        ca_file: str | None = None,
        role: str = "experiment",
        fingerprint: str = "",
        allow: Sequence[str] = (ANYTHING,),
    ) -> None:
        begin("Child")
        self._stopping = asyncio.Event()
        self._conversation = ShardedConnection.with_parent(
            parent, name, role, self._stopping.set, token, ca_file, fingerprint
        )
        self._session = self._conversation.session
        self._allow = tuple(allow)
        self._own = LocalCheckpoint(Path(state) if state else None)
        self._cores = None if cores == "experiment" else cores
        self._using = 0
        self._policy = RestartPolicy(_MOST_FAILURES)
        self._told_to_stop = False
        self._failure: BaseException | None = None
        #: Set by `serve`.
        self.backend: Backend | None = None

    @classmethod
    def from_role(cls, role: Role) -> Child:
        """A child as its own TOML, and for its token the environment, describe it.

        Raises:
            ConfigurationError: the token's or the authority's file cannot be used.
        """
        return cls(
            role.parent,
            name=role.name,
            cores=role.cores,
            state=role.state or None,
            token=read_token(role),
            ca_file=role.ca_file,
            role=role.role,
            fingerprint=role.fingerprint,
            allow=role.allow,
        )

    @property
    def parent(self) -> str:
        """Where the parent listens."""
        return self._session.parent

    @property
    def name(self) -> str:
        """What this child is called; a number may be added when the parent is first met."""
        return self._session.name

    @property
    def experiment(self) -> Experiment | None:
        """What the parent says is to be trained; None until it has said so."""
        return self._session.experiment

    @property
    def status(self) -> str:
        """How training stands, in a few words for people who ask the service manager."""
        talk, version = self._conversation, self._session.version
        waiting = f"waiting for {talk.away}" + (f": {talk.problem}" if talk.problem else "")
        if self.experiment is None or self.backend is None:
            return waiting
        cores = f"{self._using} core{'s'[: self._using != 1]}"
        training = f"training {self.experiment.environment.id} on {cores}, version {version}"
        if not talk.joined and (version or talk.problem):
            return f"{training}, {waiting}"
        seconds = time.monotonic() - talk.exchanged
        return training if math.isnan(seconds) else f"{training}, last exchange {seconds:.0f} s ago"

    def run(self) -> None:
        """`serve` in an event loop of its own. Blocks. In the main thread, SIGTERM and SIGINT mean
        `stop`, and systemd is told how it goes.

        Raises:
            GenkidamaError: as `serve`.
        """
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            main = threading.current_thread() is threading.main_thread()
            runner.run(self._serve_as_service() if main else self.serve())

    async def _serve_as_service(self) -> None:
        async with supervised(lambda: self.status) as notify:

            def stop(_: object) -> None:
                notify("STOPPING=1")
                self.stop()

            with on_signals(stop):
                notify("READY=1")  # waiting for a parent that is not there yet is no fault
                await self.serve()

    def stop(self) -> None:
        """Ends training: a last push, a goodbye, no process and no shared memory left."""
        self._told_to_stop = True
        self._stopping.set()

    async def serve(self) -> None:
        """Trains until the run is over.

        Raises:
            GenkidamaError: the parent refuses this child, the experiment cannot be built here, or
                training cannot go on.
        """
        try:
            while await self._until_stopped(self._conversation.begin()) is not None:
                another = await self._train_one()
                if not another or self._told_to_stop:
                    break
                self._renew()
        finally:
            await self._conversation.close()
        over = self._conversation.over
        reason = over.reason if over else "stopped"
        self._conversation.pulse.ended(self.name, self.parent, reason)

    # One trial; a plain run is one.

    async def _train_one(self) -> bool:
        """Trains what the parent has said, to its end.

        Returns:
            Whether there may be another trial.
        """
        session = self._session
        try:
            if self._conversation.over is None:
                await self._build()
                self._policy.worked()
            over = self._conversation.over
            return over is not None and over.next
        except (ConfigurationError, EnvironmentFailure) as error:
            if session.trial is None:
                raise
            self._policy.died(time.monotonic())
            log.warning("trial failed", child=self.name, trial=session.trial, reason=str(error))
            await self._conversation.give_back(str(error))
            if self._policy.given_up:
                raise
            return True
        finally:
            if self.backend is not None:
                await self.backend.shutdown()

    def _renew(self) -> None:
        """Forgets the trial that is over, to be ready for another one."""
        session = self._session
        reason = session.over.reason if session.over else ""
        log.info("trial over", child=self.name, trial=session.trial, reason=reason)
        session.renew()
        self._stopping.clear()
        self._failure = None
        self.backend = None

    async def _build(self) -> None:
        assert self.experiment is not None
        check_imports(self.experiment.to_dict(), self._allow)
        experiment = self._as_told(self.experiment)
        cores = experiment.child.cores
        self._using = available_cores() if cores == "auto" else cores
        self.backend = make_backend(experiment, self._using, self.name)
        signature = await self._until_stopped(self.backend.startup())
        if signature is None:
            return
        self._using = getattr(self.backend, "cores", self._using)  # it may have taken fewer
        log.info(
            "training",
            child=self.name,
            cores=self._using,
            parameters=signature.size,
            environment=experiment.environment.id,
        )
        await self._train(signature, self.backend)

    async def _train(self, signature: Signature, backend: Backend) -> None:
        talk = self._conversation
        self._own.open(self.name, self._state_key(signature))
        resumed = self._own.restore(backend)
        begin = await self._until_stopped(talk.enter(signature, backend, self._using))
        if not isinstance(begin, Begin):
            return
        backend.set_progress(begin.progress)
        notify_reply(backend, begin.steps, begin.version)
        await backend.begin(begin.vector, begin.version)
        if resumed:
            log.info("resumed", child=self.name, version=begin.version)
        works = (talk.keep(signature), self._own.keep(backend))
        helpers = [self._in_background(work) for work in works]
        try:
            while not (talk.over or self._stopping.is_set()) and await self._until_stopped(
                _then_true(backend.due())
            ):
                await self._until_stopped(talk.exchange(backend), _LAST_REPLY_SECONDS)
                backend.release()
        finally:
            for helper in helpers:
                await _cancel(helper)
        await self._farewell(backend)
        if self._failure is not None:
            raise self._failure

    async def _farewell(self, backend: Backend) -> None:
        """The last push and a goodbye, as far as there is time; none if another trial follows."""
        over = self._conversation.over
        if over is None:
            log.info("stopping", child=self.name)
        elif over.next:
            return
        with suppress(*FAILURES):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await self._conversation.leave(backend)
        await self._own.save(backend)

    def _state_key(self, signature: Signature) -> str:
        run, trial = self._session.run, self._session.trial
        return signature.digest if trial is None else f"{signature.digest}/{run}/{trial}"

    def _as_told(self, experiment: Experiment) -> Experiment:
        """With what this machine's owner says about its cores: if "auto", fewer will do."""
        if self._cores is None:
            return experiment
        return msgspec.structs.replace(
            experiment, child=msgspec.structs.replace(experiment.child, cores=self._cores)
        )

    # Waiting.

    async def _until_stopped(self, work: Coroutine[Any, Any, T], grace: float = 0.0) -> T | None:
        """The result of `work`; None if `stop` comes first and `grace` seconds do not end it."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if grace and not task.done():
                await asyncio.wait((task,), timeout=grace)
        finally:
            stopped.cancel()
            await _cancel(task)
        return None if task.cancelled() else task.result()

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs `work` beside the training. If it fails, the child stops, and `serve` raises its
        error."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._failure = error
                self._stopping.set()

        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(done)
        return task


async def _then_true(work: Coroutine[Any, Any, None]) -> bool:
    await work
    return True


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancels the task and waits until it has ended; its error, if any, stays in it."""
    if not task.done():  # to wait for nothing would take a turn of the loop
        task.cancel()
        await asyncio.wait((task,))
