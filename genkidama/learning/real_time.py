"""Environments that cannot be paused, as robots: a clock around them, and a safe action.

Laws of this file:
- Every step begins at its tick, `period` seconds after the one before. One that comes later is
  counted, and the clock goes on from there: missed ticks are not made up for.
- While the policy is late for longer than `safe_seconds`, a thread takes `safe_action` at each
  tick. What it is rewarded with belongs to the policy's next step, whose action came too late and
  is replaced, too. So to the learner a late action is one that the environment has ignored. The
  thread leaves a tick to a policy that is waiting for it.
- The same while a parent has been silent for longer than `offline_seconds`, whatever the policy
  does: it may have stopped for want of room for its steps.
- An observation with NaN or infinity is raised at once: no action follows from it.
- One thread at a time is in the environment. What that raises to this one is raised to the policy
  at its next step or reset, and safe actions go on meanwhile.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError
from genkidama.learning.actions import action_of
from genkidama.learning.observations import check_numbers
from genkidama.protocol.diagnostics import CYCLE_COUNTS, Cycles

Array = npt.NDArray[Any]

_NO_REWARDS = np.zeros(0)

#: A step is late from this part of a period on.
_LATE = 0.1


class RealTime(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps begin at the ticks of a clock.

    Args:
        environment: its `step` takes an action, and observes; it does not wait.
        settings: `[environment]`, with a `period`.
        now, sleep: the clock; only tests have another one.

    Raises:
        ConfigurationError: `environment.safe_action` is no action.
    """

    def __init__(
        self,
        environment: gymnasium.Env[Any, Any],
        settings: Environment,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(environment)
        self._period, self._bound = settings.period, settings.safe_seconds
        self._offline = settings.offline_seconds
        self._now, self._sleep = now, sleep
        #: Whether the environment itself waits for the ticks.
        self._keeps_time = keeps_time(environment)
        self._safe = None
        if given := settings.safe_action:
            self._safe = action_of(environment.action_space, given)
            if self._safe is None:
                raise ConfigurationError(
                    f"environment.safe_action = {list(given)}: is none of "
                    f"{environment.action_space}"
                )
        self._cycles = Cycles(self._period, np.zeros(CYCLE_COUNTS, np.int64))
        self._answered: Array | None = None
        self._resetting: Array = np.zeros(1, np.bool_)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._guard: threading.Thread | None = None
        self._playing = False
        #: Whether the policy has decided, and waits for the tick.
        self._decided = False
        #: When the next tick is.
        self._due = 0.0
        #: When the last action and the last observation were.
        self._acted = self._observed = 0.0
        #: What came of the safe actions since the policy's last step.
        self._meanwhile: tuple[Any, ...] | None = None
        #: What the environment has raised to the thread.
        self._raised: Exception | None = None

    def report(self, counts: Array, answered: Array, resetting: Array) -> None:
        """Gives it shared memory.

        Args:
            counts: int64 (CYCLE_COUNTS,), where cycles are counted from now on.
            answered: float64 (1,), when the parent answered last, by `time.monotonic`.
            resetting: bool (1,), whether a reset is under way, which may wait for a person.
        """
        self._cycles = Cycles(self._period, counts)
        self._answered, self._resetting = answered, resetting

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        with self._lock:
            self._raise()
            self._playing, self._meanwhile = False, None
        self._resetting[0] = True
        try:
            first = self.env.reset(**options)
        finally:
            self._resetting[0] = False
        check_numbers(_NO_REWARDS, np.asarray(first[0]))
        with self._lock:
            self._acted = self._observed = self._now()
            self._due = self._acted + self._period
            self._playing = True
        if self._guard is None and self._safe is not None and (self._bound or self._offline):
            self._guard = threading.Thread(target=self._watch, daemon=True)
            self._guard.start()
        return first

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._decided = True
        try:
            while not self._keeps_time and (left := self._due - self._now()) > 0.0:
                self._sleep(left)
        except BaseException:  # the policy takes no tick then: the thread shall
            self._decided = False
            raise
        with self._lock:
            self._decided = False
            self._raise()
            if self._meanwhile is None and not self._is_unsafe():
                return self._tick(action, False)
            if self._meanwhile is None or not (self._meanwhile[2] or self._meanwhile[3]):
                self._tick_safely()
            assert self._meanwhile is not None
            result, self._meanwhile = self._meanwhile, None
            return result

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            self._playing = False
        super().close()

    def _raise(self) -> None:
        if (raised := self._raised) is not None:
            self._raised = None
            raise raised

    def _is_unsafe(self) -> bool:
        return self._safe is not None and self._now() > self._unsafe_at()

    def _unsafe_at(self) -> float:
        """From when on the safe action is taken, if neither the policy nor the parent is heard."""
        at = self._observed + self._bound if self._bound else math.inf
        if self._offline and self._answered is not None:
            at = min(at, float(self._answered[0]) + self._offline)
        return at

    def _tick(self, action: Any, safe: bool) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        now = self._now()
        late = now - self._due
        self._cycles.add(now - self._acted, late > _LATE * self._period, safe)
        self._acted = now
        # What another clock is ahead of this one, or behind, does not add up.
        tick = now if self._keeps_time else max(self._due, now - _LATE * self._period)
        self._due = tick + self._period
        result = self.env.step(action)
        if result[2] or result[3]:
            self._playing = False
        if not result[2]:
            check_numbers(_NO_REWARDS, np.asarray(result[0]))
        self._observed = self._now()
        return result

    def _tick_safely(self) -> None:
        observation, reward, *flags, info = self._tick(self._safe, True)
        if self._meanwhile is not None:
            reward = reward + self._meanwhile[1]
        self._meanwhile = observation, reward, *flags, info

    def _watch(self) -> None:
        """The thread: takes the safe action while the policy is late, or the parent silent."""
        rest = left = min(seconds for seconds in (self._bound, self._offline) if seconds)
        while not self._closed.wait(left):
            with self._lock:
                left = rest
                if not self._playing:
                    continue
                if self._meanwhile is None:
                    left = min(rest, self._unsafe_at() - self._now())
                if self._meanwhile is not None or left <= 0.0:
                    if self._now() >= self._due and not self._decided:
                        try:
                            self._tick_safely()
                        except Exception as error:  # an environment may raise anything
                            self._raised = self._raised or error
                    left = self._due - self._now()
                left = max(left, 1e-4)


def keeps_time(environment: gymnasium.Env[Any, Any]) -> bool:
    """True if an environment waits for the ticks itself, by its attribute `keeps_time`."""
    return bool(getattr(environment.unwrapped, "keeps_time", False))
