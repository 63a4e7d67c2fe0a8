"""A core with several lanes against an oracle that plays each lane alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from genkidama.child.collector import Batch
from genkidama.child.process import EPISODE
from genkidama.experiment import Experiment
from genkidama.learning.lanes import make_lanes
from tests.child.cores import records, single
from tests.child.problems import FREE, experiment

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores import the tests' environments by name, however pytest was started."""
    monkeypatch.syspath_prepend(ROOT)


class Walk(gymnasium.Env[Any, Any]):
    """Episodes of up to seven steps that end either way; all it shows follows from the seed.

    It overwrites the observation that it gave before, as some environments do.

    Args:
        continuous: whether actions are two numbers instead of one of three.
    """

    observation_space = gymnasium.spaces.Box(-99.0, 99.0, (3,), np.float32)

    def __init__(self, continuous: bool = False) -> None:
        self.action_space: gymnasium.Space[Any] = (
            gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
            if continuous
            else gymnasium.spaces.Discrete(3, start=4)
        )
        self._seen = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(1, 8))
        self._terminates = bool(self.np_random.integers(2))
        return self._look(0.0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._left -= 1
        taken = float(np.sum(action))
        over = not self._left
        reward = taken * float(self._seen[1])
        self._look(taken)
        return self._seen, reward, over and self._terminates, over and not self._terminates, {}

    def _look(self, taken: float) -> Any:
        self._seen[:] = (taken, self.np_random.normal(), self._left)
        return self._seen


def walking(lanes: int = 4, batch: int = 20, **sections: Any) -> Experiment:
    walk = {"id": f"{__name__}:Walk", "lanes": lanes, **sections.pop("environment", {})}
    algorithm = {"name": "a3c", "gamma": 0.5, "batch_size": batch, **sections.pop("algorithm", {})}
    sections = {"child": FREE, **sections}
    return experiment("Walk", environment=walk, algorithm=algorithm, **sections)


class Alone:
    """One lane, played as slowly and as plainly as can be, with the actions of a batch."""

    def __init__(self, settings: Experiment, seed: int) -> None:
        self._environment = Walk(**settings.environment.options)
        self._observation = self._environment.reset(seed=seed)[0].copy()
        self._return = 0.0

    def play(self, actions: list[Any]) -> list[dict[str, Any]]:
        """What each step should be noted as."""
        noted = []
        for number, action in enumerate(actions):
            before = self._observation
            after, reward, terminated, truncated, _ = self._environment.step(action)
            self._return += reward
            over = terminated or truncated
            cut = truncated or (number == len(actions) - 1 and not terminated)
            noted.append(
                {
                    "observation": before.tolist(),
                    "reward": pytest.approx(reward, rel=1e-6),
                    "terminated": float(terminated),
                    "truncated": float(truncated),
                    "following": after.tolist() if cut else None,
                    "return": pytest.approx(self._return) if over else None,
                }
            )
            if over:
                self._return = 0.0
                after, _ = self._environment.reset()
            self._observation = after.copy()
        return noted


def first_seeds(settings: Experiment, seed: int) -> list[int]:
    """The seed of each lane, which are one after the other."""
    lanes = make_lanes(settings.environment, settings.environment.lanes)
    found: list[int] = []
    for environment in lanes._environments:  # type: ignore[attr-defined]
        environment.reset = lambda seed: found.append(seed) or (np.zeros(3), {})
    lanes.reset(seed)
    return found


def actions_of(batch: Batch, lane: slice, continuous: bool) -> list[Any]:
    """What the environment was given."""
    stored = batch.rows.actions[lane]
    if continuous:
        return list(np.clip(stored, -1.0, 1.0))
    return [int(action) + 4 for action in stored[:, 0]]


@pytest.mark.parametrize("continuous", [False, True])
def test_several_lanes_are_what_each_of_them_is_alone(continuous: bool) -> None:
    lanes, length = 4, 5
    settings = walking(lanes, lanes * length, environment={"options": {"continuous": continuous}})
    with single(settings) as (core, _, line):
        oracles = [Alone(settings, seed) for seed in first_seeds(settings, 0)]
        told: list[tuple[int, float, int]] = []
        returns: list[float] = []
        ended_with_the_batch = 0
        for _ in range(40):
            batch = core.collector.collect()
            assert batch.steps == lanes * length
            following = dict(zip(batch.cuts, batch.following, strict=True))
            assert batch.cuts == sorted(following)
            over: list[tuple[int, int, float]] = []
            for lane, oracle in enumerate(oracles):
                part = slice(lane * length, (lane + 1) * length)
                expected = oracle.play(actions_of(batch, part, continuous))
                for t, step in enumerate(expected):
                    row = part.start + t
                    cut = following.get(row)
                    assert step == {
                        "observation": batch.rows.observations[row].tolist(),
                        "reward": batch.rows.rewards[row],
                        "terminated": batch.rows.terminated[row],
                        "truncated": batch.rows.truncated[row],
                        "following": None if cut is None else cut.tolist(),
                        "return": step["return"],
                    }
                    if step["return"] is not None:
                        over.append((t, lane, step["return"]))
                ended_with_the_batch += bool(expected[-1]["truncated"])
            returns += [value for _, _, value in sorted(over, key=lambda place: place[:2])]
            told += records(line)
        assert [value for kind, value, _ in told if kind == EPISODE] == returns
        assert ended_with_the_batch > 5
        assert {kind for kind, _, _ in told} == {EPISODE}
        assert 0 <= 40 * lanes * length - sum(steps for _, _, steps in told) <= lanes * 7
