"""Where core processes are born: a small server process that has everything warm and forks.

Importing torch and taking a first gradient costs a process some 200 MB. The nursery (a
multiprocessing forkserver) does both once and freezes its heap, so that every core forked from it
shares that memory and starts in milliseconds. Only pages that a core itself writes become its own.

This module is imported in the nursery, before any core exists, and nowhere else but in tests.
`describe` runs in a process of its own.
"""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
import torch

from genkidama.child.capacity import refusal_of_replay
from genkidama.child.core import SingleCore
from genkidama.child.replay_tensor import ReplayTensor
from genkidama.child.shared_memory import Layout, SharedMemory
from genkidama.child.worker import WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import make_learner, reads_log_mu, reads_target
from genkidama.learning.model import Model, Spaces, learner_class
from genkidama.learning.optimizers import STATE_ROWS
from genkidama.learning.rollout import Rollout
from genkidama.plugins.actors.actor import Actor
from genkidama.plugins.actors.learner import columns_of
from genkidama.plugins.actors.outbox import BLOCKS, rows_of_a_block
from genkidama.plugins.gorila.redis_client import RedisClient
from genkidama.plugins.gorila.replay_factory import make_replay
from genkidama.plugins.gorila.sampling import nodes_of
from genkidama.runtime.machine import available_bytes, private_bytes, since_peak_bytes
from genkidama.runtime.shared_block import size_of
from genkidama.runtime.user_errors import describe_error, print_user_traceback

__all__ = ["alone", "describe", "layout_of", "survives_a_fork", "warm_up"]

#: A replay to warm up with.
_REHEARSED_BYTES = 16_000_000


def warm_up(experiment: Experiment) -> None:
    """Does once what every core will do: one environment, one forward pass, and a backward pass
    where cores learn."""
    torch.set_num_threads(1)
    environment = make_environment(experiment.environment)
    if experiment.shares_replay:
        with suppress(ConfigurationError):  # `describe` will say it
            RedisClient(experiment.replay.url).close()  # imports the client, and asks nobody
    experiment = alone(experiment, environment)
    observation, _ = environment.reset(seed=0)
    model = Model(experiment, environment)
    rng = np.random.default_rng(0)
    sample = model.head.sampler(rng, 0.0)
    action = sample(model.network.acting()(np.asarray(observation, np.float32)))
    environment.step(model.head.to_environment(action))
    if experiment.sends_experience:
        environment.close()
        return
    row = torch.from_numpy(np.asarray(observation, np.float32)[None])
    actions = torch.from_numpy(np.asarray(action, model.head.dtype).reshape(1, -1))
    zero = np.zeros(1, np.float32)
    rollout = Rollout(row, actions, zero, np.ones(1, np.bool_), np.zeros(1, np.intp), row)
    learner = make_learner(experiment.algorithm, model)
    if reads_log_mu(learner):
        rollout.log_mu = zero
    if experiment.replay.steps:
        memory = SharedMemory(layout_of(experiment, model))
        share, rollout.replay = make_replay(memory, model, rng, 0)
        share.rehearse()
        rollout.target = torch.from_numpy(memory.target)
        memory.close()
    warm = survives_a_fork(lambda: torch.ones(1, requires_grad=True).sum().backward())
    for loss in learner.losses(rollout, torch.Generator()):
        if warm:
            loss.backward()
    environment.close()


def survives_a_fork(work: Callable[[], object]) -> bool:
    """Whether a process that has done this can be forked and do it again.

    Forked processes try it, and this one does nothing. Some builds of torch (Debian 13's
    2.6) start threads at the first backward pass, and refuse another one in whatever is forked
    afterwards. With such a build each core takes its first gradient by itself, which costs memory,
    not learning.
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


def describe(experiment: Experiment, line: Connection) -> None:
    """Builds the experiment's network once and sends what the orchestrator must know, then ends.

    Sends `("ok", signature entries, initial vector, layout for one core)` or `("error", sentence)`.
    After "ok" it sends the bytes that a core takes for itself, or None where the system does not
    tell. They may take a while, or never come: that depends on the environment.
    """
    try:
        entries, vector, layout, rehearsal = _built(experiment)
    except ConfigurationError as error:
        print_user_traceback(error)
        line.send(("error", str(error)))
        return
    except Exception as error:  # a network of the user's own may raise anything
        setting = f"network.name = {experiment.network.name!r}"  # the way out
        traceback.print_exc()
        line.send(("error", f"{setting}: cannot be built: {describe_error(error)}"))
        return
    line.send(("ok", entries, vector, layout))
    gc.collect()
    cost = None
    with suppress(Exception):  # cores will meet the same error and report it
        cost = _rehearse(*rehearsal)
    with suppress(OSError):  # nobody waits for it any more
        line.send(cost)


def _rehearse(experiment: Experiment, layout: Layout) -> int | None:
    """How many bytes a core takes for itself at its most, before anything leaks.

    Call it in a fork of the nursery that has done little else, as a core is one, and that ends
    afterwards.

    Args:
        experiment: all settings.
        layout: a child's with this one core.

    Returns:
        None where the system does not say.

    Raises:
        Exception: whatever the environment or the network raises.
    """
    torch.set_num_threads(1)
    memory = SharedMemory(layout)
    nowhere = Connection(os.open(os.devnull, os.O_WRONLY), readable=False)
    kind = Actor if experiment.sends_experience else SingleCore
    kind(0, experiment, memory, WorkerPipe(nowhere, memory.stop, None), (0,)).rehearse()
    private = private_bytes()
    if private is None:
        return None
    common = size_of(layout.for_cores(0, experiment.optimizer.shared))
    return private + since_peak_bytes() - common


def _built(experiment: Experiment) -> tuple[Any, bytes, Layout, tuple[Experiment, Layout]]:
    """The signature's entries, the initial vector, the layout of the memory with one core, and with
    what to rehearse."""
    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    make_learner(experiment.algorithm, model)
    if experiment.shares_replay:
        RedisClient(experiment.replay.url).close()
    layout = layout_of(experiment, model)
    by_itself = alone(experiment, environment)
    rehearsal = by_itself, layout_of(by_itself, model)
    return model.signature.entries, model.numbers.tobytes(), layout, rehearsal


def alone(experiment: Experiment, spaces: Spaces) -> Experiment:
    """The same for one core that acts and learns and has a replay of its own, if a small one.

    So a replay for all children stays as it is when a child warms up.
    """
    if not experiment.shares_replay:
        return experiment
    replace = msgspec.structs.replace
    fitting = _REHEARSED_BYTES // (4 * (int(np.prod(spaces.observation_space.shape or ())) + 8))
    steps = max(experiment.algorithm.batch_size, min(experiment.replay.steps, fitting))
    return replace(
        experiment,
        algorithm=replace(experiment.algorithm, start_steps=0),
        replay=replace(experiment.replay, url="local", steps=steps),
        child=replace(experiment.child, roles=("bundle",)),
    )


def layout_of(experiment: Experiment, model: Model) -> Layout:
    """The layout of a child's memory with one core.

    Raises:
        ConfigurationError: its replay tensor alone is larger than what is free.
    """
    steps = 0 if experiment.shares_replay else experiment.replay.steps
    batch = experiment.algorithm.batch_size
    rows = ReplayTensor.rows(steps, batch, experiment.environment.lanes)
    images = steps > 0 and model.sees_bytes
    size = 0 if images else model.observation_size
    columns = ReplayTensor.columns(size, model.head.columns, steps > 0)
    blocks = 0
    prioritized = steps > 0 and experiment.replay.priority_exponent > 0.0
    target = reads_target(learner_class(experiment.algorithm))
    if experiment.sends_experience:
        blocks = BLOCKS
        rows = blocks * rows_of_a_block(batch)
        columns = columns_of(model).count
    layout = Layout(
        cores=1,
        steps=rows,
        columns=columns,
        size=model.signature.size,
        trainable=model.trainable,
        state_rows=STATE_ROWS[experiment.optimizer.name],
        state_sets=1,
        blocks=blocks,
        pixels=model.observation_size if images else 0,
        target=model.trainable if target else 0,
        nodes=nodes_of(rows) if prioritized else 0,
    )
    shape = (1, rows, columns)
    if why := refusal_of_replay(available_bytes(), shape, layout.replay_bytes, steps, batch):
        raise ConfigurationError(why)
    return layout
