"""The code of the forkserver of cores: it warms up once, and forks processes that share its memory.

Its imports and a first gradient cost a process 30 MB, and some 200 MB with torch, which is only
imported where the experiment needs it. The forkserver does both once and freezes its heap, so every
core that it forks shares that memory and starts in milliseconds. Only pages that a core itself
writes become its own.

This module is imported in the forkserver, before any core exists, and nowhere else but in tests.
`describe` runs in a separate process.
"""

from __future__ import annotations

import gc
import os
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np

from genkidama.child.core import core_class, core_parts, settle_memory
from genkidama.child.shared_memory import Layout, SharedMemory, check_replay
from genkidama.child.worker import WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import make_learner, reads_log_mu
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.runtime.import_strings import describe_error, print_user_traceback
from genkidama.runtime.machine import private_bytes, since_peak_bytes
from genkidama.runtime.shared_block import size_of


def warm_up(experiment: Experiment) -> None:
    """Does once what every core will do: one environment, one forward pass, and a backward pass
    where cores learn."""
    environment = make_environment(experiment.environment, lean=True)
    core_class(experiment)  # imports it
    parts = core_parts(experiment)
    for part in parts:
        with suppress(ConfigurationError):  # `describe` will report it
            part.check(experiment)
        experiment = part.rehearsal(experiment, environment)
    model = Model(experiment, environment)
    # What cannot be paused, as a robot, moves for nothing but its policy.
    moves = not experiment.environment.period
    observation = environment.reset(seed=0)[0] if moves else np.zeros(model.observation_shape)
    rng = np.random.default_rng(0)
    sample = model.head.sampler(rng, 0.0)
    action = sample(model.network.acting()(np.asarray(observation, np.float32)))
    if moves:
        environment.step(model.head.to_environment(action))
    if experiment.sends_experience:
        environment.close()
        return
    row = model.native(np.asarray(observation, np.float32)[None])
    actions = model.native(np.asarray(action, model.head.dtype).reshape(1, -1))
    zero = np.zeros(1, np.float32)
    rollout = Rollout(row, actions, zero, np.ones(1, np.bool_), np.zeros(1, np.intp), row)
    learner = make_learner(experiment.algorithm, model)
    if reads_log_mu(learner):
        rollout.log_mu = zero
    if parts:
        memory = SharedMemory(layout_of(experiment, model))
        core: Any = SimpleNamespace(
            memory=memory, model=model, index=0, seed=(0,), draws=rng, pipe=_silent_pipe(memory)
        )
        for made in [part(core) for part in parts]:
            if made.sink is not None:
                made.sink.rehearse()
            made.prepare(rollout)
        memory.close()
    if model.survives_a_fork():
        for _ in model.gradients(learner, rollout, model.generator(0)):
            pass
    environment.close()


def describe(experiment: Experiment, pipe: Connection) -> None:
    """Builds the experiment's network once, sends its description to the orchestrator, and ends.

    Sends `("ok", signature entries, initial vector, layout for one core)` or `("error", sentence)`.
    After "ok" it sends the bytes that a core takes for itself, or None where the system does not
    tell. They may take a while, or never come: that depends on the environment.
    """
    try:
        entries, vector, layout, alone = build(experiment)
    except ConfigurationError as error:
        print_user_traceback(error)
        pipe.send(("error", str(error)))
        return
    except Exception as error:  # a user's network may raise anything
        setting = f"network.name = {experiment.network.name!r}"  # the way out
        traceback.print_exc()
        pipe.send(("error", f"{setting}: cannot be built: {describe_error(error)}"))
        return
    pipe.send(("ok", entries, vector, layout))
    gc.collect()
    cost = None
    with suppress(Exception):  # cores will meet the same error and report it
        cost = None if experiment.environment.period else _rehearse(*alone)
    with suppress(OSError):  # the orchestrator no longer waits
        pipe.send(cost)


def build(experiment: Experiment) -> tuple[Any, bytes, Layout, tuple[Experiment, Layout]]:
    """The signature's entries, the initial vector, the layout of the memory with one core, and the
    experiment and the layout for a rehearsal."""
    environment = make_environment(experiment.environment)
    model = Model(experiment, environment)
    make_learner(experiment.algorithm, model)
    alone = experiment
    for part in core_parts(experiment):
        part.check(experiment)
        alone = part.rehearsal(alone, environment)
    layout = layout_of(experiment, model)
    entries, vector = model.signature.entries, model.numbers.tobytes()
    return entries, vector, layout, (alone, layout_of(alone, model))


def _rehearse(experiment: Experiment, layout: Layout) -> int | None:
    """Bytes that a core takes for itself at most, before anything leaks; None if unknown.

    Call it in a new fork of the forkserver, as a core is one, that ends afterwards.
    """
    settle_memory(experiment)
    memory = SharedMemory(layout)
    core_class(experiment)(0, experiment, memory, _silent_pipe(memory), (0,)).rehearse()
    private = private_bytes()
    if private is None:
        return None
    return private + since_peak_bytes() - size_of(layout.for_cores(0))


def _silent_pipe(memory: SharedMemory) -> WorkerPipe:
    """A pipe that leads nowhere."""
    nowhere = Connection(os.open(os.devnull, os.O_WRONLY), readable=False)
    return WorkerPipe(nowhere, memory.stop, None)


def layout_of(experiment: Experiment, model: Model) -> Layout:
    """The layout of a child's memory with one core, if its replay tensor fits into memory."""
    layout = Layout(core_class(experiment).arrays(experiment, model))
    check_replay(experiment, layout)
    return layout
