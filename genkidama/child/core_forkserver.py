"""The code of the forkserver of cores: it warms up once, and forks processes that share its memory.

Its imports and a first gradient cost a process 30 MB, and some 200 MB with torch, which is only
imported where the experiment needs it. The forkserver does both once and freezes its heap, so every
core that it forks shares that memory and starts in milliseconds. Only pages that a core itself
writes become its own.

This module is imported in the forkserver, before any core exists, and nowhere else but in tests.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from genkidama.child.collector import Prepared, first_observations, make_slots
from genkidama.child.core import core_class, core_parts, run_core, settle_memory
from genkidama.child.shared_memory import Layout, SharedMemory, check_replay
from genkidama.child.worker import WorkerPipe
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environment_checks import check_spaces, try_environment
from genkidama.learning.environments import (
    closing_environment,
    import_environment,
    make_environment,
)
from genkidama.learning.learners import make_learner, reads_log_mu
from genkidama.learning.model import Model, Spaces
from genkidama.learning.rollout import Rollout
from genkidama.learning.spaces import KnownSpaces, describe_spaces
from genkidama.runtime.import_strings import describe_error, is_gymnasiums, print_user_traceback
from genkidama.runtime.machine import private_bytes, since_peak_bytes
from genkidama.runtime.process import without_timeout
from genkidama.runtime.shared_block import size_of

#: What an environment writes while it is built is kept up to this size.
_MOST_BYTES = 1 << 20


def warm_up(experiment: Experiment) -> None:
    """Imports all that every core will need, and does a first forward pass, and a backward pass
    where cores learn.

    An environment that might own a thread, a process or a device is not built: spaces of another
    kind stand in, with one sort of action or the other. Gymnasium's own owns nothing, and a step of
    it leaves memory that all cores share.
    """
    core_class(experiment)  # imports it
    if is_gymnasiums(experiment.environment):
        with closing_environment(
            make_environment(experiment.environment, lean=True)
        ) as environment:
            environment.reset(seed=0)
            environment.step(environment.action_space.sample())
            _rehearse_learning(experiment, environment)
        return
    import_environment(experiment.environment)
    images = (3, 84, 84) if experiment.network.channels == "first" else (84, 84, 3)
    vectors = Box(-1.0, 1.0, (8,), np.float32)
    pixels = Box(0, 255, images, np.uint8)
    seen = pixels if experiment.network.name == "convolutional" else vectors
    for actions in (Discrete(4), Box(-1.0, 1.0, (2,), np.float32)):
        with suppress(ConfigurationError):
            _rehearse_learning(experiment, KnownSpaces(seen, actions))
            return


def _rehearse_learning(experiment: Experiment, spaces: Spaces) -> None:
    parts = core_parts(experiment)
    for part in parts:
        with suppress(ConfigurationError):  # `_describe` will report it
            part.check(experiment)
        experiment = part.rehearsal(experiment, spaces)
    model = Model(experiment, spaces)
    observation = np.zeros(model.observation_shape, np.float32)
    rng = np.random.default_rng(0)
    action = model.head.sampler(rng, 0.0)(model.network.acting()(observation))
    if experiment.sends_experience:
        return
    row = model.native(observation[None])
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


def run_prepared(experiment: Experiment, pipe: Connection, check: bool) -> None:
    """The life of a core that builds its environments before there is a memory to work on.

    It says `("built", notices)`, or `("error", sentence)`. Then it answers requests:

    - An experiment: `("ok", entries, vector, layout, spaces)` and the bytes that a core takes for
      itself, or `("error", sentence)`; or `("other",)` if that has another environment.
    - A seed: the first episodes begin; `("begun",)`.
    - An index, an experiment, a layout and seeds, and the descriptors of memory, pipe and log: from
      now on it is that core.

    Args:
        check: whether there is no child yet: a few random steps of a user's environment are tried
            first, and until it works it writes to a file.
    """
    settings, notices = experiment.environment, []
    try:
        if experiment.child.backend == "ga3c":
            slots: Any = make_environment(settings, check=try_environment)
        else:
            slots = make_slots(experiment, try_environment if check else None)
        if check:
            notices = check_spaces(experiment, slots)
    except BaseException as error:  # an environment may raise anything, or exit
        pipe.send(("error", _problem(error, f"environment.id = {settings.id!r}")))
        return
    prepared = Prepared(slots)
    try:
        pipe.send(("built", notices))
        while not isinstance(asked := pipe.recv(), tuple):
            if isinstance(asked, int):
                with suppress(Exception, SystemExit):  # the core will meet it, too, and report it
                    prepared = Prepared(slots, first_observations(experiment, slots, asked))
                pipe.send(("begun",))
            elif asked.environment != settings:
                pipe.send(("other",))
            else:
                _describe(experiment := asked, prepared, pipe)
        index, experiment, layout, seeds = asked
        with without_timeout():
            memory = SharedMemory(layout, reduction.recv_handle(pipe))
            line = Connection(reduction.recv_handle(pipe))
            log = reduction.recv_handle(pipe)
    except (EOFError, OSError):  # it is not needed
        slots.close()
        return
    pipe.close()
    if check:
        _write_to(log)
    *_, version = seeds
    if version:  # a resumed run draws other random numbers than at its start
        prepared = Prepared(slots)
    run_core(index, experiment, memory, line, seeds, prepared)


def _problem(error: BaseException, setting: str) -> str:
    """The error of what a setting names, in a sentence; standard error has its traceback."""
    if isinstance(error, ConfigurationError):
        print_user_traceback(error)
        return str(error)
    traceback.print_exception(error)
    return f"{setting}: cannot be built: {describe_error(error)}"


def _write_to(log: int) -> None:
    """Has this process write there from now on, and all that it has written to a file so far."""
    with suppress(OSError, ValueError):
        sys.stderr.flush()
        os.lseek(2, 0, os.SEEK_SET)
        os.write(log, os.read(2, _MOST_BYTES))
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)


def _describe(experiment: Experiment, prepared: Prepared, pipe: Connection) -> None:
    try:
        entries, vector, layout, alone = build(experiment, prepared.slots)
    except BaseException as error:  # a user's environment or network may raise anything, or exit
        pipe.send(("error", _problem(error, f"network.name = {experiment.network.name!r}")))
        return
    pipe.send(("ok", entries, vector, layout, describe_spaces(prepared.slots)))
    gc.collect()
    cost = None
    with suppress(Exception):  # the core will meet the same error and report it
        cost = _rehearse(*alone, prepared)
    pipe.send(cost)


def build(
    experiment: Experiment, spaces: Spaces
) -> tuple[Any, bytes, Layout, tuple[Experiment, Layout]]:
    """The signature's entries, the initial vector, the layout of the memory with one core, and the
    experiment and the layout for a rehearsal."""
    model = Model(experiment, spaces)
    make_learner(experiment.algorithm, model)
    alone = experiment
    for part in core_parts(experiment):
        part.check(experiment)
        alone = part.rehearsal(alone, spaces)
    layout = layout_of(experiment, model)
    entries, vector = model.signature.entries, model.numbers.tobytes()
    return entries, vector, layout, (alone, layout_of(alone, model))


def _rehearse(experiment: Experiment, layout: Layout, prepared: Prepared) -> int | None:
    """Bytes that a core takes for itself at most, before anything leaks; None if unknown. The
    environments stay as they are built."""
    settle_memory(experiment)
    memory = SharedMemory(layout)
    core = core_class(experiment)(0, experiment, memory, _silent_pipe(memory), (0,), prepared)
    core.rehearse()
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
