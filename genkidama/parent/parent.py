"""The Parent: the shell around `ParameterServer` that waits for sockets, clocks and signals.

`startup` binds the address, opens the run's directory and resumes the run in it; `serve` returns
when the run is over or `stop` was called; `shutdown` closes the connections and writes the final
checkpoint. `run` does all three in a new event loop.

Every `HOUSEKEEPING_SECONDS`, and only then, the parent does what an exchange does not need: the
history, the log, time-bound stop conditions, checkpoints that are due.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from websockets.asyncio.server import Server
from websockets.frames import CloseCode

from genkidama.config.experiment import Experiment
from genkidama.config.plugin import every, find, names
from genkidama.errors import GenkidamaError
from genkidama.parent.acceptor import make_room, make_server
from genkidama.parent.authentication import Authenticator, make_context
from genkidama.parent.checkpointer import Checkpointer
from genkidama.parent.connections import ConnectionManager
from genkidama.parent.event_log import describe
from genkidama.parent.extensions import Companion, Observer, RunStore
from genkidama.parent.run_writer import RunWriter
from genkidama.protocol.shard import WHOLE, Shard
from genkidama.protocol.tokens import is_loopback
from genkidama.runs.history import last_time
from genkidama.runs.run import HISTORY, new_directory
from genkidama.runs.sharded_checkpoint import directory_of
from genkidama.runs.status import RunStatus
from genkidama.runtime.address import explain
from genkidama.runtime.files import disk_errors, make_folder
from genkidama.runtime.log import FilteringBoundLogger, get_logger, log_with
from genkidama.runtime.machine import loop_factory, on_signals
from genkidama.runtime.script import begin
from genkidama.runtime.systemd import Notify, supervised
from genkidama.server.child_record import absent_children
from genkidama.server.events import Stopped
from genkidama.server.parameter_server import ParameterServer

#: Short enough that a reader of the history sees it grow, long enough to cost nothing.
HOUSEKEEPING_SECONDS = 0.25

#: Seconds in which children may leave after the run's end.
LEAVE_SECONDS = 5.0


class Parent:
    """Holds the weights, and serves every child that comes.

    Args:
        experiment: all settings.
        out: the run's directory, made if missing; a run in it is resumed. None makes a new one,
            `runs/NAME-DATE-TIME`, under the current directory.
        listen: `HOST:PORT`, `[IPV6]:PORT` or `fd://N`; None takes the experiment's.
        part: the shard of the vector that this process holds, of a parent in several processes.

    Raises:
        ConfigurationError: `parent.rule` is no rule, does not take its options, or takes what the
            children do not push; or this experiment cannot be run in shards.
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
        #: Whether only the launcher's own children come. The launcher answers for the network
        #: between them, and starts those again that are cut off: nobody waits for them in the end.
        self.own_children = False
        #: What it takes to start this parent again, but for the run's directory at its end.
        self.command = "python -m genkidama.parent EXPERIMENT.toml --out"
        #: Receives lines of a history that cannot be written.
        self.fallback: Callable[[bytes], None] = lambda _: None
        self._store = _store_of(experiment)
        #: Decides: the trials, their children, the counts of refusals.
        self.server = ParameterServer(experiment, trials=self._store.make_trials(experiment, part))
        #: The run as its events tell it.
        self.status = RunStatus(experiment)
        self.observers: list[Observer] = []
        self.companions: list[Companion] = []
        self.connections = ConnectionManager(self)
        self._log: FilteringBoundLogger = get_logger()
        self._websockets: Server | None = None
        self._writer: RunWriter | None = None
        self._failure: GenkidamaError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._stopped = ""
        self._notify: Notify = lambda *_: None
        self._offset = time.time() - time.monotonic()

    async def startup(self) -> None:
        """Binds the address, opens the directory, resumes a run in it, and lets children in.

        If it raises, nothing is left open.

        Raises:
            ConfigurationError: `listen` is no address, or admits other machines without tokens and
                TLS; certificate, key or tokens cannot be used;
                the directory holds a run of another kind, network or rule.
            EnvironmentFailure: the port is in use, the directory cannot be written, a companion
                cannot start, ….
        """
        self._loop = asyncio.get_running_loop()
        settings, connections = self.experiment.parent, self.connections
        context = make_context(settings.certificate_file, settings.key_file)
        if settings.tokens_file:
            connections.authenticator = Authenticator(settings.tokens_file, self._log)
        try:
            make_room(connections.limits, self._log)
            exposed = None if self.own_children else settings
            self._websockets = await make_server(connections, self.listen, context, exposed)
            if self.out is None:
                with disk_errors(Path("runs"), "made"):
                    self.out = new_directory(self.experiment.name)
            make_folder(own := directory_of(self.out, self.part))
            self.server.run = self.out.name
            log_with(run=self.server.run)
            made = (make(self) for _, make in every("observers", installed=True))
            self.observers += filter(None, made)
            # A machine whose clock does not run while it is off may come up in the past.
            self._offset += max(0.0, last_time(own / HISTORY) - self.now())
            self._writer = RunWriter(self, self._store, own, self._log)
            for _, make in every("companions", installed=True):
                if companion := make(self):
                    self.companions.append(companion)
                    await companion.start()
            try:
                await self._websockets.start_serving()
            except OSError as error:
                raise explain(self.listen, error) from None
            links: dict[str, str] = {}
            for observer in self.observers:
                links |= observer.links(*self.address)
        except BaseException:
            if self._websockets is not None:
                self._websockets.close()
                await self._websockets.wait_closed()
            if self._writer is not None:
                self._writer.close()
            await self._stop_companions()
            self._websockets = self._writer = None
            raise
        self._log_address(links)

    def _log_address(self, links: dict[str, str]) -> None:
        host, port = self.address
        more = links if self.part == WHOLE else {**links, "part": str(self.part)}
        self._log.info("listening", host=host, port=port, out=str(self.out), **more)
        if not self.experiment.parent.tokens_file and not is_loopback(host):
            reason = "anyone who reaches this address may join and change the weights"
            self._log.warning("no tokens", host=host, reason=f"{reason}; give parent.tokens_file")

    async def serve(self) -> None:
        """Returns when the run is over and its children have left, or when `stop` was called.

        Raises:
            GenkidamaError: a companion cannot go on.
        """
        assert self._writer is not None, "the parent is not started"
        over = math.inf
        while not self._stopped:
            if self._failure is not None:
                raise self._failure
            self.server.tick(self.now())
            self.connections.account()
            await self._writer.keep()
            if self.server.stop:
                self.connections.answer_long_polls()
                if over == math.inf:
                    over = time.monotonic()
                    self._log_linger()
                if time.monotonic() >= over + LEAVE_SECONDS:
                    self.connections.dismiss()
                if time.monotonic() >= over + self._parting_seconds:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(HOUSEKEEPING_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    def _log_linger(self) -> None:
        linger = self._linger_seconds
        if linger and (missing := absent_children(self.server.children)):
            self._log.info("the run is over", waits_for=missing, seconds=linger)

    @property
    def _parting_seconds(self) -> float:
        """Seconds after the run's end in which children may still learn of it."""
        children = self.connections.children
        waits = children or absent_children(self.server.children)
        return max(LEAVE_SECONDS if children else 0.0, self._linger_seconds if waits else 0.0)

    @property
    def _linger_seconds(self) -> float:
        return 0.0 if self.own_children else self.experiment.parent.linger_seconds

    def stop(self, reason: str = "stopped") -> None:
        """Lets `serve` return soon. May be called from any thread."""
        self._stopped = self._stopped or reason
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake.set)

    def fail(self, error: GenkidamaError) -> None:
        """Lets `serve` raise this error soon."""
        self._failure = self._failure or error
        self._wake.set()

    async def shutdown(self) -> None:
        """Closes all connections and writes the final checkpoint, if the parent is started.

        The close code 1000 tells a child that the run is over, and 1001 that the parent may return.

        Raises:
            EnvironmentFailure: the final checkpoint or the history could not be written.
        """
        if self._websockets is None or self._writer is None:
            return
        self._notify("STOPPING=1")
        websockets, self._websockets = self._websockets, None
        writer, self._writer = self._writer, None
        code, words = CloseCode.NORMAL_CLOSURE, "the run is over"
        if not self.server.stop:
            code, words = CloseCode.GOING_AWAY, "the parent goes away"
            version, reason = self.server.trials.version, self._stopped or "stopped"
            writer.note(Stopped(time=self.now(), reason=reason, version=version))
        for observer in self.observers:
            observer.end()
        websockets.close(code=code, reason=words)
        self.connections.abort_unopened()
        try:
            failure = await self._stop_companions()
            # Python waits for TLS handshakes that never end, and websockets does not know them.
            with suppress(TimeoutError):
                async with asyncio.timeout(self.connections.close_seconds + 1.0):
                    await websockets.wait_closed()
        finally:
            try:
                await writer.finish()
            finally:
                for observer in self.observers:
                    await observer.finish()
        if failure is not None:
            raise failure

    async def _stop_companions(self) -> Exception | None:
        """Stops all, even if one of them raises; the first error."""
        failure = None
        for companion in self.companions:
            try:
                await companion.stop()
            except Exception as error:  # it may be anybody's
                failure = failure or error
        return failure

    def run(self) -> None:
        """Starts, serves and shuts down in an event loop of its own: uvloop's if it is installed.

        In the main thread, SIGTERM and SIGINT end it in order, and a second one ends the process at
        once; systemd, if it has started the process, is kept informed. In another thread signals
        are left alone, and only `stop` ends it early.

        Raises:
            ConfigurationError, EnvironmentFailure: as `startup` and `shutdown`.
        """
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            await self._run_once()
            return
        with on_signals(self._handle_signal):
            async with supervised(lambda: describe(self.server, self.now())) as self._notify:
                await self._run_once()

    async def _run_once(self) -> None:
        await self.startup()
        self._notify("READY=1")
        try:
            await self.serve()
        finally:
            await self.shutdown()

    def _handle_signal(self, number: signal.Signals) -> None:
        self.stop(number.name)
        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(each)
            # The next one ends the process, whatever it waits for.
            signal.signal(each, signal.SIG_DFL)

    @property
    def hosts(self) -> list[str]:
        """The addresses that this parent listens on, once it is started."""
        assert self._websockets is not None, "the parent is not started"
        return [str(each.getsockname()[0]) for each in self._websockets.sockets]

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port that this parent listens on, once it is started."""
        assert self._websockets is not None, "the parent is not started"
        name = next(iter(self._websockets.sockets)).getsockname()
        return str(name[0]), int(name[1])

    def now(self) -> float:
        """Unix time in seconds. It never goes back within a run, whatever is done to the machine's
        clock."""
        return time.monotonic() + self._offset

    def after_message(self) -> None:
        """Reacts to a message that may have changed something, before the next is handled."""
        if self._writer is None:
            return  # shutting down: the final checkpoint will have it
        for companion in self.companions:
            companion.feed()
        if self._writer.after_push():
            self._wake.set()

    def after_disconnect(self) -> None:
        """Reacts to the end of a child's connection."""
        if self.server.stop:
            self._wake.set()


def _store_of(experiment: Experiment) -> type[RunStore]:
    for section in names("trials"):
        if experiment.section(section) is not None:
            store: type[RunStore] = find("trials", section)
            return store
    return Checkpointer
