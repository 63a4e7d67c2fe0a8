"""The program that launches a run on a Ray cluster. It asks each part one thing at a time, and waits for none in particular."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import genkidama
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.experiment import Experiment
from genkidama.launch.node import (
    GRACE_SECONDS,
    SETTINGS,
    STUDY,
    ChildHost,
    Host,
    ParentHost,
    Told,
    files,
)
from genkidama.launch.places import connected, find_ray, head_of, layout, nodes_of, one_line
from genkidama.local.cluster import Event, prepare_directory, whole_lines
from genkidama.local.evaluation import evaluate
from genkidama.system.checkpoint import write_atomically
from genkidama.system.run import Run

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

#: How long it waits for all to end, and for the last copies.
_END_SECONDS = 120.0

#: Why a parent stops that was told to, rather than because its run is over.
_SIGNALS = ("SIGTERM", "SIGINT")


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
    for name, value, least in (
        ("children", children, 1),
        ("cores", cores, 1),
        ("gpus", gpus, 0),
        ("episodes", episodes, 0),
    ):
        if value is not None and value < least:
            raise ConfigurationError(f"{name} = {value:g}: at least {least} is needed")
    if resume is not None:
        Run.open(resume)
    ray = find_ray()
    # What a shelf needs for its safety are files of its own machines; here is a token for each launch.
    experiment = experiment.with_settings(
        {f"parent.{key}": "" for key in ("tokens_file", "certificate_file", "key_file")}
    )
    if cores is None and experiment.child.cores != "auto":
        cores = experiment.child.cores
    with connected(ray, address):
        places = layout(
            {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in nodes_of(ray)},
            children,
            cores,
        )
        run = prepare_directory(experiment, out, resume)
        try:
            with _Driver(
                ray, run, places, gpus, "child" if experiment.search is None else "node", watch, say
            ) as running:
                running.wait()
        except (KeyboardInterrupt, SystemExit) as error:
            if run.checkpoints or run.trials:
                error.add_note(f"go on with it: genkidama launch --ray --resume {run.path}")
            raise
    if episodes and experiment.search is None:
        evaluate(run, episodes=episodes, seed=experiment.seed)
    return run


@dataclass
class _Part:
    """The parent or a child, as the driver sees it: its actor now, and the one question that it has been asked."""

    name: str
    kind: type[Host]
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


class _Driver:
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
        self._on_node = importlib.import_module(
            "ray.util.scheduling_strategies"
        ).NodeAffinitySchedulingStrategy
        self._parent = _Part("parent", ParentHost, {"num_cpus": 0}, (run.path.absolute().name,))
        self._children: list[_Part] = []
        for number, (cores, node) in enumerate(places, start=1):
            strategy = "SPREAD" if node is None else self._on_node(node, soft=True)
            options = {"num_cpus": cores, "num_gpus": gpus, "scheduling_strategy": strategy}
            self._children.append(_Part(f"{kind}-{number}", ChildHost, options))
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

    def __enter__(self) -> _Driver:
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
                self._lost(
                    self._parent, EnvironmentFailure(f"ended by {self._reason}")
                )  # its node is about to be shut down
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
            if (
                missing
                and time.monotonic() >= self._copy_at
                and (self._study is None or self._awaited is not None)
            ):
                self._copy(missing)
            else:
                self._ask(part, self._parent_told, "look", self._position, part.log)
        elif self._url and part.url != self._url:
            part.url = self._url
            name = (
                part.name if part.actors == 1 else f"{part.name}-{part.actors}"
            )  # the parent may still think the lost one there
            arguments = (
                genkidama.__version__,
                self._token,
                self._url,
                name,
                part.options["num_cpus"],
                part.log,
            )
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
            head = head_of(
                nodes_of(self._ray)
            )  # softly bound, it would be put anywhere, as it needs no CPU
            part.options["scheduling_strategy"] = (
                "DEFAULT" if head is None else self._on_node(head, soft=False)
            )
        part.actor = (
            self._ray.remote(part.kind)
            .options(max_restarts=0, **part.options)
            .remote(*part.arguments)
        )
        part.since, part.due, part.log, part.url = time.monotonic(), 0.0, 0, ""
        part.placed = part.said = False
        part.actors += 1
        if part is not self._parent:
            return
        for path in (SETTINGS, "history.jsonl", *dict(files(self._run.path))):
            if (self._run.path / path).exists():
                part.actor.put.remote(path, (self._run.path / path).read_bytes())
        self._ask(
            part, self._parent_started, "start", genkidama.__version__, self._token, self._position
        )

    def _lost(self, part: _Part, error: Exception) -> None:
        """An actor is gone, and its process with it, or does not answer as it should: there will be another one."""
        self._kill(part)
        self._append(
            self._run.path / "logs" / f"{part.name}.log", f"{error}\n".encode()
        )  # Ray says at length what it knows
        if "failed to import" in str(error) or "No module named" in str(error):
            found = re.findall(r"^\s*(\w*Error: .*)$", str(error), re.MULTILINE)
            reason = f"its node cannot run genkidama {genkidama.__version__} ({found[-1] if found else one_line(error)})"
            self._fail(
                part, EnvironmentFailure.exit_code, f"{reason}; install that version on all nodes"
            )
            return
        now = time.monotonic()
        part.losses = [*(moment for moment in part.losses if now - moment < 60.0), now]
        if len(part.losses) > _MOST_LOSSES:
            self._fail(
                part,
                EnvironmentFailure.exit_code,
                f"was lost {len(part.losses)} times within a minute: {one_line(error)}",
            )
            return
        self._say(
            f"{part.name} was lost with its node or its worker; it is started again (see logs/{part.name}.log)"
        )
        part.due = (
            now + 2.0 ** (len(part.losses) - 1) - 1.0
        )  # Ray may not have noticed yet that its node is gone
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

    def _parent_started(self, told: Told) -> None:
        self._parent.placed = True
        self._ours, self._theirs = dict(told["files"]), told["files"]  # those that it was given
        self._study = self._awaited = None
        self._parent_told(told)

    def _parent_told(self, told: Told) -> None:
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

    def _child_told(self, part: _Part, told: Told) -> None:
        part.due = time.monotonic() + _CHILD_SECONDS
        part.placed = True
        self._keep_log(part, told)
        code = told["code"]
        if code:
            self._fail(part, code, told["error"])
        elif code == 0:
            part.url, part.due = "", time.monotonic() + _PARTING_SECONDS

    def _keep_log(self, part: _Part, told: Told) -> None:
        if told["log"]:
            part.log += len(told["log"])
            self._append(self._run.path / "logs" / f"{part.name}.log", told["log"])

    @staticmethod
    def _append(path: Path, text: bytes) -> None:
        try:
            with path.open("ab") as file:
                file.write(text)
        except OSError as error:
            raise EnvironmentFailure(
                f"{path}: cannot be written: {error.strerror}; free space, and go on with --resume"
            ) from None

    # Copies.

    def _missing(self) -> list[str]:
        """What the parent has and is not here, or not on its way to the disk."""
        return [
            path
            for path, mark in self._theirs.items()
            if self._ours.get(path) != mark and not (path == STUDY and self._study)
        ]

    def _copy(self, paths: list[str]) -> None:
        marks, began = self._theirs, time.monotonic()

        def arrived(contents: dict[str, bytes | None]) -> None:
            for path, content in contents.items():
                if content is None:
                    self._awaited = None  # it is gone, as there is a newer one, or cannot be read now: the next look will tell
                elif path == STUDY:
                    self._study, self._awaited = (content, marks[path]), None
                else:
                    self._keep(path, content, marks[path])
            self._keep_study()
            now = time.monotonic()
            self._copy_at = now + (now - began) * (1.0 / _COPY_SHARE - 1.0)

        self._ask(self._parent, arrived, "read", [STUDY] if STUDY in paths else paths)

    def _keep(self, path: str, content: bytes, mark: str) -> None:
        target = self._run.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
        self._ours[path] = mark
        if self._awaited is not None:
            self._awaited.discard(path)
        for old in [
            old
            for old in self._ours.keys() - self._theirs.keys()
            if (self._run.path / old).parent == target.parent
        ]:
            del self._ours[old]  # a checkpoint that the parent does not keep
            (self._run.path / old).unlink(missing_ok=True)

    def _keep_study(self) -> None:
        """Writes the study when all the weights are here of which it tells."""
        if self._study is not None and self._awaited is not None and not self._awaited:
            (content, mark), self._study = self._study, None
            self._keep(STUDY, content, mark)

    # The end.

    def __exit__(self, *_: object) -> None:
        try:
            self._stop()
        except (GenkidamaError, self._ray.exceptions.RayError) as error:
            self._say(
                f"the end of the run could not be copied: {one_line(error)}; here is what was copied before"
            )
        finally:
            parts = [part for part in (self._parent, *self._children) if part.actor is not None]
            closing = [part.actor.close.remote() for part in parts if part.placed]
            if closing:
                self._ray.wait(closing, num_returns=len(closing), timeout=GRACE_SECONDS)
            for part in parts:
                self._kill(part)

    def _stop(self) -> None:
        """Ends the children's processes and then the parent's, and copies what is not here yet."""
        children = {
            child.actor.stop.remote(child.log): child
            for child in self._children
            if child.actor and child.placed
        }
        if children:
            for call in self._ray.wait(
                list(children), num_returns=len(children), timeout=GRACE_SECONDS + 2.0
            )[0]:
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
