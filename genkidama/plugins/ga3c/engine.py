"""The engine: the process that holds the model, and the predictors and trainers that work on it.

`backend.GA3C` starts it by `python -m genkidama.plugins.ga3c.engine FD …` and talks to it through a
socket, the first descriptor. The engine is told the experiment, says what its network is, and is
given the shared memory. Then it does as it is told until the socket ends, which is the child's end.

On a CPU the model's vector is the shared memory itself. On a GPU the model has its own, and the
shared memory has a copy: `publish` renews the copy, `change` adds what an exchange has added.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import torch

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.learning.environments import columns, make_environment
from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.learning.optimizers import STATE_ROWS
from genkidama.plugins.ga3c.queues import LEAVE, put
from genkidama.plugins.ga3c.slots import SlotLayout, Slots
from genkidama.plugins.ga3c.threads import Predictor, Shared, Trainer
from genkidama.runtime.lifeline import end_with_parent
from genkidama.runtime.user_errors import describe_error, is_user_error, print_user_traceback

__all__ = ["Engine", "main"]


class Engine:
    """The engine of one child.

    Args:
        experiment: all settings.
        control: this end of the socket to the backend.

    Raises:
        ConfigurationError: the device is not there, or the environment, network or algorithm cannot
            be built.
    """

    def __init__(self, experiment: Experiment, control: Connection) -> None:
        self.experiment, self._control = experiment, control
        self.device = _device(experiment.ga3c.device)
        environment = make_environment(experiment.environment)
        self.spaces = environment  # kept for its spaces alone
        environment.close()
        self._first = Model(experiment, environment)
        make_learner(experiment.algorithm, self._first)
        self._started = 0
        self._threads: list[Predictor | Trainer] = []
        self._counts = {Predictor: 0, Trainer: 0}
        self._saying = threading.Lock()

    def description(self) -> tuple[Any, ...]:
        """What the backend must know.

        "ok", the vector's meaning, the vector, what the memory's layout follows from, the device.
        """
        space = self.spaces.observation_space
        facts = {
            "observation_shape": space.shape or (),
            "observation_type": str(space.dtype),
            "action_columns": columns(self.spaces.action_space),
            "trainable": self._first.trainable,
            "state_rows": STATE_ROWS[self.experiment.optimizer.name],
        }
        return (
            "ok",
            self._first.signature.entries,
            self._first.numbers.tobytes(),
            facts,
            self.device.type,
        )

    def attach(self, slots: Slots, pipes: tuple[int, int, int, int], bells: list[int]) -> None:
        """Takes over the memory, and the weights that lie in it."""
        self.slots = slots
        weights, state = torch.from_numpy(slots.weights), torch.from_numpy(slots.state)
        if self.device.type != "cpu":
            weights, state = weights[: self._first.trainable].to(self.device), state.to(self.device)
        del self._first
        self.shared = Shared(
            self.experiment, self.spaces, self.device, slots, weights, state, *pipes, bells=bells
        )

    def resize(self, predictors: int, trainers: int) -> None:
        """Starts threads, or has some leave after what they are doing."""
        for kind, count, queue in (
            (Predictor, predictors, self.shared.predictions_in),
            (Trainer, trainers, self.shared.training_in),
        ):
            put(queue, [LEAVE] * (self._counts[kind] - count))
            for _ in range(count - self._counts[kind]):
                self._start(kind)
            self._counts[kind] = count

    def _start(self, kind: type[Predictor] | type[Trainer]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        used = {thread.row for thread in self._threads}
        row = next(row for row in range(self.slots.layout.threads) if row not in used)
        self._started += 1
        seed = (self.experiment.seed, os.getpid(), self._started)
        thread = kind(self.shared, row, seed, self._fail)
        self._threads.append(thread)
        thread.start()

    def _fail(self, error: Exception) -> None:
        """A thread has ended by an error, the user's or the machine's: training cannot go on."""
        if not isinstance(error, GenkidamaError) or is_user_error(error):
            traceback.print_exception(error)
        self._say("failed", describe_error(error)[:1000])

    def _say(self, *message: Any) -> None:
        with self._saying:
            self._control.send(message)

    def serve(self) -> None:
        """Does what it is told, until the socket ends."""
        shared, slots = self.shared, self.slots
        weights, state = torch.from_numpy(slots.weights), torch.from_numpy(slots.state)
        trainable = len(slots.change)
        while True:
            match self._control.recv():
                case "resize", predictors, trainers:
                    self.resize(predictors, trainers)
                case ("publish",):
                    weights[:trainable].copy_(shared.vector[:trainable])
                    state.copy_(shared.state)
                    self._say("published")
                case ("change",):
                    shared.vector[:trainable].add_(torch.from_numpy(slots.change).to(self.device))
                case ("reset",):
                    shared.vector[:trainable].copy_(weights[:trainable])
                    shared.state.copy_(state)


def _device(name: str) -> torch.device:
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= (
        count := torch.cuda.device_count() if available else 0
    ):
        there = (
            f"torch {torch.__version__} finds {count} CUDA devices here"
            if torch.version.cuda
            else f"torch {torch.__version__} has no CUDA"
        )
        raise ConfigurationError(
            f"ga3c.device = {name!r}: {there}; use 'cpu', or 'auto' for whatever a child has"
        )
    return device


def main() -> int:
    """The life of an engine process; returns its exit code."""
    parent, number, *descriptors = map(int, sys.argv[1:])
    end_with_parent(parent)
    control = Connection(number)
    torch.set_num_threads(1)
    try:
        try:
            engine = Engine(Experiment.from_dict(control.recv()), control)
        except ConfigurationError as error:
            print_user_traceback(error)
            control.send(("error", str(error)))
            return 1
        control.send(engine.description())
        layout: SlotLayout = control.recv()
        slots = Slots(layout, reduction.recv_handle(control))
        predictions, predictions_in, training, training_in, *bells = descriptors
        engine.attach(slots, (predictions, predictions_in, training, training_in), bells)
        engine.serve()
    except (EOFError, ConnectionResetError, BrokenPipeError):
        # The child is gone, or needs no engine any more. Threads that sleep in a read of a queue
        # end with the process only.
        sys.stdout.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
