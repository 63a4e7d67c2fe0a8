"""A rotary pendulum on a wall clock: it falls while nobody looks, as a real one does.

The equations are Lagrange's, with the numbers of Quanser's QUBE-Servo 2. An arm turns in the
horizontal plane, driven by a motor, and carries at its end a pendulum that swings freely.
"""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

Observation = npt.NDArray[np.float32]

#: Masses (kg) and lengths (m) of arm and pendulum, and the friction of both joints (N·m·s).
ARM, ARM_LENGTH, ARM_FRICTION = 0.095, 0.085, 0.0015
ROD, ROD_LENGTH, ROD_FRICTION = 0.024, 0.129, 0.0005
#: Of the motor: resistance (Ω), torque per ampere (N·m/A), and the voltage of action 1.
RESISTANCE, TORQUE, VOLTS = 8.4, 0.042, 6.0

#: The coefficients of the equations.
A = ARM * ARM_LENGTH**2 / 3.0 + ROD * ARM_LENGTH**2
B = ROD * ROD_LENGTH**2 / 4.0
C = ROD * ROD_LENGTH * ARM_LENGTH / 2.0
D = ROD * ROD_LENGTH**2 / 3.0
G = ROD * ROD_LENGTH * 9.81 / 2.0

#: Seconds of an integration step, and the most that are made up for after a pause.
STEP, LONGEST = 0.002, 2.0


class RotaryPendulum(gymnasium.Env[Observation, Any]):
    """Keep the pendulum upright: 1 for each step, until it or the arm has turned too far.

    Args:
        seconds: of simulated time that pass between two steps; 0 takes those of the wall clock.
        volts: what the motor of this very robot gets at action 1.
    """

    observation_space = gymnasium.spaces.Box(-5.0, 5.0, (5,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, seconds: float = 0.0, volts: float = VOLTS) -> None:
        self._seconds = seconds
        self._volts = volts

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        # A hand holds it nearly upright.
        self._arm, self._rod = self.np_random.uniform(-0.1, 0.1, 2).tolist()
        self._arm_speed = self._rod_speed = self._action = 0.0
        self._steps = 0
        self._last = time.monotonic()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        now = time.monotonic()
        # Until now the action before has been at work.
        self._move(self._seconds or min(LONGEST, now - self._last))
        self._last = now
        self._action = float(np.clip(np.ravel(action)[0], -1.0, 1.0))
        self._steps += 1
        fallen = abs(self._rod) > 0.5 or abs(self._arm) > 2.0
        return self._seen(), 1.0, fallen, self._steps == 500, {}

    def _move(self, seconds: float) -> None:
        """The pendulum's motion in this time."""
        for _ in range(round(seconds / STEP)):
            sine, cosine = math.sin(self._rod), math.cos(self._rod)
            current = (self._volts * self._action - TORQUE * self._arm_speed) / RESISTANCE
            on_arm = TORQUE * current - ARM_FRICTION * self._arm_speed
            on_arm += C * sine * self._rod_speed**2
            on_arm -= 2.0 * B * sine * cosine * self._arm_speed * self._rod_speed
            on_rod = G * sine - ROD_FRICTION * self._rod_speed
            on_rod += B * sine * cosine * self._arm_speed**2
            inertia, coupling = A + B * sine * sine, C * cosine
            determinant = inertia * D - coupling * coupling
            self._arm_speed += STEP * (D * on_arm - coupling * on_rod) / determinant
            self._rod_speed += STEP * (inertia * on_rod - coupling * on_arm) / determinant
            self._arm += STEP * self._arm_speed
            self._rod += STEP * self._rod_speed

    def _seen(self) -> Observation:
        # An action works from the next step on, so it belongs to the state.
        seen = (self._arm, 4.0 * self._rod, self._arm_speed / 5.0, self._rod_speed / 5.0)
        return np.array((*seen, self._action), np.float32).clip(-5.0, 5.0)


#: Volts, as parts of the largest, for a radian and for a radian a second of arm and pendulum.
GAINS = (0.6, 11.0, 0.4, 0.8)

#: The standard deviation of what is added: a controller that never errs shows no recovery.
SHAKING = 0.3

_shaking = np.random.default_rng(1)


def balance(observation: Observation) -> list[float]:
    """A controller that keeps the pendulum upright, with a shaking hand: an action.

    genkidama play sac.toml --controller rotary:balance --record balance.steps --episodes 10
    """
    arm, rod, arm_speed, rod_speed = observation[:4] * (1.0, 0.25, 5.0, 5.0)
    volts = np.dot(GAINS, (arm, rod, arm_speed, rod_speed)) + _shaking.normal(0.0, SHAKING)
    return [float(np.clip(volts, -1.0, 1.0))]
