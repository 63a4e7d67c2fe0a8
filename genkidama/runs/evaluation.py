"""Evaluation of a policy: many episodes, spread over the CPU cores."""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from genkidama.config import plugin
from genkidama.config.allowlist import prefix_of
from genkidama.config.decoding import check_least
from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.starts import check_seed, is_null, starts_of
from genkidama.runs import sharded_checkpoint
from genkidama.runs.checkpoint import CheckpointFolder
from genkidama.runs.run import LOGS, Run, SelectedWeights, weights_of
from genkidama.runtime.files import write_atomically
from genkidama.runtime.import_strings import describe_exit
from genkidama.runtime.machine import ONE_THREAD, available_cores
from genkidama.runtime.process import failure
from genkidama.runtime.script import begin, mark


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
    episodes: int = 500,
    deterministic: bool = False,
    seed: int = 0,
    cores: int | None = None,
    environment: str | None = None,
    starts: str | None = None,
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
        episodes: how many, at least 1.
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
    if choose and not best:
        raise ConfigurationError(f"choose = {choose} and best = False: give one of the two")
    weights = weights_of(target, best=best)
    run = weights.run
    allowed = [*allow, *(() if run is None else run.allow)]
    recorded = None if starts is None or is_null(starts) else _recorded(starts)
    starts_of(starts, recorded)
    request: dict[str, Any] = {"seed": seed, "greedy": deterministic, "environment": environment}
    request |= {"starts": starts, "recorded": recorded, "parent": os.getpid(), "allow": allowed}
    processes = cores or available_cores()
    which = str(weights)
    if run is not None and choose and (kept := _kept(run)):
        log = run.path / LOGS
        chosen = max(_judged(request, kept, choose, processes, log), key=itemgetter(0))[1]
        if keep:
            chosen = _keep(run, chosen)
        weights = SelectedWeights(run, sharded_checkpoint.load(chosen))
        which = f"{weights}, the best of {len(kept)} by {plural(choose, 'episode')} each"
    checkpoint, path = weights.checkpoint, weights.path
    count = min(processes, episodes)
    shares = [list(range(first, episodes, count)) for first in range(count)]
    request["checkpoint"] = str(path)
    log = (path.parents[1] if run is None else run.path) / LOGS
    display = plugin.find("displays", "evaluation")(episodes) if progress else nullcontext(_ignore)
    questions = [json.dumps(request | {"episodes": share}).encode() for share in shares]
    with display as watch:
        answers = ask(_COMMAND, questions, watch, log)
    returns = np.empty(episodes)
    for share, answer in zip(shares, answers, strict=True):
        returns[share] = answer["returns"]
    first, threshold = answers[0], checkpoint.experiment.solved
    threshold = first["threshold"] if threshold is None else threshold
    trained_in = checkpoint.experiment.environment.id
    played = (first["greedy"], seed, first["environment"])
    evaluation = Evaluation(returns, path, threshold, *played, trained_in, starts, which)
    if run is not None:
        run.record_evaluation(evaluation.to_dict(), returns.tolist(), time.time())
    return evaluation


#: The final evaluation of a run judges its checkpoints by this many episodes, if it is as long as
#: that of a few of them.
CHOOSE = 20


def evaluate_trained(run: Run, episodes: int, seed: int, progress: bool) -> Evaluation:
    """The evaluation at the end of `train`. The best of the kept checkpoints becomes the best."""
    choose = CHOOSE if episodes >= 5 * CHOOSE else 0
    return evaluate(run, episodes=episodes, seed=seed, choose=choose, keep=True, progress=progress)


def _kept(run: Run) -> list[Path]:
    """The kept checkpoints, the newest first, and the best."""
    return [*reversed(run.checkpoints), *([] if run.best is None else [run.best])]


def _judged(
    request: dict[str, Any], kept: list[Path], episodes: int, processes: int, log: Path
) -> Iterator[tuple[float, Path]]:
    """The mean return of each checkpoint over the same episodes, none of those that count."""
    seed = (request["seed"] + 1) % 2**32
    request = request | {"seed": seed, "episodes": list(range(episodes))}
    for first in range(0, len(kept), processes):
        some = kept[first : first + processes]
        questions = [json.dumps(request | {"checkpoint": str(path)}).encode() for path in some]
        answers = ask(_COMMAND, questions, _ignore, log)
        for answer, path in zip(answers, some, strict=True):
            yield float(np.mean(answer["returns"])), path


def _keep(run: Run, path: Path) -> Path:
    """Makes a checkpoint the best, unless it is a shard's part of one."""
    best = CheckpointFolder(path.parent).best_path
    if path == best or run.parts > 1:
        return path
    write_atomically(best, path.read_bytes())
    return best


def _recorded(name: str) -> Any:
    """The contents of a file of starts."""
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{name}: no such file; a start is 'noop:N' or a file") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}: cannot be read as JSON: {error}") from None


# The processes that play, each with its share of the episodes.


_COMMAND = [sys.executable, "-m", "genkidama.runs.evaluation_worker"]


def _ignore(_: float) -> None:
    """Watches nothing."""


def ask(
    command: list[str], questions: list[bytes], watch: Callable[[float], None], log: Path
) -> list[dict[str, Any]]:
    """Runs a command, which plays, once for each question, all at once; returns their answers.

    `watch` is called with each return as it comes. A traceback is written to the folder `log`.
    """
    lock = threading.Lock()

    def tell(value: float) -> None:
        with lock:
            watch(value)

    variables = {**os.environ, **mark(), **ONE_THREAD}
    with ExitStack() as stack:
        # A pipe would fill up. The last line says why a process died.
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in questions]
        processes = [
            stack.enter_context(Popen(command, stdin=PIPE, stdout=PIPE, stderr=file, env=variables))
            for file in said
        ]
        # A thread reads each process, so each return is reported at once.
        threads = stack.enter_context(ThreadPoolExecutor(len(processes)))
        answers = [
            threads.submit(_answer, *each, tell, log)
            for each in zip(processes, questions, said, strict=True)
        ]
        try:
            return [answer.result() for answer in answers]
        finally:
            for process in processes:
                process.kill()


def _answer(
    process: Popen[bytes],
    question: bytes,
    said: IO[bytes],
    tell: Callable[[float], None],
    log: Path,
) -> dict[str, Any]:
    """The answer of a process, in its last line. Each line before is a return."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it is dead already, as is found below
        process.stdin.write(question)
        process.stdin.close()
    last = b""
    for line in process.stdout:
        with suppress(ValueError):
            tell(float(line))
        last = line
    answer: dict[str, Any] | None = None
    if process.wait() == 0:
        with suppress(json.JSONDecodeError):
            answer = json.loads(last)
    if answer is not None and "error" not in answer:
        return answer
    said.seek(0)
    text = said.read()
    kept = ""
    if b"Traceback (most recent call last):" in text:
        with suppress(OSError):
            log.mkdir(exist_ok=True)
            path = log / "evaluation.log"
            path.write_bytes(text)
            kept = f"; the whole traceback is in {path}"
    if answer is not None:
        raise failure(answer["exit_code"], answer["error"] + kept)
    words = _last_words(text.decode(errors="replace")) or "it said nothing"
    raise EnvironmentFailure(
        "a process that plays evaluation episodes ended: "
        f"{describe_exit(process.returncode)}: {words}{kept}"
    )


def _last_words(text: str) -> str:
    """The exception behind a traceback, whose lines are indented, or else the last line."""
    lines = text.rstrip().splitlines()
    behind = list(itertools.takewhile(lambda line: not line.startswith(" "), reversed(lines)))
    return " ".join(reversed(behind)) if len(behind) < len(lines) else "".join(lines[-1:])
