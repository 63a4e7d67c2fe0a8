"""Running statistics of losses, which tell outliers (Nair et al. 2015). Pure."""

from __future__ import annotations

import math

import numpy as np

#: Losses before the first that can be an outlier.
_FIRST_LOSSES = 20

#: Share of the newest loss in the running mean.
_NEW = 0.01


class LossStatistics:
    """The running mean and variance of absolute losses.

    Args:
        sigmas: greatest distance of a usual loss above the mean, in standard deviations; 0 means
            that every loss is usual.
    """

    def __init__(self, sigmas: float) -> None:
        self.sigmas = sigmas
        #: The number of losses, and their running mean and variance, float64 (3,).
        self.numbers = np.zeros(3)
        #: Outliers so far.
        self.outliers = 0

    def is_outlier(self, loss: float) -> bool:
        """True if the loss is far above the others; it then counts as one at the border.

        So a loss that has grown for good becomes usual after a while.
        """
        if not self.sigmas or math.isnan(loss):
            return False
        count, mean, variance = self.numbers.tolist()
        border = mean + self.sigmas * math.sqrt(variance)
        far = count >= _FIRST_LOSSES and abs(loss) > border
        self.outliers += far
        value = border if far else abs(loss)
        new = max(_NEW, 1.0 / (count + 1.0))
        apart = value - mean
        self.numbers[:] = (
            count + 1.0,
            mean + new * apart,
            (1.0 - new) * (variance + new * apart * apart),
        )
        return far
