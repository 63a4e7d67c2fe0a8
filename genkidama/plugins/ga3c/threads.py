"""The threads of the engine: predictors and trainers over one model.

Babaeizadeh et al. 2017, §4. Each thread has a `Model` of its own, whose parameters are views of the
one vector that all share. Torch gives up Python's lock while it computes, so threads on several
cores, or on a GPU, do run side by side. Trainers step the vector as Hogwild cores do: without a
lock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import learning_rate
from genkidama.learning.learners import gradients, make_learner, updates
from genkidama.learning.model import Model, Spaces, scaled
from genkidama.learning.optimizers import make_optimizer
from genkidama.learning.rollout import Rollout
from genkidama.plugins.ga3c.queues import LEAVE, put, ring, take
from genkidama.plugins.ga3c.slots import Count, Slots
from genkidama.protocol.diagnostics import Diagnostics

__all__ = ["Predictor", "Shared", "Trainer"]

Array = npt.NDArray[Any]

#: How much a predictor yields to the agents that share its cores (`nice`). While they go on, more
#: requests gather, and one pass over twelve observations costs a quarter less a step than one over
#: seven.
_NICENESS = 10

#: Predictions between two looks at the running statistics of the observations.
_STATISTICS_BATCHES = 64


@dataclass
class Shared:
    """What all threads of an engine work on."""

    experiment: Experiment
    spaces: Spaces
    device: torch.device
    slots: Slots
    #: θ, its trainable part at least, and the optimizer's state, on the device.
    vector: Tensor
    state: Tensor
    #: Descriptors: each queue's end to take from and its end to put into, and the agents' bells.
    predictions: int
    predictions_in: int
    training: int
    training_in: int
    bells: list[int]

    @property
    def needs_mu(self) -> bool:
        """Whether learning may ask how probable an action was when it was taken."""
        return self.experiment.algorithm.name != "a3c" or self.experiment.algorithm.vtrace

    def model(self) -> Model:
        """A model over the shared vector, with a gradient of its own."""
        return Model(self.experiment, self.spaces, vector=self.vector, device=self.device)

    def ring(self, lanes: Array) -> None:
        """Wakes the agents that these lanes belong to."""
        for agent in set((lanes // self.slots.layout.environments).tolist()):
            ring(self.bells[agent])


class _Thread(threading.Thread):
    """A thread that works until its queue gives it `LEAVE`.

    Args:
        shared: what it works on.
        row: its row of the counters.
        seed: of its random numbers.
        failed: called with the error if it ends by one.
    """

    def __init__(
        self, shared: Shared, row: int, seed: tuple[int, ...], failed: Callable[[Exception], None]
    ) -> None:
        super().__init__(daemon=True)
        self._shared, self._failed = shared, failed
        self._slots, self._device = shared.slots, shared.device
        self.row = row
        self._counters = shared.slots.counters[row]
        self._model = shared.model()
        self._seed = int(np.random.SeedSequence(seed).generate_state(1)[0])

    def run(self) -> None:
        try:
            if self._device.type == "cuda":
                with torch.cuda.stream(torch.cuda.Stream(self._device)):
                    self._work()
            else:
                self._work()
        except Exception as error:  # a network or learner of the user's own may raise anything
            self._failed(error)

    def _work(self) -> None:
        raise NotImplementedError

    def _normalizer(self) -> Callable[[Array], Array] | None:
        return self._model.normalizer(self._slots.weights)


class Predictor(_Thread):
    """Takes all requests that are there, up to a maximum, predicts them together, answers each."""

    def _work(self) -> None:
        if sys.platform == "linux":  # elsewhere threads have no niceness of their own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        # Local names: this loop costs every step.
        shared = self._shared
        slots = self._slots
        model = self._model
        experiment = shared.experiment
        network = model.network
        head = model.head
        epsilon = experiment.algorithm.epsilon
        generator = torch.Generator(self._device).manual_seed(self._seed)
        most = experiment.ga3c.prediction_batch
        normalize, batches = self._normalizer(), 0
        leaving = False
        while not leaving:
            lanes = take(shared.predictions, most)
            if lanes[-1] == LEAVE or LEAVE in lanes:
                leaving, lanes = True, _without_leave(lanes, shared.predictions_in)
            # The question of an agent that has died may have been its successor's, too.
            lanes = lanes[slots.asked[lanes] != slots.answered[lanes]]
            if not len(lanes):
                continue
            asked, rows = slots.asked[lanes], slots.position[lanes]
            observations = slots.observations[rows]
            batches += 1
            if normalize is not None:
                if not batches % _STATISTICS_BATCHES:
                    normalize = self._normalizer() or normalize
                observations = normalize(observations)
            version = slots.updates
            with torch.inference_mode():
                outputs, values = network(_on(model, observations))
                actions = head.sample(outputs, epsilon, generator)
                slots.actions[rows] = actions.cpu().numpy()
                slots.values[rows] = values.cpu().numpy()
                if shared.needs_mu:
                    slots.log_mu[rows] = head.log_probability(outputs, actions).cpu().numpy()
            slots.born[rows] = version
            slots.answered[lanes] = asked
            shared.ring(lanes)
            self._counters[Count.PREDICTIONS] += len(lanes)
            self._counters[Count.PREDICTION_BATCHES] += 1


class Trainer(_Thread):
    """Takes rollouts, several together if so asked, and applies the learner's updates from them."""

    def _work(self) -> None:
        shared = self._shared
        experiment = shared.experiment
        model = self._model
        settings, algorithm = experiment.optimizer, experiment.algorithm
        learner = make_learner(algorithm, model)
        generator = torch.Generator().manual_seed(self._seed)
        optimizer = make_optimizer(
            settings, shared.vector[: model.trainable], shared.state, self._slots.clock
        )
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
            for _ in updates(
                gradients(learner, model, rollout, generator),
                model,
                optimizer,
                rate,
                algorithm.max_gradient_norm,
                self._diagnostics,
            ):
                self._counters[Count.UPDATES] += 1

    def _collect(self) -> Rollout | None:
        """Rollouts of enough steps, copied, their slots given back.

        None if the thread is to leave before the first.
        """
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
            taken = take(self._shared.training, -(-(self._least - steps) // length))
            if LEAVE in taken:
                self._leaving, taken = True, _without_leave(taken, self._shared.training_in)
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
            self._shared.ring(taken // lanes_slots)
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
        experiment = self._shared.experiment
        model = self._model
        weights = self._slots.weights
        normalize = self._normalizer()
        if normalize is not None:
            moments = model.moments("observations", weights)
            assert moments is not None
            raw, observations = observations, normalize(observations)
            moments.add(raw.reshape(len(raw), -1))
        returns = model.moments("returns", weights)
        if returns is not None:
            returns.add(columns["discounted"][:, None])
        rewards = scaled(columns["rewards"], experiment.environment, returns)
        last = np.zeros(len(rewards), np.bool_)
        last[ends] = True
        return Rollout(
            _on(model, observations),
            torch.from_numpy(columns["actions"].astype(model.head.dtype)).to(self._device),
            rewards,
            last,
            np.array(cuts, np.intp),
            torch.empty((0, *self._slots.layout.observation_shape), device=self._device),
            cut_values=np.array(bootstraps, np.float32),
            log_mu=columns["log_mu"] if self._shared.needs_mu else None,
            progress=float(self._slots.progress[0]),
            diagnostics=self._diagnostics,
        )


def _on(model: Model, observations: Array) -> Tensor:
    """On the model's device, to which images travel as bytes.

    As float32, unless the network takes bytes as they are.
    """
    tensor = torch.from_numpy(observations).to(model.device)
    return tensor if model.network.takes_bytes else tensor.float()


def _without_leave(indices: Array, queue: int) -> Array:
    """What else was taken, for the thread that leaves.

    Further words to leave are for other threads, and go back into the queue.
    """
    rest: Array = indices[indices != LEAVE]
    if surplus := len(indices) - len(rest) - 1:
        put(queue, [LEAVE] * surplus)
    return rest
