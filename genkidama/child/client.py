"""Child: keeps a backend training and exchanges its weights with the parent whenever it is ready.

Laws of this file:
- The first thing that a child needs is its parent, which tells it the experiment. Afterwards it needs
  the parent no more: cut off, it keeps training, and reconnects with jittered backoff.
- Reconnected, it keeps its own weights and pushes them. A parent that has lost everything takes them.
- What the parent answers is checked before it touches the weights: an answer that makes no sense ends
  the connection, never the child.
- A push whose reply got lost is sent again under the same number, so nothing is counted twice.
- In a search, a child trains one trial after another. One that it cannot train it gives back, and asks for the next.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy.typing as npt
import structlog
from websockets.asyncio.client import ClientConnection
from websockets.frames import CloseCode

from genkidama.child import uplink
from genkidama.child.backend import Backend, Work, make_backend
from genkidama.child.state import load_state, save_state
from genkidama.child.uplink import FAILURES, Refused, Uplink, ask, check, join, read_token
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError, ProtocolError
from genkidama.experiment import Experiment
from genkidama.messages import Leave, Push, Refusal, Weights, Welcome, permitted_measures
from genkidama.role import Role
from genkidama.system.machine import available_cores, loop_factory, on_signals
from genkidama.system.systemd import supervised
from genkidama.weights import Signature, Vector

__all__ = ["Child"]

#: How long an exchange may go on when the child is told to stop, and then how long a last push and goodbye may take.
_LAST_REPLY_SECONDS, _FAREWELL_SECONDS = 1.0, 2.0

#: How often the child's own state is saved, if it has a place for it.
_STATE_SECONDS = 60.0

#: At most so many returns are reported in one push, the newest ones: a day without a parent is no reason for a message too big.
_MOST_RETURNS = 4096

#: The protocol lets no return beyond this through; one that is NaN or infinite would have each push refused for ever.
_LARGEST_RETURN = 1e30

#: So many trials in a row that could not be trained mean that this machine cannot train any.
_MOST_FAILURES = 3

T = TypeVar("T")

log = structlog.get_logger()


class Child:
    """One machine that trains.

    Args:
        parent: `ws://HOST:PORT` or `wss://HOST:PORT`.
        name: unique among the parent's children; the machine's name if empty, numbered if that is taken.
        cores: core processes; None takes what the experiment says, `"auto"` as many as the CPU has cores and the memory has room for.
        state: a directory for this child's own state, None for none.
        token: by which the parent knows this child; empty for none.
        ca_file: PEM certificates of the authority that signed the parent's; None means the system's.

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
    ) -> None:
        self._uplink = Uplink(parent, name, token=token, ca_file=ca_file)
        self._cores = None if cores == "experiment" else cores
        self._state = Path(state) if state else None
        self._stopping = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._version = 0
        self._sequence = 0
        self._unanswered: Work | None = None
        self._work = Work()
        self._told_of_measures = False
        self._over = ""
        self._failure: BaseException | None = None
        #: In a search: the trial that is trained, whether there is another after it, how many before it failed in a row.
        self._run = ""
        self._trial: int | None = None
        self._next = False
        self._gave_back = False
        self._failures = 0
        self._told_to_stop = False
        self._using = 0
        self._exchanged = math.nan
        self._saving: asyncio.Future[None] | None = None
        #: Set by `serve`.
        self.experiment: Experiment | None = None
        self.backend: Backend | None = None

    @classmethod
    def from_role(cls, role: Role) -> Child:
        """A child as its own TOML, and for its token the environment, describe it.

        Raises:
            ConfigurationError: the token's or the authority's file cannot be used.
        """
        token = read_token(role)
        return cls(
            role.parent,
            name=role.name,
            cores=role.cores,
            state=role.state or None,
            token=token,
            ca_file=role.ca_file,
        )

    @property
    def parent(self) -> str:
        """Where the parent listens."""
        return self._uplink.parent

    @property
    def name(self) -> str:
        """What this child is called; a number may be added when the parent is first met."""
        return self._uplink.name

    @property
    def status(self) -> str:
        """How training stands, in a few words for who asks the service manager."""
        waiting = f"waiting for {self.parent}" + (
            f": {self._uplink.problem}" if self._uplink.problem else ""
        )
        if self.experiment is None or self.backend is None:
            return waiting
        training = f"training {self.experiment.environment.id} on {self._using} core{'s'[: self._using != 1]}, version {self._version}"
        if self._connection is None and self._version:
            return f"{training}, {waiting}"
        seconds = time.monotonic() - self._exchanged
        return training if math.isnan(seconds) else f"{training}, last exchange {seconds:.0f} s ago"

    def run(self) -> None:
        """`serve`, in an event loop of its own and, in the main thread, with SIGTERM and SIGINT as `stop`, and systemd told. Blocks.

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
                notify(
                    "READY=1"
                )  # a parent that is not there yet is waited for, which is nothing wrong
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
        connection: ClientConnection | None = None
        try:
            while True:
                told = await self._until_stopped(self._first_contact(connection))
                if told is None:
                    break
                connection = told
                try:
                    await self._train_one(connection)
                finally:
                    connection = self._connection or connection
                if not self._next or self._told_to_stop:
                    break
                if self._gave_back:
                    connection = None
                self._renew()
        finally:
            if connection is not None:
                await connection.close()
        log.info("left", child=self.name, reason=self._over or "stopped")

    async def _train_one(self, connection: ClientConnection) -> None:
        """Trains what the parent has said, to its end."""
        try:
            if not self._over:
                assert self.experiment is not None
                await self._build(connection, self.experiment)
                self._failures = 0
        except (ConfigurationError, EnvironmentFailure) as error:
            if self._trial is None:
                raise
            self._failures += 1
            log.warning("trial failed", child=self.name, trial=self._trial, reason=str(error))
            await self._give_back(self._connection or connection, str(error))
            if self._failures >= _MOST_FAILURES:
                raise
            self._next = self._gave_back = True
        finally:
            if self.backend is not None:
                await self.backend.shutdown()
            if self._connection is not None and self._connection is not connection:
                await connection.close()

    async def _give_back(self, connection: ClientConnection, reason: str) -> None:
        with suppress(*FAILURES):
            await ask(connection, Leave(reason=reason[:200], failed=True))
        await connection.close()

    def _renew(self) -> None:
        """Forgets the trial that is over, to be ready for another one."""
        log.info("trial over", child=self.name, trial=self._trial, reason=self._over)
        self._stopping.clear()
        self._over, self._next, self._gave_back, self._trial, self._connection = (
            "",
            False,
            False,
            None,
            None,
        )
        self._version, self._unanswered, self._work = 0, None, Work()
        self._failure, self.backend = None, None

    async def _build(self, connection: ClientConnection, experiment: Experiment) -> None:
        self._using = cores = self._core_count(experiment)
        self.backend = make_backend(self._as_told(experiment), cores, self.name)
        signature = await self._until_stopped(self.backend.startup())
        if signature is not None:
            self._using = getattr(self.backend, "cores", cores)  # it may have taken fewer
            log.info(
                "training",
                child=self.name,
                cores=self._using,
                parameters=signature.size,
                environment=experiment.environment.id,
            )
            await self._train(connection, signature, self.backend)

    async def _train(
        self, connection: ClientConnection, signature: Signature, backend: Backend
    ) -> None:
        restored = self._restore(signature, backend)
        weights = await self._until_stopped(self._enter(signature, connection))
        if weights is None or weights.stop:
            return
        backend.set_progress(weights.progress)
        await backend.begin(weights.vector, weights.version)
        if restored:
            log.info("resumed", child=self.name, version=weights.version)
        helpers = [self._in_background(self._keep_connected(signature))]
        if self._state is not None:
            helpers.append(self._in_background(self._keep_state(signature, backend)))
        try:
            while not self._over and await self._until_stopped(_then_true(backend.due())):
                await self._until_stopped(self._exchange(backend, signature), _LAST_REPLY_SECONDS)
                backend.release()
        finally:
            for helper in helpers:
                await _cancel(helper)
        if not self._over:
            log.info("stopping", child=self.name)
        if not self._next:
            await self._farewell(backend, signature)
        if self._failure is not None:
            raise self._failure

    async def _exchange(self, backend: Backend, signature: Signature) -> None:
        """One push and its reply; a failing connection is dropped, and training goes on."""
        work = backend.take_work()
        returns = [
            value
            for value in work.returns
            if math.isfinite(value) and abs(value) <= _LARGEST_RETURN
        ]
        if len(returns) < len(work.returns):
            log.warning(
                "returns that are NaN or infinite are not reported",
                child=self.name,
                count=len(work.returns) - len(returns),
            )
        measures = (
            self._permitted(work.measures) or self._work.measures
        )  # of the newest time that has any
        self._work = Work(
            self._work.steps + work.steps, (self._work.returns + returns)[-_MOST_RETURNS:], measures
        )
        connection = self._connection
        if connection is None:
            return
        if self._unanswered is None:
            self._unanswered, self._work = self._work, Work()
            self._sequence += 1
        sent = backend.snapshot()
        push = Push(
            version=self._version,
            sequence=self._sequence,
            steps=self._unanswered.steps,
            returns=self._unanswered.returns,
            trial=self._trial,
            measures=self._unanswered.measures,
            vector=sent,
        )
        try:
            reply = await ask(connection, push)
            if isinstance(reply, Weights):
                check(reply, signature)
                self._unanswered = None
                self._accept(reply, sent, backend)
            elif isinstance(reply, Refusal) and reply.code == "finite":
                await self._recover(connection, signature, backend, reply)
            elif isinstance(reply, Refusal) and reply.code == "trial":
                raise ProtocolError(
                    "trial", reply.reason
                )  # the next hello will tell what is to be trained
            elif isinstance(reply, Refusal):
                raise Refused(reply)
            else:
                raise ProtocolError(
                    "order", f"the parent answers a push with {type(reply).__name__}"
                )
        except FAILURES as error:
            await self._drop(connection, error)
        except (
            asyncio.CancelledError
        ):  # the reply may still come, and would be taken for that to the next request
            self._connection = None
            connection.transport.abort()
            raise

    def _permitted(self, figures: dict[str, float]) -> dict[str, float]:
        """The measures that a push may carry. That there are others is said once, unless they are NaN or infinite."""
        measures = permitted_measures(figures)
        left_out = [
            name
            for name, value in figures.items()
            if name not in measures and abs(value) < math.inf
        ]
        if left_out and not self._told_of_measures:
            self._told_of_measures = True
            log.warning(
                "measures that the protocol does not permit are not reported",
                child=self.name,
                measures=left_out,
            )
        return measures

    def _accept(self, reply: Weights, sent: Vector, backend: Backend) -> None:
        assert self.experiment is not None
        self._version, self._exchanged = reply.version, time.monotonic()
        if reply.vector is not None:
            backend.blend(sent, reply.vector, self.experiment.child.beta)
        backend.set_progress(reply.progress)
        if reply.stop:
            self._end(reply.stop, reply.next)

    async def _recover(
        self, connection: ClientConnection, signature: Signature, backend: Backend, refusal: Refusal
    ) -> None:
        """Our weights have become NaN or infinite: take the parent's instead, if it has any."""
        weights = await self._join(connection, signature)
        if weights.vector is None:
            raise EnvironmentFailure(
                f"{refusal.reason}, and the parent has no weights to fall back to; lower optimizer.learning_rate"
            )
        log.warning(
            "training diverged, going on from the parent's weights",
            child=self.name,
            version=weights.version,
        )
        backend.reset(weights.vector)

    # Connections.

    async def _first_contact(self, connection: ClientConnection | None) -> ClientConnection:
        """A connection, this one if it still stands, on which the parent has said what to train."""
        try:
            while True:
                try:
                    if connection is None:
                        connection, welcome = await self._uplink.connect(self._trial)
                    else:
                        welcome = await self._uplink.greet(connection, self._trial)
                except Refused as refused:
                    if refused.code == "name" and self._uplink.rename():
                        continue
                    raise
                except FAILURES:
                    assert connection is not None
                    if connection.close_code == CloseCode.NORMAL_CLOSURE:
                        self._end(connection.close_reason or "the run is over")
                    await connection.close()
                    connection = None
                    continue
                if welcome.wait:
                    await asyncio.sleep(welcome.wait)
                    continue
                self._over, self._run, self._trial = welcome.stop, welcome.run, welcome.trial
                if not self._over:
                    self.experiment = Experiment.from_dict(
                        welcome.experiment, source=f"the experiment of {self.parent}"
                    )
                return connection
        except BaseException:
            if connection is not None:
                await connection.close()
            raise

    async def _keep_connected(self, signature: Signature) -> None:
        """Whenever the connection is gone: a new one, joined."""
        while True:
            connection = self._connection
            if connection is None:
                await self._enter(signature)
            else:
                await connection.wait_closed()
                self._lost(
                    connection,
                    f"closed with {connection.close_code} {connection.close_reason}".rstrip(),
                )

    async def _enter(
        self, signature: Signature, connection: ClientConnection | None = None
    ) -> Weights:
        """Joins, on a new connection if none is given, however long it takes. From then on there are exchanges on it."""
        while True:
            try:
                if connection is None:
                    connection, welcome = await self._uplink.connect(self._trial)
                    self._resume(welcome)
                    if self._over:
                        return Weights(version=0, stop=self._over)
                weights = await self._join(connection, signature)
                self._connection = connection
                return weights
            except FAILURES as error:
                assert connection is not None  # `connect` itself tries on
                self._note_lost(connection, str(error) or type(error).__name__)
            finally:
                if connection is not None and connection is not self._connection:
                    await connection.close()
            connection = None
            await asyncio.sleep(uplink.BACKOFF_SECONDS[0])

    def _resume(self, welcome: Welcome) -> None:
        """The parent may have become another one meanwhile, or have given our trial to another child."""
        assert self.experiment is not None
        if self._trial is not None and welcome.stop:
            self._end(welcome.stop)
            return
        if welcome.trial != self._trial or welcome.wait:
            self._end("another child trains it now", next=True)
            return
        theirs = Experiment.from_dict(welcome.experiment, source=f"the experiment of {self.parent}")
        for section in ("environment", "network", "algorithm", "optimizer", "child", "ga3c"):
            if getattr(theirs, section) != getattr(self.experiment, section):
                raise GenkidamaError(
                    f"{self.parent} now runs another experiment ([{section}] differs); start this child again to take part in it"
                )

    async def _join(self, connection: ClientConnection, signature: Signature) -> Weights:
        reply = await join(connection, signature)
        self._version = reply.version
        if reply.stop:
            self._end(reply.stop, reply.next)
        return reply

    async def _drop(self, connection: ClientConnection, error: Exception) -> None:
        self._lost(connection, str(error) or type(error).__name__)
        await connection.close()

    def _lost(self, connection: ClientConnection, reason: str) -> None:
        if self._connection is connection:
            self._connection = None
            self._note_lost(connection, reason)

    def _note_lost(self, connection: ClientConnection, reason: str) -> None:
        """By closing with 1000 a parent says that the run is over, by everything else that it may come back."""
        if connection.close_code == CloseCode.NORMAL_CLOSURE:
            self._end(connection.close_reason or "the run is over")
        else:
            log.warning(
                "parent lost, trying on", child=self.name, parent=self.parent, reason=reason
            )

    def _end(self, reason: str, next: bool = False) -> None:
        """The parent says that the run is over, or that this trial is and there is a next one."""
        self._over = self._over or reason
        self._next = next
        self._stopping.set()

    async def _farewell(self, backend: Backend, signature: Signature) -> None:
        """The last push and a goodbye, as far as there is time."""
        with suppress(*FAILURES):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                if not self._over:
                    await self._exchange(backend, signature)
                if self._connection is not None:
                    await ask(self._connection, Leave(reason=self._over or "stopped"))
        if self._state is not None:
            await self._save(signature, backend)

    # The child's own state.

    def _state_file(self) -> Path | None:
        return None if self._state is None else self._state / f"{self.name}.safetensors"

    def _state_key(self, signature: Signature) -> str:
        """What a saved state belongs to: the network and, in a search, the trial."""
        return (
            signature.digest
            if self._trial is None
            else f"{signature.digest}/{self._run}/{self._trial}"
        )

    def _restore(self, signature: Signature, backend: Backend) -> bool:
        path = self._state_file()
        arrays = load_state(path, self._state_key(signature)) if path is not None else None
        if arrays is None:
            return False
        backend.restore(arrays)
        return True

    async def _keep_state(self, signature: Signature, backend: Backend) -> None:
        while self._state is not None:
            await asyncio.sleep(_STATE_SECONDS)
            await self._save(signature, backend)

    async def _save(self, signature: Signature, backend: Backend) -> None:
        """In a thread, since an SD card may take its time. One that is cut off here goes on there, and the next waits for it."""
        if self._saving is not None:
            await asyncio.wait((self._saving,))
        self._saving = asyncio.ensure_future(
            asyncio.to_thread(self._write_state, self._state_key(signature), backend.state())
        )
        await asyncio.shield(self._saving)

    def _write_state(self, key: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
        path = self._state_file()
        assert path is not None
        try:
            save_state(path, key, arrays)
        except EnvironmentFailure as error:
            log.error("state not saved", child=self.name, reason=str(error))

    # Waiting.

    async def _until_stopped(self, work: Coroutine[Any, Any, T], grace: float = 0.0) -> T | None:
        """The result of `work`, or None if `stop` comes first and `grace` seconds are not enough to end it."""
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
        """Runs `work` beside the training. If it fails, the child stops and `serve` raises the error."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._failure = error
                self._stopping.set()

        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(done)
        return task

    def _core_count(self, experiment: Experiment) -> int:
        cores = self._as_told(experiment).child.cores
        return available_cores() if cores == "auto" else cores

    def _as_told(self, experiment: Experiment) -> Experiment:
        """With what this machine's owner says about its cores, by which a backend knows whether fewer are as good."""
        if self._cores is None:
            return experiment
        return msgspec.structs.replace(
            experiment, child=msgspec.structs.replace(experiment.child, cores=self._cores)
        )


async def _then_true(work: Coroutine[Any, Any, None]) -> bool:
    await work
    return True


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancels the task and waits until it has ended; its error, if any, stays in it."""
    task.cancel()
    await asyncio.wait((task,))
