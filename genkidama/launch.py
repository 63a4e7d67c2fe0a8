"""`launch`: a run on a Ray cluster. One Parent and its Children, wherever Ray finds room. Needs the extra `ray`.

    run = launch(Experiment.load("lunarlander.toml"), address="auto", out="runs/cluster")

Each part of the run is an actor of Ray's that starts one real process, `genkidama.parent` or `genkidama.child`, as on a shelf;
weights go from process to process by websocket, not through Ray.

Laws of this file:
- What a machine can lose is copied: this process, the driver, keeps the run directory. History and checkpoints come to it as
  they are written, as bytes.
- The copy of a search's study is kept back until all weights that it tells of are here.
- A part that is lost with its worker or its node is started again where there is room. A parent gets what the driver has copied;
  a child that is still there is told the new address, and goes on with its own weights.
- The parent takes no CPU of Ray's account, so that there is always room for it, and stands on the head node: with that one
  the whole cluster is lost anyway.
- A process ends with its actor, and an actor with the driver: nothing stays on a node, except its directory after a crash.
- The token that lets children in is drawn for each launch. It is never on a command line.
- An actor answers at once. It is the driver who waits, and it asks each part one thing at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import msgspec

import genkidama
from genkidama.checkpoint import write_atomically
from genkidama.cluster import Event, Process, listening_socket, prepare_directory, whole_lines
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.evaluation import evaluate
from genkidama.experiment import Experiment
from genkidama.run import Run

__all__ = ["launch", "layout"]

#: How often the driver asks after the parent and after a child.
_PARENT_SECONDS, _CHILD_SECONDS = 0.25, 1.0

#: Copying checkpoints takes at most this share of the time.
_COPY_SHARE = 0.1

#: A child that has not begun after so long is said to wait for room.
_ROOM_SECONDS = 20.0

#: A part that is lost so often within a minute will be lost again.
_MOST_LOSSES = 5

#: A child that was ended, though the run is not over, is started again after so long. The parent may just be about to say it.
_PARTING_SECONDS = 10.0

#: How long a process gets to end after SIGTERM, and how long the driver waits for all of them and for the last copies.
_GRACE_SECONDS, _END_SECONDS = 5.0, 120.0

#: So much of a log or a history is sent at once.
_PIECE = 4 << 20

#: Files are sent together until they are so large.
_BATCH = 64 << 20

#: How long a cluster's port may take to open.
_REACH_SECONDS = 10.0

_HOST_PORT = re.compile(r"([^/:\[\]]+):(\d{1,5})\Z")

#: Why a parent stops that was told to, rather than because its run is over.
_SIGNALS = ("SIGTERM", "SIGINT")

#: What of a run directory is copied whole, beside the history, to the driver and to a parent that begins.
_COPIED = re.compile(r"(experiment\.toml|study\.db|(trials/\d+/)?(experiment\.toml|checkpoints/[\w-]+\.safetensors))\Z")

_STUDY = "study.db"

#: The file that the parent reads its experiment from.
_SETTINGS = "logs/experiment.toml"


class _Told(TypedDict, total=False):
    """What an actor answers: how its process is, and what there is to copy."""

    #: Exit code; None while it runs.
    code: int | None
    error: str
    log: bytes
    #: Of a parent: where it listens, new lines of history, and the files that there are with a mark that changes when they do.
    url: str
    history: bytes
    files: dict[str, str]


# On a node.


class _Host:
    """An actor that looks after one process of ours. Its files are in a directory of its own, which only its user can read."""

    def __init__(self) -> None:
        self._node = _address_of_this_node()
        self._folder = Path(tempfile.mkdtemp(prefix="genkidama-"))
        self._process: Process | None = None
        self._stopped = False
        self._problem = ""

    def stop(self, log: int) -> _Told:
        """Ends the process in order."""
        self._stopped = True
        if self._process is not None:
            self._process.end(_GRACE_SECONDS)
        return self._tell(log)

    def close(self) -> None:
        """Removes what is on this node's disk."""
        if self._process is not None:
            self._process.end(0.0)
            self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tell(self, log: int) -> _Told:
        process, code = self._process, EnvironmentFailure.exit_code
        if process is None or self._problem:
            return {"code": code, "error": self._problem, "log": b"" if process is None else _piece(process.log, log)}
        if self._stopped:  # it may have been too young to know what SIGTERM means
            return {"code": 0, "error": "", "log": _piece(process.log, log)}
        error = process.error().replace(str(process.log), f"logs/{process.log.name}") if process.popen.poll() else ""
        return {"code": process.popen.poll(), "error": f"{error} (node {self._node})", "log": _piece(process.log, log)}

    def _revive(self) -> None:
        """Starts the process again if it was killed."""
        if self._process is not None and not self._stopped and (self._process.popen.poll() or 0) < 0:
            try:
                self._process.restart()
            except EnvironmentFailure as error:
                self._problem = str(error).replace(str(self._process.log), f"logs/{self._process.log.name}")

    def _other_version(self, version: str) -> bool:
        if version == genkidama.__version__:
            return False
        self._problem = (
            f"node {self._node} has genkidama {genkidama.__version__}, this program {version}; install the same version on all nodes"
        )
        return True


class _ParentHost(_Host):
    """The Parent's actor."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._run = self._folder / name
        self._url = ""
        #: Inherited by each parent that is started here, so that its children find the next one at the same address.
        self._socket: socket.socket | None = None

    def put(self, path: str, content: bytes) -> None:
        """Writes a file of the run that goes on here."""
        try:
            (self._run / path).parent.mkdir(parents=True, exist_ok=True)
            (self._run / path).write_bytes(content)
        except OSError as error:
            self._problem = f"{self._run / path}: cannot be written: {error.strerror}"

    def start(self, version: str, token: str, history: int) -> _Told:
        """Starts the parent on what was put here; tells which files these are."""
        given = dict(_files(self._run))
        if not self._other_version(version) and not self._problem:
            try:
                host = self._node
                self._socket = listening_socket(f"[{host}]:0" if ":" in host else f"{host}:0")
                port = self._socket.getsockname()[1]
                self._url = f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"
                tokens = self._folder / "tokens"
                tokens.touch(0o600)
                tokens.write_text(f"* {token}\n")
                descriptor = self._socket.fileno()
                command = ["genkidama.parent", str(self._run / _SETTINGS), "--listen", f"fd://{descriptor}"]
                command += ["--out", str(self._run), "--tokens-file", str(tokens)]
                self._process = Process("parent", command, self._folder / "parent.log", (descriptor,))
            except (OSError, GenkidamaError) as error:
                self._problem = str(error)
        return self.look(history, 0) | {"files": given}

    def look(self, history: int, log: int) -> _Told:
        """How it goes: the history from that position on, whole lines only, and what there is to copy."""
        self._revive()
        told = self._tell(log)  # before the files: what it says to have ended has written them all
        piece = _piece(self._run / "history.jsonl", history)
        return told | {"url": self._url, "history": piece[: piece.rfind(b"\n") + 1], "files": dict(_files(self._run))}

    def stop_parent(self, history: int, log: int) -> _Told:
        """`stop` and `look`."""
        self.stop(log)
        return self.look(history, log)

    def read(self, paths: list[str]) -> dict[str, bytes | None]:
        """The contents of these files, or of the first of them if they are large; None for one that is gone, or in use for too long."""
        contents: dict[str, bytes | None] = {}
        for path in paths:
            try:
                contents[path] = _database(self._run / path) if path == _STUDY else (self._run / path).read_bytes()
            except (FileNotFoundError, sqlite3.Error):
                contents[path] = None
            if sum(len(content or b"") for content in contents.values()) > _BATCH:
                break
        return contents

    def close(self) -> None:
        super().close()
        if self._socket is not None:
            self._socket.close()


class _ChildHost(_Host):
    """A Child's actor."""

    def start(self, version: str, token: str, url: str, name: str, cores: int, log: int) -> _Told:
        """Starts the child, or starts it again for a parent that is elsewhere now: with its own weights, as it left them."""
        if not self._other_version(version):
            try:
                if self._process is not None:
                    self._process.end(_GRACE_SECONDS)
                    self._process.close()
                command = ["genkidama.child", "--parent", url, "--name", name, "--cores", str(cores)]
                command += ["--state", str(self._folder / "state")]
                self._process = Process(name, command, self._folder / f"{name}.log", environment={"GENKIDAMA_TOKEN": token})
            except OSError as error:
                self._problem = str(error)
        return self._tell(log)

    def look(self, log: int) -> _Told:
        """How it goes."""
        self._revive()
        return self._tell(log)


def _address_of_this_node() -> str:
    return str(importlib.import_module("ray.util").get_node_ip_address())


def _piece(path: Path, position: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(_PIECE)
    except FileNotFoundError:
        return b""


def _files(run: Path) -> Iterator[tuple[str, str]]:
    """What is copied of a run directory, with a mark that is another one when the file is."""
    for folder in (
        ".",
        "checkpoints",
        *(f"trials/{trial.name}{inner}" for trial in run.glob("trials/*") for inner in ("", "/checkpoints")),
    ):
        for path in (run / folder).glob("*"):
            name = path.relative_to(run).as_posix()
            if _COPIED.match(name):
                with contextlib.suppress(FileNotFoundError):
                    yield name, " ".join(_mark(each) for each in (path, path.with_name(f"{path.name}-wal")) if each.exists())


def _mark(path: Path) -> str:
    found = path.stat()
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def _database(path: Path) -> bytes:
    """A SQLite file as it is between two transactions, whoever is writing to it."""
    with tempfile.TemporaryDirectory(prefix="genkidama-") as folder:
        copy = Path(folder) / path.name
        with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        return copy.read_bytes()


# The driver.


def launch(
    experiment: Experiment,
    *,
    address: str | None = None,
    children: int | None = None,
    cores: int | None = None,
    gpus: float = 0.0,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    episodes: int = 500,
    watch: Callable[[Event], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Run:
    """Trains, or searches if the experiment has a `[search]`, on a Ray cluster; then evaluates, here. Blocks.

    Args:
        experiment: all settings.
        address: the cluster's, as `ray.init` takes it; if absent, `RAY_ADDRESS` or the cluster that this machine belongs to. A
            program that is connected already stays so.
        children: how many (of a search: nodes). If absent, one on each node that has enough CPUs.
        cores: CPUs and core processes of each child; if absent, what the experiment says or else all of a node.
        gpus: GPUs of each child.
        out: the run directory on this machine; a new one under `runs/` if absent.
        resume: a run directory on this machine to go on with, instead of `out`.
        episodes: length of the final evaluation; 0 for none. A search has none.
        watch: is called with each new line of the history.
        say: is called with a line about what is not in the history: a child that waits for room, a part that was lost.

    Returns:
        The run, all of it on this machine.

    Raises:
        ConfigurationError: a setting is wrong, Ray is not installed, or `out` holds a run already.
        EnvironmentFailure: there is no such cluster, its software does not fit, or no part can stay alive on it.
    """
    for name, value, least in (("children", children, 1), ("cores", cores, 1), ("gpus", gpus, 0), ("episodes", episodes, 0)):
        if value is not None and value < least:
            raise ConfigurationError(f"{name} = {value:g}: at least {least} is needed")
    if resume is not None:
        Run.open(resume)
    ray = _ray()
    # What a shelf needs for its safety are files of its own machines; here is a token for each launch.
    experiment = experiment.with_settings({f"parent.{key}": "" for key in ("tokens_file", "certificate_file", "key_file")})
    if cores is None and experiment.child.cores != "auto":
        cores = experiment.child.cores
    with _connected(ray, address):
        places = layout({node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in _nodes(ray)}, children, cores)
        run = prepare_directory(experiment, out, resume)
        try:
            with _Launch(ray, run, places, gpus, "child" if experiment.search is None else "node", watch, say) as running:
                running.wait()
        except (KeyboardInterrupt, SystemExit) as error:
            if run.checkpoints or run.trials:
                error.add_note(f"go on with it: genkidama launch --ray --resume {run.path}")
            raise
    if episodes and experiment.search is None:
        evaluate(run, episodes=episodes, seed=experiment.seed)
    return run


def _nodes(ray: Any) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _head(nodes: list[dict[str, Any]]) -> str | None:
    return next((str(node["NodeID"]) for node in nodes if "node:__internal_head__" in node["Resources"]), None)


def layout(nodes: dict[str, int], children: int | None, cores: int | None) -> list[tuple[int, str | None]]:
    """The cores of each child, and the node that it belongs on, if there is one.

    Args:
        nodes: how many CPUs each node has.
        children: how many are asked for; None for one on each node.
        cores: how many each is to have; None for all of a node, or as many as let all children begin at once.

    Raises:
        EnvironmentFailure: there is no node for a child to be on, and nobody says how large the coming ones are.
    """
    if children is None:
        places: list[tuple[int, str | None]] = [(cores or cpus, node) for node, cpus in nodes.items() if cpus >= (cores or 1)]
        if not places:
            raise EnvironmentFailure(
                f"no node of the Ray cluster has {cores or 1} CPUs, the largest {max(nodes.values(), default=0)}; "
                "lower --cores, or have children wait for nodes to come: --children N --cores N"
            )
        return places
    if cores is None:
        sizes = [cpus for cpus in nodes.values() if cpus > 0]
        if not sizes:
            raise EnvironmentFailure("no node of the Ray cluster has a CPU yet; say how many cores each child is to have: --cores N")
        # If they do not all fit, they wait for nodes like the smallest of these.
        fitting = (size for size in range(max(sizes), 0, -1) if sum(cpus // size for cpus in sizes) >= children)
        cores = next(fitting, min(sizes))
    return [(cores, None)] * children


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigurationError(f"a launch on Ray needs Ray ({error}): pip install 'genkidama[ray]'") from None


@contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connects to the cluster, unless the program is connected already."""
    if ray.is_initialized():
        yield
        return
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    address = address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        if (found := _HOST_PORT.match(address)) is not None:  # Ray itself would try for a minute
            socket.create_connection((found[1], int(found[2])), timeout=_REACH_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        where = "this machine" if address == "auto" else address
        raise EnvironmentFailure(
            f"--address {where}: cannot connect to a Ray cluster there: {_one_line(error)}; start one with `ray start --head`, "
            "or say where one is: --address HOST:6379"
        ) from None
    try:
        if main:
            signal.signal(signal.SIGTERM, before)  # Ray puts its own there
        yield
    finally:
        ray.shutdown()
        if main:
            signal.signal(signal.SIGTERM, before)


def _one_line(error: BaseException, length: int = 300) -> str:
    text = " ".join(f"{error}".split()) or type(error).__name__
    return text if len(text) <= length else f"{text[:length]} …"


@dataclass
class _Part:
    """The parent or a child, as the driver sees it: its actor now, and the one question that it has been asked."""

    name: str
    kind: type[_Host]
    options: dict[str, Any]
    arguments: tuple[Any, ...] = ()
    actor: Any = None
    call: Any = None
    then: Callable[[Any], None] | None = None
    #: When it is to be asked again or to get a new actor, and since when it could have begun with this one, on the driver's clock.
    due: float = 0.0
    since: float = 0.0
    #: Of a child: the parent's address that its process was started for; empty if there is no process.
    url: str = ""
    #: Whether it has begun on a node, and whether it was said that it waits for one.
    placed: bool = False
    said: bool = False
    #: How much of its log is here.
    log: int = 0
    #: How many actors it has had, and when the last of them were lost.
    actors: int = 0
    losses: list[float] = field(default_factory=list)
    failure: GenkidamaError | None = None


class _Launch:
    """A run on the cluster. Entering asks Ray for its actors, leaving ends them."""

    def __init__(
        self,
        ray: Any,
        run: Run,
        places: list[tuple[int, str | None]],
        gpus: float,
        kind: str,
        watch: Callable[[Event], None] | None,
        say: Callable[[str], None] | None,
    ) -> None:
        self._ray, self._run = ray, run
        self._watch, self._say = watch or (lambda event: None), say or (lambda line: None)
        self._token = secrets.token_urlsafe(32)
        self._on_node = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        self._parent = _Part("parent", _ParentHost, {"num_cpus": 0}, (run.path.absolute().name,))
        self._children: list[_Part] = []
        for number, (cores, node) in enumerate(places, start=1):
            strategy = "SPREAD" if node is None else self._on_node(node, soft=True)
            options = {"num_cpus": cores, "num_gpus": gpus, "scheduling_strategy": strategy}
            self._children.append(_Part(f"{kind}-{number}", _ChildHost, options))
        #: Where the parent listens; empty while there is none.
        self._url = ""
        #: The parent's files, and those of them that are here, with their marks.
        self._theirs: dict[str, str] = {}
        self._ours: dict[str, str] = {}
        #: A copy of the study with its mark, and what is to be here before it: a report must have its weights. None: not known yet.
        self._study: tuple[bytes, str] | None = None
        self._awaited: set[str] | None = None
        self._copy_at = 0.0
        self._history = run.path / "history.jsonl"
        self._position = 0
        #: Why the run has stopped, and whether all of it is here.
        self._reason = ""
        self._ended = False
        self._stopping = False

    def __enter__(self) -> _Launch:
        try:
            self._position = whole_lines(self._history)
            if self._history.exists():
                os.truncate(self._history, self._position)
            for part in (self._parent, *self._children):
                self._begin(part)
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self) -> None:
        """Returns when the run is over and all of it is here.

        Raises:
            GenkidamaError: what the parent or the first of the children ended with, when there is none left.
        """
        while not self._ended or self._reason in _SIGNALS:
            if self._ended:
                self._lost(self._parent, EnvironmentFailure(f"ended by {self._reason}"))  # its node is about to be shut down
            self._step([self._parent, *self._children])
            failures = [child.failure for child in self._children if child.failure is not None]
            if len(failures) == len(self._children):
                raise failures[0]

    # Questions and answers.

    def _step(self, parts: list[_Part]) -> None:
        """Asks those who are due, and takes the answers that have come. Sleeps a little if there are none."""
        now = time.monotonic()
        parts = [part for part in parts if part.failure is None]
        for part in parts:
            if now >= part.due and part.actor is None:
                self._begin(part)
            elif now >= part.due and part.call is None:
                self._ask_next(part)
            if part.url and not part.placed and not part.said and now - part.since > _ROOM_SECONDS:
                part.said = True
                self._say(f"{part.name} waits for a node with {part.options['num_cpus']} free CPUs")
        asked = {part.call: part for part in parts if part.call is not None}
        if asked:
            for call in self._ray.wait(list(asked), num_returns=1, timeout=_PARENT_SECONDS / 2)[0]:
                self._take(asked[call])
        else:
            time.sleep(_PARENT_SECONDS / 4)

    def _ask_next(self, part: _Part) -> None:
        if part is self._parent:
            missing = self._missing()
            if missing and time.monotonic() >= self._copy_at and (self._study is None or self._awaited is not None):
                self._copy(missing)
            else:
                self._ask(part, self._parent_told, "look", self._position, part.log)
        elif self._url and part.url != self._url:
            part.url = self._url
            name = part.name if part.actors == 1 else f"{part.name}-{part.actors}"  # the parent may still think the lost one there
            arguments = (genkidama.__version__, self._token, self._url, name, part.options["num_cpus"], part.log)
            self._ask(part, lambda told: self._child_told(part, told), "start", *arguments)
        elif part.url:
            self._ask(part, lambda told: self._child_told(part, told), "look", part.log)

    def _ask(self, part: _Part, then: Callable[[Any], None], method: str, *arguments: Any) -> None:
        part.then = then
        part.call = getattr(part.actor, method).remote(*arguments)

    def _take(self, part: _Part) -> None:
        call, then = part.call, part.then
        part.call = part.then = None
        assert then is not None
        try:
            told = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            if self._stopping:
                raise
            self._lost(part, error)
        else:
            then(told)

    # Parts that begin, and that are lost.

    def _begin(self, part: _Part) -> None:
        """Asks Ray for an actor, and gives a parent what there is of the run."""
        if part is self._parent:
            head = _head(_nodes(self._ray))  # softly bound, it would be put anywhere, as it needs no CPU
            part.options["scheduling_strategy"] = "DEFAULT" if head is None else self._on_node(head, soft=False)
        part.actor = self._ray.remote(part.kind).options(max_restarts=0, **part.options).remote(*part.arguments)
        part.since, part.due, part.log, part.url = time.monotonic(), 0.0, 0, ""
        part.placed = part.said = False
        part.actors += 1
        if part is not self._parent:
            return
        for path in (_SETTINGS, "history.jsonl", *dict(_files(self._run.path))):
            if (self._run.path / path).exists():
                part.actor.put.remote(path, (self._run.path / path).read_bytes())
        self._ask(part, self._parent_started, "start", genkidama.__version__, self._token, self._position)

    def _lost(self, part: _Part, error: Exception) -> None:
        """An actor is gone, and its process with it, or does not answer as it should: there will be another one."""
        self._kill(part)
        self._append(self._run.path / "logs" / f"{part.name}.log", f"{error}\n".encode())  # Ray says at length what it knows
        if "failed to import" in str(error) or "No module named" in str(error):
            found = re.findall(r"^\s*(\w*Error: .*)$", str(error), re.MULTILINE)
            reason = f"its node cannot run genkidama {genkidama.__version__} ({found[-1] if found else _one_line(error)})"
            self._fail(part, EnvironmentFailure.exit_code, f"{reason}; install that version on all nodes")
            return
        now = time.monotonic()
        part.losses = [*(moment for moment in part.losses if now - moment < 60.0), now]
        if len(part.losses) > _MOST_LOSSES:
            self._fail(part, EnvironmentFailure.exit_code, f"was lost {len(part.losses)} times within a minute: {_one_line(error)}")
            return
        self._say(f"{part.name} was lost with its node or its worker; it is started again (see logs/{part.name}.log)")
        part.due = now + 2.0 ** (len(part.losses) - 1) - 1.0  # Ray may not have noticed yet that its node is gone
        if part is self._parent:
            self._url, self._reason, self._ended = "", "", False

    def _fail(self, part: _Part, code: int, reason: str) -> None:
        """The end of the run if it is the parent; without a child the run goes on as long as there are others."""
        kind = ConfigurationError if code == ConfigurationError.exit_code else EnvironmentFailure
        part.failure = kind(f"{part.name}: {reason}")
        self._kill(part)
        if part is self._parent:
            raise part.failure
        if any(child.failure is None for child in self._children):
            self._say(f"goes on without {part.failure}")

    def _kill(self, part: _Part) -> None:
        actor, part.actor, part.call, part.then = part.actor, None, None, None
        if actor is not None:
            self._ray.kill(actor)

    # What they tell.

    def _parent_started(self, told: _Told) -> None:
        self._parent.placed = True
        self._ours, self._theirs = dict(told["files"]), told["files"]  # those that it was given
        self._study = self._awaited = None
        self._parent_told(told)

    def _parent_told(self, told: _Told) -> None:
        part, lines = self._parent, told["history"]
        part.due = time.monotonic() + _PARENT_SECONDS
        self._keep_log(part, told)
        if lines:
            self._append(self._history, lines)
            self._position += len(lines)
            for line in lines.splitlines():
                event = msgspec.json.decode(line)
                if event["event"] == "stop":
                    self._reason = event["reason"]
                self._watch(event)
        self._theirs = told["files"]
        missing = self._missing()
        if self._study is not None and self._awaited is None:
            self._awaited = set(missing)
            self._keep_study()
        code = told["code"]
        if code:
            self._fail(part, code, told["error"])
        elif code == 0:
            self._copy_at = part.due = 0.0
            self._ended = not missing and self._study is None and not lines
        elif told["url"] != self._url:
            self._url = told["url"]
            for child in self._children:
                child.due, child.since = 0.0, time.monotonic()

    def _child_told(self, part: _Part, told: _Told) -> None:
        part.due = time.monotonic() + _CHILD_SECONDS
        part.placed = True
        self._keep_log(part, told)
        code = told["code"]
        if code:
            self._fail(part, code, told["error"])
        elif code == 0:
            part.url, part.due = "", time.monotonic() + _PARTING_SECONDS

    def _keep_log(self, part: _Part, told: _Told) -> None:
        if told["log"]:
            part.log += len(told["log"])
            self._append(self._run.path / "logs" / f"{part.name}.log", told["log"])

    @staticmethod
    def _append(path: Path, text: bytes) -> None:
        try:
            with path.open("ab") as file:
                file.write(text)
        except OSError as error:
            raise EnvironmentFailure(f"{path}: cannot be written: {error.strerror}; free space, and go on with --resume") from None

    # Copies.

    def _missing(self) -> list[str]:
        """What the parent has and is not here, or not on its way to the disk."""
        return [path for path, mark in self._theirs.items() if self._ours.get(path) != mark and not (path == _STUDY and self._study)]

    def _copy(self, paths: list[str]) -> None:
        marks, began = self._theirs, time.monotonic()

        def arrived(contents: dict[str, bytes | None]) -> None:
            for path, content in contents.items():
                if content is None:
                    self._awaited = None  # it is gone, as there is a newer one, or cannot be read now: the next look will tell
                elif path == _STUDY:
                    self._study, self._awaited = (content, marks[path]), None
                else:
                    self._keep(path, content, marks[path])
            self._keep_study()
            now = time.monotonic()
            self._copy_at = now + (now - began) * (1.0 / _COPY_SHARE - 1.0)

        self._ask(self._parent, arrived, "read", [_STUDY] if _STUDY in paths else paths)

    def _keep(self, path: str, content: bytes, mark: str) -> None:
        target = self._run.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
        self._ours[path] = mark
        if self._awaited is not None:
            self._awaited.discard(path)
        for old in [old for old in self._ours.keys() - self._theirs.keys() if (self._run.path / old).parent == target.parent]:
            del self._ours[old]  # a checkpoint that the parent does not keep
            (self._run.path / old).unlink(missing_ok=True)

    def _keep_study(self) -> None:
        """Writes the study when all the weights are here of which it tells."""
        if self._study is not None and self._awaited is not None and not self._awaited:
            (content, mark), self._study = self._study, None
            self._keep(_STUDY, content, mark)

    # The end.

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        except (GenkidamaError, self._ray.exceptions.RayError) as error:
            self._say(f"the end of the run could not be copied: {_one_line(error)}; here is what was copied before")
        finally:
            parts = [part for part in (self._parent, *self._children) if part.actor is not None]
            closing = [part.actor.close.remote() for part in parts if part.placed]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=_GRACE_SECONDS)
            for part in parts:
                self._kill(part)

    def _stop(self) -> None:
        """Ends the children's processes and then the parent's, and copies what is not here yet."""
        children = {child.actor.stop.remote(child.log): child for child in self._children if child.actor and child.placed}
        if children:
            for call in self._ray.wait(list(children), num_returns=len(children), timeout=_GRACE_SECONDS + 2.0)[0]:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._keep_log(children[call], self._ray.get(call))
        if self._parent.actor is None or self._ended or not self._parent.placed:
            return
        deadline = time.monotonic() + _END_SECONDS
        self._stopping, self._position = True, whole_lines(self._history)
        self._ask(self._parent, self._parent_told, "stop_parent", self._position, self._parent.log)
        while not self._ended:
            self._step([self._parent])
            if time.monotonic() > deadline:
                raise EnvironmentFailure(f"the parent did not end within {_END_SECONDS:g} s")
