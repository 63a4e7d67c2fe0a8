"""How good a policy is: many episodes, spread over the CPU cores, one figure with its deviation."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.starts import is_null, starts_of
from genkidama.local.processes import failure
from genkidama.system import joined
from genkidama.system.machine import available_cores
from genkidama.system.run import Run

__all__ = ["Evaluation", "Evaluations", "evaluate"]


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
    #: How its episodes began, as `evaluate` was told.
    starts: str | None = None

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
        """Whether the mean reaches the threshold; None without one."""
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
        verdict = {
            True: f"solved (at least {limit})",
            False: f"not solved (below {limit})",
            None: limit,
        }
        actions = "greedy" if self.greedy else "sampled"
        where = ""
        if self.environment != self.trained_in:
            where = f" of {self.environment} (trained in {self.trained_in})"
        elif self.environment.startswith("envpool:"):
            where = f" of {self.environment}"
        if self.starts is not None:
            where += f" from {self.starts}"
        return (
            f"{self.mean:.1f} ± {self.std:.1f} over {len(self.returns)} episodes{where}, "
            f"{actions}: {verdict[self.solved]}\n  minimum {self.minimum:.1f} · {quantiles}"
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
    greedy: bool = False,
    seed: int = 0,
    cores: int | None = None,
    environment: str | None = None,
    starts: str | None = None,
    choose: int = 0,
) -> Evaluation:
    """Plays episodes with a run's or a checkpoint's weights.

    Of a run it takes the best checkpoint by mean training return, or the newest before a whole
    window of episodes. The result is then also written to the run's `evaluation.json`.

    Args:
        target: a `Run`, its directory, or a checkpoint file.
        episodes: how many, at least 1.
        greedy: the most probable action instead of a sampled one (the thesis samples, §5).
        seed: the episodes follow from it, however many cores play them.
        cores: processes; one for each CPU core if absent.
        environment: the id of the environment to play; the experiment's if absent. If that is one
            of EnvPool's, which differ a little from Gymnasium's, it is Gymnasium's of the same id.
        starts: how episodes begin: `"noop:30"` after up to 30 null actions, or a file of recorded
            starts, JSON as `genkidama.learning.starts` has it; as the environment does if absent.
        choose: of a run, each checkpoint that is kept is judged by so many episodes first, others
            than those that count, and the best one is played; 0 goes by the training returns.

    Raises:
        ConfigurationError: no such run or checkpoint, or it does not fit its environment.
        EnvironmentFailure: a process that plays died.
    """
    if episodes < 1:
        raise ConfigurationError(f"episodes = {episodes}: at least 1 is needed")
    if cores is not None and cores < 1:
        raise ConfigurationError(f"cores = {cores}: at least 1 is needed")
    if not 0 <= seed < 2**32:
        raise ConfigurationError(f"seed = {seed}: 0 to {2**32 - 1} is allowed")
    if choose < 0:
        raise ConfigurationError(f"choose = {choose}: at least 0 is needed")
    run = target if isinstance(target, Run) else Run.open(target) if Path(target).is_dir() else None
    if run is None:
        checkpoint = joined.load(Path(str(target)))
    elif choose:
        kept = run.checkpoints if run.best is None else [*run.checkpoints, run.best]
        best = _best(kept, choose, (seed + 1) % 2**32, cores, environment, starts)
        checkpoint = joined.load(best)
    else:
        checkpoint = run.load(best=True, unreadable=_warn)
    path = checkpoint.path
    assert path is not None
    count = min(cores or available_cores(), episodes)
    shares = [list(range(first, episodes, count)) for first in range(count)]
    answers = _play(path, shares, seed, greedy, environment, starts)
    returns = np.empty(episodes)
    for share, answer in zip(shares, answers, strict=True):
        returns[share] = answer["returns"]
    threshold = checkpoint.experiment.solved
    evaluation = Evaluation(
        returns,
        path,
        answers[0]["threshold"] if threshold is None else threshold,
        answers[0]["greedy"],
        seed,
        answers[0]["environment"],
        checkpoint.experiment.environment.id,
        starts,
    )
    if run is not None:
        run.record_evaluation(evaluation.to_dict(), returns.tolist(), time.time())
    return evaluation


def _warn(problem: str) -> None:
    print(f"warning: passed over {problem}", file=sys.stderr)


def _best(
    paths: list[Path],
    episodes: int,
    seed: int,
    cores: int | None,
    environment: str | None,
    starts: str | None,
) -> Path:
    """The checkpoint with the best mean of so many episodes, the newest of equal ones."""
    means = [
        evaluate(
            path, episodes=episodes, seed=seed, cores=cores, environment=environment, starts=starts
        ).mean
        for path in paths
    ]
    return max(zip(means, range(len(paths)), paths, strict=True))[2]


def _recorded(name: str) -> Any:
    """What a file of starts holds."""
    try:
        return json.loads(Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{name}: no such file; a start is 'noop:N' or a file") from None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}: cannot be read as JSON: {error}") from None


def _play(
    path: Path,
    shares: list[list[int]],
    seed: int,
    greedy: bool,
    environment: str | None,
    starts: str | None,
) -> list[dict[str, Any]]:
    """One process a share, all at once."""
    recorded = None if starts is None or is_null(starts) else _recorded(starts)
    starts_of(starts, recorded)
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "genkidama.learning.play"]
    with ExitStack() as stack:
        # A pipe would fill up. The last line says why a process died.
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in shares]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    env=variables,
                )
            )
            for file in said
        ]
        try:
            for process, share in zip(processes, shares, strict=True):
                _ask(
                    process,
                    {
                        "parent": os.getpid(),
                        "checkpoint": str(path),
                        "episodes": share,
                        "seed": seed,
                        "greedy": greedy,
                        "environment": environment,
                        "starts": starts,
                        "recorded": recorded,
                    },
                )
            answers = [
                _answer(process, file) for process, file in zip(processes, said, strict=True)
            ]
        finally:
            for process in processes:
                process.kill()
    for answer in answers:
        if "error" in answer:
            raise failure(answer["exit_code"], answer["error"])
    return answers


def _ask(process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it is dead already, as `_answer` will find
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()


def _answer(process: subprocess.Popen[bytes], said: IO[bytes]) -> dict[str, Any]:
    """What the process answers in its last line; an environment may have printed some before."""
    assert process.stdout is not None
    lines = process.stdout.read().decode(errors="replace").splitlines()
    if process.wait() == 0 and lines:
        with suppress(json.JSONDecodeError):
            answer: dict[str, Any] = json.loads(lines[-1])
            return answer
    said.seek(0)
    last = _last_words(said.read().decode(errors="replace")) or "it said nothing"
    raise EnvironmentFailure(
        "a process that plays evaluation episodes ended with exit code "
        f"{process.returncode}: {last}"
    )


def _last_words(text: str) -> str:
    """The exception behind a traceback, whose lines are indented, or else the last line."""
    lines = text.rstrip().splitlines()
    behind = list(itertools.takewhile(lambda line: not line.startswith(" "), reversed(lines)))
    return " ".join(reversed(behind)) if len(behind) < len(lines) else "".join(lines[-1:])
