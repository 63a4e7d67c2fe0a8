"""Weights on a device, and their copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.spaces import KnownSpaces
from genkidama.learning.tensors.accelerator import DeviceWeights, find_device
from genkidama.learning.tensors.tensor_model import HOST, TensorModel
from tests.learning.devices import DEVICES

SPACES = KnownSpaces(Box(-1.0, 1.0, (2,), np.float32), Discrete(2))


def memory() -> tuple[np.ndarray, np.ndarray]:
    """Three trainable numbers and two of a statistic, and two vectors of state."""
    return np.arange(5, dtype=np.float32), np.full((2, 3), 7.0, np.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_device_and_copy_become_the_same_when_someone_says_so(device: str) -> None:
    numbers, moments = memory()
    weights = DeviceWeights(torch.device(device), numbers, moments)
    assert weights.vector.tolist() == [0.0, 1.0, 2.0] and (weights.state == 7.0).all()
    weights.vector += 1.0
    weights.state[1] = 5.0
    assert numbers.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0] and (moments == 7.0).all()
    weights.publish()
    assert numbers.tolist() == [1.0, 2.0, 3.0, 3.0, 4.0]
    assert moments.tolist() == [[7.0] * 3, [5.0] * 3]
    weights.add(np.array([1.0, 0.0, -1.0], np.float32))
    assert weights.vector.tolist() == [2.0, 2.0, 2.0] and numbers[0] == 1.0
    numbers[:], moments[:] = 9.0, 8.0
    assert weights.vector.tolist() == [2.0, 2.0, 2.0]
    weights.refresh()
    assert weights.vector.tolist() == [9.0] * 3 and (weights.state == 8.0).all()


def test_on_the_cpu_they_are_the_same_memory() -> None:
    numbers, moments = memory()
    weights = DeviceWeights(HOST, numbers, moments)
    assert weights.vector is numbers and weights.state is moments
    weights.add(np.ones(3, np.float32))
    weights.publish()
    weights.refresh()
    assert numbers.tolist() == [1.0, 2.0, 3.0, 3.0, 4.0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_models_numbers_are_the_copy_and_its_network_is_the_device(device: str) -> None:
    experiment = Experiment.from_dict({"environment": {"normalize_observations": True}})
    here = TensorModel(experiment, SPACES)
    numbers, moments = here.numbers, np.zeros((1, here.trainable), np.float32)
    weights = DeviceWeights(torch.device(device), numbers, moments)
    there = weights.model(experiment, SPACES)
    assert there.numbers is numbers
    weights.vector[:] = 0.0
    outputs, values = there.evaluate(np.ones((3, 2), np.float32))
    assert not outputs.any() and not values.any() and numbers.any()
    statistics = there.moments("observations")
    assert statistics is not None
    statistics.add(np.array([[1.0, 3.0], [3.0, 5.0]]))
    normalize = there.normalizer()
    assert normalize is not None
    assert normalize(np.array([2.0, 4.0], np.float32)).tolist() == [0.0, 0.0]
    weights.publish()
    assert not numbers[: there.trainable].any() and numbers[there.trainable] == 2.0


def test_the_cpu_is_always_there_and_auto_is_the_best_that_is() -> None:
    assert find_device("ga3c.device", "cpu") == HOST
    best = torch.device("cuda") if torch.cuda.is_available() else HOST
    assert find_device("ga3c.device", "auto") == best


def test_a_gpu_that_is_not_there_is_an_error_that_says_so() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for name in (f"cuda:{count}", *(("cuda", "cuda:0") if not count else ())):
        with pytest.raises(ConfigurationError) as error:
            find_device("learner.device", name)
        text = str(error.value)
        assert text.startswith(f"learner.device = {name!r}: torch {torch.__version__} ")
        assert text.endswith("; use 'cpu', or 'auto' for whatever a machine has")
