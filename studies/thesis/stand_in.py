"""What the thesis' program calls in place of gym 0.23 and of `torch.save`."""

from __future__ import annotations

from typing import Any

import gymnasium
import safetensors.torch
import torch


class OldEnvironment:
    """A time limit is an end like any other, and there is no seed."""

    def __init__(self, environment: gymnasium.Env[Any, Any]) -> None:
        self._environment = environment
        self.observation_space = environment.observation_space
        self.action_space = environment.action_space

    def reset(self) -> Any:
        return self._environment.reset()[0]

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self._environment.step(int(action))
        return observation, float(reward), terminated or truncated, {}


def make(name: str) -> OldEnvironment:
    """LunarLander-v3 for v2, from which it hardly differs (`lander_v2`)."""
    return OldEnvironment(gymnasium.make(name.replace("-v2", "-v3"), disable_env_checker=True))


def set_aside(network: torch.nn.Module, path: str) -> None:
    """Its numbers as one vector: float32 (n,), in the order in which it has its layers."""
    vector = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
    safetensors.torch.save_file({"weights": vector}, path)
