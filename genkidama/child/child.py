"""Child: keeps a backend training and exchanges its weights with the parent whenever it is ready.

Laws of this file:
- A child first needs its parent, which gives it the experiment. Afterwards it no longer needs the
  parent: if it is cut off, it keeps training and reconnects.
- After a reconnection it keeps its own weights and pushes them. A parent that has lost everything
  takes them.
- Until an exchange is due for the first time, it makes some by itself, at growing intervals: a run
  that ends before any episode does has saved what it learned, but for the last interval.
- With `exchange = "chunk"` it learns on if an answer is late, as a link may be cut without a sign.
  The answer is then blended into what it has learned. Where the link holds up its cores for more
  than 15 % of the time, it learns on at once, for up to four chunks: its exchanges lengthen, and
  shorten again, with the link's latency.
- In a search, a child trains one trial after another. It gives back a trial that it cannot train,
  and asks for the next one.
- A child that stays, when a run is over, waits for the next one at the same address.

`genkidama.protocol.session` chooses the requests and interprets the replies; `parent_connection`
sends and receives them.
"""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import msgspec

from genkidama.child.backend import (
    Backend,
    ChunkBackend,
    GradientBackend,
    NewsBackend,
    make_backend,
    notify_reply,
)
from genkidama.child.health import EVERY_SECONDS, Cooling, Health
from genkidama.child.local_checkpoint import LocalCheckpoint
from genkidama.child.parent_connection import connection_class
from genkidama.child.transport import FAILURES, Token, backoff, read_token
from genkidama.config.allowlist import ANYTHING
from genkidama.config.experiment import Experiment
from genkidama.config.role import Role
from genkidama.config.sections import CHUNKS
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.protocol.session import (
    AnotherExperiment,
    Begin,
    BlendReply,
    Decision,
    PartsDiffer,
    Reset,
)
from genkidama.protocol.vector import Signature, Vector
from genkidama.runtime.log import get_logger
from genkidama.runtime.machine import available_cores, loop_factory, on_signals
from genkidama.runtime.pacing import Once, Patience, RestartPolicy
from genkidama.runtime.script import begin
from genkidama.runtime.systemd import supervised

#: An exchange is logged this often.
LOG_SECONDS = 10.0

#: Returns that the mean in that line covers at most, the newest: without a parent there is no line.
_MOST_RETURNS = 4096

#: Until an exchange is due: seconds before a child makes one by itself, doubled up to the longest.
EARLY_SECONDS = (0.5, 60.0)

#: The least seconds between two pings of a parent whose silence counts.
_PING_SECONDS = 0.2

#: The longest that an exchange continues after `stop`.
_LAST_REPLY_SECONDS = 1.0

#: The longest that a last push and a goodbye take after that.
_FAREWELL_SECONDS = 2.0

#: After this many failed trials in a row, this machine is taken to be unable to train any.
_MOST_FAILURES = 3

#: The share of its lanes that rests while a machine is spared: a throttled one does half as much.
_RESTING = 0.5

T = TypeVar("T")

log = get_logger()


class Child:
    """One machine that trains.

    Args:
        parent: `ws://HOST:PORT` or `wss://HOST:PORT`; the addresses of all shards in their order,
            with commas in between, if it has several.
        name: unique among the parent's children; empty means the machine's name, numbered if that
            is taken.
        cores: core processes; None takes what the experiment says, `"auto"` as many as the CPU has
            cores and the memory has room for.
        state: a directory for this child's own state, None for none.
        token: the parent knows this child by it; empty for none. A function is as for `Transport`.
        ca_file: PEM certificates of the authority that signed the parent's; None means the
            system's.
        role: `"act"`, `"learn"` or `"bundle"`; `"experiment"` leaves it to the parent.
        fingerprint: SHA-256 of the parent's certificate, instead of an authority.
        allow: modules that the parent may have it import; `*` for all. A program that embeds a
            child allows all, unless it says otherwise, and `python -m genkidama.child` none.
        settings: of the experiment, that this machine has for itself, by their dotted names.
        stay: takes part in the next run at the same address when one is over, and in whatever other
            experiment is run there.

    `await child.serve()` trains until the parent says that the run is over, unless it stays, or
    `stop()` is called.
    """

    def __init__(
        self,
        parent: str,
        *,
        name: str = "",
        cores: int | str | None = None,
        state: str | Path | None = None,
        token: Token = "",
        ca_file: str | None = None,
        role: str = "experiment",
        fingerprint: str = "",
        allow: Sequence[str] = (ANYTHING,),
        settings: Mapping[str, Any] | None = None,
        stay: bool = False,
    ) -> None:
        begin("Child")
        self._stopping = asyncio.Event()
        self._connection = connection_class(parent).to(
            parent,
            self._stopping.set,
            name=name,
            role=role,
            token=token,
            ca_file=ca_file,
            fingerprint=fingerprint,
            allow=tuple(allow),
        )
        self._session = self._connection.session
        self._checkpoint = LocalCheckpoint(Path(state) if state else None)
        self._cores = None if cores == "experiment" else cores
        self._settings = dict(settings or {})
        self._stays = stay
        #: The pauses before it asks for a next run.
        self._pauses = backoff()
        #: The reason to wait for a next run, which is told once.
        self._waits = Once()
        self._using = 0
        self._policy = RestartPolicy(_MOST_FAILURES)
        self._patience = Patience()
        #: `chunk`: chunks learned since the last push, and those that it reported.
        self._learned = self._chunks = 0
        #: Learns on while the present exchange has no answer; None before it has waited for long.
        self._alone: asyncio.Task[None] | None = None
        self._stopped = False
        self._failure: BaseException | None = None
        #: Whether an exchange is under way.
        self._exchanging = False
        #: What it has done so far.
        self.counts = ExchangeLog()
        #: Starts this child again.
        self.command = f"python -m genkidama.child --parent {parent}"
        self._health = Health()
        self._health_due = -math.inf
        self._cooling = Cooling()
        self._spared = False
        #: When the last push was answered, by `time.monotonic`; NaN before the first.
        self._exchanged = math.nan
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
            token=partial(read_token, role),
            ca_file=role.ca_file,
            role=role.role,
            fingerprint=role.fingerprint,
            allow=role.allow,
            settings=role.changes,
            stay=role.stay,
        )

    @property
    def parent(self) -> str:
        return self._session.parent

    @property
    def name(self) -> str:
        """Its name; a number may be added when the parent is first met."""
        return self._session.name

    @property
    def experiment(self) -> Experiment | None:
        """The experiment of the parent; None until that has sent it."""
        return self._session.experiment

    @property
    def status(self) -> str:
        """The state of training in a few words, for the service manager."""
        connection, version = self._connection, self._session.version
        problem = connection.problem
        waiting = f"waiting for {connection.address}" + (f": {problem}" if problem else "")
        if self._session.waits and not problem:
            return f"waiting for a trial of {self._session.run}"
        if self.experiment is None or self.backend is None:
            return waiting
        cores = f"{self._using} core{'s'[: self._using != 1]}"
        training = f"training {self.experiment.environment.id} on {cores}, version {version}"
        if not connection.joined and (version or problem):
            return f"{training}, {waiting}"
        seconds = time.monotonic() - self._exchanged
        return training if math.isnan(seconds) else f"{training}, last exchange {seconds:.0f} s ago"

    @property
    def reason(self) -> str:
        over = self._connection.over
        return over.reason if over else "stopped"

    def run(self) -> None:
        """Runs `serve` in a new event loop, and blocks. In the main thread, SIGTERM and SIGINT mean
        `stop`, and systemd is kept informed.

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
        self._stopped = True
        self._stopping.set()

    async def serve(self) -> None:
        """Trains until the run is over or, if this child stays, until `stop`.

        Raises:
            GenkidamaError: the parent refuses this child, the experiment cannot be built here, or
                training cannot continue.
        """
        try:
            while True:
                begun, problem = None, ""
                try:
                    begun = await self._until_stopped(self._connection.begin())
                except PartsDiffer as error:
                    if not self._stays:
                        raise
                    problem = str(error)
                another = begun is not None and await self._train_one()
                if self._stopped or not (another or self._stays):
                    break
                if another:
                    self._renew()
                else:
                    await self._await_next_run(problem or self.reason)
        finally:
            self._health.close()
            self._checkpoint.close()
            await self._connection.close()
        self.counts.left(self.name, self.command, self.reason)

    # One trial; a plain run is one.

    async def _train_one(self) -> bool:
        """Trains the parent's experiment to its end; whether there may be another trial."""
        session = self._session
        try:
            if self._connection.over is None:
                await self._build()
                self._policy.worked()
                self._pauses.reset()
                self._waits.message = ""
            over = self._connection.over
            return over is not None and over.next
        except AnotherExperiment as error:
            if not self._stays:
                raise
            log.info("run over", child=self.name, reason=str(error))
            return True
        except (ConfigurationError, EnvironmentFailure) as error:
            if session.trial is None:
                raise
            self._policy.died(time.monotonic())
            log.warning("trial failed", child=self.name, trial=session.trial, reason=str(error))
            await self._connection.give_back(str(error))
            if self._policy.given_up:
                raise
            return True
        finally:
            if self.backend is not None:
                await self.backend.shutdown()

    async def _await_next_run(self, reason: str) -> None:
        """Forgets the run that is over, and gives its parent a little time to make room."""
        if self._waits.is_new(reason):
            log.info("waiting for the next run", child=self.name, reason=reason)
        await self._connection.close()
        self._renew()
        await self._until_stopped(asyncio.sleep(self._pauses.wait()))

    def _renew(self) -> None:
        """Forgets the trial that is over, or the run, to be ready for another one."""
        session = self._session
        if session.trial is not None:
            reason = session.over.reason if session.over else ""
            log.info("trial over", child=self.name, trial=session.trial, reason=reason)
        self._connection.renew()
        if not self._stopped:
            self._stopping.clear()
        self._failure = None
        self.backend = None
        gc.collect()  # a backend is a cycle, and its memory goes with it
        self._exchanged = math.nan
        self._learned = self._chunks = 0

    async def _build(self) -> None:
        assert self.experiment is not None
        experiment = self._with_own(self.experiment)
        cores = experiment.child.cores
        if experiment.environment.exclusive:
            cores = 1
        self._using = available_cores() if cores == "auto" else cores
        self.backend = make_backend(experiment, self._using, self.name)
        signature = await self._until_stopped(self.backend.startup())
        if signature is None:
            return
        self._using = getattr(self.backend, "cores", self._using)  # it may have taken fewer
        name, size = experiment.environment.id, signature.size
        log.info("training", child=self.name, cores=self._using, parameters=size, environment=name)
        await self._train(signature, self.backend)

    async def _train(self, signature: Signature, backend: Backend) -> None:
        connection = self._connection
        self._checkpoint.open(self.name, lambda: self._state_key(signature))
        resumed = self._checkpoint.restore(backend)
        entering = connection.enter(signature, self._using, backend.snapshot)
        begin = await self._until_stopped(entering)
        if not isinstance(begin, Begin):
            return
        notify_reply(backend, begin, begin.version)
        await backend.begin(begin.vector, begin.version)
        if resumed:
            log.info("resumed", child=self.name, version=begin.version)
        works = [connection.keep(signature), self._checkpoint.keep(backend)]
        assert self.experiment is not None
        offline = self._with_own(self.experiment).environment.offline_seconds
        if offline and (alive := getattr(backend, "alive", None)) is not None:
            works.append(connection.watch(max(_PING_SECONDS, offline / 4.0), alive))
        helpers = [self._in_background(work) for work in works]
        try:
            exchanging = self._keep_exchanging(backend, begin.vector is None)
            await self._until_stopped(exchanging, _LAST_REPLY_SECONDS)
        finally:
            for helper in helpers:
                await _cancel(helper)
        await self._farewell(backend)
        if self._failure is not None:
            raise self._failure

    async def _farewell(self, backend: Backend) -> None:
        """The last push and a goodbye, as far as there is time; none if another trial follows."""
        over = self._connection.over
        if over is None:
            log.info("stopping", child=self.name)
        elif over.next:
            return
        with suppress(*FAILURES):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                if over is None:
                    self._gather(backend)
                    await self._push(backend, self._gradient(backend))
                await self._connection.leave()
        await self._checkpoint.save(backend)

    # An exchange.

    async def _keep_exchanging(self, backend: Backend, is_first: bool) -> None:
        """Exchanges whenever it is due, and before that now and then. All in one task: a task for
        each costs 0.1 ms.

        Args:
            is_first: whether the parent has no weights yet.
        """
        assert self.experiment is not None
        exchange, pushes = self.experiment.child.exchange, self.experiment.pushes
        # Where cores wait for an update, only the weights are given, once, to a parent without any.
        whole = exchange in ("episode", "free")
        early = EARLY_SECONDS[0] if pushes != "experience" and (whole or is_first) else None
        while not (self._connection.over or self._stopping.is_set()):
            only_weights = False
            try:
                async with asyncio.timeout(early) as limit:
                    await backend.due()
                if not getattr(backend, "pulls", False):  # which brings the parent nothing
                    early = None
            except TimeoutError:
                if not limit.expired():
                    raise
                only_weights = not whole
                early = min(2.0 * early, EARLY_SECONDS[1]) if early and whole else None
            self._exchanging = True
            self._alone = None
            try:
                if only_weights:
                    await self._push(backend, None)
                else:
                    await self._exchange(backend)
            finally:
                self._exchanging = False
                if not only_weights and self._alone is None:
                    backend.release()

    async def _exchange(self, backend: Backend) -> None:
        """One push and its reply. Work that does not reach the parent is kept for the next.

        Gradients are of no use without the parent, which makes the steps: with them the child waits
        for it. A GenkidamaError says that it refuses the push for good.
        """
        if getattr(backend, "pulls", False):
            self._learned += 1
            await self._pull(backend)  # type: ignore[arg-type]
            return
        self._chunks, self._learned = self._learned, 0
        self._gather(backend)
        gradient = self._gradient(backend)
        while not await self._push(backend, gradient):
            if gradient is None or self._connection.over is not None:
                return
            await self._connection.wait_joined()

    async def _push(self, backend: Backend, gradient: Vector | None) -> bool:
        """True if there is an answer; its decision is then carried out."""
        if not self._connection.can_push:
            return False
        news: NewsBackend | None = None
        if hasattr(backend, "pulled"):
            news = backend  # type: ignore[assignment]
        push = self._connection.push(backend.snapshot(), gradient, news)
        decision = await self._patiently(push, backend)  # type: ignore[arg-type]  # if in chunks
        if decision is not None:
            self._carry_out(decision, backend)
        return decision is not None

    async def _pull(self, backend: ChunkBackend) -> None:
        """θ_C ← θ_P before the child learns, if there is a connection and nothing to push first."""
        asked, before = time.monotonic(), backend.weights().copy()
        decision = await self._patiently(self._connection.pull(before), backend)
        if isinstance(decision, BlendReply):
            backend.waited(time.monotonic() - asked)
            if self._alone is None:
                backend.take(decision.vector)
            elif decision.vector is not None:
                backend.blend(before, decision.vector, 1.0)
            notify_reply(backend, decision, self._session.version)

    async def _patiently(
        self, asking: Coroutine[Any, Any, Decision | None], backend: ChunkBackend
    ) -> Decision | None:
        """The decision. With chunks, the child learns on by itself once it is late."""
        if self.experiment is None or self.experiment.child.exchange != "chunk":
            return await asking
        began = time.monotonic()
        patience = self._patience.beside(*getattr(backend, "hidden", (0.0, 0.0)))
        late = asyncio.get_running_loop().call_later(patience, self._go_on_alone, backend)
        try:
            decision = await asking
        finally:
            late.cancel()
            if self._alone is not None:
                await _cancel(self._alone)
        if decision is not None:  # else it may not even have been asked for
            self._patience.waited(time.monotonic() - began)
        return decision

    def _go_on_alone(self, backend: ChunkBackend) -> None:
        pulls = getattr(backend, "pulls", False)
        backend.release()  # at once: from here on the cores do not wait for the exchange
        self._alone = self._in_background(self._learn_alone(backend, int(pulls)))

    async def _learn_alone(self, backend: ChunkBackend, learned: int) -> None:
        """One chunk after another; the next push has what they bring. After as many as one exchange
        may have, it waits for the answer until that is late, and then learns on."""
        late = time.monotonic() + self._patience.seconds
        while True:
            if learned == CHUNKS:
                await asyncio.sleep(late - time.monotonic())
            await backend.due()
            if getattr(backend, "pulls", False):
                learned += 1
                self._learned += 1
            else:
                self._gather(backend)
            backend.release()

    def _carry_out(self, decision: Decision, backend: Backend) -> None:
        version = self._session.version
        if isinstance(decision, Reset):
            problem = "training diverged, going on from the parent's weights"
            log.warning(problem, child=self.name, version=version)
            backend.reset(decision.vector)
        elif isinstance(decision, BlendReply):
            self._exchanged = time.monotonic()
            self.counts.exchanged(self.name, version)
            if decision.vector is not None and decision.sent is None:
                backend.reset(decision.vector)
            elif decision.vector is not None and decision.sent is not None:
                assert self.experiment is not None
                backend.blend(decision.sent, decision.vector, self.experiment.pull)
            notify_reply(backend, decision, version)

    def _gradient(self, backend: Backend) -> Vector | None:
        if self.experiment is None or self.experiment.pushes != "gradient":
            return None
        gradients: GradientBackend = backend  # type: ignore[assignment]  # `make_backend` saw to it
        return gradients.gradient()

    def _gather(self, backend: Backend) -> None:
        work = backend.take_work()
        self.counts.worked(work.steps, work.returns)
        if (now := time.monotonic()) >= self._health_due:
            self._health_due = now + EVERY_SECONDS
            figures = self._health.figures(self._session.run, now)
            work.measures = {**work.measures, **figures, **self._spare(backend, figures, now)}
        if work.measures and self._chunks:
            work.measures["chunks"] = float(self._chunks)
        left_out = self._connection.gather(work)
        if left_out.returns:
            problem = "returns that are NaN or infinite are not reported"
            log.warning(problem, child=self.name, count=left_out.returns)
        if left_out.measures:
            problem = "measures that the protocol does not permit are not reported"
            log.warning(problem, child=self.name, measures=left_out.measures)

    def _spare(self, backend: Backend, health: dict[str, float], now: float) -> dict[str, float]:
        """Has some lanes rest while this machine is spared; their figures, if it tells of troubles
        and its backend has lanes to spare."""
        rest = getattr(backend, "rest", None)
        if rest is None or "throttled" not in health:
            return {}
        spared = self._cooling.spares(health, now)
        if (found := rest(_RESTING if spared else 0.0)) is None:
            return {}
        playing, lanes = found
        if spared != self._spared:
            self._spared = spared
            why = "throttled" if health["throttled"] else "badly supplied"
            state = f"is {why}" if spared else "has cooled down"
            log.warning(f"{self.name} {state}: {playing} of {lanes} lanes")
        return {"lanes": playing, "resting_lanes": lanes - playing}

    def _state_key(self, signature: Signature) -> str:
        run, trial = self._session.run, self._session.trial
        return f"{signature.digest}/{run}" + ("" if trial is None else f"/{trial}")

    def _with_own(self, experiment: Experiment) -> Experiment:
        """With the settings and the cores that this machine's owner gives it, if he does."""
        if self._settings:
            experiment = experiment.with_settings(self._settings, "this child's settings")
        if self._cores is None:
            return experiment
        child = msgspec.structs.replace(experiment.child, cores=self._cores)
        return msgspec.structs.replace(experiment, child=child)

    # Waiting.

    async def _until_stopped(self, work: Coroutine[Any, Any, T], grace: float = 0.0) -> T | None:
        """The result of `work`; None if `stop` comes first. An exchange gets `grace` seconds."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if grace and self._exchanging and not task.done():
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


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancels the task and waits until it has ended; its error, if any, stays in it."""
    if not task.done():  # to wait for nothing would take a turn of the loop
        task.cancel()
        await asyncio.wait((task,))


class ExchangeLog:
    """Counts a child's work, and logs now and then that it exchanges."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.steps = 0
        self.episodes = 0
        self._began = time.monotonic()
        #: Returns since the last line, and steps and the time at that.
        self.returns: deque[float] = deque(maxlen=_MOST_RETURNS)
        self._steps = 0
        self._logged = self._began

    def worked(self, steps: int, returns: list[float]) -> None:
        """Counts steps, and the returns of ended episodes."""
        self.steps += steps
        self.episodes += len(returns)
        self.returns += returns

    def exchanged(self, child: str, version: int) -> None:
        """Logs that the parent has answered, if nothing was logged for a while.

        Args:
            version: of θ_P in the answer.
        """
        self.exchanges += 1
        now = time.monotonic()
        seconds = now - self._logged
        if seconds < LOG_SECONDS:
            return
        figures: dict[str, float] = {}
        figures["steps_per_second"] = round((self.steps - self._steps) / seconds)
        if self.returns:
            figures["mean_return"] = round(fmean(self.returns), 1)
        log.info("exchanging", child=child, version=version, exchanges=self.exchanges, **figures)
        self._logged = now
        self._steps = self.steps
        self.returns.clear()

    def left(self, child: str, command: str, reason: str) -> None:
        """Logs the child's end: its work, the reason, and the command that continues."""
        counts = {name: getattr(self, name) for name in ("exchanges", "steps", "episodes")}
        seconds = round(time.monotonic() - self._began)
        log.info("left", child=child, reason=reason, **counts, seconds=seconds, next=command)
