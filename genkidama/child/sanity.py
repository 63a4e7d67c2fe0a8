"""What an environment gives must be numbers. One that is not would spoil the weights for good."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from genkidama.errors import EnvironmentFailure

__all__ = ["check_numbers", "may_be_none"]

_WAY_OUT = "mend the environment, or put a wrapper around it"


def may_be_none(space: Any) -> bool:
    """Whether observations from a space of Gymnasium's may be no numbers: pixels always are."""
    return np.dtype(space.dtype or np.float64).kind == "f"


def check_numbers(rewards: npt.NDArray[Any], *observations: npt.NDArray[Any]) -> None:
    """Checks a batch, in a few microseconds.

    Args:
        rewards: float, shape (n,).
        observations: any shapes; those of whole numbers cost nothing.

    Raises:
        EnvironmentFailure: one of them is NaN or infinite.
    """
    # A sum is NaN or infinite if any part is. If it is only too large, all parts are looked at.
    if not math.isfinite(rewards.sum()) and not np.isfinite(rewards).all():
        raise EnvironmentFailure(f"the environment gave NaN or infinity as a reward; {_WAY_OUT}")
    for some in observations:
        if some.dtype.kind == "f" and not math.isfinite(some.sum()) and not np.isfinite(some).all():
            raise EnvironmentFailure(
                f"the environment gave NaN or infinity in an observation; {_WAY_OUT}"
            )
