"""Actor and twin critics of SAC in tensors, for networks that NumPy lacks.

The perceptrons have the parameters of `genkidama.learning.soft_actor_critic`, by the same names. Of
any other network, as convolutions or one of a user's, there are two. One is the policy, for actions
of twice as many numbers, whose means are the means and log σ. The other gives features, on which
two small critics stand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from genkidama.config.experiment import Experiment
from genkidama.learning.actions import columns
from genkidama.learning.soft_actor_critic import (
    LEAST_LOG_DEVIATION,
    MOST_LOG_DEVIATION,
    SoftActorCritic,
    begin_at,
    initialize_soft,
)
from genkidama.learning.tensors.networks import ACTIVATIONS, ActorCritic, Array, BuiltIn, Network


def log_slope(u: Tensor) -> Tensor:
    """log(1 − tanh²u), exact also where tanh u is 1."""
    size = u.abs()
    result: Tensor = 2.0 * (math.log(2.0) - size - nn.functional.softplus(-2.0 * size))
    return result


def drawn(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions (B, columns) that standard normal noise makes of outputs (B, 2·columns), and log π
    of them (B,), as `soft_actor_critic.drawn`."""
    mean, raw = outputs.chunk(2, 1)
    log_deviation = raw.clamp(LEAST_LOG_DEVIATION, MOST_LOG_DEVIATION)
    u = mean + log_deviation.exp() * noise
    each = -0.5 * noise.square() - log_deviation - 0.5 * math.log(2.0 * math.pi) - log_slope(u)
    return u.tanh(), each.sum(1)


class _TwinLinear(nn.Module):
    """A linear layer of both critics: (2 or 1, B, inputs) to (2, B, outputs)."""

    def __init__(self, inputs: int, outputs: int, normalize: bool) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(2, outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(2, outputs))
        self._normalize = normalize

    def forward(self, x: Tensor, factors: Tensor | None = None) -> Tensor:
        y = x @ self.weight.transpose(1, 2) + self.bias[:, None]
        if factors is not None:
            y = y * factors
        return nn.functional.layer_norm(y, y.shape[2:]) if self._normalize else y


def _twins(widths: tuple[int, ...], activation: str, normalize: bool) -> nn.Sequential:
    """Both critics: layers with the activation after each but the last."""
    layers: list[nn.Module] = []
    for inputs, width in pairwise(widths):
        layers += [_TwinLinear(inputs, width, normalize), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, _TwinLinear(widths[-1], 1, False))


def _through(layers: nn.Sequential, x: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Q₁ and Q₂ (2, B) of x (B, inputs), with the factors of each hidden layer's units, or none."""
    x, left = x[None], iter(factors)
    for layer in layers:
        x = layer(x, next(left, None)) if isinstance(layer, _TwinLinear) else layer(x)
    return x[..., 0]


class _Features(nn.Module):
    """Numbers of an observation, within ±1, of a user's network or of convolutions."""

    def __init__(self, network: Network, width: int) -> None:
        super().__init__()
        self._network, self._width = network, width

    def forward(self, observations: Tensor) -> Tensor:
        outputs = self._network(observations)[0][:, : self._width]
        return nn.functional.layer_norm(outputs, outputs.shape[1:]).tanh()


class _Critics(nn.Module):
    """Twin critics on features."""

    def __init__(self, features: nn.Module, layers: nn.Sequential) -> None:
        super().__init__()
        self.features, self.layers = features, layers

    def forward(
        self, observations: Tensor, actions: Tensor, factors: Sequence[Tensor] = ()
    ) -> Tensor:
        x = torch.cat((self.features(observations), actions), 1)
        return _through(self.layers, x, factors)


class _Plain(nn.Sequential):
    """Twin critics on observations as they are."""

    def forward(  # type: ignore[override]
        self, observations: Tensor, actions: Tensor, factors: Sequence[Tensor] = ()
    ) -> Tensor:
        return _through(self, torch.cat((observations.flatten(1), actions), 1), factors)


class SoftNetwork(BuiltIn):
    """The network of SAC around a network of the kind that the experiment names; without critics
    and α if it `acts_only`."""

    def __init__(
        self,
        kind: type[Network],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        experiment: Experiment,
        acts_only: bool,
    ) -> None:
        super().__init__()
        settings, normalize = experiment.network, experiment.algorithm.layer_norm
        self._columns = columns(action_space)
        self._acts_only = acts_only
        plain = kind is ActorCritic
        if plain:
            shapes = SoftActorCritic.layout(observation_space, action_space, experiment, True)
            layers: list[nn.Module] = []
            for name, shape in shapes:
                if name == "log_deviation":
                    self.log_deviation = nn.Parameter(torch.zeros(shape))
                elif name.endswith("weight"):
                    layers += [nn.Linear(shape[1], shape[0]), ACTIVATIONS[settings.activation]()]
            self.policy: nn.Module = nn.Sequential(*layers[:-1])
        else:
            self.policy = kind(observation_space, _box(2 * self._columns), settings)
            self.takes_bytes = self.policy.takes_bytes
        #: The units of each hidden layer of the critics.
        self.critic_widths = settings.hidden if plain else settings.hidden[-1:]
        if not acts_only:
            width = settings.hidden[-1]
            if plain:
                inputs = math.prod(observation_space.shape or ()) + self._columns
                widths: tuple[int, ...] = (inputs, *settings.hidden)
                self.critics: nn.Module = _Plain(*_twins(widths, settings.activation, normalize))
            else:
                features = _Features(kind(observation_space, _box(width), settings), width)
                twins = _twins((width + self._columns, width), settings.activation, normalize)
                self.critics = _Critics(features, twins)
            self.temperature = nn.ParameterDict({"log_alpha": nn.Parameter(torch.zeros(()))})
        parts = {name: part.detach().numpy() for name, part in self.named_parameters()}
        if plain:
            initialize_soft(parts, experiment, np.random.default_rng(torch.initial_seed()))
        elif not acts_only:
            begin_at(parts, experiment.algorithm.initial_value)

    @property
    def log_alpha(self) -> Tensor:
        """log α, a scalar."""
        log_alpha: Tensor = self.temperature["log_alpha"]
        return log_alpha

    def act(self, observations: Tensor) -> Tensor:
        """The policy's outputs (B, 2·columns)."""
        if isinstance(self.policy, Network):
            outputs: Tensor = self.policy(observations)[0][:, : 2 * self._columns]  # its means
            return outputs
        outputs, _, features = self.parts(observations)
        return self._with_deviation(outputs, features)

    def parts(self, observations: Tensor, *starts: Array) -> tuple[Tensor, Tensor, Tensor]:
        """As `BuiltIn.parts`, of perceptrons; nothing in the place of values."""
        assert isinstance(self.policy, nn.Sequential)
        features = self.policy[:-1](observations.flatten(1))
        return self.policy[-1](features), observations.new_empty(0), features

    def forward(self, observations: Tensor, *starts: Array) -> tuple[Tensor, Tensor]:
        """As `Network.forward`; values as those of `SoftActorCritic`."""
        outputs = self.act(observations)
        if self._acts_only:
            return outputs, torch.full_like(outputs[:, 0], float("nan"))
        mode = outputs[:, : self._columns].tanh()
        return outputs, self.critics(observations, mode).amin(0)

    def target(
        self,
        following: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        noise: Tensor,
        behind: SoftNetwork,
        factors: Sequence[Tensor] = (),
    ) -> Tensor:
        """The targets y (B,) of `SoftActorCritic.learn`."""
        with torch.no_grad():
            actions, log_pi = drawn(self.act(following), noise)
            values = behind.critics(following, actions, factors).amin(0)
            soft: Tensor = rewards + discounts * (values - self.log_alpha.exp() * log_pi)
            return soft

    def loss(
        self,
        observations: Tensor,
        actions: Tensor,
        targets: Tensor,
        noise: Tensor,
        entropy: float,
        factors: Sequence[Tensor] = (),
        own_factors: Sequence[Tensor] = (),
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss whose gradient `SoftActorCritic.learn` writes; arguments and the rest as there,
        with the factors of Q(s, a) and Q(s, a_π).

        The numbers of critics and of log α are constants to the policy's part, and its own to
        theirs.
        """
        new, log_pi = drawn(self.act(observations), noise)
        known = self.critics(observations, actions, factors)
        frozen = {name: part.detach() for name, part in self.critics.named_parameters()}
        own = torch.func.functional_call(self.critics, frozen, (observations, new, own_factors))
        loss = 0.5 * (known - targets).square().sum(0).mean()
        loss = loss + (self.log_alpha.exp().detach() * log_pi - own.amin(0)).mean()
        loss = loss - self.log_alpha * (log_pi.detach().mean() + entropy)
        return loss, {"known": known, "own": own, "log_pi": log_pi}


def _box(width: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-1.0, 1.0, (width,), np.float32)
