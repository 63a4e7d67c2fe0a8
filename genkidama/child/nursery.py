"""Where core processes are born: a small server process that has everything warm and forks on request.

Importing torch and taking a first gradient costs a process some 200 MB. The nursery (a
multiprocessing forkserver) does both once and freezes its heap, so that every core forked from it
shares that memory and starts in milliseconds. Only pages that a core itself writes become its own.

This module is imported in the nursery, before any core exists; `describe` runs in a process of its own.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from genkidama.child.forkserver import EXPERIMENT_VARIABLE, PRELOAD_VARIABLE

__all__ = ["describe", "survives_a_fork"]


def _warm_up(settings: dict[str, Any]) -> None:
    """Does once what every core will do: imports, one environment, one forward and backward pass."""
    import numpy as np
    import torch

    from genkidama.child import core  # noqa: F401  # every module a core needs
    from genkidama.child.memory import SharedMemory
    from genkidama.child.replay import LearnersReplay, ReplayTensor, Share
    from genkidama.experiment import Experiment
    from genkidama.learning.environments import make_environment
    from genkidama.learning.learners import make_learner
    from genkidama.learning.model import Model
    from genkidama.learning.rollout import Rollout

    torch.set_num_threads(1)
    experiment = Experiment.from_dict(settings)
    environment = make_environment(experiment.environment)
    observation, _ = environment.reset(seed=0)
    model = Model(experiment, environment)
    rng = np.random.default_rng(0)
    sample = model.head.sampler(rng, 0.0)
    action = sample(model.network.acting()(np.asarray(observation, np.float32)))
    environment.step(model.head.to_environment(action))
    row = torch.from_numpy(np.asarray(observation, np.float32)[None])
    actions = torch.from_numpy(np.asarray(action, model.head.dtype).reshape(1, -1))
    rollout = Rollout(
        row, actions, np.zeros(1, np.float32), np.ones(1, np.bool_), np.zeros(1, np.intp), row
    )
    if experiment.replay.steps:
        batch = experiment.algorithm.batch_size
        memory = SharedMemory(_layout(experiment, model))
        shape, columns = model.observation_shape, model.head.columns
        replay = ReplayTensor(memory, batch, shape, columns)
        Share(replay, 0).rehearse()
        rollout.replay = LearnersReplay(replay, model, rng, 0)
        memory.close()
    warm = survives_a_fork(lambda: torch.ones(1, requires_grad=True).sum().backward())
    for loss in make_learner(experiment.algorithm, model).losses(rollout, torch.Generator()):
        if warm:
            loss.backward()
    environment.close()


def survives_a_fork(work: Callable[[], object]) -> bool:
    """Whether a process that has done this can be forked and do it again. Tried in processes of its own; this one does nothing.

    Some builds of torch (Debian 13's 2.6) start threads at the first backward pass, and refuse another one in whatever is forked
    afterwards. With such a build each core takes its first gradient by itself, which costs memory, not learning.
    """

    def once() -> bool:
        work()
        return True

    def forked(trial: Callable[[], bool]) -> bool:
        process = os.fork()
        if process == 0:
            code = 1
            try:
                code = int(not trial())
            finally:
                os._exit(code)
        return os.waitpid(process, 0)[1] == 0

    return forked(lambda: once() and forked(once))


def describe(experiment: Any, line: Connection) -> None:
    """Builds the experiment's network once and sends what the orchestrator must know, then ends.

    Sends `("ok", signature entries, initial vector, layout for one core)` or `("error", sentence)`. After "ok" follow the bytes
    that a core takes for itself, or None if they cannot be told: that may take a while, or never come, as the environment pleases.
    """
    from genkidama.child.core import rehearse
    from genkidama.errors import ConfigurationError

    try:
        entries, vector, layout = _built(experiment)
    except ConfigurationError as error:
        line.send(("error", str(error)))
        return
    except Exception as error:  # a network of the user's own may raise anything; the setting that names it is the way out
        line.send(
            (
                "error",
                f"network.name = {experiment.network.name!r}: cannot be built: {type(error).__name__}: {error}",
            )
        )
        return
    line.send(("ok", entries, vector, layout))
    gc.collect()
    cost = None
    with suppress(Exception):  # cores will meet the same error and report it
        cost = rehearse(experiment, layout)
    line.send(cost)


def _built(experiment: Any) -> tuple[Any, bytes, Any]:
    """The signature's entries, the initial vector, and the layout of a child's memory with one core."""
    from genkidama.learning.environments import make_environment
    from genkidama.learning.learners import make_learner
    from genkidama.learning.model import Model

    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    make_learner(experiment.algorithm, model)
    return model.signature.entries, model.numbers.tobytes(), _layout(experiment, model)


def _layout(experiment: Any, model: Any) -> Any:
    """The layout of a child's memory with one core."""
    from genkidama.child.memory import Layout
    from genkidama.child.replay import ReplayTensor
    from genkidama.learning.optimizers import STATE_ROWS

    steps, batch = experiment.replay.steps, experiment.algorithm.batch_size
    return Layout(
        cores=1,
        steps=ReplayTensor.rows(steps, batch),
        columns=ReplayTensor.columns(model.observation_size, model.head.columns, steps > 0),
        size=model.signature.size,
        trainable=model.trainable,
        state_rows=STATE_ROWS[experiment.optimizer.name],
        state_sets=1,
    )


if (
    os.environ.get(PRELOAD_VARIABLE) == __name__
):  # in other nurseries, and whatever they fork, this would only load torch
    with suppress(Exception):  # `describe` meets the same error in a process that can report it
        _warm_up(json.loads(os.environ[EXPERIMENT_VARIABLE]))
    gc.collect()
    gc.freeze()
