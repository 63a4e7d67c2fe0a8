"""Explanation of a policy at one observation: action probabilities or values, and V(s)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from genkidama.learning.actions import INVALID
from genkidama.learning.heads import Categorical, Gaussian, MultiCategorical
from genkidama.learning.model import Model

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Explanation:
    """Output of a policy for one observation, in the units of the environment."""

    #: Content of `actions`: probabilities of actions, means of a continuous action, or Q values.
    #: A custom head has none of these.
    kind: Literal["probabilities", "means", "values", "unknown"]
    #: float32, (actions,) or (numbers of an action,); empty if unknown. Of several columns, one
    #: after the other. An invalid action has the least Q value of all.
    actions: Array
    #: Standard deviations of means, of their shape; else None.
    spread: Array | None
    #: V(s), the expected discounted return from here, in units of the environment's rewards. Of
    #: DQN it is the largest Q value.
    value: float


def explain(model: Model, observation: Array) -> Explanation:
    """Explains an observation, as the environment gives it.

    Rewards may be scaled, clipped or normalized for learning. V and Q are given without the scale
    and the normalization, but clipped rewards stay clipped.
    """
    outputs, values = model.evaluate(model.native(model.seen(np.asarray(observation)[None])))
    unit = _unit(model)
    said = outputs[0]
    value = float(values[0])
    if getattr(model.head, "greedy", False):
        q = said + (value - said.mean()) if model.experiment.algorithm.dueling else said
        q = np.maximum(q, q[q > INVALID].min())
        return Explanation("values", q / unit, None, float(q.max()) / unit)
    if isinstance(model.head, Categorical):
        pi = np.exp(said - said.max())
        return Explanation("probabilities", pi / pi.sum(), None, value / unit)
    if isinstance(model.head, MultiCategorical):
        pi = model.head.probabilities(said)
        return Explanation("probabilities", pi, None, value / unit)
    if isinstance(model.head, Gaussian):
        mean, log_deviation = np.split(said, 2)
        return Explanation("means", mean, np.exp(log_deviation), value / unit)
    return Explanation("unknown", np.zeros(0, np.float32), None, value / unit)


def _unit(model: Model) -> float:
    """The value as which a reward of 1 is learned, clipping left out."""
    scale = model.experiment.environment.reward_scale
    returns = model.moments("returns")
    return scale if returns is None else scale / float(returns.mean_and_deviation()[1][0])
