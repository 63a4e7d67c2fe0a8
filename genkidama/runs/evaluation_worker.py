"""Episodes played with fixed weights: one process' share of an evaluation.

`genkidama.runs.evaluation` starts `python -m genkidama.runs.evaluation_worker`. The request comes
as JSON on standard input. Each return goes to standard output at once, a line of JSON, and the
answer at the end, in the last line.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium
import numpy as np

from genkidama.config.allowlist import check_imports
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.learning.environments import as_number, make_environment, played
from genkidama.learning.model import Model
from genkidama.learning.starts import StartStates, starts_of
from genkidama.runs import sharded_checkpoint
from genkidama.runs.policy import model_of
from genkidama.runs.resume import default_threshold
from genkidama.runtime.import_strings import describe_error, print_user_traceback
from genkidama.runtime.machine import end_with_parent


def play(
    model: Model,
    environment: gymnasium.Env[Any, Any],
    episodes: Iterable[int],
    seed: int,
    greedy: bool,
    starts: StartStates | None = None,
    watch: Callable[[float], None] = lambda _: None,
) -> list[float]:
    """The undiscounted return of each numbered episode.

    An episode depends on `seed` and its number alone, so it does not matter which process plays it.
    ε is off, also where actions are sampled. `watch` is called with each return as it comes.
    """
    returns = []
    for episode in episodes:
        steps = steps_of(model, environment, (seed, episode), greedy, starts)
        returns.append(deque(steps, maxlen=1)[0][2])
        watch(returns[-1])
    return returns


def steps_of(
    model: Model,
    environment: gymnasium.Env[Any, Any],
    seed: tuple[int, ...],
    greedy: bool,
    starts: StartStates | None = None,
) -> Iterator[tuple[Any, Any, float]]:
    """One episode, as it is evaluated. The seed's last number is the episode's.

    Yields before each step the observation, the next action, as the environment takes it, and the
    undiscounted return so far; at the end None in place of the action.
    """
    sequence = np.random.SeedSequence(seed)
    outputs = model.network.acting()
    normalize = model.normalizer()
    head = model.head
    choose = head.mode if greedy else head.sampler(np.random.default_rng(sequence), 0.0)
    observation = (starts or StartStates()).begin(environment, seed[-1], sequence)
    total, over = 0.0, False
    while not over:
        seen = observation if normalize is None else normalize(observation)
        action = head.to_environment(choose(outputs(seen)))
        yield observation, action, total
        observation, reward, terminated, truncated, _ = environment.step(action)
        total += as_number(reward)
        over = terminated or truncated
    yield observation, None, total


def main() -> int:
    """One share of an evaluation; returns the exit code."""
    request = json.load(sys.stdin)
    end_with_parent(request["parent"])
    answer = sys.stdout
    sys.stdout = sys.stderr  # what an environment prints is no part of the answer
    try:
        checkpoint = sharded_checkpoint.load(request["checkpoint"])
        experiment = checkpoint.experiment
        named = () if request["environment"] is None else ("environment.id",)
        check_imports(experiment.to_dict(), request["allow"], request["checkpoint"], named)
        settings = played(experiment.environment, request["environment"])
        try:
            environment = make_environment(settings)
            model = model_of(checkpoint, environment)
        except GenkidamaError as error:
            trained = experiment.environment.id
            if settings.id == trained:
                raise
            way_out = f"trained in {trained!r}: --environment {trained} plays that"
            raise ConfigurationError(f"{error}; the policy was {way_out}") from error
        starts = starts_of(request["starts"], request["recorded"])
        seed, greedy = request["seed"], request["greedy"]

        def tell(value: float) -> None:
            print(json.dumps(value), file=answer, flush=True)

        returns = play(model, environment, request["episodes"], seed, greedy, starts, tell)
        found = {"returns": returns, "threshold": default_threshold(settings)}
        greedy = greedy or getattr(model.head, "greedy", False)
        json.dump({**found, "environment": settings.id, "greedy": greedy}, answer)
    except GenkidamaError as error:
        print_user_traceback(error)
        json.dump({"error": str(error), "exit_code": error.exit_code}, answer)
    except Exception as error:  # an environment or network of the user's own may raise anything
        traceback.print_exc()
        words = f"playing episodes fails: {describe_error(error)}"
        json.dump({"error": words, "exit_code": 1}, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
