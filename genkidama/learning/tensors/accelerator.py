"""Accelerator: which device there is, and θ on it beside a copy in host memory.

A trainer of GA3C and a learner beside a parent use it alike: processes without torch read and write
the copy, and whoever learns says when the two become the same.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.model import Spaces
from genkidama.learning.rollout import Numbers
from genkidama.learning.tensors.tensor_model import HOST, TensorModel

Array = npt.NDArray[Any]


def find_device(setting: str, name: str) -> torch.device:
    """The device of this name on this machine; `"auto"` is a GPU if there is one.

    Raises:
        ConfigurationError: it is not here. The error names the setting.
    """
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda") if available else HOST
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
            f"{setting} = {name!r}: {there}; use 'cpu', or 'auto' for whatever a machine has"
        )
    return device


class DeviceWeights:
    """The trainable part of θ and the optimizer's state on a device, and their copy.

    On the CPU there is no copy: `vector` and `state` are the arrays that were given.

    Args:
        device: one of `find_device`'s.
        numbers: the copy of θ, float32 (size,). Its running statistics are nowhere else.
        moments: the copy of the optimizer's state, float32 (rows, trainable).
    """

    vector: Numbers
    state: Numbers

    def __init__(self, device: torch.device, numbers: Array, moments: Array) -> None:
        self.device, self.numbers = device, numbers
        self._trainable = moments.shape[1]
        self.vector, self.state = numbers, moments
        #: Each tensor on the device, and its copy.
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        if device != HOST:
            copies = torch.from_numpy(numbers[: self._trainable]), torch.from_numpy(moments)
            self.vector, self.state = (copy.to(device, copy=True) for copy in copies)
            self._pairs = list(zip((self.vector, self.state), copies, strict=True))

    def model(self, experiment: Experiment, spaces: Spaces) -> TensorModel:
        """A model of tensors over this vector, with a gradient of its own."""
        model = TensorModel(experiment, spaces, vector=self.vector, device=self.device)
        model.numbers = self.numbers
        return model

    def publish(self) -> None:
        """Makes the copy the same as what is on the device."""
        for there, copy in self._pairs:
            copy.copy_(there)

    def refresh(self) -> None:
        """Makes what is on the device the same as the copy."""
        for there, copy in self._pairs:
            there.copy_(copy)

    def add(self, change: Array) -> None:
        """θ ← θ + change, float32 (trainable,), on the device alone."""
        vector = torch.as_tensor(self.vector)[: self._trainable]
        vector.add_(torch.from_numpy(change).to(self.device))
