"""Episodes played with fixed weights: the task of a process of an evaluation.

`genkidama.runs.evaluation` starts it, and asks for one share of the episodes after the other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from genkidama.config.allowlist import check_imports
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.learning.environments import as_number, closing_environment, make_environment, played
from genkidama.learning.model import Model
from genkidama.learning.starts import Begin, own_start, starts_of
from genkidama.runs.policy import model_of
from genkidama.runs.resume import default_threshold


def play(
    model: Model,
    environment: gymnasium.Env[Any, Any],
    episodes: Iterable[int],
    seed: int,
    greedy: bool,
    starts: Begin = own_start,
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
    starts: Begin = own_start,
) -> Iterator[tuple[Any, Any, float]]:
    """One episode, as it is evaluated. The seed's last number is the episode's.

    Yields before each step the observation, behind the state of a memory if there is one, the next
    action, as the environment takes it, and the undiscounted return so far; at the end None in
    place of the action.
    """
    sequence = np.random.SeedSequence(seed)
    outputs = model.network.acting()
    normalize = model.normalizer()
    head = model.head
    choose = head.mode if greedy else head.sampler(np.random.default_rng(sequence), 0.0)
    observation = starts(environment, seed[-1], sequence)
    inner = environment.unwrapped
    states: dict[int, Any] = {}  # of a memory, one for each agent that acts in turn
    total, over = 0.0, False
    while True:
        agent = getattr(inner, "agent_in_turn", 0)
        observation = model.recalled(observation, states.get(agent))
        if over:
            yield observation, None, total
            return
        seen = observation if normalize is None else normalize(observation)
        action = head.to_environment(choose(outputs(seen)))
        if model.memory:
            states[agent] = np.array(model.network.state)  # the next call overwrites it
        yield observation, action, total
        observation, reward, terminated, truncated, _ = environment.step(action)
        total += as_number(reward)
        over = terminated or truncated


def serve(receive: Callable[[], Any], send: Callable[[Any], None], request: dict[str, Any]) -> None:
    """A process' share of an evaluation, in one environment.

    It says how many seconds it took to build the environment. Then it receives a checkpoint,
    numbers of episodes and their seed, says each return as it comes, and a dict when all are
    played; and so on.
    """
    checkpoint = request["checkpoint"]
    experiment = checkpoint.experiment
    named = () if request["environment"] is None else ("environment.id",)
    check_imports(experiment.to_dict(), request["allow"], str(checkpoint.path), named)
    settings = played(experiment.environment, request["environment"])
    threshold = default_threshold(settings)
    greedy = request["greedy"]
    starts = starts_of(request["starts"], request["recorded"])
    began = time.monotonic()
    with _elsewhere(settings.id, experiment):
        environment = make_environment(settings)
    with closing_environment(environment):
        seconds = time.monotonic() - began
        with _elsewhere(settings.id, experiment):
            model = model_of(checkpoint, environment)
        send(seconds)
        while True:
            sent, episodes, seed = receive()
            if not np.array_equal(sent.vector, checkpoint.vector):  # both may be of one file
                checkpoint = sent
                with _elsewhere(settings.id, checkpoint.experiment):
                    model = model_of(checkpoint, environment)
            returns = play(model, environment, episodes, seed, greedy, starts, send)
            shown = greedy or getattr(model.head, "greedy", False)
            send(
                {
                    "returns": returns,
                    "threshold": threshold,
                    "environment": settings.id,
                    "greedy": shown,
                }
            )


@contextmanager
def _elsewhere(played_in: str, experiment: Experiment) -> Iterator[None]:
    """Has an error say where the policy was trained, if it plays elsewhere."""
    try:
        yield
    except GenkidamaError as error:
        trained = experiment.environment.id
        if played_in == trained:
            raise
        way_out = f"trained in {trained!r}: --environment {trained} plays that"
        raise ConfigurationError(f"{error}; the policy was {way_out}") from error
