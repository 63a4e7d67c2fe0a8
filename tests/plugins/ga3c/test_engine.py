"""The engine: its device, what it cannot build, and its threads."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from genkidama import Network
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.plugins.ga3c.engine import Engine, _device
from genkidama.plugins.ga3c.engine_process import pipe
from genkidama.plugins.ga3c.queues import put
from genkidama.plugins.ga3c.slots import Count, SlotLayout, Slots
from genkidama.plugins.ga3c.threads import Predictor, Trainer
from genkidama.protocol.vector import Signature
from tests.helpers import PATIENCE, ROOT, until
from tests.plugins.ga3c.starter import EXPERIMENT


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines import the tests' environments and networks by name, however pytest was started."""
    monkeypatch.syspath_prepend(ROOT)


# The device.


def test_the_cpu_is_always_there_and_auto_is_the_best_that_is() -> None:
    assert _device("cpu") == torch.device("cpu")
    assert _device("auto") == torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error_that_says_so(name: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        _device(name)
    text = str(error.value)
    assert text.startswith(f"ga3c.device = {name!r}: torch {torch.__version__} ")
    assert text.endswith("; use 'cpu', or 'auto' for whatever a child has")
    assert "\n" not in text


def test_a_gpu_beyond_those_that_are_there_is_an_error() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with pytest.raises(ConfigurationError, match=f"^ga3c.device = 'cuda:{count}': "):
        _device(f"cuda:{count}")


# What cannot be built.


class Broken(Network):
    """A network that cannot be built."""

    def __init__(self, observation_space: Any, action_space: Any, settings: Any) -> None:
        raise RuntimeError("no layers left")


class Crooked(Network):
    """A network whose outputs do not fit."""

    def __init__(self, observation_space: Any, action_space: Any, settings: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        result = self.layer(observations)
        return result, result[:, 0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment.id": "tests.nowhere:Nothing"}, "environment.id = 'tests.nowhere:Nothing': "),
        (
            {"environment.options": {"size": 3}},
            "environment.id = 'tests.environments:Bandit': cannot be built: TypeError: ",
        ),
        (
            {"network.name": f"{__name__}:Crooked"},
            f"network.name = '{__name__}:Crooked': gives outputs [2, 2] and values [2] for 2 ",
        ),
        ({"network.name": "convolutional"}, "network.name = 'convolutional': "),
        ({"algorithm.name": f"{__name__}:Nothing"}, f"algorithm.name = '{__name__}:Nothing': "),
        pytest.param(
            {"network.name": f"{__name__}:Broken"},
            f"network.name = '{__name__}:Broken': ",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_an_error_of_one_line(changes: dict[str, Any], words: str) -> None:
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, pytest.raises(ConfigurationError) as error:
        Engine(EXPERIMENT.with_settings(changes), theirs)
    assert str(error.value).startswith(words) and "\n" not in str(error.value)


# Threads.


class Raising:
    """A learner that cannot learn."""

    def __init__(self, algorithm: Algorithm, model: Model) -> None: ...

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[Tensor]:
        raise ArithmeticError("nothing to learn here")
        yield


class Bench:
    """An engine in this process, and what a backend has of it."""

    def __init__(self, experiment: Experiment) -> None:
        self.control, self.theirs = multiprocessing.Pipe()
        self.engine = Engine(experiment, self.theirs)
        _, entries, vector, facts, _ = self.engine.description()
        size = Signature.of(entries).size
        self.slots = Slots(
            SlotLayout(
                agents=2, environments=1, rollouts=3, steps=4, size=size, threads=16, **facts
            )
        )
        self.slots.weights[:] = np.frombuffer(vector, np.float32)
        self.predictions, self.training, self.bells = pipe(), pipe(), [pipe() for _ in range(2)]
        predictions, predictions_in, training, training_in = (
            end.fileno() for end in (*self.predictions, *self.training)
        )
        self.engine.attach(
            self.slots,
            (predictions, predictions_in, training, training_in),
            [bell.fileno() for _, bell in self.bells],
        )

    def at_work(self, kind: type[Predictor] | type[Trainer]) -> list[int]:
        """The rows of the threads of this kind that live."""
        return [thread.row for thread in threading.enumerate() if isinstance(thread, kind)]

    def use(self) -> None:
        """A prediction and an update."""
        before = self.slots.counters.sum(0)
        self.slots.asked[1] += 1
        put(self.predictions[1].fileno(), (1,))
        self.slots.lengths[4], self.slots.busy[4] = 2, True
        put(self.training[1].fileno(), (4,))
        until(
            lambda: (
                (self.slots.counters.sum(0) - before)[[Count.PREDICTIONS, Count.UPDATES]].tolist()
                == [1, 1]
            )
        )

    def close(self) -> None:
        self.engine.resize(0, 0)
        until(lambda: not self.at_work(Predictor) and not self.at_work(Trainer))
        for end in (
            *self.predictions,
            *self.training,
            *(end for bell in self.bells for end in bell),
            self.control,
            self.theirs,
        ):
            end.close()
        self.slots.close()


@contextmanager
def bench(experiment: Experiment = EXPERIMENT) -> Iterator[Bench]:
    at_hand = Bench(experiment)
    try:
        yield at_hand
    finally:
        at_hand.close()


def test_threads_come_and_go_and_no_two_that_live_count_in_one_row() -> None:
    with bench() as at_hand:
        for predictors, trainers in ((1, 1), (2, 3), (2, 1), (4, 4), (1, 2), (3, 1), (1, 1)):
            at_hand.engine.resize(predictors, trainers)
            until(
                lambda kinds=(predictors, trainers): (
                    (len(at_hand.at_work(Predictor)), len(at_hand.at_work(Trainer))) == kinds
                )
            )
            rows = at_hand.at_work(Predictor) + at_hand.at_work(Trainer)
            assert len(set(rows)) == predictors + trainers
            at_hand.use()
        assert at_hand.slots.counters.sum(0)[[Count.PREDICTIONS, Count.UPDATES]].tolist() == [7, 7]


def test_a_thread_that_fails_is_said_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    with bench(EXPERIMENT.with_settings({"algorithm.name": f"{__name__}:Raising"})) as at_hand:
        at_hand.engine.resize(1, 1)
        at_hand.slots.lengths[4], at_hand.slots.busy[4] = 2, True
        put(at_hand.training[1].fileno(), (4,))
        assert at_hand.control.poll(PATIENCE)
        kind, reason = at_hand.control.recv()
        assert kind == "failed"
        assert reason.startswith("ArithmeticError: nothing to learn here (")
        assert "Traceback" in capsys.readouterr().err
        at_hand.engine._counts[Trainer] = 0


def test_on_a_device_the_memory_has_a_copy_that_is_renewed_changed_and_taken_over() -> None:
    """The device's memory is another vector here. Running statistics are not in it."""
    with bench(EXPERIMENT.with_settings({"environment.normalize_observations": True})) as at_hand:
        slots, shared = at_hand.slots, at_hand.engine.shared
        trainable = len(slots.change)
        theirs, state = torch.ones(trainable), torch.full_like(shared.state, 2.0)
        shared.vector, shared.state = theirs, state
        slots.weights[trainable:] = 9.0
        ended = threading.Event()

        def serve() -> None:
            with pytest.raises(EOFError):
                at_hand.engine.serve()
            ended.set()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()

        def published() -> float:
            at_hand.control.send(("publish",))
            assert at_hand.control.poll(PATIENCE) and at_hand.control.recv() == ("published",)
            assert (slots.weights[trainable:] == 9.0).all() and (
                slots.weights[:trainable] == slots.weights[0]
            ).all()
            return float(slots.weights[0])

        assert published() == 1.0 and (slots.state == 2.0).all()
        slots.change[:] = 0.5
        at_hand.control.send(("change",))
        assert slots.weights[0] == 1.0
        assert published() == 1.5
        slots.weights[:trainable], slots.state[:] = -3.0, 0.0
        at_hand.control.send(("reset",))
        at_hand.control.send(("resize", 2, 1))
        until(lambda: (len(at_hand.at_work(Predictor)), len(at_hand.at_work(Trainer))) == (2, 1))
        assert (theirs == -3.0).all() and not state.any()
        at_hand.control.close()
        assert ended.wait(PATIENCE)
        thread.join()
