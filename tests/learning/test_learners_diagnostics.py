"""What learners note of an update, against means in float64 that are taken step by step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from genkidama.config.sections import Network
from genkidama.learning.heads import Categorical
from genkidama.learning.learners import by_autograd, gradients, make_learner, updates
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from genkidama.protocol import diagnostics
from genkidama.protocol.diagnostics import SHAPE, Diagnostics, Window
from tests.learning.test_learners import model, rollout
from tests.plugins.gorila import test_dqn as q
from tests.plugins.gorila import test_off_policy as v

N = 80
BY_HAND = pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "autograd"])


@pytest.fixture(autouse=True)
def each_update_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "_SAMPLES", 1)


def noted(ours: Model, data: Rollout, by_hand: bool) -> dict[str, float]:
    """What the learner notes of one update, with a gradient's norm limited to 0.01."""
    sums = np.zeros(SHAPE)
    data.actions = data.actions.long()
    data.diagnostics = Diagnostics(sums)
    learner = make_learner(ours.experiment.algorithm, ours)
    rng = torch.Generator()
    found = (
        gradients(learner, ours, data, rng)
        if by_hand
        else by_autograd(learner.losses(data, rng), ours.gradient)
    )

    class Nowhere:
        def step(self, gradient: torch.Tensor, rate: float) -> None:
            assert float(torch.linalg.vector_norm(gradient)) <= 0.0101

    for _ in updates(found, ours, Nowhere(), 0.0, 0.01, data.diagnostics):
        pass
    return Window().read(sums)


def expected(ours: Model, data: Rollout, policy: Any, c_e: float) -> dict[str, float]:
    """The same in Python's floats: `policy` turns log π, log μ and A of a step into its loss."""
    algorithm = ours.experiment.algorithm
    with torch.no_grad():
        outputs, values = ours.network(data.observations)
        _, behind = ours.network(data.cut_observations)
    assert isinstance(ours.head, Categorical)
    returns = [0.0] * N
    following = float(behind[0])
    for t in reversed(range(N)):  # λ = 1: the return from the cut on
        following = returns[t] = float(data.rewards[t]) + algorithm.gamma * following
    losses = []
    squares = []
    entropies = []
    for t in range(N):
        row = [float(one) for one in outputs[t]]
        log_z = math.log(sum(math.exp(one) for one in row))
        log_pi = row[int(data.actions[t])] - log_z
        advantage = returns[t] - float(values[t])
        log_mu = None if data.log_mu is None else float(data.log_mu[t])
        losses.append(policy(log_pi, log_mu, advantage))
        squares.append(advantage**2)
        entropies.append(-sum(math.exp(one - log_z) * (one - log_z) for one in row))
    residual = [one - float(value) for one, value in zip(returns, values, strict=True)]
    mean = {
        "policy_loss": float(np.mean(losses)),
        "value_loss": float(np.mean(squares)),
        "entropy": float(np.mean(entropies)),
        "explained_variance": 1.0 - float(np.var(residual) / np.var(returns)),
        "samples": float(N),
    }
    loss = mean["policy_loss"] + 0.7 * mean["value_loss"] - c_e * mean["entropy"]
    return mean | {"loss": loss * (N if algorithm.reduction == "sum" else 1)}


def agrees(found: dict[str, float], expected: dict[str, float], ours: Model) -> None:
    assert found.pop("gradient_norm") > 0.01  # as it was before it was limited
    assert found == pytest.approx(expected, rel=2e-4, abs=2e-5)


@BY_HAND
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a3c(by_hand: bool, reduction: str) -> None:
    ours = model(
        "a3c", gamma=0.9, value_coefficient=0.7, entropy_coefficient=0.3, reduction=reduction
    )
    data = rollout(ours, N)
    found = noted(ours, data, by_hand)
    agrees(found, expected(ours, data, lambda log_pi, _, a: -log_pi * a, 0.3), ours)


@BY_HAND
def test_ppo(by_hand: bool) -> None:
    ours = model(
        "ppo", gamma=0.9, gae_lambda=1.0, value_coefficient=0.7, epochs=1, minibatch_size=N,
        normalize_advantages=False, clip=0.2,
    )  # fmt: skip
    data = rollout(ours, N)
    draws = np.random.default_rng(5)
    data.log_mu = np.log(draws.uniform(0.3, 0.8, N)).astype(np.float32)

    def policy(log_pi: float, log_mu: float, advantage: float) -> float:
        ratio = math.exp(log_pi - log_mu)
        clipped.append(abs(ratio - 1.0) > 0.2)
        divergence.append(ratio - 1.0 - (log_pi - log_mu))
        return -min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)

    clipped: list[bool] = []
    divergence: list[float] = []
    slow = expected(ours, data, policy, 0.0)
    slow |= {"clip_fraction": np.mean(clipped), "approximate_kl": np.mean(divergence)}
    assert 0.1 < slow["clip_fraction"] < 0.9
    agrees(noted(ours, data, by_hand), slow, ours)


@BY_HAND
def test_vtrace_from_the_replay(by_hand: bool) -> None:
    """The newest batch and one drawn trajectory, both off the policy: means over the steps of both.

    A step's loss is −log π·A with V-trace's A, its returns are V-trace's targets.
    """
    gamma, rho, c = 0.9, 1.2, 0.8
    ours = v.model_of(
        gamma=gamma, gae_lambda=1.0, value_coefficient=0.7, minibatch_size=6, n_steps=6,
        batch_updates=1, vtrace_rho=rho, vtrace_c=c,
    )  # fmt: skip
    rng = np.random.default_rng(4)
    replay: Any = v.Remembered(rng)
    data = v.rollout_of(rng, N, replay=replay)
    found = noted(ours, data, by_hand)
    rows: list[dict[str, float]] = []
    for part in [data, *replay.given]:
        with torch.no_grad():
            outputs, values = ours.network(part.observations)
            _, behind = ours.network(part.cut_observations)
        following = dict(zip(part.cuts.tolist(), behind.tolist(), strict=True))
        carried = 0.0  # v_{t+1} − V(s_{t+1})
        for t in reversed(range(len(part.rewards))):
            row = outputs[t].double().log_softmax(0)
            log_pi, value = float(row[int(part.actions[t])]), float(values[t])
            ratio = math.exp(log_pi - float(part.log_mu[t]))
            ahead = following.get(t, 0.0) if part.ends[t] else float(values[t + 1])
            carried = 0.0 if part.ends[t] else carried
            delta = float(part.rewards[t]) + gamma * ahead - value
            advantage = min(rho, ratio) * (delta + gamma * carried)
            carried = min(rho, ratio) * delta + gamma * min(c, ratio) * carried
            rows.append(
                {
                    "policy_loss": -log_pi * advantage,
                    "value_loss": carried**2,
                    "entropy": -float((row.exp() * row).sum()),
                    "approximate_kl": ratio - 1.0 - math.log(ratio),
                    "target": value + carried,
                    "residual": carried,
                }
            )
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    spread = [float(np.var([row[name] for row in rows])) for name in ("residual", "target")]
    del mean["target"], mean["residual"]
    mean["loss"] = mean["policy_loss"] + 0.7 * mean["value_loss"] - 0.1 * mean["entropy"]
    mean |= {"explained_variance": 1.0 - spread[0] / spread[1], "samples": N + 6.0}
    assert mean["approximate_kl"] > 0.05  # they are off the policy
    agrees(found, mean, ours)


@BY_HAND
def test_dqn(by_hand: bool) -> None:
    ours = q.model_of(Network(hidden=(8,)), huber=1.0, double=False, batch_updates=1)
    steps = q.steps_of(np.random.default_rng(3), 50)
    target = torch.randn(ours.trainable, generator=torch.Generator().manual_seed(1))
    data = q.rollout_of(ours, q.Remembered(steps), target)
    known = q.values_of(ours, ours.vector[: ours.trainable], steps.observations)
    behind = q.values_of(ours, target, steps.following)
    chosen = [float(row[a]) for row, a in zip(known, steps.actions[:, 0], strict=True)]
    errors = [
        chosen[t] - float(steps.rewards[t]) - float(steps.discounts[t]) * float(behind[t].max())
        for t in range(50)
    ]
    huber = [0.5 * e * e if abs(e) <= 1.0 else abs(e) - 0.5 for e in errors]
    slow = {
        "loss": np.mean([float(w) * h for w, h in zip(steps.weights, huber, strict=True)]),
        "td_error": np.mean(np.abs(errors)),
        "q_mean": np.mean(chosen),
        "samples": 50.0,
    }
    agrees(noted(ours, data, by_hand), slow, ours)
