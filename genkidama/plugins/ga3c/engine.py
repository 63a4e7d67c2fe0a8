"""The engine: the process that holds the model, and the predictors and trainers that work on it.

`backend.EngineProcess` starts it by `python -m genkidama.plugins.ga3c.engine FD …` and talks to it
through a socket, the first descriptor. The engine receives the experiment, describes its network,
and receives the shared memory. Then it follows orders until the socket ends, which is the child's
end.

Predictors and trainers are threads (Babaeizadeh et al. 2017, §4). Each has a separate `Model`,
whose parameters are views of the one vector that all share. Torch gives up Python's lock while it
computes, so threads on several cores, or on a GPU, do run side by side. Trainers step the vector as
Hogwild cores do: without a lock.

On a CPU the model's vector is the shared memory itself. On a GPU the shared memory has a copy of it
(`DeviceWeights`): `publish` renews the copy, `change` adds what an exchange has added.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.spaces import Box

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import exploration, learning_rate
from genkidama.errors import ConfigurationError, GenkidamaError
from genkidama.learning.actions import columns, converter
from genkidama.learning.learners import make_learner, updates
from genkidama.learning.model import Model
from genkidama.learning.optimizers import STATE_ROWS, make_optimizer
from genkidama.learning.rollout import Numbers, Rollout
from genkidama.learning.spaces import spaces_of
from genkidama.learning.tensors.accelerator import DeviceWeights, find_device
from genkidama.learning.tensors.tensor_model import HOST, TensorModel
from genkidama.plugins.ga3c.slots import LEAVE, Count, SlotLayout, Slots, put, ring, take
from genkidama.protocol.diagnostics import Diagnostics
from genkidama.runtime.import_strings import describe_error, is_user_error, print_user_traceback
from genkidama.runtime.machine import end_with_parent
from genkidama.runtime.process import without_timeout

Array = npt.NDArray[Any]

#: Added niceness of a predictor towards the agents that share its cores. While they continue, more
#: requests arrive, and one pass over twelve observations costs a quarter less a step than one over
#: seven.
_NICENESS = 10

#: Predictions between two looks at the running statistics of the observations.
_STATISTICS_BATCHES = 64


class _Thread(threading.Thread):
    """A thread that works until its queue gives it `LEAVE`, and counts in its own row."""

    def __init__(self, engine: Engine, row: int, seed: tuple[int, ...]) -> None:
        super().__init__(daemon=True)
        self._engine = engine
        self._slots, self._device = engine.slots, engine.device
        self.row = row
        self._counters = engine.slots.counters[row]
        self._model = engine.model(isinstance(self, Trainer))
        self._seed = int(np.random.SeedSequence(seed).generate_state(1)[0])

    def run(self) -> None:
        try:
            if self._device.type == "cuda":
                with torch.cuda.stream(torch.cuda.Stream(self._device)):
                    self._work()
            else:
                self._work()
        except Exception as error:  # a network or learner of the user's own may raise anything
            self._engine.thread_failed(error)

    def _work(self) -> None:
        raise NotImplementedError


class Predictor(_Thread):
    """Takes all requests that are there, up to a maximum, predicts them together, answers each."""

    def _work(self) -> None:
        if sys.platform == "linux":  # elsewhere threads have no niceness of their own
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, min(niceness, 19))
        # Local names: this loop costs every step.
        engine = self._engine
        slots = self._slots
        model = self._model
        experiment = engine.experiment
        network = model.network
        head = model.head
        algorithm = experiment.algorithm
        generator = torch.Generator(self._device).manual_seed(self._seed)
        most = experiment.ga3c.prediction_batch
        normalize, batches = model.normalizer(), 0
        leaving = False
        while not leaving:
            lanes = take(engine.predictions, most)
            if LEAVE in lanes:
                leaving, lanes = True, _without_leave(lanes, engine.predictions_in)
            # The question of an agent that has died may have been its successor's, too.
            lanes = lanes[slots.asked[lanes] != slots.answered[lanes]]
            if not len(lanes):
                continue
            asked, rows = slots.asked[lanes], slots.position[lanes]
            observations = slots.observations[rows]
            batches += 1
            if normalize is not None:
                if not batches % _STATISTICS_BATCHES:
                    normalize = model.normalizer() or normalize
                observations = normalize(observations)
            version = slots.updates
            with torch.inference_mode():
                outputs, values = network(_on(model, observations))
                epsilon = exploration(algorithm, float(slots.progress[0]), 0.0, 0.0)
                actions = head.sample(outputs, epsilon, generator)
                slots.actions[rows] = actions.cpu().numpy()
                slots.values[rows] = values.cpu().numpy()
                if engine.needs_mu:
                    slots.log_mu[rows] = head.log_probability(outputs, actions).cpu().numpy()
            slots.born[rows] = version
            slots.answered[lanes] = asked
            engine.ring(lanes)
            self._counters[Count.PREDICTIONS] += len(lanes)
            self._counters[Count.PREDICTION_BATCHES] += 1


class Trainer(_Thread):
    """Takes rollouts, several together if so asked, and applies the learner's updates from them."""

    def _work(self) -> None:
        experiment, weights = self._engine.experiment, self._engine.weights
        model = self._model
        settings = experiment.optimizer
        learner = make_learner(experiment.algorithm, model)
        generator = model.generator(self._seed)
        vector, state = weights.vector[: model.trainable], weights.state
        optimizer = make_optimizer(settings, vector, state, self._slots.clock)
        self._diagnostics = Diagnostics(self._slots.diagnostics[self.row])
        layout = self._slots.layout
        self._least = max(1, experiment.ga3c.training_batch)
        room = self._least + layout.steps
        self._observations = np.empty((room, *layout.observation_shape), layout.observation_type)
        self._leaving = False
        while not self._leaving:
            rollout = self._collect()
            if rollout is None:
                return
            rate = learning_rate(settings, rollout.progress)
            found = model.gradients(learner, rollout, generator)
            for _ in updates(found, model, optimizer, rate, self._diagnostics):
                self._counters[Count.UPDATES] += 1

    def _collect(self) -> Rollout | None:
        """Rollouts of enough steps, copied, their slots given back. None if the thread is to leave
        before the first."""
        slots = self._slots
        length = slots.layout.steps
        lanes_slots = slots.layout.rollouts
        steps = 0
        ends: list[int] = []
        cuts: list[int] = []
        bootstraps: list[float] = []
        parts: dict[str, list[Array]] = {
            name: [] for name in ("actions", "rewards", "discounted", "log_mu", "born")
        }
        while steps < self._least and not self._leaving:
            taken = take(self._engine.training, -(-(self._least - steps) // length))
            if LEAVE in taken:
                self._leaving, taken = True, _without_leave(taken, self._engine.training_in)
            # After the engine was replaced, a slot may be in the queue twice.
            taken = taken[slots.busy[taken]]
            for slot in taken.tolist():
                n = int(slots.lengths[slot])
                rows = slice(slot * length, slot * length + n)
                self._observations[steps : steps + n] = slots.observations[rows]
                for name, part in parts.items():
                    part.append(getattr(slots, name)[rows].copy())
                steps += n
                ends.append(steps - 1)
                if slots.cut[slot]:
                    cuts.append(steps - 1)
                    bootstraps.append(slots.bootstraps[slot])
            slots.busy[taken] = False
            self._engine.ring(taken // lanes_slots)
            self._counters[Count.ROLLOUTS] += len(taken)
        if not steps:
            return None
        columns = {name: np.concatenate(part) for name, part in parts.items()}
        self._counters[Count.STEPS] += steps
        self._counters[Count.LAG] += slots.updates * steps - int(columns["born"].sum())
        return self._rollout(self._observations[:steps], columns, ends, cuts, bootstraps)

    def _rollout(
        self,
        observations: Array,
        columns: dict[str, Array],
        ends: list[int],
        cuts: list[int],
        bootstraps: list[float],
    ) -> Rollout:
        model = self._model
        normalize = model.normalizer()
        if normalize is not None:
            moments = model.moments("observations")
            assert moments is not None
            raw, observations = observations, normalize(observations)
            moments.add(raw.reshape(len(raw), -1))
        returns = model.moments("returns")
        if returns is not None:
            returns.add(columns["discounted"][:, None])
        rewards = model.scaled(columns["rewards"])
        last = np.zeros(len(rewards), np.bool_)
        last[ends] = True
        return Rollout(
            _on(model, observations),
            model.native(columns["actions"].astype(model.head.dtype)),
            rewards,
            last,
            np.array(cuts, np.intp),
            model.native(np.empty((0, *self._slots.layout.observation_shape), np.float32)),
            cut_values=np.array(bootstraps, np.float32),
            log_mu=columns["log_mu"] if self._engine.needs_mu else None,
            progress=float(self._slots.progress[0]),
            diagnostics=self._diagnostics,
        )


def _on(model: Model, observations: Array) -> Numbers:
    """As the model takes them, on its device, to which images travel as bytes. As float32, unless
    the network takes bytes as they are."""
    if not isinstance(model, TensorModel):
        return observations.astype(np.float32, copy=False)
    tensor = model.native(observations)
    return tensor if model.network.takes_bytes else tensor.float()


def _without_leave(indices: Array, queue: int) -> Array:
    """The other indices, for the thread that leaves. Further words to leave are for other threads,
    and go back into the queue."""
    rest: Array = indices[indices != LEAVE]
    if surplus := len(indices) - len(rest) - 1:
        put(queue, [LEAVE] * surplus)
    return rest


def _converts(head: Any, space: Any) -> bool:
    """True if a head gives the environment other numbers than an agent does."""
    if not isinstance(space, Box):
        return False
    action = np.full(head.columns, 0.5, head.dtype)
    given = action if head.columns == columns(space) else np.zeros(0, np.float32)
    ours = converter(space)(given) if len(given) else given
    return not np.array_equal(ours, head.to_environment(action))


class Engine:
    """The engine of one child; `control` is its end of the socket to the backend."""

    def __init__(self, experiment: Experiment, control: Connection, spaces: Any = None) -> None:
        self.experiment, self._control = experiment, control
        self.device = find_device("ga3c.device", experiment.ga3c.device)
        self.spaces = spaces_of(experiment.environment, spaces)
        self._first = TensorModel(experiment, self.spaces)
        on_host = self.device == HOST
        model = Model(experiment, self.spaces) if on_host else self._first
        learner = make_learner(experiment.algorithm, model)
        name = f"algorithm.name = {experiment.algorithm.name!r}"
        if not (on_host or hasattr(learner, "losses")):
            raise ConfigurationError(
                f"{name}: has no losses, which a GPU needs; set ga3c.device to 'cpu'"
            )
        if _converts(self._first.head, self.spaces.action_space):
            raise ConfigurationError(
                f"{name}: its head changes what the environment takes, which agents of ga3c do not "
                "know; set child.backend to 'hogwild'"
            )
        self._started = 0
        self._threads: list[Predictor | Trainer] = []
        self._counts = {Predictor: 0, Trainer: 0}
        self._sending = threading.Lock()

    def description(self) -> tuple[Any, ...]:
        """The engine as the backend must know it. "ok", the vector's signature entries, its bytes,
        the facts that the memory's layout follows from, the device's type."""
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

    def attach(self, slots: Slots, descriptors: list[int]) -> None:
        """Takes over the memory, and the weights in it.

        Args:
            descriptors: each queue's end to take from and its end to put into, that of predictions
                first, and then the agents' bells.
        """
        self.slots = slots
        self.predictions, self.predictions_in, *rest = descriptors
        self.training, self.training_in, *self.bells = rest
        del self._first
        #: θ and the optimizer's state: the slots', or on the device with the slots' as their copy.
        self.weights = DeviceWeights(self.device, slots.weights, slots.state)

    @property
    def needs_mu(self) -> bool:
        """True if learners may read the probability of an action when it was taken."""
        return self.experiment.algorithm.name != "a3c" or self.experiment.algorithm.vtrace

    def model(self, trains: bool) -> Model:
        """A model over the shared vector, with a gradient of its own. On a CPU, one that trains
        takes gradients by hand where there are some."""
        if trains and self.device == HOST:
            return Model(self.experiment, self.spaces, vector=self.weights.vector)
        return self.weights.model(self.experiment, self.spaces)

    def ring(self, lanes: Array) -> None:
        """Wakes the agents that these lanes belong to."""
        for agent in set((lanes // self.slots.layout.environments).tolist()):
            ring(self.bells[agent])

    def resize(self, predictors: int, trainers: int) -> None:
        """Starts threads, or has some leave after what they are doing."""
        for kind, count, queue in (
            (Predictor, predictors, self.predictions_in),
            (Trainer, trainers, self.training_in),
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
        thread = kind(self, row, seed)
        self._threads.append(thread)
        thread.start()

    def thread_failed(self, error: Exception) -> None:
        """A thread has ended by an error of the user's or the machine's: training cannot go on."""
        if not isinstance(error, GenkidamaError) or is_user_error(error):
            traceback.print_exception(error)
        self._send("failed", describe_error(error)[:1000])

    def _send(self, *message: Any) -> None:
        with self._sending:
            self._control.send(message)

    def serve(self) -> None:
        """Follows orders until the socket ends."""
        weights, change = self.weights, self.slots.change
        while True:
            match self._control.recv():
                case "resize", predictors, trainers:
                    self.resize(predictors, trainers)
                case ("publish",):
                    weights.publish()
                    self._send("published")
                case ("change",):
                    weights.add(change)
                case ("reset",):
                    weights.refresh()


def main() -> int:
    """The life of an engine process; returns its exit code."""
    parent, number, *descriptors = map(int, sys.argv[1:])
    end_with_parent(parent)
    control = Connection(number)
    torch.set_num_threads(1)
    try:
        try:
            settings, spaces = control.recv()
            engine = Engine(Experiment.from_dict(settings), control, spaces)
        except ConfigurationError as error:
            print_user_traceback(error)
            control.send(("error", str(error)))
            return 1
        control.send(engine.description())
        layout: SlotLayout = control.recv()
        with without_timeout():
            slots = Slots(layout, reduction.recv_handle(control))
        engine.attach(slots, descriptors)
        engine.serve()
    except (EOFError, ConnectionResetError, BrokenPipeError):
        # The child is gone, or needs no engine any more. Threads that sleep in a read of a queue
        # end with the process only.
        sys.stdout.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
