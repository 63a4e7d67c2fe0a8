"""The learner's process, which learns from the steps of other machines: rows (see `rule`) become a
rollout.

`genkidama.plugins.actors.learner_process` starts it and talks to it through a socket. It is a
separate program, or forked from a forkserver that has imported all of it.

It receives the experiment, answers with a description of its network, and receives the shared
memory. Then it learns from each batch, until the socket ends with the parent.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from genkidama.config.experiment import Experiment
from genkidama.config.schedules import learning_rate
from genkidama.errors import ConfigurationError
from genkidama.learning.demonstrations import DemonstrationReplay, MixedReplay
from genkidama.learning.forms import learner_class, load_tensors, tensor_setting
from genkidama.learning.learners import make_learner, reads_replay, updates
from genkidama.learning.model import Model, Spaces
from genkidama.learning.optimizers import STATE_ROWS, follow, make_optimizer
from genkidama.learning.rollout import Numbers, Replay, Rollout
from genkidama.learning.spaces import spaces_of
from genkidama.plugins.actors.learner_process import LearnerLayout, LearnerMemory
from genkidama.plugins.actors.rule import Columns, columns_of
from genkidama.plugins.actors.step_replay import StepReplay
from genkidama.protocol.diagnostics import SHAPE, Diagnostics, Window
from genkidama.protocol.vector import is_finite
from genkidama.runtime.import_strings import describe_error, print_user_traceback
from genkidama.runtime.machine import end_with_parent, keep_large_blocks
from genkidama.runtime.process import readable, without_timeout

if TYPE_CHECKING:
    from genkidama.learning.tensors.accelerator import DeviceWeights

Array = npt.NDArray[Any]

#: Steps of a batch that the divergence of the policies is estimated from.
_MEASURED_STEPS = 256

#: `algorithm.updates_per_step = "auto"`, without and with layer norm.
_MOST_UPDATES, _MOST_NORMALIZED = 4.0, 8.0

#: Updates that may be due, as those of so many steps: after a flood of steps, which leaves no time
#: for all of theirs, the learner works off these and then follows the newest again.
_DUE_STEPS = 1000

#: Seconds of updates between two looks at what has arrived. Children get new weights as often.
_TURN_SECONDS = 0.1

#: Seconds between two measures.
_MEASURE_SECONDS = 1.0

#: The niceness of a learner beside environments with a clock: acting comes first.
_NICE = 5


def rollout_of(rows: Array, columns: Columns, model: Model, progress: float) -> Rollout:
    """The rollout of the rows of one or several blocks, normalized and scaled.

    A trajectory continues from a step in the next row, if that is a step and holds the observation
    that followed. Wherever else it does not terminate it is cut, and its value continues from the
    observation that followed. The rows, (n, M), have no `Columns.problem` in any of the blocks.
    """
    distance = rows[:, columns.following].astype(np.intp)
    steps = np.flatnonzero(distance)
    terminated = rows[steps, columns.terminated] > 0.0
    after = steps + np.where(terminated, 0, distance[steps])
    goes_on = (distance[steps] == 1) & (distance[after] > 0) & ~terminated
    cut = ~goes_on & ~terminated

    def seen(numbers: Array) -> Numbers:
        flat = rows[numbers, : columns.observation]
        return model.native(model.seen(flat.reshape(len(flat), *model.observation_shape)))

    return Rollout(
        seen(steps),
        model.native(rows[steps, columns.actions].astype(model.head.dtype)),
        model.scaled(rows[steps, columns.reward]),
        ~goes_on,
        np.flatnonzero(cut),
        seen(after[cut]),
        log_mu=rows[steps, columns.log_mu],
        progress=progress,
    )


def _device_weights(experiment: Experiment, model: Model, state: Array) -> DeviceWeights | None:
    """The model's weights on `learner.device`; None if that is the CPU."""
    name = experiment.learner.device
    if name == "cpu" or (name == "auto" and not tensor_setting(model.experiment, model.head)):
        return None
    user = f"learner.device = {name!r}"
    device = load_tensors("accelerator:find_device", user)("learner.device", name)
    if str(device) == "cpu":
        return None  # the model is there already
    weights = load_tensors("accelerator:DeviceWeights", user)(device, model.numbers, state)
    return cast("DeviceWeights", weights)


class RowLearner:
    """A model, its learner and its optimizer, which learn from rows alone.

    On a device `model.numbers` and `state` are copies (`DeviceWeights`), the same after each batch.
    """

    def __init__(self, experiment: Experiment, spaces: Spaces) -> None:
        self.experiment = experiment
        self.model = Model(experiment, spaces, learns=True)
        #: The network that the children have.
        self.signature = self.model.signature
        trainable = self.model.trainable
        #: The optimizer's vectors, float32 (rows, trainable), and its steps, float64 (1,).
        self.state = state = np.zeros(
            (STATE_ROWS[experiment.optimizer.name], trainable), np.float32
        )
        self.clock = np.zeros(1, np.float64)
        self._weights = _device_weights(experiment, self.model, self.state)
        if self._weights is not None:
            self.model, state = self._weights.model(experiment, spaces), self._weights.state
        self.columns = columns_of(self.model)
        self._learner = make_learner(experiment.algorithm, self.model)
        vector = self.model.vector[:trainable]
        self._optimizer = make_optimizer(experiment.optimizer, vector, state, self.clock)
        self._rng = self.model.generator(experiment.seed)
        #: Figures about the batch that was learned from last.
        self.figures: dict[str, float] = {}
        self._sums = np.zeros(SHAPE)
        self._diagnostics = Diagnostics(self._sums)
        self._window = Window()

    def learn(self, rows: Array, progress: float) -> Iterator[None]:
        """Learns from a batch, as for `rollout_of`. Between two updates it is the caller's turn."""
        experiment = self.experiment
        model = self.model
        before = model.numbers.copy()
        rollout = rollout_of(rows, self.columns, model, progress)
        rollout.diagnostics = self._diagnostics
        self._take_statistics(rows)
        divergence = self._divergence(rollout)
        settings = experiment.optimizer
        rate = learning_rate(settings, progress)
        found = model.gradients(self._learner, rollout, self._rng)
        count = 0
        for _ in updates(found, model, self._optimizer, rate, self._diagnostics):
            count += 1
            yield
        if self._weights is not None:
            self._weights.publish()
        self.figures = self._window.read(self._sums) | {
            "learning_rate": rate,
            "kl": divergence,
            "steps": float(len(rollout.rewards)),
            "updates": float(count),
        }
        # With moments that are infinite, Adam would never make a step again.
        if not (is_finite(model.numbers) and is_finite(self.state.ravel())):
            # Training diverged: the batch is forgotten, and the optimizer begins anew.
            model.numbers[:] = before
            self.state[:] = 0.0
            self.clock[:] = 0.0
            self.refresh()
            self.figures["diverged"] = 1.0

    def refresh(self) -> None:
        """Takes over `model.numbers` and `state`, which were written to."""
        if self._weights is not None:
            self._weights.refresh()

    @property
    def weights(self) -> Array:
        """θ as the children have it, float32 (signature.size,)."""
        return self.model.numbers

    def load(self, memory: LearnerMemory) -> None:
        """Takes over what the shared memory has: weights, state and clock."""
        self.model.numbers[:] = memory.weights
        self.state[:] = memory.state
        self.clock[:] = memory.clock
        self.refresh()

    def publish(self, memory: LearnerMemory) -> None:
        """Writes weights, state and clock to the shared memory."""
        memory.weights[:] = self.weights
        memory.state[:] = self.state
        memory.clock[:] = self.clock

    def _take_statistics(self, rows: Array) -> None:
        """Adds the batch to the running statistics, as the environment gave it."""
        steps = rows[rows[:, self.columns.following] > 0.0]
        observations = self.model.moments("observations")
        if observations is not None:
            observations.add(steps[:, : self.columns.observation])
        returns = self.model.moments("returns")
        if returns is not None:
            returns.add(steps[:, -1:])

    def _divergence(self, rollout: Rollout) -> float:
        """The divergence of the policy from those that acted: the mean of log μ − log π."""
        assert rollout.log_mu is not None
        some = slice(0, len(rollout.rewards), max(1, len(rollout.rewards) // _MEASURED_STEPS))
        outputs, _ = self.model.evaluate(rollout.observations[some])
        log_pi = self.model.log_probability(outputs, rollout.actions[some])
        return float(np.mean(rollout.log_mu[some] - log_pi))


class ReplayLearner(RowLearner):
    """A learner that samples what all children have sent (`StepReplay`), as SAC.

    Children have the policy alone, which is θ_P. The state beside it is of one row: the optimizer's
    vectors, then all of θ, then θ⁻.
    """

    def __init__(self, experiment: Experiment, spaces: Spaces) -> None:
        self.experiment = experiment
        self.model = model = Model(experiment, spaces, learns=True)
        self.signature = Model(experiment, spaces).signature
        #: Numbers of the policy, which are the first of both vectors.
        self._policy = self.signature.size - self.signature.statistics
        trainable, rows = model.trainable, STATE_ROWS[experiment.optimizer.name]
        self.state = np.zeros((1, (rows + 2) * trainable), np.float32)
        moments, self._kept, self._target = np.split(
            self.state[0], [rows * trainable, (rows + 1) * trainable]
        )
        self._target[:] = model.numbers[:trainable]
        self.clock = np.zeros(1, np.float64)
        self.columns = columns_of(model)
        self._learner = make_learner(experiment.algorithm, model)
        self._vector = model.numbers[:trainable]
        self._optimizer = make_optimizer(
            experiment.optimizer, self._vector, moments.reshape(rows, trainable), self.clock
        )
        self._rng = model.generator(experiment.seed)
        self._replay: StepReplay
        paths, rng = experiment.algorithm.demonstrations, np.random.default_rng(experiment.seed)
        #: Steps beside the replay, which stay.
        self._demonstrations = DemonstrationReplay(paths, model, rng) if paths else None
        self._drawn: Replay
        given = experiment.algorithm.updates_per_step
        most = _MOST_NORMALIZED if experiment.algorithm.layer_norm else _MOST_UPDATES
        #: Updates for each step, those that are due, and steps and updates of this process.
        self._per_step = most if given == "auto" else float(given)
        self._due = 0.0
        self._steps = self._updates = 0
        self.figures = {}
        self._sums = np.zeros(SHAPE)
        self._diagnostics = Diagnostics(self._sums)
        self._window = Window()
        self._measured = 0.0

    @property
    def weights(self) -> Array:
        model = self.model
        return np.concatenate((model.numbers[: self._policy], model.numbers[model.trainable :]))

    def load(self, memory: LearnerMemory) -> None:
        model = self.model
        if memory.state.any():
            self.state[:] = memory.state
            self._vector[:] = self._kept
        self.clock[:] = memory.clock
        model.numbers[: self._policy] = memory.weights[: self._policy]
        model.numbers[model.trainable :] = memory.weights[self._policy :]
        rng = np.random.default_rng((self.experiment.seed, int(memory.added[0])))
        self._replay = StepReplay(memory, self.columns, model, rng)
        self._drawn = self._replay
        if self._demonstrations is not None:
            algorithm = self.experiment.algorithm
            self._drawn = MixedReplay(self._replay, self._demonstrations, algorithm)

    def publish(self, memory: LearnerMemory) -> None:
        self._kept[:] = self._vector
        super().publish(memory)

    def learn(self, rows: Array, progress: float) -> Iterator[None]:
        """Adds rows to the replay, and makes updates until none is due, or for a moment."""
        steps = self._replay.add(rows)
        self._steps += steps
        if steps:
            self._take_statistics(rows)
        self._due = min(self._due + steps * self._per_step, _DUE_STEPS * self._per_step)
        algorithm, settings = self.experiment.algorithm, self.experiment.optimizer
        rate = learning_rate(settings, progress)
        began = time.monotonic()
        before = self._vector.copy()
        target = self._target.copy()
        if len(self._replay) >= max(1, algorithm.start_steps):
            found = self.model.gradients(self._learner, self._asked(progress), self._rng)
            for _ in updates(found, self.model, self._optimizer, rate, self._diagnostics):
                self._updates += 1
                follow(self._target, self._vector, algorithm.target_rate)
                yield
                if time.monotonic() - began > _TURN_SECONDS:
                    break
        else:
            self._due = 0.0
        self.figures = {"due": math.floor(self._due)}
        if not (is_finite(self._vector) and is_finite(self._target)):
            # Training diverged: this turn is forgotten, and the optimizer begins anew.
            self.state[:] = 0.0
            self.clock[:] = 0.0
            self._vector[:] = before
            self._target[:] = target
            self.figures["diverged"] = 1.0
        if began - self._measured >= _MEASURE_SECONDS:
            self._measured = began
            self.figures |= self._window.read(self._sums) | {
                "learning_rate": rate,
                "steps": float(self._steps),
                "updates": float(self._updates),
                "replay": float(len(self._replay)),
            }
            if self._steps:
                self.figures["updates_per_step"] = self._updates / self._steps
            self._steps = self._updates = 0

    def _asked(self, progress: float) -> Rollout:
        """A rollout without steps, for what is due."""
        nothing = np.zeros(0, np.float32)
        none: Array = np.zeros(0, np.intp)
        return Rollout(
            nothing,
            nothing,
            nothing,
            none,
            none,
            nothing,
            progress=progress,
            replay=self._drawn,
            target=self.model.native(self._target),
            due=self._next,
            diagnostics=self._diagnostics,
        )

    def _next(self) -> bool:
        """True if one more update is due, which counts from now on."""
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True


def row_learner(experiment: Experiment, spaces: Spaces) -> RowLearner:
    """The learner of this experiment."""
    samples = reads_replay(learner_class(experiment.algorithm))
    return (ReplayLearner if samples else RowLearner)(experiment, spaces)


#: Characters of an error's text that are sent.
_LONGEST_REASON = 1000


def _describe(learning: RowLearner) -> tuple[Any, ...]:
    """The answer to the experiment: "ok", the signature's entries, the vector, the shape of the
    optimizer's state, a row's columns, and whether observations are images."""
    return (
        "ok",
        learning.signature.entries,
        learning.weights.tobytes(),
        learning.state.shape,
        learning.columns,
        learning.model.sees_bytes,
    )


class _Gone(Exception):
    """The parent is gone, or needs no learner any more."""


@contextmanager
def _talking() -> Iterator[None]:
    """Turns the end of the socket into a `_Gone`. Any other error is the user's learner's."""
    try:
        yield
    except (EOFError, OSError):
        raise _Gone from None


def _serve(learning: RowLearner, memory: LearnerMemory, control: Connection) -> None:
    """Learns from one batch after another until the socket ends, which raises a `_Gone`."""
    learning.load(memory)
    while True:
        with _talking():
            count, progress = control.recv()
        for _ in learning.learn(memory.rows[:count].copy(), progress):
            memory.beat[0] += 1
            if readable(control):  # the parent sends nothing meanwhile: the socket has ended
                raise _Gone
        learning.publish(memory)
        with _talking():
            control.send(("learned", learning.figures))


def run_forked(control: Connection) -> NoReturn:
    """The life of a learner's process that was forked."""
    keep_large_blocks()  # forkservers are set up for cores, whose blocks are small
    sys.exit(main(control))


def main(control: Connection) -> int:
    """The life of a learner's process; returns its exit code."""
    # The parent decides what ends when, and its end of the socket says so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        try:
            with _talking():
                settings, described = control.recv()
            experiment = Experiment.from_dict(settings)
            spaces = spaces_of(experiment.environment, described)
            learning = row_learner(experiment, spaces)
        except ConfigurationError as error:
            print_user_traceback(error)
            with _talking():
                control.send(("error", str(error)))
            return 1
        with _talking():
            control.send(_describe(learning))
            layout: LearnerLayout = control.recv()
            with without_timeout():
                handle = reduction.recv_handle(control)
        memory = LearnerMemory(layout, handle)
        if experiment.environment.period and isinstance(learning, ReplayLearner):
            with suppress(OSError):  # not everywhere may it
                os.nice(_NICE)
        try:
            _serve(learning, memory, control)
        except _Gone:
            raise
        except Exception as error:  # a network or learner of the user's own may raise anything
            traceback.print_exc()
            with _talking():
                control.send(("failed", describe_error(error)[:_LONGEST_REASON]))
            return 1
    except _Gone:
        pass
    return 0


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(Connection(int(sys.argv[1]))))
