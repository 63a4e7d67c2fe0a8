"""Data of every learner: rollouts, samples of a replay, advantages and V-trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from genkidama.protocol.diagnostics import Diagnostics

Array = npt.NDArray[Any]

#: An array, or a tensor where the learner's form is that (`Model.native`).
Numbers = Any

#: Numbers of the observations that are drawn together, at most, unless one update needs more.
TOGETHER = 1 << 16


@dataclass
class Transitions:
    """B steps, of any core and any age, in no order. Copies.

    With `steps` of several, each stands for the m steps that begin with it: as many as were asked
    for, or as there are to the episode's end, or to where it was cut.
    """

    #: (B, ...) float32: s.
    observations: Array
    #: (B, columns): a.
    actions: Array
    #: (B,) float32: r, or Σ γ^k·r_k over the m steps.
    rewards: Array
    #: (B, ...) float32: s′ behind them, exact but after a termination, where nothing follows.
    following: Array
    #: (B,) bool: the episode is over, and V(s′) is 0.
    terminated: Array
    #: (B,) bool: the episode was cut, by a time limit, but could have gone on from s′.
    truncated: Array
    #: (B,) float32: log μ(a|s) of the policy that acted; NaN where nobody asked for it.
    log_mu: Array
    #: (B,) float32: what V(s′) counts: γ^m, or 0 after a termination.
    discounts: Array
    #: (B,) float32: what each counts in a loss, at most 1, and 1 where draws are uniform.
    weights: Array
    #: (B,) int64: their rows, for `prioritize`.
    places: Array


def parts_of(steps: Transitions, count: int) -> Iterator[Transitions]:
    """These steps in parts of `count`; views."""
    for first in range(0, len(steps.rewards), count):
        rows = slice(first, first + count)
        yield Transitions(**{name: column[rows] for name, column in vars(steps).items()})


class NoSteps(ValueError):
    """A replay that is shared has lost its steps since the learner asked for their number."""


class Replay(Protocol):
    """The steps of a child's cores, for a learner to sample."""

    def __len__(self) -> int:
        """The number of readable rows: steps and, where episodes were cut, one more each."""
        ...

    def sample(
        self,
        count: int,
        *,
        own: bool = False,
        replacement: bool = True,
        steps: int = 1,
        correction: float | None = None,
    ) -> Transitions:
        """Random steps, normalized and scaled as those of a rollout now would be.

        Args:
            count: how many.
            own: only steps of the core that learns, instead of all cores'.
            replacement: whether a step may come twice.
            steps: n of n-step returns.
            correction: β. Without it all steps are as probable. With it their probability is in
                proportion to their priority, and `weights` make up for that: (N·P)^−β over the
                largest in the sample (Schaul et al. 2016, §3.4).

        Raises:
            ValueError: no steps are there or, without replacement, fewer than `count`; or a
                `correction` where `replay.priority_exponent` is 0.
        """
        ...

    def prioritize(self, places: Array, errors: Array) -> None:
        """Steps are as interesting as their errors are large.

        Args:
            places: of a sample.
            errors: their temporal differences, of either sign, (B,).
        """
        ...

    def trajectories(self, count: int, length: int, *, own: bool = False) -> Rollout:
        """Random trajectories, one behind the other, each with the log μ of its steps.

        Each begins with a uniformly random step, and has `length` steps or as many as there are to
        the episode's end, or to where it was cut.

        Raises:
            ValueError: no steps are there.
        """
        ...


@dataclass
class Rollout:
    """n consecutive steps of one core, of one or several episodes, acted with one set of weights.

    Where a trajectory is cut though the episode could go on (a time limit, or the end of the
    batch), the value of the state that would have followed replaces the rest (Pardo et al. 2018).
    """

    #: (n, ...) float32, as the network takes them.
    observations: Numbers
    #: (n, columns), of the head's dtype.
    actions: Numbers
    #: (n,) float32, scaled.
    rewards: Array
    #: (n,) bool: the trajectory ends after this step, for whatever reason.
    ends: Array
    #: (k,) int: steps after which it is cut without having terminated.
    cuts: Array
    #: (k, ...) float32: the observations that followed these; (0, ...) where `cut_values` are
    #: given.
    cut_observations: Numbers
    #: (k,) float32: V of the observations after the cuts, as predicted when acting. None: they are
    #: computed.
    cut_values: Array | None = None
    #: (n,) float32: log μ(a_t|s_t) of the policy that acted. None: it was the one that learns.
    log_mu: Array | None = None
    #: The part of the run that is done, in [0, 1].
    progress: float = 0.0
    #: The steps of the child's cores. None: `replay.steps` is 0.
    replay: Replay | None = None
    #: (trainable,): θ⁻, older weights, for learners that read them. They change by themselves.
    target: Numbers | None = None
    #: Asked before each update from samples: whether another one is due. None: the learner counts.
    due: Callable[[], bool] | None = None
    #: Steps of each update; 0 leaves it to `algorithm.minibatch_size`.
    minibatch_size: int = 0
    #: The place for the learner's diagnostics. None: nobody reads them.
    diagnostics: Diagnostics | None = None


def temporal_differences(rollout: Rollout, values: Array, cut_values: Array, gamma: float) -> Array:
    """δ_t = r_t + γV(s_{t+1}) − V(s_t), shape (n,); V is 0 after a termination.

    Arguments as for `advantages`.
    """
    following = np.empty_like(values)
    following[:-1] = values[1:]
    following[rollout.ends] = 0.0
    following[rollout.cuts] = cut_values
    result: Array = rollout.rewards + gamma * following - values
    return result


def advantages(
    rollout: Rollout, values: Array, cut_values: Array, gamma: float, gae_lambda: float
) -> Array:
    """Generalized advantage estimates, shape (n,) float32 (Schulman et al. 2016, eq. 16).

    Args:
        rollout: n steps, k of them cut.
        values: V(s_t), shape (n,).
        cut_values: V of the observations after the cuts, shape (k,).
        gamma: discount of a step.
        gae_lambda: 1 gives n-step returns minus values, the advantage of A3C (Mnih et al. 2016,
            algorithm S3).
    """
    delta = temporal_differences(rollout, values, cut_values, gamma).tolist()
    decay = np.where(rollout.ends, 0.0, gamma * gae_lambda).tolist()
    # A recurrence over floats of Python is faster here than over NumPy's scalars.
    result, advantage = [0.0] * len(delta), 0.0
    for t in range(len(delta) - 1, -1, -1):
        result[t] = advantage = delta[t] + decay[t] * advantage
    return np.array(result, np.float32)


def vtrace(
    rollout: Rollout,
    values: Array,
    cut_values: Array,
    gamma: float,
    gae_lambda: float,
    log_ratio: Array,
    rho_bar: float,
    c_bar: float,
) -> tuple[Array, Array]:
    """The targets v_t of the values and the policy gradient's advantages, both (n,) float32.

    An advantage is ρ_t(r_t + γv_{t+1} − V(s_t)). With

        ρ_t = min(ρ̄, π(a_t|s_t)/μ(a_t|s_t)), c_t = λ·min(c̄, π(a_t|s_t)/μ(a_t|s_t))

    and δ_t = r_t + γV(s_{t+1}) − V(s_t), a target is

        v_t = V(s_t) + Σ_{k≥0} γ^k · c_t·…·c_{t+k−1} · ρ_{t+k}·δ_{t+k},

    summed to the trajectory's end (Espeholt et al. 2018, eq. 1, remark 2 and §4.2). Where π = μ and
    ρ̄ = c̄ = λ = 1 these are the n-step returns and what `advantages` makes of them.

    Args:
        rollout: n steps, k of them cut.
        values, cut_values, gamma, gae_lambda: as for `advantages`.
        log_ratio: log π(a_t|s_t) − log μ(a_t|s_t), shape (n,): π learns, μ has acted.
        rho_bar: ρ̄, above 0; it decides whose values are learned: those of μ near 0, those of π at
            infinity.
        c_bar: c̄, above 0; how far differences reach back.
    """
    # Cut before the exponential is taken, so that it cannot overflow.
    rho, c = (np.exp(np.minimum(log_ratio, math.log(limit))) for limit in (rho_bar, c_bar))
    delta = (rho * temporal_differences(rollout, values, cut_values, gamma)).tolist()
    going_on = np.where(rollout.ends, 0.0, gamma)
    decay, weight = (going_on * gae_lambda * c).tolist(), (going_on * rho).tolist()
    # d_t = v_t − V(s_t) = ρ_t·δ_t + γ·c_t·d_{t+1}: remark 1.
    # The advantage is ρ_t·δ_t + ρ_t·γ·d_{t+1}.
    differences = [0.0] * len(delta)
    advantage = [0.0] * len(delta)
    d = 0.0
    for t in range(len(delta) - 1, -1, -1):
        advantage[t] = delta[t] + weight[t] * d
        differences[t] = d = delta[t] + decay[t] * d
    return values + np.array(differences, np.float32), np.array(advantage, np.float32)
