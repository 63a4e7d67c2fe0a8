"""The two forms of one learning: what each makes of the same rollout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from genkidama.learning.learners import make_learner
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.learning.tensors.tensor_model import TensorModel


def in_tensors(model: Model, spaces: Any) -> TensorModel:
    """The same model of tensors, over the same numbers."""
    return TensorModel(model.experiment, spaces, vector=model.numbers)


def tensors(rollout: Rollout) -> Rollout:
    """The same in tensors over the same memory."""
    names = ("observations", "actions", "cut_observations", "target")
    given = {name: getattr(rollout, name) for name in names}
    return replace(
        rollout,
        **{
            name: torch.from_numpy(numbers)
            for name, numbers in given.items()
            if isinstance(numbers, np.ndarray)
        },
    )


def gradients(model: Model, rollout: Rollout, seed: int = 3) -> list[np.ndarray]:
    """Each gradient of the model's learner, whatever was in the vector before."""
    learner = make_learner(model.experiment.algorithm, model)
    given = tensors(rollout) if isinstance(model, TensorModel) else rollout
    model.gradient.fill(np.nan)
    found = model.gradients(learner, given, model.generator(seed))
    return [model.gradient.copy() for _ in found]
