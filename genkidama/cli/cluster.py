"""`train` and `search`: a whole cluster on this machine, with real processes and real websockets.

A run here is the same as on a shelf of Pis: one process of `genkidama.parent` and several of
`genkidama.child`. This process only starts, watches and ends them. One that is killed is
restarted. When this process ends, for whatever reason, they all end.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, chdir, suppress
from pathlib import Path
from typing import Any

import msgspec

from genkidama.child.capacity import expected_cores
from genkidama.child.orchestrator import CORES, PreparedCore
from genkidama.cli.parents import ParentProcess, wait_all
from genkidama.cli.progress import Sinks, Watch, feeding, following
from genkidama.config.allowlist import modules
from genkidama.config.decoding import check_least
from genkidama.config.experiment import Experiment
from genkidama.config.plugin import find
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.learning.forms import tensor_setting
from genkidama.protocol.shard import Shard
from genkidama.runs.checkpoint import SPACES
from genkidama.runs.evaluation import evaluate_trained
from genkidama.runs.history import HistoryTail
from genkidama.runs.resume import finished, prepare, prepare_directory, resumable
from genkidama.runs.run import CHILDREN, LOGS, OWNER, SETTINGS, Run
from genkidama.runtime import forkserver
from genkidama.runtime.files import write_atomically
from genkidama.runtime.import_strings import is_gymnasiums, is_import_string
from genkidama.runtime.machine import ONE_THREAD, available_bytes, available_cores, loop_factory
from genkidama.runtime.pacing import RestartPolicy, Throttle
from genkidama.runtime.process import Process, failure
from genkidama.runtime.script import begin
from genkidama.runtime.signals import deferred
from genkidama.server.rules.registry import check_parts, make_rule

# ------------------------------------------------------------------------------------------------
# How the children of one machine share its CPU cores and its memory.


#: Children of a run on this machine, unless the environment can be open only once.
CHILDREN_HERE = 2


def children_here(experiment: Experiment, children: int | None, cores: int | None) -> int:
    """The number of children on this machine; None leaves it to this function.

    Raises:
        ConfigurationError: the environment can be open only once.
    """
    if not experiment.environment.exclusive:
        return CHILDREN_HERE if children is None else children
    for name, value in (("children", children), ("cores", cores)):
        if value is not None and value > 1:
            raise ConfigurationError(
                f"{name} = {value}: with environment.exclusive = True, one core of one child plays "
                "the one environment; leave it out"
            )
    return 1 if children is None else children


def cores_of_each(experiment: Experiment, cores: int | None, children: int) -> int | None:
    """The core processes of each child; None leaves it to the experiment."""
    if experiment.environment.exclusive:
        return 1
    if cores is not None or experiment.child.cores != "auto":
        return cores
    share = max(1, children)
    available = available_bytes()
    # A learner beside the parent takes a core, too.
    free = available_cores() - experiment.sends_experience
    fair = None if available is None else available // share
    return expected_cores(fair, max(1, free // share), bool(tensor_setting(experiment)))


#: How often this process looks at the others. It sleeps in between.
_POLL_SECONDS = 0.25

#: How long a child gets to end after SIGTERM.
_CHILD_GRACE = 3.0

#: How long the parent gets, when the children have ended: all have ended within 5 s.
_PARENT_GRACE = 2.0

#: When all children have left, the parent's final checkpoint may take so long.
_PARTING_SECONDS = 60.0

#: A free port that only this machine reaches.
_LOOPBACK = "127.0.0.1:0"

#: Options of a parent on the loopback. Tokens and certificates would keep its own children out.
_OPEN = ["--tokens-file", "", "--certificate-file", "", "--key-file", "", "--own-children"]


def train(
    experiment: Experiment,
    *,
    children: int | None = None,
    cores: int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    weights: str | Path | None = None,
    episodes: int | None = None,
    shards: int | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    sinks: Sinks = (),
    say: Callable[[str], None] | None = None,
    progress: bool = False,
) -> Run:
    """Trains until the experiment's stop condition, then evaluates. Blocks.

    Without a stop condition it ends when the task counts as solved (`with_default_stop`). A run
    that is finished and is resumed stays as it is.

    Args:
        experiment: all settings.
        children: child processes, each with cores of its own; if absent 2, or 1 of an environment
            that is exclusive.
        cores: core processes of each child; what the experiment says if absent. If that is
            `"auto"`, this machine's CPU cores are divided among them, as far as memory allows.
        out: the run directory; a new one under `runs/` if absent.
        resume: the directory of a run to continue, instead of `out`.
        weights: the new run begins with these: a run's directory, a checkpoint file, or
            `"NAME/REPO"` of the Hugging Face Hub.
        episodes: length of the final evaluation, 0 for none; as `evaluate` has it if absent.
        shards: in how many parts the parent is, each a process; if absent, as many as in the run
            that goes on, or 1.
        watch: is called with each new line of the history, about four times a second.
        sinks: what the measures are carried to as well, as `["wandb"]` (docs/notes/sinks.md).
        say: is called with a line about each process that dies or complains.
        progress: shows how it goes, on standard error or in a notebook's cell.

    Returns:
        The run; `run.evaluation` is its final evaluation.

    Raises:
        ConfigurationError: a setting is wrong, `out` holds a run already, or `weights` are of
            another network.
        EnvironmentFailure: a process cannot start, or keeps dying.
    """
    begin("train")
    Experiment.expect(experiment)
    children = children_here(experiment, children, cores)
    check_least(1, children=children, cores=cores)
    if weights is not None and resume is not None:
        raise ConfigurationError(f"weights = {weights} and resume = {resume}: give one of the two")
    if episodes is not None and episodes < 0:
        raise ConfigurationError(
            f"episodes = {episodes}: at least 1 is needed, or 0 for no evaluation"
        )
    if experiment.searches:
        raise ConfigurationError(
            f"{experiment.name}: has a [search]; "
            "start it with `genkidama search`, or take that section out"
        )
    if shards is None:
        shards = Run(Path(resume)).parts if resume is not None else 1
    check_parts(experiment, shards)
    feed = feeding(sinks, say)
    with chdir("."):  # which a module of the user's may leave
        experiment, about_stop = prepare(experiment)
    if weights is not None:
        experiment = experiment.with_settings({"parent.start": str(weights)}, source="weights")
    done = resume is not None and bool(finished(Run.open(resume), experiment))
    first: PreparedCore | None = None
    spaces: Any = None
    with ExitStack() as stack:
        try:
            # Of a notebook's own class no other process has the source yet.
            if not (done or "__main__" in modules(experiment.to_dict())):
                first, spaces = prepare_first_core(experiment, say)
            run = prepare_directory(experiment, out, resume)
            stack.enter_context(resumable(run, "train"))
            if spaces is not None:  # a learner beside the parent need not build one, too
                write_atomically(run.path / SPACES, json.dumps(spaces).encode())
            # Of a notebook's class it has the source.
            experiment = Experiment.load(run.path / SETTINGS)
        except BaseException:
            if first is not None:
                first.end()
            forkserver.leave_shared()
            raise
        names = [f"child-{number}" for number in range(1, children + 1)]
        cores = cores_of_each(experiment, cores, children)
        stack.enter_context(feed)
        if not done:
            with (
                following(experiment, progress, watch, about_stop) as passed_on,
                Cluster(run, experiment, names, cores, shards=shards, first=first) as cluster,
            ):
                cluster.wait(feed.begin(run, passed_on), say)
        if episodes != 0:
            evaluate_trained(run, episodes, experiment.seed, progress)
            feed.evaluated(run)
    return run


def prepare_first_core(
    experiment: Experiment, say: Callable[[str], None] | None
) -> tuple[PreparedCore | None, Any]:
    """The first core of the first child, with its environments, so that they are built once; and
    their spaces, as `genkidama.learning.spaces` describes them.

    Gymnasium's own environments are known to be right, quickly built, and played with these two
    algorithms whatever their spaces; for them, there is none.

    Raises:
        ConfigurationError: the environment or the network cannot be built.
    """
    if is_gymnasiums(experiment.environment) and experiment.algorithm.name in ("ppo", "a3c"):
        return None, None
    forkserver.share()
    try:
        core = PreparedCore.start(experiment, check=True)
    except OSError as error:
        raise EnvironmentFailure(f"no process can be started: {error}") from error
    spoken = 1.0

    def tell(seconds: float) -> None:
        nonlocal spoken
        if say is not None and seconds >= 2.0 * spoken:
            say(f"building the environment, {seconds:.0f} s so far")
            spoken = seconds

    try:
        for notice in core.built(tell):
            if say is not None:
                say(notice)
        if experiment.child.backend != "hogwild":
            core.end()
            return None, None
        # The address of a replay for all is known once there is a parent.
        found = None if experiment.shares_replay else core.describe(experiment)
    except (EOFError, OSError):  # the child will meet what has killed it
        core.end()
        return None, None
    except BaseException:
        core.end()
        raise
    return core, None if found is None else found.spaces


def warm_up(experiment: Experiment) -> None:
    """Imports all that a parent and its children need, in the process that they are forked from."""
    from genkidama.child import __main__ as child  # noqa: F401
    from genkidama.parent import __main__ as parent  # noqa: F401

    loop_factory()
    if not is_import_string(name := experiment.child.backend):
        find("backends", "experience" if experiment.sends_experience else name)
    if not is_import_string(experiment.parent.rule):
        make_rule(experiment)


class Cluster:
    """One parent and its children, as processes. Entering starts them, leaving ends them.

    The run's directory is prepared. Each child has so many `cores`, or what the experiment says;
    the parent listens at `listen`, or a free port of the loopback. The first child gets the `first`
    core.
    """

    def __init__(
        self,
        run: Run,
        experiment: Experiment,
        children: list[str],
        cores: int | None,
        listen: str | None = None,
        shards: int = 1,
        first: PreparedCore | None = None,
    ) -> None:
        self._path = run.path
        self._experiment = experiment
        self._names = children
        self._cores = cores
        self._alone = listen is None
        #: By trial of a search, or None: the most environment steps so far.
        self._steps: dict[int | None, int] = {}
        self._children: list[Process] = []
        self._first = first
        self._forkserver: forkserver.Server | None = None
        #: The parent's processes, one for each shard.
        secret = secrets.token_hex(32) if shards > 1 else ""
        self._parents = [
            ParentProcess(run.path, Shard(number, shards), listen or _LOOPBACK, secret)
            for number in range(1, shards + 1)
        ]

    def __enter__(self) -> Cluster:
        try:
            with deferred():  # no process may live that this object does not know
                self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        logs = self._path / LOGS
        server = self._forkserver = forkserver.begin(logs / "forkserver.log")
        server.warm_up(__name__, self._experiment, ONE_THREAD)
        for parent in self._parents:
            parent.start(_OPEN if self._alone else (), server)
        for name in self._names:
            command, log = self._child_command(name), logs / f"{name}.log"
            once: tuple[Sequence[str], Sequence[int]] = (), ()
            if self._first is not None:
                once = ["--first-core", str(self._first)], self._first.descriptors
            self._children.append(Process(name, command, log, forkserver=server, once=once))
            if self._first is not None:
                self._first.leave()
                self._first = None
        # Those are forked before, and start meanwhile. They do not carry what cores need.
        if self._names and self._experiment.child.backend == "hogwild":
            with suppress(OSError):  # it has died, and they do without it
                CORES.warm_up(self._experiment, server)

    def _child_command(self, name: str) -> list[str]:
        url = ",".join(f"ws://{parent.address}" for parent in self._parents)
        command = ["genkidama.child", "--parent", url, "--name", name]
        command += ["--allow", "*", "--state", str(self._path / CHILDREN)]
        return command if self._cores is None else [*command, "--cores", str(self._cores)]

    def wait(self, watch: Watch | None, say: Callable[[str], None] | None = None) -> None:
        """Returns when the run is over; meanwhile it passes on the history, and says who dies or
        complains.

        Raises:
            GenkidamaError: what the parent ended with, or the first child when no child is left.
        """
        first, *others = self._parents  # the first counts for all
        say = say or (lambda line: None)
        secure = not self._alone and bool(self._experiment.parent.certificate_file)
        page = f"its page: http{'s' * secure}://{first.address}/"
        children = [SupervisedChild(child, say) for child in self._children]
        complaints = LogWatcher([child.log for child in self._children])
        patience = math.inf
        while True:
            if self._forward(first, watch, children) and page:
                with suppress(OSError, IndexError):  # the same, with its owner's controls
                    page = f"its page: {(self._path / OWNER).read_text().splitlines()[1]}"
                say(page)
                if self._experiment.parent.browsers:
                    say(f"a browser joins it at: http{'s' * secure}://{first.address}/join")
                page = ""
            if first.over:
                break
            now = time.monotonic()
            first.poll(say)
            for other in others:
                other.read()
                other.poll(say)
            for child in children:
                child.poll(now)
            for line in complaints.read(now):
                say(line)
            failures = [child.failure for child in children if child.failure is not None]
            if failures and len(failures) == len(children):
                raise failures[0]
            gone = [child for child in children if child.done or child.failure is not None]
            if patience == math.inf and children and len(gone) == len(children):
                patience = now + _PARTING_SECONDS
            if now > patience and not first.stopping:
                raise EnvironmentFailure("all children were stopped, though the run is not over")
            first.wait(_POLL_SECONDS)
        deadline = time.monotonic() + _CHILD_GRACE
        for process in self._children:
            process.wait(deadline - time.monotonic())
        wait_all(others, _PARTING_SECONDS)  # they write what they have
        for other in others:
            if (code := other.process.code) is not None and code > 0:
                raise failure(code, other.process.error())
        self._forward(first, watch, children)

    def _forward(
        self, parent: ParentProcess, watch: Watch | None, children: list[SupervisedChild]
    ) -> bool:
        for line in (lines := parent.read()):
            trial = line.get("trial")
            if line["event"] == "exchange" and line["steps"] > self._steps.get(trial, 0):
                self._steps[trial] = line["steps"]
                for child in children:
                    if child.name == line["child"]:
                        child.trained()
            if watch is not None:
                watch(line)
        return bool(lines)

    def __exit__(self, kind: object = None, error: BaseException | None = None, *_: object) -> None:
        if self._first is not None:
            self._first.end()
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + _CHILD_GRACE
        for child in self._children:
            child.wait(deadline - time.monotonic())
            child.kill()
        wait_all(self._parents, _PARENT_GRACE)
        if self._forkserver is not None:
            self._forkserver.close()  # it may be busy, and know of no end that it has not seen
        for child in self._children:
            child.end(0.0)
            child.close()
        for parent in self._parents:
            parent.close(error)


#: A child that fails more often in a row is left out. That takes some four minutes.
_MOST_FAILURES = 8


class SupervisedChild:
    """A child's process, which runs, looked after; `say` is told each event of its life."""

    def __init__(self, process: Process, say: Callable[[str], None]) -> None:
        self.process = process
        #: The reason why the run continues without it; None while it takes part.
        self.failure: GenkidamaError | None = None
        self._say = say
        self._has_trained = False
        self._policy = RestartPolicy(_MOST_FAILURES + 1, rest=1.0, at_once=0)
        #: When it is started again.
        self._due = math.inf

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def done(self) -> bool:
        """True once it has ended in order."""
        return self.process.code == 0

    def trained(self) -> None:
        """Notes that it has made steps and exchanged weights."""
        self._has_trained = True
        self._policy.worked()

    def poll(self, now: float) -> None:
        """Does what is to be done about it."""
        code = self.process.code
        if not code or self.failure is not None:
            return
        try:
            if code < 0:
                self.process.restart()
                self._say(f"{self.name} was killed, and is started again")
            elif now >= self._due:
                self._due = math.inf
                self.process.start_again()
            elif self._due == math.inf:
                self._failed(failure(code, self.process.error()), now)
        except GenkidamaError as error:
            self._leave_out(error)

    def _failed(self, error: GenkidamaError, now: float) -> None:
        rest = self._policy.died(now)
        wrong = isinstance(error, ConfigurationError) or not self._has_trained
        if wrong or self._policy.given_up:
            self._leave_out(error)
            return
        self._due = now + rest
        self._say(f"{self.name} failed, and is started again in {rest:.0f} s: {error}")

    def _leave_out(self, error: GenkidamaError) -> None:
        self.failure = error
        self._say(f"the run goes on without {self.name}: {error}")


#: A repeated complaint is printed again after this many seconds.
_AGAIN_SECONDS = 60.0

_LEVELS = ("warning", "error", "critical")

#: What progress shows anyway.
_KNOWN = ("trial failed",)

#: A complaint is cut off here.
_LONGEST = 300


class LogWatcher:
    """Reads what is added from now on to some logs of `configure_logging`, each named for its
    process. They need not be there yet."""

    def __init__(self, logs: Sequence[Path]) -> None:
        self._logs = [(path.stem, HistoryTail(path)) for path in logs]
        self._throttle = Throttle[str](_AGAIN_SECONDS)

    def read(self, now: float) -> list[str]:
        """A line for each new complaint since the last call."""
        found = []
        for name, log in self._logs:
            for line in log.read():
                if not (words := _complaint(line)):
                    continue
                words = f"{name}: {words}"
                # Counts and times in it make it no other complaint.
                kind = "".join(letter for letter in words if not letter.isdigit())
                if self._throttle.add(kind, words, now):
                    found.append(words)
        due = self._throttle.due(now)
        return found + [
            f"{words} (and {count - 1} times since)" if count > 1 else words for words, count in due
        ]


def _complaint(line: bytes) -> str:
    """The complaint in a line of a log; empty if there is none."""
    try:
        entry: Any = msgspec.json.decode(line)
    except msgspec.DecodeError:  # what an environment prints, or a traceback
        return ""
    if not isinstance(entry, dict) or entry.get("level") not in _LEVELS:
        return ""
    event = str(entry.get("event", ""))
    if event in _KNOWN:
        return ""
    which = next((f" {entry[noun]}" for noun in ("core", "agent") if noun in entry), "")
    reason = f": {entry['reason']}" if "reason" in entry else ""
    if event.endswith(" lost"):
        event = f"lost {event.removesuffix(' lost')}"
    return " ".join(f"{event}{which}{reason}".split())[:_LONGEST]
