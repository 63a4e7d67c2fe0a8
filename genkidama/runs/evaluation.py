"""Evaluation of a policy: many episodes, spread over the CPU cores."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from genkidama.config import plugin
from genkidama.config.allowlist import prefix_of
from genkidama.config.decoding import check_least
from genkidama.config.experiment import Experiment
from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError, EnvironmentFailure, GenkidamaError
from genkidama.learning.starts import check_seed, is_null, starts_of
from genkidama.runs import sharded_checkpoint
from genkidama.runs.checkpoint import Checkpoint, CheckpointFolder
from genkidama.runs.run import LOGS, Run, SelectedWeights, warn_passed_over, weights_of
from genkidama.runtime.files import write_atomically
from genkidama.runtime.forkserver import ForkServer
from genkidama.runtime.machine import ONE_THREAD, available_cores
from genkidama.runtime.script import begin
from genkidama.runtime.task import Task


@dataclass(frozen=True)
class Evaluation:
    """The returns of evaluation episodes and what they come to."""

    #: Undiscounted return of each episode, float64, shape (episodes,), in the episodes' order.
    returns: npt.NDArray[np.float64]
    #: The checkpoint that was played.
    checkpoint: Path
    #: The mean from which on the task counts as solved; None if nobody says so.
    threshold: float | None
    greedy: bool
    seed: int
    #: The id of the environment that was played.
    environment: str
    #: The id of the one that the policy was trained in.
    trained_in: str
    #: The argument `starts` of `evaluate`.
    starts: str | None = None
    #: Which weights played: `"best weights, version 12"`.
    weights: str = ""
    #: The checkpoint's version.
    version: int = 0

    @property
    def mean(self) -> float:
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the episodes' returns (not of their mean)."""
        return float(self.returns.std())

    @property
    def minimum(self) -> float:
        return float(self.returns.min())

    @property
    def quantiles(self) -> dict[str, float]:
        """The 5 %, 25 %, 50 %, 75 % and 95 % quantiles."""
        return {
            f"{share:.0%}": float(np.quantile(self.returns, share))
            for share in (0.05, 0.25, 0.5, 0.75, 0.95)
        }

    @property
    def solved(self) -> bool | None:
        """True if the mean reaches the threshold; None without one."""
        return None if self.threshold is None else self.mean >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "mean": self.mean,
            "std": self.std,
            "minimum": self.minimum,
            "quantiles": self.quantiles,
            "solved": self.solved,
            "threshold": self.threshold,
            "episodes": len(self.returns),
            "greedy": self.greedy,
            "seed": self.seed,
            "checkpoint": str(self.checkpoint),
            "version": self.version,
            "environment": self.environment,
            "starts": self.starts,
        }

    def __str__(self) -> str:
        quantiles = " · ".join(f"{share} {value:.1f}" for share, value in self.quantiles.items())
        limit = "no threshold" if self.threshold is None else f"{self.threshold:g}"
        solved, not_solved = f"solved (at least {limit})", f"not solved (below {limit})"
        verdict = {True: solved, False: not_solved, None: limit}
        actions = "greedy" if self.greedy else "sampled"
        where = ""
        if self.environment != self.trained_in:
            where = f" of {self.environment} (trained in {self.trained_in})"
        elif prefix_of(self.environment):
            where = f" of {self.environment}"
        if self.starts is not None:
            where += f" from {self.starts}"
        weights = f"\n  {self.weights}" if self.weights else ""
        return (
            f"{self.mean:.1f} ± {self.std:.1f} over {plural(len(self.returns), 'episode')}{where}, "
            f"{actions}: {verdict[self.solved]}\n"
            f"  minimum {self.minimum:.1f} · {quantiles}{weights}"
        )


@dataclass(frozen=True)
class Evaluations:
    """Several runs of one experiment, whose seeds differ: what the experiment is worth."""

    runs: tuple[Evaluation, ...]

    @property
    def mean(self) -> float:
        """The mean of the runs' means."""
        return float(np.mean([run.mean for run in self.runs]))

    @property
    def std(self) -> float:
        """The standard deviation of the runs' means."""
        return float(np.std([run.mean for run in self.runs]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"mean": self.mean, "std": self.std, "runs": [run.to_dict() for run in self.runs]}

    def __str__(self) -> str:
        least = min(run.mean for run in self.runs)
        return f"{self.mean:.1f} ± {self.std:.1f} over {len(self.runs)} runs, the least {least:.1f}"


def evaluate(
    target: Run | str | Path,
    *,
    episodes: int | None = None,
    deterministic: bool = False,
    seed: int = 0,
    cores: int | None = None,
    environment: str | None = None,
    starts: str | Path | None = None,
    choose: int = 0,
    keep: bool = False,
    best: bool = True,
    progress: bool = False,
    allow: Iterable[str] = (),
) -> Evaluation:
    """Plays episodes with a run's or a checkpoint's weights.

    Of a run it takes the best checkpoint: the one that `train` has chosen at its end or, until
    then, by mean training return; the newest before a whole window of episodes. The result is
    then also written to the run's `evaluation.json`. Of a search
    it takes the best trial, which is a run.

    Args:
        target: a `Run`, its directory, or a checkpoint file.
        episodes: how many, at least 1; 500 if absent, or 10 of an environment that is exclusive or
            has a clock, as a robot.
        deterministic: takes the most probable action, not a sampled one (the thesis samples, §5).
        seed: the episodes follow from it, however many cores play them.
        cores: processes; one for each CPU core if absent.
        environment: the id of the environment to play; the experiment's if absent. If that is one
            of EnvPool's, which differ a little from Gymnasium's, it is Gymnasium's of the same id.
        starts: how episodes begin: `"noop:30"` after up to 30 null actions, or a file of recorded
            starts, JSON as `genkidama.learning.starts` has it; as the environment does if absent.
        choose: of a run, each kept checkpoint is first judged by this many episodes, others
            than those that count, and the best one is played; 0 goes by the training returns.
        keep: the chosen one becomes the run's best: the end of `train`.
        best: false takes the newest checkpoint of a run.
        progress: shows how it goes, on standard error or in a notebook's cell.
        allow: modules that the run's or checkpoint's settings may have imported, beside Genkidama's
            and Gymnasium's; `"*"` for all (docs/security.md). A `Run` that `train` has returned
            allows what was trained.

    Raises:
        ConfigurationError: no such run or checkpoint, it does not fit its environment, or it names
            a module that is not allowed.
        EnvironmentFailure: a process that plays died.
    """
    begin("evaluate")
    check_least(episodes=episodes, cores=cores)
    check_least(0, choose=choose)
    check_seed(seed)
    # As JSON can have them.
    seed, deterministic = int(seed), bool(deterministic)
    starts = None if starts is None else str(starts)
    if choose and not best:
        raise ConfigurationError(f"choose = {choose} and best = False: give one of the two")
    weights = weights_of(target, best=best)
    run = weights.run
    allowed = [*allow, *(() if run is None else run.allow)]
    recorded = None if starts is None or is_null(starts) else recorded_starts(starts)
    starts_of(starts, recorded)
    request: dict[str, Any] = {"greedy": deterministic, "environment": environment}
    request |= {"starts": starts, "recorded": recorded, "allow": allowed}
    which = str(weights)
    folder = weights.path.absolute().parent.parent if run is None else run.path
    log = folder / LOGS / "evaluation.log"
    display = plugin.find("displays", "evaluation") if progress else _no_display
    experiment = weights.checkpoint.experiment
    episodes = episodes or _usual_episodes(experiment)
    with Players(request, experiment, cores or available_cores(), log) as players:
        if run is not None and choose and (kept := _kept(run)):
            with display(choose * len(kept), len(kept)) as watch:
                chosen = _best(players, kept, choose, seed, watch)
            weights = SelectedWeights(run, _keep(run, chosen) if keep else chosen)
            which = f"{weights}, the best of {len(kept)} by {plural(choose, 'episode')} each"
        checkpoint, path = replace(weights.checkpoint, state={}), weights.path
        count = min(_SHARES * players.most, episodes)
        shares = [list(range(first, episodes, count)) for first in range(count)]
        with display(episodes) as watch:
            answers = players.play([(checkpoint, share) for share in shares], seed, watch)
    returns = np.empty(episodes)
    for share, answer in zip(shares, answers, strict=True):
        returns[share] = answer["returns"]
    first, task = answers[0], checkpoint.experiment.environment
    same = environment in (None, task.id, task.plain_id)
    threshold = checkpoint.experiment.solved if same else None
    threshold = first["threshold"] if threshold is None else threshold
    played = (first["greedy"], seed, first["environment"])
    version = checkpoint.snapshot.version
    evaluation = Evaluation(returns, path, threshold, *played, task.id, starts, which, version)
    if run is not None:
        try:
            run.record_evaluation(evaluation.to_dict(), returns.tolist(), time.time())
        except EnvironmentFailure as error:
            print(f"warning: this evaluation is not recorded: {error}", file=sys.stderr)
    return evaluation


#: The final evaluation of a run judges its checkpoints by this many episodes, if it is as long as
#: that of a few of them.
CHOOSE = 20


def evaluate_trained(run: Run, episodes: int | None, seed: int, progress: bool) -> Evaluation:
    """The evaluation at the end of `train`. The best of the kept checkpoints becomes the best."""
    episodes = episodes or _usual_episodes(run.experiment)
    choose = CHOOSE if episodes >= 5 * CHOOSE else 0
    return evaluate(run, episodes=episodes, seed=seed, choose=choose, keep=True, progress=progress)


def _kept(run: Run) -> list[Checkpoint]:
    """The kept checkpoints that are good, the newest first, and the best."""
    good = []
    for path in (*reversed(run.checkpoints), *([] if run.best is None else [run.best])):
        try:
            checkpoint = replace(sharded_checkpoint.load(path), state={})
            checkpoint.experiment  # noqa: B018, read to be checked
        except GenkidamaError as error:
            warn_passed_over(str(error))
        else:
            good.append(checkpoint)
    return good


def _best(
    players: Players,
    kept: list[Checkpoint],
    episodes: int,
    seed: int,
    watch: Callable[[float], None],
) -> Checkpoint:
    """The checkpoint with the highest mean return over the same episodes, none of those that count;
    NaN is the worst."""
    jobs = [(checkpoint, list(range(episodes))) for checkpoint in kept]
    answers = players.play(jobs, (seed + 1) % 2**32, watch)
    means = [np.nan_to_num(np.mean(answer["returns"]), nan=-np.inf) for answer in answers]
    return kept[int(np.argmax(means))]


def _keep(run: Run, checkpoint: Checkpoint) -> Checkpoint:
    """Makes a checkpoint the best, unless it is a shard's part of one."""
    path = checkpoint.path
    assert path is not None
    best = CheckpointFolder(path.parent).best_path
    if path == best or run.parts > 1:
        return checkpoint
    try:
        write_atomically(best, path.read_bytes(), concurrent=True)
    except EnvironmentFailure as error:
        print(f"warning: the best weights stay as they were: {error}", file=sys.stderr)
        return checkpoint
    return replace(checkpoint, path=best)


def recorded_starts(name: str) -> Any:
    """The contents of a file of starts, unchecked.

    Raises:
        ConfigurationError: there is no such file, or it is no JSON.
    """
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{name}: no such file; a start is 'noop:N' or a file") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}: cannot be read as JSON: {error}") from None


# The processes that play.


#: Shares of the episodes for each process: some take longer than others.
_SHARES = 4

#: Seconds that a process takes to start, beside those that its environment takes to be built.
_START_SECONDS = 0.25

#: A checkpoint, and the numbers of episodes to play with it. A process gets the weights themselves:
#: a parent that still trains replaces their file.
Job: TypeAlias = tuple[Checkpoint, list[int]]


def _usual_episodes(experiment: Experiment) -> int:
    return 10 if experiment.environment.is_device else 500


def _no_display(*_: int) -> nullcontext[Callable[[float], None]]:
    """Shows nothing."""
    return nullcontext(lambda _: None)


class Players:
    """The processes of an evaluation, each with one environment as long as it takes.

    The first builds its environment before the others do, and there are others only if they shorten
    the evaluation. Where a second environment cannot be built, as of a device that can be opened
    once, the first plays all.

    Args:
        request: what `evaluation_worker.serve` is told, but for the seed.
        experiment: of the weights.
        most: the number of processes, at most; 1 for an environment that is exclusive or has a
            clock.
        log: where a traceback is kept, and what environments have left behind is named.
    """

    def __init__(
        self, request: dict[str, Any], experiment: Experiment, most: int, log: Path
    ) -> None:
        self.most = 1 if experiment.environment.is_device else most
        self._request = request
        self._experiment, self._log = experiment, log
        self._forkserver = ForkServer("genkidama.runs.evaluation_worker", ONE_THREAD)
        self._tasks: list[Task] = []
        self._build_seconds = 0.0
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for task in self._tasks:
            if kind is not None:
                task.kill()
            task.close()
        self._forkserver.close()

    def play(
        self, jobs: Sequence[Job], seed: int, watch: Callable[[float], None]
    ) -> list[dict[str, Any]]:
        """The answers to these jobs, in their order.

        `watch` is called with each return as it comes, by one thread at a time.

        Raises:
            GenkidamaError: of the process that has failed.
        """
        waiting = deque(enumerate(jobs))
        answers: dict[int, dict[str, Any]] = {}
        lock = threading.Lock()
        running: list[Future[None]] = []
        episodes, played = sum(len(share) for _, share in jobs), 0

        def tell(value: float) -> None:
            nonlocal played
            with lock:
                watch(value)
                played += 1
                left = (time.monotonic() - began) * (episodes / played - 1.0)
                if left / 2 > self._build_seconds + _START_SECONDS:
                    add()

        def work(task: Task) -> None:
            with suppress(IndexError):
                while True:
                    number, (checkpoint, share) = waiting.popleft()
                    task.send((checkpoint, share, seed))
                    while not isinstance(answer := task.receive(), dict):
                        tell(answer)
                    answers[number] = answer

        def join() -> None:
            try:
                task = self._begin(jobs[0][0])
            except GenkidamaError:  # as of a device that can be opened once
                return
            work(task)

        def add() -> None:
            """Has all other processes join."""
            most = min(self.most, len(jobs)) - len(running)
            running.extend(threads.submit(join) for _ in range(most))

        if not self._tasks:
            self._begin(jobs[0][0])
        began = time.monotonic()
        with ThreadPoolExecutor(self.most) as threads:
            with lock:  # one may be quick
                running += [threads.submit(work, task) for task in self._tasks]
            try:
                for future in running:  # which grows, while one of them runs
                    future.result()
            except BaseException:
                waiting.clear()
                self._over = True
                for task in self._tasks:
                    task.kill()
                raise
        return [answers[number] for number in range(len(jobs))]

    def _begin(self, checkpoint: Checkpoint) -> Task:
        """Another process, whose environment is built."""
        task = Task(
            self._forkserver,
            self._experiment,
            "genkidama.runs.evaluation_worker:serve",
            (self._request | {"checkpoint": checkpoint},),
            "playing episodes fails",
            self._log,
        )
        self._tasks.append(task)
        try:
            if self._over:
                task.kill()
            self._build_seconds = task.receive()
        except GenkidamaError:
            self._tasks.remove(task)
            task.close()
            raise
        return task
