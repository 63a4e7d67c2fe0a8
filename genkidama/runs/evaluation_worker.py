"""Episodes played with fixed weights: one process' share of an evaluation.

`genkidama.runs.evaluation` starts `python -m genkidama.runs.evaluation_worker`. The request comes
as JSON on standard input. Each return goes to standard output at once, a line of JSON, and the
answer at the end, in the last line.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
import torch

from genkidama.config.allowlist import check_imports
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.learning.environments import make_environment, played
from genkidama.learning.model import Model
from genkidama.learning.starts import StartStates, starts_of
from genkidama.runs import sharded_checkpoint
from genkidama.runs.goal import default_threshold
from genkidama.runtime.lifeline import end_with_parent
from genkidama.runtime.user_errors import describe_error, print_user_traceback

__all__ = ["play", "play_episode"]


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

    Args:
        episodes: their numbers.
        greedy: whether the most probable action is taken instead of a sampled one. ε is off either
            way.
        starts: how they begin; as the environment does if absent.
        watch: is called with each return as it comes.
    """
    starts = starts or StartStates()
    returns = []
    for episode in episodes:
        returns.append(play_episode(model, environment, (seed, episode), greedy, starts))
        watch(returns[-1])
    return returns


def play_episode(
    model: Model,
    environment: gymnasium.Env[Any, Any],
    seed: tuple[int, ...],
    greedy: bool,
    starts: StartStates | None = None,
) -> float:
    """The undiscounted return of one episode. The seed's last number is the episode's."""
    sequence = np.random.SeedSequence(seed)
    outputs = model.network.acting()
    normalize = model.normalizer()
    to_environment = model.head.to_environment
    choose = model.head.mode if greedy else model.head.sampler(np.random.default_rng(sequence), 0.0)
    observation = (starts or StartStates()).begin(environment, seed[-1], sequence)
    total, over = 0.0, False
    while not over:
        action = choose(outputs(observation if normalize is None else normalize(observation)))
        observation, reward, terminated, truncated, _ = environment.step(to_environment(action))
        total += float(reward)
        over = terminated or truncated
    return total


def main() -> int:
    """One share of an evaluation; returns the exit code."""
    request = json.load(sys.stdin)
    end_with_parent(request["parent"])
    torch.set_num_threads(1)
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
            model = Model(experiment, environment)
            if (difference := model.signature.difference(checkpoint.signature)) is not None:
                raise GenkidamaError(
                    f"{request['checkpoint']}: its network is not the one that its experiment "
                    f"describes: {difference}"
                )
        except GenkidamaError as error:
            raise _with_way_out(error, experiment.environment, settings) from error
        model.vector.copy_(torch.from_numpy(checkpoint.vector))
        starts = starts_of(request["starts"], request["recorded"])
        greedy = request["greedy"]
        wanted = request["episodes"]

        def tell(value: float) -> None:
            print(json.dumps(value), file=answer, flush=True)

        returns = play(model, environment, wanted, request["seed"], greedy, starts, tell)
        json.dump(
            {
                "returns": returns,
                "threshold": default_threshold(settings),
                "environment": settings.id,
                "greedy": greedy or getattr(model.head, "greedy", False),
            },
            answer,
        )
    except GenkidamaError as error:
        print_user_traceback(error)
        json.dump({"error": str(error), "exit_code": error.exit_code}, answer)
    except Exception as error:  # an environment or network of the user's own may raise anything
        traceback.print_exc()
        json.dump(
            {"error": f"playing episodes fails: {describe_error(error)}", "exit_code": 1}, answer
        )
    return 0


def _with_way_out(
    error: GenkidamaError, trained: Environment, settings: Environment
) -> GenkidamaError:
    """The error, which may come of another environment than the one that was trained in."""
    if settings.id == trained.id:
        return error
    return ConfigurationError(
        f"{error}; the policy was trained in {trained.id!r}: --environment {trained.id} plays that"
    )


if __name__ == "__main__":
    sys.exit(main())
