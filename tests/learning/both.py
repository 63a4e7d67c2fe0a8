"""The two forms of one learning: what each makes of the same rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def steps(model: Model, rollout: Rollout) -> Iterator[Callable[[], float]]:
    """The losses of the model's learner, each while its gradient is there, whatever was there
    before."""
    learner = make_learner(model.experiment.algorithm, model)
    given = tensors(rollout) if isinstance(model, TensorModel) else rollout
    model.gradient.fill(np.nan)
    return model.gradients(learner, given, model.generator(3))


def gradients(model: Model, rollout: Rollout) -> list[np.ndarray]:
    """Each gradient of the model's learner."""
    return [model.gradient.copy() for _ in steps(model, rollout)]


def gradients_and_losses(model: Model, rollout: Rollout) -> list[tuple[np.ndarray, float]]:
    return [(model.gradient.copy(), loss()) for loss in steps(model, rollout)]
