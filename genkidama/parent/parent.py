"""The Parent: the shell around `ParameterServer` that waits for sockets, clocks and signals.

Its life in verbs: `startup` binds the address, opens the run's directory and takes up the run that
is there; `serve` returns when the run is over or `stop` was called; `shutdown` closes the
connections and writes the final checkpoint. `run` does all three in a loop of its own.

Once every `HOUSEKEEPING_SECONDS`, and only then, the parent looks at what is not in an exchange's
way: the history, the log, time-bound stop conditions, checkpoints that are due.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
from structlog.typing import FilteringBoundLogger
from websockets.asyncio.server import Server, serve
from websockets.frames import CloseCode

from genkidama.config.experiment import Experiment
from genkidama.errors import GenkidamaError
from genkidama.parent.acceptor import Acceptor, bind, make_room
from genkidama.parent.authentication import Authenticator, make_context
from genkidama.parent.connections import ConnectionManager
from genkidama.parent.log import describe, log_address
from genkidama.parent.run_writer import RunWriter, make_directory
from genkidama.plugins.actors.learner_process import LearnerProcess
from genkidama.plugins.actors.rule import Experience
from genkidama.plugins.gorila.embedded_engine import EmbeddedEngine
from genkidama.plugins.hypertrick.trial_store import make_trial_store
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.runs.sharded_checkpoint import directory_of
from genkidama.runtime.address import explain
from genkidama.runtime.log import log_with
from genkidama.runtime.machine import loop_factory, on_signals
from genkidama.runtime.script import begin
from genkidama.runtime.systemd import Notify, supervised
from genkidama.server.child_record import drop_connection
from genkidama.server.events import Stopped
from genkidama.server.parameter_server import ParameterServer

__all__ = ["CLOSE_SECONDS", "HOUSEKEEPING_SECONDS", "LEAVE_SECONDS", "Parent"]

#: Short enough that a reader of the history sees it grow, long enough to cost nothing.
HOUSEKEEPING_SECONDS = 0.25

#: After the run's end, children that have not left are waited for so long.
LEAVE_SECONDS = 5.0

#: A closing handshake may take so long; it and the final checkpoint have 5 s after a SIGTERM.
CLOSE_SECONDS = 2.0

#: A child is pinged this often, and at least twice in `parent.silence_seconds`.
_PING_SECONDS = 20.0

#: One request has one reply, so a child that keeps the rules has one message waiting at most. More
#: are left in the kernel, since each may be hundreds of megabytes long.
_QUEUE = 1


class Parent:
    """Holds the weights, and serves every child that comes.

    Args:
        experiment: all settings.
        out: the run's directory, made if missing; a run that is in it goes on. None makes a new
            one, `runs/NAME-DATE-TIME`, under the current directory.
        listen: `HOST:PORT`, `[IPV6]:PORT` or `fd://N`; None takes the experiment's.
        part: which part of a parent this is; each is a process, and holds a slice of the vector.

    Raises:
        ConfigurationError: `parent.rule` is no rule, does not take its options, or takes what the
            children do not push; or what is run cannot be in parts.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        out: str | Path | None = None,
        listen: str | None = None,
        part: Shard = WHOLE,
    ) -> None:
        begin("Parent")
        self.experiment = experiment
        self.part = part
        #: The run's directory; None until `startup` has made one.
        self.out = Path(out) if out is not None else None
        self.listen = experiment.parent.listen if listen is None else listen
        #: Whether nobody comes but the launcher's own children. It answers for the network between
        #: them, and starts again who is cut off: such a child is not waited for in the end.
        self.own_children = False
        #: What is decided and known: the trial, its children, the refusals' counts.
        self.server = ParameterServer(experiment, trials=make_trial_store(experiment, part))
        self._log: FilteringBoundLogger = structlog.get_logger()
        self._connections = ConnectionManager(self.server, self.now, self._pushed, self._ended)
        self._websockets: Server | None = None
        self._records: RunWriter | None = None
        self._learner: LearnerProcess | None = None
        self._replay: EmbeddedEngine | None = None
        self._failure: GenkidamaError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._stopped = ""
        self._notify: Notify = lambda *_: None
        #: Is given lines of a history that cannot be written; see `RunWriter`.
        self.aside: Callable[[bytes], None] = lambda _: None
        self._offset = time.time() - time.monotonic()

    async def startup(self) -> None:
        """Binds the address, opens the directory, takes up a run in it, and lets children in.

        If it raises, nothing is left open.

        Raises:
            ConfigurationError: `listen` is no address, or lets other machines in without tokens and
                TLS; certificate, key or tokens cannot be used;
                the directory holds a run of another kind, network or rule.
            EnvironmentFailure: the port is in use, the directory cannot be written, the learner
                of `parent.rule = "experience"` cannot start, nor the engine of `replay.url`, ….
        """
        self._loop = asyncio.get_running_loop()
        settings = self.experiment.parent
        context = make_context(settings.certificate_file, settings.key_file)
        if settings.tokens_file:
            self._connections.admission = Authenticator(settings.tokens_file, self._log)
        if isinstance(rule := self.server.trials.rule, Experience):
            self._learner = LearnerProcess(
                self.server, rule, self.now, self._fail, self._connections.answer_long_polls
            )
        websockets: Server | None = None
        try:
            make_room(self._connections.doors, self._log)
            websockets = await self._bind(context)
            self.out = make_directory(self.out, self.experiment.name)
            self.server.run = self.out.name
            log_with(run=self.server.run)
            own = make_directory(directory_of(self.out, self.part), self.experiment.name)
            site = self._connections.site
            site.begin(self.out, self._connections.admission)
            self._records = RunWriter(
                self.server, own, self.now, self._log, self.aside, site.take, site.run_status
            )
            if self._learner is not None:
                await self._learner.begin()
            if self.experiment.shares_replay:
                hosts = [str(each.getsockname()[0]) for each in websockets.sockets]
                self._replay = EmbeddedEngine(self.experiment.replay, hosts, self._fail)
                self.server.roles.replay = await self._replay.begin(self.out)
            try:
                await websockets.start_serving()
            except OSError as error:
                raise explain(self.listen, error) from None
        except BaseException:
            if websockets is not None:
                websockets.close()
                await websockets.wait_closed()
            if self._records is not None:
                self._records.close()
            if self._learner is not None:
                await self._learner.end()
            if self._replay is not None:
                await self._replay.end()
            raise
        self._websockets = websockets
        log_address(self._log, self.address, settings, self.out, self.part)

    async def serve(self) -> None:
        """Returns when the run is over and its children have left, or when `stop` was called.

        Raises:
            GenkidamaError: the learner of `parent.rule = "experience"` cannot go on.
        """
        assert self._records is not None, "the parent is not started"
        over = math.inf
        while not self._stopped:
            if self._failure is not None:
                raise self._failure
            self.server.tick(self.now())
            self._connections.account()
            await self._records.keep()
            if self.server.stop:
                self._connections.answer_long_polls()
                over = self._note_over() if over == math.inf else over
                if time.monotonic() >= over + self._parting_seconds:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(HOUSEKEEPING_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    def _note_over(self) -> float:
        """Says for whom it stays. The moment is that of the run's end, by the monotonic clock."""
        linger = self._linger_seconds
        if linger and (missing := drop_connection(self.server.children)):
            self._log.info("the run is over", waits_for=missing, seconds=linger)
        return time.monotonic()

    @property
    def _parting_seconds(self) -> float:
        """How long after the run's end there is somebody to be told of it."""
        here = LEAVE_SECONDS if self._connections.children else 0.0
        return max(here, self._linger_seconds if drop_connection(self.server.children) else 0.0)

    @property
    def _linger_seconds(self) -> float:
        return 0.0 if self.own_children else self.experiment.parent.linger_seconds

    def stop(self, reason: str = "stopped") -> None:
        """Lets `serve` return soon. May be called from any thread."""
        self._stopped = self._stopped or reason
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake.set)

    async def shutdown(self) -> None:
        """Closes all connections and writes the final checkpoint, if the parent is started.

        The close code 1000 tells a child that the run is over, and 1001 that the parent may return.

        Raises:
            EnvironmentFailure: the final checkpoint or the history could not be written.
        """
        if self._websockets is None or self._records is None:
            return
        self._notify("STOPPING=1")
        websockets, self._websockets = self._websockets, None
        records, self._records = self._records, None
        if self.server.stop:
            self._connections.site.end()
            websockets.close(code=CloseCode.NORMAL_CLOSURE, reason="the run is over")
        else:
            reason = self._stopped or "stopped"
            version = self.server.trials.version
            records.note(Stopped(time=self.now(), reason=reason, version=version))
            self._connections.site.end()
            websockets.close(code=CloseCode.GOING_AWAY, reason="the parent goes away")
        self._connections.abort_unopened()
        if self._learner is not None:
            await self._learner.end()
        if self._replay is not None:
            await self._replay.end()
        # Python waits for TLS handshakes that never end, and websockets knows nothing of them.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS + 1.0):
                await websockets.wait_closed()
        await records.finish()

    def run(self) -> None:
        """Starts, serves and shuts down in an event loop of its own: uvloop's if it is installed.

        In the main thread, SIGTERM and SIGINT end it in order, and a second one ends the process at
        once; systemd, if it has started the process, is told how it goes. In another thread signals
        are left alone, and only `stop` ends it early.

        Raises:
            ConfigurationError, EnvironmentFailure: as `startup` and `shutdown`.
        """
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._live())

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port that this parent listens on, once it is started."""
        assert self._websockets is not None, "the parent is not started"
        name = next(iter(self._websockets.sockets)).getsockname()
        return str(name[0]), int(name[1])

    def now(self) -> float:
        """Unix time in seconds. It never goes back, whatever is done to the machine's clock."""
        return time.monotonic() + self._offset

    async def _live(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            await self._live_once()
            return
        with on_signals(self._signalled):
            async with supervised(lambda: describe(self.server, self.now())) as self._notify:
                await self._live_once()

    async def _live_once(self) -> None:
        await self.startup()
        self._notify("READY=1")
        try:
            await self.serve()
        finally:
            await self.shutdown()

    def _signalled(self, number: signal.Signals) -> None:
        self.stop(number.name)
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)
            # The next one ends the process, whatever it waits for.
            signal.signal(each, signal.SIG_DFL)

    async def _bind(self, context: ssl.SSLContext | None) -> Server:
        """websockets' server, behind a doorway of ours."""
        settings = self.experiment.parent
        silence = settings.silence_seconds
        ping = min(_PING_SECONDS, silence / 2)
        connections = self._connections
        doorway = Acceptor(
            await bind(self.listen, None if self.own_children else settings),
            connections.doors,
            connections.refused,
            context,
            connections.open_seconds,
            CLOSE_SECONDS,
        )
        server = await serve(
            connections.handle,
            process_request=connections.admit,
            server_header=None,  # the connections sign every answer themselves
            open_timeout=connections.open_seconds,
            sock=socket.socket(),  # in whose place the doorway comes
            start_serving=False,
        )
        make = partial(
            connections.create,
            server,
            ping_interval=ping,
            ping_timeout=silence - ping,
            close_timeout=CLOSE_SECONDS,
            max_queue=_QUEUE,
        )
        doorway.stand_in(server, make)
        return server

    def _pushed(self, now: float) -> None:
        if self._records is None:
            return  # shutting down: the final checkpoint will have it
        if self._learner is not None:
            self._learner.feed()
        if self._records.pushed(now):
            self._wake.set()

    def _fail(self, error: GenkidamaError) -> None:
        self._failure = self._failure or error
        self._wake.set()

    def _ended(self) -> None:
        if self.server.stop:
            self._wake.set()
