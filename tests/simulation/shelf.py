"""A day of a shelf: a parent and its children, what happens to them, and how it ends.

A day is planned from its seed: the settings, and a list of events. It has hours of trouble and then
some minutes of peace, in which every child that lives has to come through.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import structlog
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from genkidama.child import backend
from genkidama.child.backend import Work
from genkidama.child.child import Child
from genkidama.child.shared_memory import change
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.parent import Parent, acceptor
from genkidama.parent import parent as parent_module
from genkidama.plugins.actors import learner_process
from genkidama.protocol.messages import Hello, Join, Leave, Push, Request, decode_reply, encode
from genkidama.protocol.session import BlendReply, Decision, Session, Wait
from genkidama.protocol.shard import Shard
from genkidama.protocol.vector import DTYPE, Signature, Vector, blend
from genkidama.runs.checkpoint import CheckpointFolder
from tests.simulation import actors
from tests.simulation.books import LIE, Books
from tests.simulation.search_books import SearchBooks
from tests.simulation.world import Broken, Listener, Machine, World

PORT = 8765

#: Seconds of peace at the end, at least and at most.
_CALM, _PEACE = 25.0, 130.0
#: The longest that a child may go without an answer then: a chunk, a wait for a reply and a chunk;
#: where each second one is for a pull, which has nothing to ask before the push, one more.
_LONGEST_SILENCE = {"free": 80.0, "chunk": 105.0}

#: The token of somebody who may come no longer.
_ENDED = "e" * 32

#: What may keep a child away for longer than a parent waits after the run's end.
_AWAY = {"partition", "stop child", "token"}

#: What would lose or lock the study, whose file is not of the simulated disk.
_NOT_OF_SEARCHES = {"run folder", "full", "read-only", "bit", "NaN"}

#: The network of all children.
SIGNATURE = Signature.of([("layer", (2, 3)), ("bias", (3,))])

#: The world of the day that is played; the backend, which a child makes, asks for it.
_day: list[Day] = []


@dataclass(frozen=True)
class Happening:
    """An event of a day."""

    at: float
    kind: str
    #: Of its own chances.
    seed: int


@dataclass(frozen=True)
class Plan:
    """A day as it is to be."""

    seed: int
    settings: dict[str, Any]
    shards: int
    children: int
    #: Seconds until peace.
    trouble: float
    happenings: tuple[Happening, ...]


@dataclass(frozen=True)
class Report:
    """A day as it was."""

    pushes: int
    seconds: float
    faults: int
    #: Callbacks that ran; two plays of one day have as many.
    turns: int
    #: The law that was broken, if one was.
    broken: str = ""


_KINDS = {
    "kill parent": 6,
    "stop parent": 3,
    "kill writer": 5,
    "power cut": 3,
    "kill child": 6,
    "stop child": 2,
    "rename child": 2,
    "cut wire": 10,
    "partition": 5,
    "full": 3,
    "read-only": 2,
    "slow disk": 3,
    "bit": 2,
    "folder": 1,
    "run folder": 1,
    "clock": 2,
    "stranger": 3,
    "liar": 3,
    "token": 2,
    "NaN": 2,
}


def plan(seed: int) -> Plan:
    """The day of a seed."""
    chance = random.Random(f"plan {seed}")
    rule = chance.choice(["blend", "blend", "difference", "weighted", "difference"])
    parent: dict[str, Any] = {
        "rule": rule,
        "alpha": chance.choice([0.1, 0.5, 1.0]),
        "listen": f"0.0.0.0:{PORT}",
        "checkpoint_seconds": chance.choice([5.0, 10.0, 30.0]),
        "checkpoint_keep": chance.choice([1, 2, 5]),
        "history_every": chance.choice([1, 7]),
        "silence_seconds": chance.choice([10.0, 40.0]),
    }
    if chance.random() < 0.25:
        parent["checkpoint_updates"] = chance.randint(1, 20)
    if chance.random() < 0.25:
        parent["average"] = chance.choice([0.9, 1.0])
    if rule == "difference" and chance.random() < 0.3:
        parent["rule_options"] = {"momentum": 0.5}
    shards = 2 if chance.random() < 0.2 else 1
    if shards == 1 and chance.random() < 0.3:
        parent["encoding"] = chance.choice(["float16", "int8", "int4"])
    exchange = {"exchange": "free", "exchange_seconds": 1.0}
    if chance.random() < 0.3 and "encoding" not in parent and rule != "weighted":
        exchange = {"exchange": "chunk"}
    settings = {
        "name": "day",
        "environment": {"id": "CartPole-v1"},
        "algorithm": {"name": "a3c"},
        "child": {"backend": "tests.simulation.shelf:Learner", "cores": 1, **exchange},
        "parent": parent,
        "stop": {"updates": chance.randint(2, 8)} if chance.random() < 0.2 else {},
    }
    kinds = _KINDS
    if chance.random() < 0.05:
        shards, settings = 1, _search(settings, chance)
        kinds = {kind: weight for kind, weight in _KINDS.items() if kind not in _NOT_OF_SEARCHES}
        kinds["liar"] = 12
    elif shards == 1 and random.Random(f"kind {seed}").random() < 0.12:
        settings = _experience(settings, chance)
        kinds = {**_KINDS, "kill learner": 6}
    trouble = chance.uniform(30.0, 90.0)
    count = round(trouble / chance.choice([5.0, 10.0, 20.0]))
    if settings["stop"]:
        kinds = {kind: weight for kind, weight in kinds.items() if kind not in _AWAY}
        kinds["cut wire"] = 60
    chosen = chance.choices([*kinds], [*kinds.values()], k=count)
    moments = sorted(chance.uniform(1.0, trouble) for _ in chosen)
    return Plan(
        seed,
        settings,
        shards,
        chance.randint(1, 4),
        trouble,
        tuple(
            Happening(at, kind, chance.getrandbits(32))
            for at, kind in zip(moments, chosen, strict=True)
        ),
    )


def _search(settings: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The same settings for a search."""
    parent = {
        "listen": f"0.0.0.0:{PORT}",
        "checkpoint_seconds": chance.choice([5.0, 30.0]),
        "silence_seconds": 40.0,
    }
    return {
        **settings,
        "child": {**settings["child"], "exchange": "free"},
        "parent": parent,
        "stop": {},
        "search": {
            "method": chance.choice(
                ["hypertrick", "asynchronous_hyperband", "asha", "random", "pbt", "hyperband"]
            ),
            "trials": chance.randint(4, 12),
            "phases": 3,
            "phase_steps": chance.choice([50, 200]),
            "return_seconds": chance.choice([1.0, 30.0]),
            "space": {"optimizer.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True}},
        },
    }


def _experience(settings: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The same settings for a learner beside the parent."""
    kept = ("listen", "checkpoint_seconds", "checkpoint_keep", "history_every", "silence_seconds")
    parent = {name: settings["parent"][name] for name in kept}
    return {
        **settings,
        "child": {**settings["child"], "backend": "hogwild", "exchange": "free"},
        "algorithm": {"name": "ppo", "batch_size": 16},
        "parent": {**parent, **actors.settings(chance)},
    }


def play(day: Plan, say: Callable[[str], None] | None = None) -> Report:
    """Plays a day to its end, or to the first law that is broken.

    Args:
        say: takes a line for each event, and for each line of the machines' logs.
    """
    root = Path(tempfile.mkdtemp(prefix="day-", dir=_memory()))
    before = structlog.get_config()
    played = Day(day, root, say)
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[played.log])
    _day.append(played)
    try:
        with played.world.installed(), played.watched():
            try:
                played.play()
                broken = ""
            except Broken as error:
                broken = str(error)
    finally:
        _day.pop()
        structlog.configure(**before)
        shutil.rmtree(root, ignore_errors=True)
    pushes = sum(books.pushes for books in played.books.values())
    return Report(pushes, played.world.now, len(day.happenings), played.world.turns, broken)


def shrink(day: Plan) -> Plan:
    """The same day with as few events as break a law."""
    happenings = list(day.happenings)
    size = max(1, len(happenings) // 2)
    while size:
        at = 0
        while at < len(happenings):
            fewer = happenings[:at] + happenings[at + size :]
            if play(_with(day, fewer)).broken:
                happenings = fewer
            else:
                at += size
        size //= 2
    return _with(day, happenings)


def _with(day: Plan, happenings: Sequence[Happening]) -> Plan:
    return Plan(day.seed, day.settings, day.shards, day.children, day.trouble, tuple(happenings))


def _memory() -> str | None:
    """A folder in memory, where there is one: days write a lot."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class Day:
    """The machines of a day.

    Args:
        plan: what is to happen.
        root: an empty folder for the disks.
        say: as `play` takes it.
    """

    def __init__(self, plan: Plan, root: Path, say: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self._say = say
        self.world = World(str(plan.seed), root)
        self.tokens = root / "tokens"
        self._tokens = ["t" * 31 + str(number) for number in range(16)]
        self.hosts = [f"parent{number}" for number in range(1, plan.shards + 1)]
        self.books = {host: self._make_books(host, root) for host in self.hosts}
        #: Processes of the learner, the newest last; and the numbers of steps that follow.
        self.learners: list[actors.LearnerWorker] = []
        self.steps = itertools.count(1)
        self.parents: dict[str, Machine] = {}
        self.children: dict[int, Machine] = {}
        #: By session: its parent's host, its random word, and the steps that its child has brought.
        self.sessions: dict[int, tuple[Session, str, int]] = {}
        #: By child's name and parent's host: when it last had an answer to a push, or was told that
        #: there is no trial for it.
        self.answered: dict[tuple[str, str], float] = {}
        #: When the first child heard that the run is over, or the parent ended without one.
        self.stopped: float | None = None
        #: Parents that have ended in order, and were not started again since.
        self.finished: set[str] = set()
        #: Children that have said goodbye before the run's end.
        self.gone: set[str] = set()
        #: Children that push NaN next.
        self.diverging: set[str] = set()
        self._generation = dict.fromkeys(range(plan.children), 0)
        self._god = Machine(self.world, "nobody")
        self._squatters: list[asyncio.Task[Any]] = []
        settings = {**plan.settings, "parent": {**plan.settings["parent"]}}
        settings["parent"]["tokens_file"] = str(self.tokens)
        self.experiment = Experiment.from_dict(settings)

    def _make_books(self, host: str, root: Path) -> Books:
        if "search" in self.plan.settings:
            return SearchBooks(self.world, host, root / host / "run")
        parent = self.plan.settings["parent"]
        if parent.get("rule") == "experience":
            return actors.ExperienceBooks(self.world, host)
        return Books(self.world, host, "encoding" not in parent)

    def play(self) -> None:
        self._write_tokens()
        for host in self.hosts:
            self._start_parent(host)
        for number in range(self.plan.children):
            self._start_child(number, after=self.world.chance(f"start {number}").uniform(0, 5))
        for happening in self.plan.happenings:
            self.world.run(happening.at)
            if self._say is not None:
                self._say(f"{happening.at:9.3f} *** {happening.kind}")
            self._happen(happening)
        self.world.run(self.plan.trouble)
        self._make_peace()
        end = self.plan.trouble + _PEACE
        self.world.run(self.plan.trouble + _CALM)
        while self.world.now < end and not self._all_came_through():
            self.world.run(min(end, self.world.now + 5.0))
        self._settle()
        if self.world.broken:
            raise self.world.broken

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Lets the books see checkpoints and sessions."""
        day = self
        save_latest, save_best = CheckpointFolder.save_latest, CheckpointFolder.save_best
        receive, add_work, init = Session.receive, Session.add_work, Session.__init__
        push, leave = Session.push, Session.leave

        def latest(
            self: CheckpointFolder, signature: Any, vector: Any, snapshot: Any, state: Any = None
        ) -> Path:
            if (books := day._books_of_disk(self.path)) is None:
                return save_latest(self, signature, vector, snapshot, state)
            books.saves(snapshot, vector, state or {})
            path = save_latest(self, signature, vector, snapshot, state)
            books.wrote(snapshot.version)
            return path

        def best(
            self: CheckpointFolder, signature: Any, vector: Any, snapshot: Any, state: Any = None
        ) -> Path:
            if (books := day._books_of_disk(self.path)) is not None:
                books.saves(snapshot, vector, state or {})
            return save_best(self, signature, vector, snapshot, state)

        def received(self: Session, request: Any, reply: Any) -> Decision:
            decision = receive(self, request, reply)
            books = day._books_of(self)
            books.takes(self, decision, getattr(reply, "version", 0))
            if isinstance(decision, BlendReply) or (isinstance(decision, Wait) and books.is_busy):
                day.answered[self.name, books.name] = day.world.now
            if self.over is not None and day.stopped is None:
                day.stopped = day.world.now
            return decision

        def pushed(self: Session, vector: Any, gradient: Any = None) -> Push:
            fresh = self._unanswered is None
            made = push(self, vector, gradient)
            if fresh:
                day._books_of(self).pushes_from(self, vector, made)
            return made

        def left(self: Session, over: str = "", proof: str = "") -> Leave:
            if self.over is None and not over:
                day.gone.add(self.name)
            return leave(self, over, proof)

        def add(self: Session, steps: int, returns: Any, measures: Any) -> Any:
            session, word, gathered = day.sessions[id(self)]
            day.sessions[id(self)] = session, word, gathered + steps
            return add_work(self, steps, returns, measures)

        def begin(self: Session, name: str, word: str, **options: Any) -> None:
            init(self, name, word, **options)
            day.sessions[id(self)] = self, word, 0

        with (
            mock.patch.multiple(
                Session, receive=received, add_work=add, push=pushed, leave=left, __init__=begin
            ),
            mock.patch.multiple(CheckpointFolder, save_latest=latest, save_best=best),
            mock.patch.object(parent_module, "make_server", self._make_server),
            mock.patch.object(parent_module, "HOUSEKEEPING_SECONDS", 2.0),
            mock.patch.object(learner_process, "WorkerProcess", actors.worker_of(self)),
            mock.patch.object(learner_process, "see_spaces", return_value=None),
            mock.patch.object(backend, "find", self._find),
        ):
            yield

    def _find(self, hook: str, name: str) -> Any:
        """As for `make_backend`."""
        return lambda *given: actors.SimulatedActors(*given, self)

    def poisons(self, child: str) -> None:
        """A child makes rows that kill the learner."""
        for books in self.books.values():
            if isinstance(books, actors.ExperienceBooks):
                books.poisoners.add(child)

    def log(self, logger: Any, method: str, line: Any) -> Any:
        """For structlog."""
        if self._say is not None:
            machine = self.world.running
            who = "" if machine is None else machine.host
            fields = {name: value for name, value in line.items() if name != "event"}
            self._say(f"{self.world.now:9.3f} {who:8} {line['event']} {fields}")
        raise structlog.DropEvent

    # Processes.

    def _start_parent(self, host: str, after: float = 0.0) -> None:
        def start() -> None:
            if host in self.parents and not self.parents[host].dead:
                return
            machine = Machine(
                self.world, host, self.world.chance(f"rate {host}").choice([1.0, 1.0, 0.9])
            )
            self.parents[host] = machine
            machine.start(self._run_parent(host, machine))

        self._god.call_later(after, start)

    async def _run_parent(self, host: str, machine: Machine) -> None:
        shard = Shard(self.hosts.index(host) + 1, len(self.hosts))
        books = self.books[host]
        self.finished.discard(host)
        try:
            books.looks(self.world.disk(host))
            parent = Parent(self.experiment, out=self._out(host), part=shard)
            books.attach(parent)
            await parent.startup()
            books.started()
            await parent.serve()
            await parent.shutdown()
            books.ended()
            self.finished.add(host)
            if parent.server.stop and self.stopped is None:
                self.stopped = self.world.now
        except GenkidamaError as error:
            if isinstance(error, ConfigurationError):
                self.world.breaks(f"{host} cannot start: {error}")
        except Exception as error:
            self.world.breaks(f"{host} ends by {error!r}")
        if not self.books[host].parent.server.stop:  # type: ignore[union-attr]
            self._start_parent(host, after=self.world.chance(f"{host} again").uniform(1, 10))
        self._god.call_soon(machine.kill)

    async def _make_server(self, connections: Any, listen: str, context: Any, settings: Any) -> Any:
        """As the parent's, on a listening socket of this world."""
        machine = self.world.running
        assert machine is not None
        server = await serve(
            connections.handle,
            "0.0.0.0",
            PORT,
            process_request=connections.admit,
            server_header=None,
            open_timeout=connections.open_seconds,
            start_serving=False,
        )
        listener: Any = Listener(machine, machine.host, PORT)
        server.server = acceptor.Acceptor(server, connections, [listener], None)  # type: ignore[assignment]
        return server

    def _start_child(self, number: int, after: float = 0.0) -> None:
        def start() -> None:
            if number in self.children and not self.children[number].dead:
                return
            machine = Machine(self.world, f"child{number}")
            self.children[number] = machine
            machine.start(self._run_child(number, machine))

        self._god.call_later(after, start)

    def _name(self, number: int) -> str:
        generation = self._generation[number]
        return f"child{number}" + (f"-{generation}" if generation else "")

    async def _run_child(self, number: int, machine: Machine) -> None:
        child = Child(
            ",".join(f"ws://{host}:{PORT}" for host in self.hosts),
            name=self._name(number),
            cores=1,
            state=self._out(machine.host),
            token=self._tokens[number],
        )
        machine.child = child
        self.gone.discard(child.name)
        try:
            await child.serve()
            left = getattr(child.backend, "_steps", 0)
            if left and child.name in self.gone and isinstance(child.backend, Learner):
                self.world.breaks(f"{child.name} says goodbye, and keeps {left} steps")
        except GenkidamaError as error:
            # Before the parent has weights nothing else is left to a child that pushes NaN.
            deadly = any(books.is_deadly(child.name) for books in self.books.values())
            if not deadly and "pushes NaN" not in str(error):
                self.world.breaks(f"{child.name} gives up: {error}")
            self._start_child(number, after=5.0)
        except Exception as error:
            self.world.breaks(f"{child.name} ends by {error!r}")
        self._god.call_soon(machine.kill)

    def _out(self, host: str) -> Path:
        return self.world.disk(host).path / "run"

    def _write_tokens(self, without: int | None = None) -> None:
        lines = [f"* {token}" for number, token in enumerate(self._tokens) if number != without]
        lines.append(f"stranger {_ENDED} until=2020-01-01")
        for books in self.books.values():
            books.revokes("" if without is None else f"child{without}")
        self.tokens.write_text("\n".join(lines) + "\n")
        self.tokens.chmod(0o600)

    def _books_of(self, session: Session) -> Books:
        return self.books[session.parent.removeprefix("ws://").partition(":")[0]]

    def _books_of_disk(self, path: Path) -> Books | None:
        return self.books.get(path.relative_to(self.world.root).parts[0])

    # Events.

    def _happen(self, happening: Happening) -> None:
        chance = random.Random(f"{happening.kind} {happening.seed}")
        host = chance.choice(self.hosts)
        number = chance.randrange(self.plan.children)
        seconds = chance.choice([0.5, 5.0, 30.0, 90.0])
        disk = self.world.disk(host)
        parent, child = self.parents.get(host), self.children.get(number)
        match happening.kind:
            case "kill parent" if parent is not None:
                parent.kill()
                self._start_parent(host, chance.uniform(0.5, 20.0))
            case "kill writer":
                disk.fuse = chance.randint(0, 8)
                self._god.call_later(seconds, lambda: setattr(disk, "fuse", None))
                self._start_parent(host, seconds + chance.uniform(0.5, 20.0))
            case "stop parent" if parent is not None and not parent.dead:
                self.world.run_as(parent, lambda: self.books[host].parent.stop())  # type: ignore[union-attr]
            case "power cut":
                self._cut_power(chance)
            case "kill child" if child is not None:
                child.kill(silent=chance.random() < 0.3)
                self._start_child(number, chance.uniform(0.5, 20.0))
            case "stop child" if child is not None and not child.dead:
                self.world.run_as(child, child.child.stop)
                self._start_child(number, chance.uniform(10.0, 20.0))
            case "rename child" if child is not None:
                child.kill()
                self._generation[number] += 1
                self._start_child(number, chance.uniform(0.5, 20.0))
            case "cut wire":
                wires = [
                    wire for each in self.children.values() for wire in each.wires if not wire._lost
                ]
                if wires:
                    wire = chance.choice(wires)
                    chance.choice([wire, wire.other]).cut_after(chance.choice([0, 1, 7, 60, 200]))
            case "partition":
                where = chance.choice([host, f"child{number}"])
                self.world.cut[where] = self.world.now
                self._god.call_later(seconds, lambda: self.world.cut.pop(where, None))
            case "full" | "read-only" as kind:
                disk.fault = errno.ENOSPC if kind == "full" else errno.EROFS
                self._god.call_later(seconds, lambda: setattr(disk, "fault", 0))
            case "slow disk":
                disk.slow = True
                self._god.call_later(seconds, lambda: setattr(disk, "slow", False))
            case "bit":
                paths = sorted(self._out(host).glob("checkpoints/*.safetensors"))
                if paths:
                    disk.flip(chance.choice(paths))
                    self.books[host].damaged()
            case "folder":
                disk.delete(self._out(host) / "checkpoints")
                self.books[host].damaged()
            case "run folder":
                disk.delete(self._out(host))
                self.books[host].damaged()
            case "clock":
                disk.skew += chance.choice([-3600.0, 3600.0, 60.0])
            case "liar" if chance.random() < 0.6:
                self._squatters.append(self._god.start(self._squat(host, chance)))
            case "stranger" | "liar" as kind:
                token = (
                    chance.choice(["x" * 32, _ENDED]) if kind == "stranger" else self._tokens[15]
                )
                name = kind if kind == "stranger" else chance.choice(["liar", "child0"])
                self._god.start(self._lie(host, name, token, chance))
            case "token":
                self._write_tokens(without=number)
                self._god.call_later(seconds, self._write_tokens)
            case "kill learner" if self.learners and parent is not None and not parent.dead:
                self.world.run_as(parent, lambda: self.learners[-1].die("killed"))
            case "NaN":
                self.diverging.add(f"child{number}")

    def _cut_power(self, chance: random.Random) -> None:
        """All machines, or one."""
        everything = chance.random() < 0.5
        number = chance.randrange(self.plan.children)
        for host in self.hosts if everything else [chance.choice(self.hosts)]:
            if host in self.parents:
                self.parents[host].kill(silent=True)
            self.world.disk(host).cut_power()
            self._start_parent(host, chance.uniform(5.0, 30.0))
        for each in self.children if everything else [number]:
            if each in self.children:
                self.children[each].kill(silent=True)
            self.world.disk(f"child{each}").cut_power()
            self._start_child(each, chance.uniform(5.0, 30.0))

    async def _lie(self, host: str, name: str, token: str, chance: random.Random) -> None:
        """A connection that says what no child says."""
        size = chance.choice([1, SIGNATURE.size, 100])
        vector: Vector = np.full(size, chance.choice([1e9, np.nan, -1e30]), DTYPE)
        words = [
            encode(Hello(protocol=2, name=name, session=LIE)),
            encode(Join(signature=[(n, list(s)) for n, s in SIGNATURE.entries])),
            encode(Push(version=chance.choice([0, 1 << 40]), sequence=1, vector=vector)),
            chance.randbytes(chance.randint(0, 300)),
        ]
        headers = {"Authorization": f"Bearer {token}"}
        with suppress(Exception):
            async with connect(
                f"ws://{host}:{PORT}", additional_headers=headers, proxy=None, open_timeout=5
            ) as connection:
                for word in chance.sample(words, k=chance.randint(1, len(words))):
                    await connection.send(word)
                    await asyncio.sleep(chance.uniform(0.0, 1.0))

    async def _squat(self, host: str, chance: random.Random) -> None:
        """A child that joins and pushes for ever, whatever it is told: also from a version that is
        not there and, in a search, to a trial that is another node's by now."""
        search = self.plan.settings.get("search")
        phase = 50 if search is None else search["phase_steps"]
        headers = {"Authorization": f"Bearer {self._tokens[15]}"}
        with suppress(Exception):
            async with connect(
                f"ws://{host}:{PORT}", additional_headers=headers, proxy=None, open_timeout=5
            ) as connection:

                async def ask(message: Request) -> Any:
                    await connection.send(encode(message))
                    reply = await connection.recv()
                    assert isinstance(reply, bytes)
                    return decode_reply(reply)

                hello = Hello(protocol=2, name="liar", session=LIE)
                while (trial := (await ask(hello)).trial) is None and search is not None:
                    await asyncio.sleep(1.0)
                await ask(Join.of(SIGNATURE))
                vector = np.ones(SIGNATURE.size, DTYPE)
                for sequence in range(1, 200):
                    steps = chance.choice([1, phase])
                    version = chance.choice([0, 0, 0, 1 << 40]) if search is None else 0
                    push = Push(version=version, sequence=sequence, steps=steps, trial=trial)
                    push.vector, push.returns = vector, [chance.gauss(0.0, 1.0)]
                    await ask(push)
                    await asyncio.sleep(chance.expovariate(1.0))

    # The end.

    def _make_peace(self) -> None:
        self.world.cut.clear()
        self._write_tokens()
        for squatter in self._squatters:
            self.world.run_as(self._god, squatter.cancel)
        for host in self.hosts:
            disk = self.world.disk(host)
            disk.fault, disk.slow, disk.fuse = 0, False, None
            parent = self.parents.get(host)
            if (parent is None or parent.dead) and host not in self.finished:
                self._start_parent(host)

    def _all_came_through(self) -> bool:
        """Whether every child has had answers of all parents in peace, and none has ended."""
        if "search" in self.plan.settings or any(
            self.books[host].over or self._ended(host) for host in self.hosts
        ):
            return False
        since = self.plan.trouble + _CALM / 5.0
        return all(
            number in self.children
            and not self.children[number].dead
            and min(self._answers(self._name(number))) > since
            for number in range(self.plan.children)
        )

    def _answers(self, name: str) -> list[float]:
        """When each parent last answered a push of this child."""
        return [self.answered.get((name, host), 0.0) for host in self.hosts]

    def _ended(self, host: str) -> bool:
        parent = self.books[host].parent
        return parent is not None and bool(parent.server.stop)

    def _settle(self) -> None:
        """The laws of the day's end."""
        ended = any(self.books[host].over or self._ended(host) for host in self.hosts)
        for number, machine in sorted(self.children.items()):
            name = self._name(number)
            silent = self.world.now - max(self._answers(name))
            if (
                not machine.dead
                and silent > _LONGEST_SILENCE[self.plan.settings["child"]["exchange"]]
                and not self._missed_the_end(name, machine)
                and not any(books.is_deadly(name) for books in self.books.values())
            ):
                self.world.breaks(f"{name} has had no answer for {silent:.0f} s of peace")
        for session, word, gathered in self.sessions.values():
            if not ended:
                self._books_of(session).settles(session, word, gathered)
        for host in self.hosts:
            self.books[host].looks(self.world.disk(host))
            self.books[host].closes()
            self._read_history(host)

    def _missed_the_end(self, name: str, machine: Machine) -> bool:
        """Whether a child may wait for a parent that has ended: one that the parent does not know,
        that came later, or that was away for too long, or when somebody stopped the parent."""
        over = self.stopped
        first = self.books[self.hosts[0]].parent  # without its proof the others go on
        known = first is not None and name in first.server.children
        return over is not None and (
            not (known and self._answers(name)[0])
            or machine.born > over
            or any(
                (each.kind in _AWAY and each.at > over - 100.0)
                or (each.kind == "stop parent" and each.at > over)
                for each in self.plan.happenings
            )
        )

    def _read_history(self, host: str) -> None:
        paths = [self._out(host) / "history.jsonl", *self._out(host).glob("parts/*/history.jsonl")]
        for path in paths:
            if not path.exists():
                continue
            version = 0
            for line in path.read_bytes().splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    self.world.breaks(f"{host}: a line of the history is no JSON: {line[:60]!r}")
                    return
                if event["event"] in ("resume", "start"):
                    version = event.get("version", 0)
                elif event["event"] == "exchange" and "trial" not in event:
                    if event["version"] < version:
                        self.world.breaks(
                            f"{host}: the history goes back from version {version} to "
                            f"{event['version']} unsaid"
                        )
                        return
                    version = event["version"]


class Learner:
    """A backend that learns nothing: its weights walk by chance."""

    #: As of `ChunkBackend`: some links of a day are slower than that, and some are not.
    hidden = (0.05, 0.1)

    def __init__(self, experiment: Experiment, cores: int, name: str) -> None:
        self._day = _day[-1]
        self._name = name
        self._chunk = experiment.child.exchange == "chunk"
        generator = self._day.world.chance(f"learner {name} {self._day.world.now}")
        self._chance = np.random.default_rng(generator.getrandbits(64))
        self._weights: Vector = self._walk(np.zeros(SIGNATURE.size, DTYPE))
        self._steps = 0
        self._pace = float(self._chance.choice([3.0, 8.0, 20.0]))
        self.pulls = False
        #: Whether it has learned what it has not pushed.
        self._learned = False

    async def startup(self) -> Signature:
        return SIGNATURE

    async def begin(self, weights: Vector | None, version: int = 0) -> None:
        if weights is not None:
            self._weights = weights.copy()

    async def due(self) -> None:
        pulls = self._chunk and not self.pulls
        seconds = min(25.0, float(self._chance.exponential(self._pace)))
        half = 0 if pulls else int(self._chance.integers(0, 25))
        await asyncio.sleep(seconds / 2.0)
        self._steps += half
        await asyncio.sleep(seconds / 2.0)
        self.pulls = pulls
        if not pulls:
            self._steps += int(self._chance.integers(0, 25))
            self._weights = self._walk(self._weights)
            self._learned = True

    def _walk(self, weights: Vector) -> Vector:
        return (weights + self._chance.normal(0.0, 0.1, weights.shape)).astype(DTYPE)

    def snapshot(self) -> Vector | None:
        self._learned = False
        name = self._name.partition("-")[0]
        if name in self._day.diverging:
            self._day.diverging.discard(name)
            return np.full(SIGNATURE.size, np.nan, DTYPE)
        return self._weights.copy()

    def take_work(self) -> Work:
        steps, self._steps = self._steps, 0
        return Work(steps, [float(self._chance.normal())] if steps > 25 else [], {})

    def blend(self, sent: Vector, parent: Vector, beta: float) -> None:
        if np.array_equal(self._weights, sent):
            blend(self._weights, parent, beta)
        else:
            self._weights += change(sent, parent, beta)

    def weights(self) -> Vector:
        return self._weights

    def waited(self, seconds: float) -> None: ...

    def take(self, weights: Vector | None) -> None:
        if weights is not None and self._learned:
            self._day.world.breaks(f"{self._name} loses what it has learned to an older answer")
        if weights is not None:
            self._weights = weights.copy()

    def reset(self, weights: Vector) -> None:
        self._weights = weights.copy()

    def state(self) -> dict[str, Any]:
        return {"weights": self._weights.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        self._weights = state["weights"].copy()

    def set_progress(self, progress: float) -> None:
        """Nothing follows it."""

    def release(self) -> None:
        """Nobody waits."""

    async def shutdown(self) -> None:
        """Nothing is left."""
