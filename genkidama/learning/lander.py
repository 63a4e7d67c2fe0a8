"""LunarLander with half of Gymnasium's Python: the same bits in two thirds of the time.

Half of a step of Gymnasium's lander is Python around Box2D. `LeanLander` computes the same numbers,
of float64 until the observation is rounded, with fewer calls. That ties it to Gymnasium's source,
so it is used only where some episodes were equal to the bit with the installed Gymnasium and Box2D.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import Box2D
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.box2d import lunar_lander
from gymnasium.envs.box2d.lunar_lander import (
    FPS,
    LEG_DOWN,
    MAIN_ENGINE_POWER,
    MAIN_ENGINE_Y_LOCATION,
    SCALE,
    SIDE_ENGINE_AWAY,
    SIDE_ENGINE_HEIGHT,
    SIDE_ENGINE_POWER,
    VIEWPORT_H,
    VIEWPORT_W,
    LunarLander,
)

from genkidama.runtime.files import remembered

Array = npt.NDArray[np.float32]

#: Half of the view, in metres.
_WIDTH, _HEIGHT = VIEWPORT_W / SCALE / 2, VIEWPORT_H / SCALE / 2

#: Each starts an episode of the comparison; odd ones are played by Gymnasium's heuristic, which
#: lands, and even ones at random.
_SEEDS = range(4)


def make_lean(environment: gymnasium.Env[Any, Any]) -> None:
    """Has Gymnasium's lander inside `environment` take lean steps, if they give the same bits here.

    Any other environment stays what it is. The wrappers around it stay, a time limit among them.
    """
    lander = environment.unwrapped
    if type(lander) is LunarLander and _agrees(LunarLander.step):
        lander.__class__ = LeanLander


class LeanLander(LunarLander):
    """Gymnasium's lander with a leaner `step`.

    Wind and rendering are left to Gymnasium's `step`, and so is an action that is no int from 0 to
    3 or, with continuous actions, no array of two floats.
    """

    _position: Box2D.b2Vec2
    _velocity: Box2D.b2Vec2
    _moving: Box2D.b2Body = None

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        body = self.lander
        if body is None or self.enable_wind or self.render_mode is not None:
            return super().step(action)  # type: ignore[no-any-return, no-untyped-call]
        # The power of the main engine and of those at the sides, whose direction is the sign.
        main = side = 0.0
        if self.continuous:
            if (
                not isinstance(action, np.ndarray)
                or action.shape != (2,)
                or action.dtype.kind != "f"
            ):
                return super().step(action)  # type: ignore[no-any-return, no-untyped-call]
            up, aside = action.tolist()
            if up > 0.0:
                main = (min(up, 1.0) + 1.0) * 0.5
            if abs(aside) > 0.5:
                side = max(-1.0, min(aside, 1.0))
        elif type(action) not in (int, np.int64) or not 0 <= action <= 3:
            return super().step(action)  # type: ignore[no-any-return, no-untyped-call]
        elif action == 2:
            main = 1.0
        elif action:
            side = float(action) - 2.0
        if body is not self._moving:  # since `reset`
            # Both show what the body holds at the moment when they are read.
            self._position, self._velocity = body.position, body.linearVelocity
            self._moving = body
        position, velocity = self._position, self._velocity
        random = self.np_random.random  # `uniform(-1, 1)` takes four times as long
        along, across = (-1.0 + 2.0 * random()) / SCALE, (-1.0 + 2.0 * random()) / SCALE
        if main or side:
            sin, cos = math.sin(body.angle), math.cos(body.angle)
        if main:
            below = MAIN_ENGINE_Y_LOCATION / SCALE + 2 * along
            x, y = sin * below - cos * across, -cos * below - sin * across
            force = -x * MAIN_ENGINE_POWER * main, -y * MAIN_ENGINE_POWER * main
            body.ApplyLinearImpulse(force, (position.x + x, position.y + y), True)
        if side:
            away = 3 * across + math.copysign(1.0, side) * SIDE_ENGINE_AWAY / SCALE
            x, y = sin * along - cos * away, -cos * along - sin * away
            at = (
                position.x + x - sin * 17 / SCALE,
                position.y + y + cos * SIDE_ENGINE_HEIGHT / SCALE,
            )
            power = abs(side)
            force = -x * SIDE_ENGINE_POWER * power, -y * SIDE_ENGINE_POWER * power
            body.ApplyLinearImpulse(force, at, True)
        self.world.Step(1.0 / FPS, 6 * 30, 2 * 30)
        x = (position.x - _WIDTH) / _WIDTH
        y = (position.y - (self.helipad_y + LEG_DOWN / SCALE)) / _HEIGHT
        dx, dy = velocity.x * _WIDTH / FPS, velocity.y * _HEIGHT / FPS
        angle, turn = body.angle, 20.0 * body.angularVelocity / FPS
        left, right = [1.0 if leg.ground_contact else 0.0 for leg in self.legs]
        shaping = (
            -100 * math.sqrt(x * x + y * y)
            - 100 * math.sqrt(dx * dx + dy * dy)
            - 100 * abs(angle)
            + 10 * left
            + 10 * right
        )
        before: float | None = self.prev_shaping
        reward = (0.0 if before is None else shaping - before) - main * 0.3 - abs(side) * 0.03
        self.prev_shaping = shaping
        terminated = False
        if self.game_over or abs(x) >= 1.0:
            terminated, reward = True, -100.0
        if not body.awake:
            terminated, reward = True, 100.0
        state = np.array((x, y, dx, dy, angle, turn, left, right), np.float32)
        return state, reward, terminated, False, {}


@cache
def _agrees(step: Any) -> bool:
    """Tells whether lean steps give the same bits here. If not, standard error says so, once.

    The step is Gymnasium's, which somebody may replace in the life of this process.
    """
    if remembered(f"lander-{_digest()}", _plays_the_same):
        return True
    print(
        f"LunarLander-v3: the installed Gymnasium {gymnasium.__version__} with Box2D "
        f"{Box2D.__version__} plays otherwise than genkidama.learning.lander, so its own step is "
        "used, which is slower",
        file=sys.stderr,
    )
    return False


def _plays_the_same() -> bool:
    """Tells whether the episodes of `_SEEDS` are equal to the bit; it takes a tenth of a second."""
    try:
        return all(
            list(_episode(LunarLander(continuous=moves), seed))
            == list(_episode(LeanLander(continuous=moves), seed))
            for seed in _SEEDS
            for moves in (False, True)
        )
    except Exception:  # another Gymnasium's may lack anything that a lean step reads
        return False


def _episode(lander: LunarLander, seed: int) -> Iterator[tuple[bytes, float, bool]]:
    """The bits of an episode, step by step: its observations, its rewards, its end."""
    draws = np.random.default_rng(seed)
    observation, _ = lander.reset(seed=seed)
    yield observation.tobytes(), 0.0, False
    terminated = False
    while not terminated:
        action: Any = draws.uniform(-1.5, 1.5, 2) if lander.continuous else int(draws.integers(4))
        if seed % 2:
            action = lunar_lander.heuristic(lander, observation)
        observation, reward, terminated, _, _ = lander.step(action)
        yield observation.tobytes(), float(reward), terminated


def _digest() -> str:
    """A name for everything that the verdict hangs on: code and constants of both, and versions."""
    parts = [
        repr((name, _meaning(value.__code__)))
        for kind in (LunarLander, lunar_lander.ContactDetector, LeanLander)
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType)
    ]
    parts += [repr(item) for item in vars(lunar_lander).items() if item[0].isupper()]
    parts += [gymnasium.__version__, Box2D.__version__, np.__version__, sys.version, repr(_SEEDS)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _meaning(code: CodeType) -> list[object]:
    constants = [_meaning(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), code.co_names, *constants]
