"""Driver of a run on a Ray cluster: it polls the actor of each part, one request at a time."""

from __future__ import annotations

import contextlib
import importlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from genkidama._version import __version__
from genkidama.config.formatting import one_line, plural
from genkidama.errors import EnvironmentFailure, GenkidamaError
from genkidama.plugins.ray.copies import RunCopy
from genkidama.plugins.ray.node import GRACE_SECONDS, ParentActor, ProcessActor, Report, files
from genkidama.runs.run import HISTORY, SETTINGS, Run
from genkidama.runtime.pacing import RestartPolicy
from genkidama.runtime.process import failure, losses

__all__ = ["Driver", "Part", "head_of", "nodes_of", "on_node"]

#: Seconds between two requests to the parent.
_PARENT_SECONDS = 0.25

#: Seconds between two requests to a child.
_CHILD_SECONDS = 1.0

#: Copying checkpoints takes at most this share of the time.
_COPY_SHARE = 0.1

#: A child without a node after this many seconds is reported as waiting.
_ROOM_SECONDS = 20.0

#: A child that ends before the run does is started again after this many seconds. The parent may be
#: about to report that the run is over.
_PARTING_SECONDS = 10.0

#: Seconds in which all must end and the last copies arrive.
_END_SECONDS = 120.0

#: Reasons of a parent that was stopped before its run was over.
_SIGNALS = ("SIGTERM", "SIGINT")


def nodes_of(ray: Any) -> list[dict[str, Any]]:
    """The nodes that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def head_of(nodes: list[dict[str, Any]]) -> str | None:
    """The id of the head node; None if it is not among these."""
    return next(
        (str(node["NodeID"]) for node in nodes if "node:__internal_head__" in node["Resources"]),
        None,
    )


def on_node(node: str, soft: bool) -> Any:
    """Scheduling strategy of an actor for this node: only or, if `soft`, preferably."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node, soft=soft)


@dataclass
class Part:
    """One part of a run on the cluster.

    All times are on the driver's clock, in seconds.
    """

    ray: Any
    name: str
    kind: type[ProcessActor]
    #: Options of its actor: CPUs, GPUs, scheduling strategy.
    options: dict[str, Any]
    #: Arguments of its actor.
    arguments: tuple[Any, ...] = ()
    actor: Any = None
    #: The pending request, and the function that gets the answer.
    call: Any = None
    then: Callable[[Any], None] | None = None
    #: When the next request, or a new actor, is due.
    due: float = 0.0
    #: When this actor could have begun.
    since: float = 0.0
    #: Of a child: the parent's address for which its process was started; empty without a process.
    url: str = ""
    #: Whether its actor runs on a node.
    placed: bool = False
    #: Whether it was reported as waiting for a node.
    waiting_said: bool = False
    #: Bytes of its log that are here.
    log: int = 0
    #: Number of its actors so far.
    actors: int = 0
    policy: RestartPolicy = field(default_factory=losses)
    #: Why it was given up.
    failure: GenkidamaError | None = None

    @property
    def cores(self) -> int:
        """CPUs and core processes of a child."""
        return int(self.options["num_cpus"])

    @property
    def child_name(self) -> str:
        """A new name for each actor: the parent may not have missed a lost one yet."""
        return self.name if self.actors == 1 else f"{self.name}-{self.actors}"

    def create(self, now: float) -> None:
        """Asks Ray for an actor."""
        remote = self.ray.remote(self.kind).options(max_restarts=0, **self.options)
        self.actor = remote.remote(*self.arguments)
        self.actors += 1
        self.since = now
        self.due = 0.0
        self.log = 0
        self.url = ""
        self.placed = False
        self.waiting_said = False

    def ask(self, then: Callable[[Any], None], method: str, *arguments: Any) -> None:
        """Calls a method of its actor. `then` gets the answer."""
        self.then = then
        self.call = getattr(self.actor, method).remote(*arguments)

    def resolve(self) -> None:
        """Passes on the answer, which has arrived.

        Raises:
            RayError: the actor has died.
        """
        call = self.call
        then = self.then
        self.call = None
        self.then = None
        assert then is not None
        then(self.ray.get(call))

    def kill(self) -> None:
        """Ends its actor, and so its process."""
        actor = self.actor
        self.actor = None
        self.call = None
        self.then = None
        if actor is not None:
            self.ray.kill(actor)


class Driver:
    """A run on the cluster. Entering asks Ray for its actors, leaving ends them."""

    def __init__(
        self,
        ray: Any,
        run: Run,
        children: list[Part],
        watch: Callable[[dict[str, Any]], None] | None,
        say: Callable[[str], None] | None,
    ) -> None:
        self._ray = ray
        self._path = run.path
        self._say = say or (lambda line: None)
        self._token = secrets.token_urlsafe(32)
        name = run.path.absolute().name
        self._parent = Part(ray, "parent", ParentActor, {"num_cpus": 0}, (name,))
        self._children = children
        self._copy = RunCopy(run.path, watch or (lambda line: None), self._say)
        #: When files may be copied again.
        self._copy_at = 0.0
        #: Where the parent listens; empty while there is none.
        self._url = ""
        #: Why the run has stopped.
        self._reason = ""
        #: Whether the parent has ended, and all of the run is here.
        self._ended = False
        self._stopping = False

    def __enter__(self) -> Driver:
        try:
            for part in (self._parent, *self._children):
                self._create(part)
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self) -> None:
        """Returns when the run is over and all of it is here.

        Raises:
            GenkidamaError: the error of the parent, or of the first child when no child is left.
        """
        while not self._ended or self._reason in _SIGNALS:
            if self._ended:  # its node is about to be shut down
                self._lost(self._parent, EnvironmentFailure(f"ended by {self._reason}"))
            self._step([self._parent, *self._children])
            failures = [child.failure for child in self._children if child.failure is not None]
            if len(failures) == len(self._children):
                raise failures[0]

    # Requests and answers.

    def _step(self, parts: list[Part]) -> None:
        """Sends due requests, and handles the answers that have arrived, or sleeps a little."""
        now = time.monotonic()
        parts = [part for part in parts if part.failure is None]
        for part in parts:
            if now >= part.due and part.actor is None:
                self._create(part)
            elif now >= part.due and part.call is None:
                self._ask_next(part)
            if (
                part.url
                and not part.placed
                and not part.waiting_said
                and now - part.since > _ROOM_SECONDS
            ):
                part.waiting_said = True
                self._say(f"{part.name} waits for a node with {plural(part.cores, 'free CPU')}")
        asked = {part.call: part for part in parts if part.call is not None}
        if asked:
            for call in self._ray.wait(list(asked), num_returns=1, timeout=_PARENT_SECONDS / 2)[0]:
                self._resolve(asked[call])
        else:
            time.sleep(_PARENT_SECONDS / 4)

    def _resolve(self, part: Part) -> None:
        try:
            part.resolve()
        except self._ray.exceptions.RayError as error:
            if self._stopping:
                raise
            self._lost(part, error)

    def _ask_next(self, part: Part) -> None:
        if part is self._parent:
            wanted = self._copy.wanted
            if wanted and time.monotonic() >= self._copy_at:
                self._fetch(wanted)
            else:
                part.ask(self._parent_reported, "poll", self._copy.position, part.log)
        elif self._url and part.url != self._url:
            part.url = self._url
            secret = (__version__, self._token, self._url)
            about = (part.child_name, part.cores, part.log)
            part.ask(lambda report: self._child_reported(part, report), "start", *secret, *about)
        elif part.url:
            part.ask(lambda report: self._child_reported(part, report), "poll", part.log)

    def _fetch(self, paths: list[str]) -> None:
        marks = self._copy.marks
        began = time.monotonic()

        def arrived(contents: dict[str, bytes | None]) -> None:
            self._copy.add_files(contents, marks)
            now = time.monotonic()
            self._copy_at = now + (now - began) * (1.0 / _COPY_SHARE - 1.0)

        self._parent.ask(arrived, "read", paths)

    # Actors created and lost.

    def _create(self, part: Part) -> None:
        """Asks Ray for an actor, and sends a parent the files of the run."""
        if part is not self._parent:
            part.create(time.monotonic())
            return
        # It needs no CPU, so Ray would put it anywhere if it were bound softly.
        head = head_of(nodes_of(self._ray))
        strategy = "DEFAULT" if head is None else on_node(head, soft=False)
        part.options["scheduling_strategy"] = strategy
        part.create(time.monotonic())
        for path in (SETTINGS, HISTORY, *dict(files(self._path))):
            if (self._path / path).exists():
                part.actor.put.remote(path, (self._path / path).read_bytes())
        begins = (__version__, self._token, self._copy.position)
        part.ask(self._parent_started, "start", *begins)

    def _lost(self, part: Part, error: Exception) -> None:
        """Replaces an actor that is gone with its process, or answers wrongly."""
        part.kill()
        # Ray is verbose: all of it goes into the log.
        self._copy.add_log(part.name, f"{error}\n".encode())
        if "failed to import" in str(error) or "No module named" in str(error):
            found = re.findall(r"^\s*(\w*Error: .*)$", str(error), re.MULTILINE)
            why = found[-1] if found else one_line(error)
            reason = f"its node cannot run genkidama {__version__} ({why})"
            way_out = "install that version on all nodes"
            self._fail(part, EnvironmentFailure.exit_code, f"{reason}; {way_out}")
            return
        now = time.monotonic()
        rest = part.policy.died(now)
        if part.policy.given_up:
            reason = f"was lost {part.policy.deaths} times within a minute: {one_line(error)}"
            self._fail(part, EnvironmentFailure.exit_code, reason)
            return
        self._say(
            f"{part.name} was lost with its node or its worker; "
            f"it is started again (see logs/{part.name}.log)"
        )
        # Ray may not have noticed yet that its node is gone.
        part.due = now + rest
        if part is self._parent:
            self._url = ""
            self._reason = ""
            self._ended = False

    def _fail(self, part: Part, code: int, reason: str) -> None:
        """Gives up a part. The run needs its parent, and one child at least."""
        part.failure = failure(code, f"{part.name}: {reason}")
        part.kill()
        if part is self._parent:
            raise part.failure
        if any(child.failure is None for child in self._children):
            self._say(f"goes on without {part.failure}")

    # Reports.

    def _parent_started(self, report: Report) -> None:
        self._parent.placed = True
        self._copy.begin(report["files"])
        self._parent_reported(report)

    def _parent_reported(self, report: Report) -> None:
        part = self._parent
        part.due = time.monotonic() + _PARENT_SECONDS
        code = report["code"]
        self._copy.last = code is not None
        self._keep_log(part, report)
        self._reason = self._copy.add_history(report["history"], report["fallback"]) or self._reason
        self._copy.list_files(report["files"])
        if code:
            self._fail(part, code, report["error"])
        elif code == 0:
            self._copy_at = 0.0
            part.due = 0.0
            self._ended = self._copy.complete and not report["history"]
        elif report["url"] != self._url:
            self._url = report["url"]
            for child in self._children:
                child.due = 0.0
                child.since = time.monotonic()

    def _child_reported(self, part: Part, report: Report) -> None:
        part.due = time.monotonic() + _CHILD_SECONDS
        part.placed = True
        self._keep_log(part, report)
        code = report["code"]
        if code:
            self._fail(part, code, report["error"])
        elif code == 0:
            part.url = ""
            part.due = time.monotonic() + _PARTING_SECONDS

    def _keep_log(self, part: Part, report: Report) -> None:
        text = report["log"]
        if text and self._copy.add_log(part.name, text):
            part.log += len(text)

    # The end.

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        except (GenkidamaError, self._ray.exceptions.RayError) as error:
            self._say(
                f"the end of the run could not be copied: {one_line(error)}; "
                "here is what was copied before"
            )
        finally:
            parts = [part for part in (self._parent, *self._children) if part.actor is not None]
            closing = [part.actor.close.remote() for part in parts if part.placed]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=GRACE_SECONDS)
            for part in parts:
                part.kill()

    def _stop(self) -> None:
        """Ends the children's processes and then the parent's, and copies the missing files."""
        children = {
            child.actor.stop.remote(child.log): child
            for child in self._children
            if child.actor and child.placed
        }
        if children:
            seconds = GRACE_SECONDS + 2.0
            for call in self._ray.wait(list(children), num_returns=len(children), timeout=seconds)[
                0
            ]:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._keep_log(children[call], self._ray.get(call))
        if self._parent.actor is None or self._ended or not self._parent.placed:
            return
        deadline = time.monotonic() + _END_SECONDS
        self._stopping = True
        self._copy.mend()
        position = self._copy.position
        self._parent.ask(self._parent_reported, "stop_parent", position, self._parent.log)
        while not self._ended:
            self._step([self._parent])
            if time.monotonic() > deadline:
                raise EnvironmentFailure(f"the parent did not end within {_END_SECONDS:g} s")
