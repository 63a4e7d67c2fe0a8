"""Export of a policy to ONNX, for ONNX Runtime and the like."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from genkidama._version import pip_install
from genkidama.errors import EnvironmentFailure
from genkidama.learning.heads import Categorical, Gaussian, MultiCategorical
from genkidama.learning.model import CUT
from genkidama.learning.tensors.tensor_model import TensorModel

#: By so much may ONNX Runtime's numbers differ from torch's.
_TOLERANCE = 1e-4


def exported(model: TensorModel, space: gymnasium.Space[Any]) -> bytes:
    """The content of the file that `Policy.to_onnx` writes.

    Args:
        space: of the actions.

    Raises:
        EnvironmentFailure: packages for it are missing, or ONNX Runtime computes something else.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  torch's exporter needs it
    except ImportError as error:
        raise EnvironmentFailure(f"to_onnx needs {error.name}: {pip_install('onnx')}") from None
    whole = _Whole(model, space).eval()
    example = torch.randn(3, *model.observation_shape)
    with torch.no_grad():
        wanted = [part.numpy() for part in whole(example)]
    names = ["outputs", "value", "action"][: len(wanted)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, of names that torch will drop
        program = torch.onnx.export(
            whole,
            (example,),
            input_names=["observation"],
            output_names=names,
            dynamic_shapes={"observation": {0: torch.export.Dim("batch")}},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    found = session.run(None, {"observation": example.numpy()})
    for name, ours, theirs in zip(names, wanted, found, strict=True):
        if not np.allclose(ours, theirs, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise EnvironmentFailure(f"to_onnx: ONNX Runtime finds another {name} than torch")
    return content


class _Whole(nn.Module):
    """From observations as the environment gives them to what the network says, and to actions."""

    mean: Tensor
    deviation: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, model: TensorModel, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self._network = model.network
        self._head = model.head
        self._space = space
        scale = model.mean_and_deviation()
        self._normalizes = scale is not None
        if scale is not None:
            for name, part in zip(("mean", "deviation"), scale, strict=True):
                self.register_buffer(name, torch.from_numpy(part))
        if isinstance(space, gymnasium.spaces.Box):
            self.register_buffer("low", torch.from_numpy(space.low).float())
            self.register_buffer("high", torch.from_numpy(space.high).float())

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        if self._normalizes:
            observation = ((observation - self.mean) / self.deviation).clamp(-CUT, CUT)
        outputs, value = self._network(observation)
        if isinstance(self._head, Categorical):
            assert isinstance(self._space, gymnasium.spaces.Discrete)
            return outputs, value, outputs.argmax(1) + int(self._space.start)
        if isinstance(self._head, MultiCategorical):
            action = outputs[:, torch.from_numpy(self._head.places)].argmax(2)
            first = torch.as_tensor(getattr(self._space, "start", 0))
            return outputs, value, action.reshape(-1, *(self._space.shape or ())) + first
        if isinstance(self._head, Gaussian):
            mean = outputs[:, : self._head.columns].reshape(-1, *self.low.shape)
            return outputs, value, torch.minimum(torch.maximum(mean, self.low), self.high)
        return outputs, value
