"""The dynamic adjustment of GA3C: the fastest numbers of predictors, trainers and agents.

Source: Babaeizadeh et al. 2016, "GA3C: GPU-based A3C for Deep Reinforcement Learning", section 2.
N_P and N_T change by ±1 at random, and TPS, the training batches a second, decides whether the
change is kept. The authors' program changes N_A, too.

Laws of this file:
- All windows are equally long. In each runs the accepted setting or a proposal, which is a
  neighbour of it, chosen at random.
- A proposal is accepted when its mean rate over two windows is not below the accepted setting's. It
  is given up as soon as its rate is below, which most are after their first window. One window
  alone would let the luckiest settings in rather than the best.
- After each proposal that is given up the accepted setting runs again, and its rate moves half-way
  to what it does now. So a lucky measurement does not last for ever, and a machine that has slowed
  down is compared with itself.
- A setting that was given up is not proposed again until all other neighbours were, or the accepted
  setting has changed.

The authors' program compares with the window before, even if that one's setting was rejected, and
its first window is shorter than the others.
"""

from __future__ import annotations

import math
from itertools import product
from typing import NamedTuple

import numpy as np


class Setting(NamedTuple):
    """The number of each kind, or its limit."""

    #: N_P.
    predictors: int
    #: N_T.
    trainers: int
    #: N_A.
    agents: int


class Measurement(NamedTuple):
    """One window, with its setting and its rate."""

    setting: Setting
    #: TPS: rollouts taken from the training queue a second.
    rate: float
    #: True if the setting was the accepted one at the window's end.
    accepted: bool


def neighbours(setting: Setting, most: Setting) -> list[Setting]:
    """All settings that differ from this one by −1, 0 or +1 step in each number, within [1, most].

    A step of N_P and N_T is 1. A step of N_A is a quarter of N_A, at least 1, unlike the paper's:
    one agent of 32 changes the rate by less than any noise.
    """
    steps = (1, 1, max(1, setting.agents // 4))
    numbers = [
        sorted({max(1, n - step), n, min(limit, n + step)})
        for n, step, limit in zip(setting, steps, most, strict=True)
    ]
    return [Setting(*chosen) for chosen in product(*numbers) if chosen != setting]


class Adjustment:
    """Proposes a setting for each window, and judges it by the rate that came of it. The first
    window runs with `start`, the first accepted setting; `most` is the largest of each."""

    def __init__(self, start: Setting, most: Setting, rng: np.random.Generator) -> None:
        if not all(1 <= n <= limit for n, limit in zip(start, most, strict=True)):
            raise ValueError(f"start = {tuple(start)}: expected numbers from 1 to {tuple(most)}")
        self._most, self._rng = most, rng
        #: The setting of the current window.
        self.setting = start
        #: The setting without any proposal.
        self.accepted = start
        #: All windows that have ended, in their order: the paper's figure, as data.
        self.trace: list[Measurement] = []
        # Rates in force; NaN before there is one.
        self._accepted_rate = self._proposed_rate = math.nan
        self._given_up: set[Setting] = set()

    def judge(self, rate: float) -> Setting:
        """Takes the rate measured under `setting`, in any unit; returns the next setting."""
        if not 0.0 <= rate < math.inf:
            raise ValueError(f"rate = {rate!r}: expected a finite number of at least 0")
        measured = self.setting
        if measured == self.accepted:
            self._accepted_rate = _halfway(self._accepted_rate, rate)
            self.setting = self._propose()
        else:
            self._judge_proposal(rate)
        self.trace.append(Measurement(measured, rate, measured == self.accepted))
        return self.setting

    def _judge_proposal(self, rate: float) -> None:
        first = math.isnan(self._proposed_rate)
        self._proposed_rate = _halfway(self._proposed_rate, rate)
        if self._proposed_rate < self._accepted_rate:
            self._given_up.add(self.setting)
            self.setting, self._proposed_rate = self.accepted, math.nan
        elif not first:
            self._given_up = {self.accepted}
            self.accepted = self.setting
            self._accepted_rate = self._proposed_rate
            self._proposed_rate = math.nan
            self.setting = self._propose()

    def _propose(self) -> Setting:
        around = neighbours(self.accepted, self._most)
        if self._given_up.issuperset(around):
            self._given_up.clear()
        left = [setting for setting in around if setting not in self._given_up]
        return left[self._rng.integers(len(left))] if left else self.accepted


def _halfway(before: float, rate: float) -> float:
    return rate if math.isnan(before) else before + (rate - before) / 2
