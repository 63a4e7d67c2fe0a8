"""A core with several lanes against an oracle that plays each lane alone."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cores import records, replay_of, single
from genkidama.child.collector import (
    ActionSampler,
    BehaviourNotes,
    CollectedBatch,
    SlidingWindow,
    may_be_nan,
)
from genkidama.child.core import SingleCore
from genkidama.child.shared_memory import BatchSink, ReplayRows
from genkidama.child.worker import EPISODE, PROGRESS, REPORT_STEPS
from genkidama.config.experiment import Experiment
from genkidama.errors import EnvironmentFailure
from genkidama.learning.environments import _first_seed, make_environment
from genkidama.learning.heads import Categorical
from genkidama.learning.model import Model
from genkidama.learning.observations import check_numbers
from tests.child.memory import shared_memory
from tests.child.problems import FREE, experiment
from tests.child.test_core import Sampling
from tests.environments import Corridor
from tests.helpers import small
from tests.vectorized import CORRIDORS


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


class Looking(Sampling):
    """A learner that only looks, with a head whose policy always takes the second action."""

    class Stubborn(Categorical):
        def sampler(self, rng: np.random.Generator, epsilon: float) -> Any:
            return lambda outputs: np.int64(1)

    @staticmethod
    def head(space: gymnasium.Space[Any]) -> Categorical:
        assert isinstance(space, gymnasium.spaces.Discrete)
        return Looking.Stubborn(space)


class Alone:
    """One lane, played as slowly and as plainly as can be, with the actions of a batch."""

    def __init__(self, environment: gymnasium.Env[Any, Any], seed: int) -> None:
        self._environment = environment
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


def actions_of(settings: Experiment, stored: np.ndarray) -> list[Any]:
    """What the environment was given."""
    if settings.environment.options.get("continuous"):
        return list(np.clip(stored, -1.0, 1.0))
    start = 0 if settings.environment.vectorized else 4
    return [int(action) + start for action in stored[:, 0]]


@pytest.mark.parametrize(
    "environment",
    [
        {"options": {"continuous": False}},
        {"options": {"continuous": True}},
        {"id": CORRIDORS, "vectorized": True},
    ],
)
def test_several_lanes_are_what_each_of_them_is_alone(environment: dict[str, Any]) -> None:
    lanes, length = 4, 5
    settings = walking(lanes, lanes * length, environment=environment)
    vectorized = settings.environment.vectorized
    with single(settings) as (core, _, line):
        first = _first_seed(0, lanes)
        oracles = [
            Alone(Corridor() if vectorized else Walk(**settings.environment.options), first + lane)
            for lane in range(lanes)
        ]
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
                expected = oracle.play(actions_of(settings, batch.rows.actions[part]))
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
        assert ended_with_the_batch > 5 or vectorized
        # Each step is told once, and those since the last word are not yet told.
        untold = 40 * lanes * length - sum(steps for _, _, steps in told)
        assert 0 <= untold < REPORT_STEPS + lanes * length


@pytest.mark.parametrize("continuous", [False, True])
def test_log_mu_is_what_the_policy_thought_that_acted_in_each_lane(continuous: bool) -> None:
    settings = walking(
        environment={"options": {"continuous": continuous}, "normalize_observations": True},
        algorithm={"name": "tests.child.test_core:Sampling"},
        replay={"steps": 40},
    )
    with single(settings) as (core, _, line):
        for _ in range(3):
            core._rollout(core.collector.collect())
            core.pull()
        rollout = core._rollout(core.collector.collect())
        outputs, _ = core.model.evaluate(rollout.observations)
        expected = core.model.log_probability(outputs, rollout.actions)
        np.testing.assert_allclose(rollout.log_mu, expected, rtol=1e-3, atol=1e-4)
        assert len(set(expected.tolist())) > 10
        records(line)


def test_a_head_with_a_way_of_its_own_to_act_keeps_it() -> None:
    settings = walking(algorithm={"name": f"{__name__}:Looking"}, replay={"steps": 40})
    with single(settings) as (core, _, line):
        batch = core.collector.collect()
        assert (batch.rows.actions == 1.0).all()
        assert core._rollout(batch).actions.tolist() == [[1]] * 20
        records(line)


def test_each_lane_has_a_discounted_return_of_its_own() -> None:
    """Endless pays 1 a step, and γ is ½: 1, 1½, 1¾ | 1⅞, and then the next episode."""
    settings = walking(
        2,
        6,
        environment={
            "id": "tests.environments:Endless",
            "options": {"limit": 4},
            "normalize_rewards": True,
        },
    )
    with single(settings) as (core, memory, line):
        rollouts = [core._rollout(core.collector.collect()) for _ in range(2)]
        assert [rollout.ends.tolist() for rollout in rollouts] == [
            [False, False, True] * 2,
            [True, False, True] * 2,
        ]
        assert [rollout.cuts.tolist() for rollout in rollouts] == [[2, 5], [0, 2, 3, 5]]
        returns = np.array([1, 1.5, 1.75, 1.875, 1, 1.5] * 2)
        part = core.model.signature.slices["statistics.returns"]
        assert memory.weights[part].tolist() == pytest.approx(
            [12, returns.sum(), np.square(returns).sum()]
        )
        records(line)


def test_of_long_episodes_there_is_a_word_now_and_then_and_each_step_is_told_once() -> None:
    endless = {"id": "tests.environments:Endless", "options": {"limit": 400}}
    with single(walking(2, 100, environment=endless)) as (core, _, line):
        for _ in range(10):
            core.collector.collect()
        told = records(line)
    # An episode ends in both lanes at once: the first that says so says all.
    assert told == [
        (PROGRESS, 0.0, 300),
        (PROGRESS, 0.0, 300),
        (EPISODE, 400.0, 200),
        (EPISODE, 400.0, 0),
    ]


def test_it_waits_as_soon_as_each_lane_has_ended_an_episode() -> None:
    with single(walking()) as (core, _, line):
        collector: Any = core.collector
        pauses: list[int] = []
        ended: list[int] = []
        end, pause = collector._end_episode, core.pipe.pause
        collector._end_episode = lambda lane, made: (ended.append(lane), end(lane, made))
        core.pipe.pause = lambda: (pauses.append(len(ended)), pause())  # type: ignore[method-assign]
        for _ in range(30):
            collector.collect()
            records(line)
    begin = 0
    expected: list[int] = []
    for position in range(1, len(ended) + 1):
        if set(ended[begin:position]) == {0, 1, 2, 3}:
            expected.append(position)
            begin = position
    assert pauses == expected
    assert len(pauses) > 10


def test_a_replaced_core_begins_in_all_lanes_anew_and_the_ring_keeps_what_it_had() -> None:
    settings = walking(
        environment={"id": "tests.environments:Endless", "options": {"limit": 3}},
        algorithm={"name": "tests.child.test_core:Sampling"},
        replay={"steps": 40},
    )
    with single(settings) as (core, memory, line):
        for life in range(12):
            successor = SingleCore(0, settings, memory, core.pipe, (4, life))
            successor.collector.reset(life)
            successor.collector.collect()
            records(line)
            drawn = replay_of(successor).sample(200)
            assert (drawn.following == drawn.observations + 1.0).all()
            assert (drawn.truncated == (drawn.observations[:, 0] == 2.0)).all()
            assert np.isfinite(drawn.log_mu).all()


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_rehearsal_learns_from_a_full_batch(lanes: int) -> None:
    settings = walking(lanes, algorithm={"name": "ppo", "minibatch_size": 20})
    with single(settings) as (core, memory, _):
        core.pipe.report = lambda *_: None  # type: ignore[method-assign]
        core.rehearse()
        assert memory.gradients[0].any()


def test_what_draws_is_made_anew_when_epsilon_has_changed() -> None:
    made: list[float] = []

    def make(epsilon: float) -> list[float]:
        made.append(epsilon)
        return made

    epsilons = iter([0.5, 0.5, 0.2, 0.2, 0.5])
    explorer = ActionSampler(lambda: next(epsilons), 0.5, make)
    for expected in ([0.5], [0.5], [0.5, 0.2], [0.5, 0.2], [0.5, 0.2, 0.5]):
        assert explorer.sampler() == expected
    constant = ActionSampler(None, 0.1, make)
    assert constant.sampler() is constant.sampler()
    assert made[-1] == 0.1


def test_log_mu_is_that_of_the_outputs_that_were_noted() -> None:
    settings = small()
    environment = make_environment(settings.environment)
    model = Model(settings, environment)
    assert BehaviourNotes(model, False, 1, 4).log_mu(ReplayRows(*[np.zeros((4, 1))] * 5), 4) is None
    noted = BehaviourNotes(model, True, 2, 3)
    assert noted.outputs is not None
    noted.outputs[:] = np.random.default_rng(0).normal(size=noted.outputs.shape)
    rows = ReplayRows(*[np.ones((6, 1), np.float32)] * 5)
    found = noted.log_mu(rows, 4)  # two steps of each lane
    expected = torch.log_softmax(torch.from_numpy(noted.outputs[:, :2].reshape(4, -1)), 1)[:, 1]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    environment.close()


def test_a_batch_is_a_cores_own_share_and_is_overwritten_from_its_first_row() -> None:
    memory = shared_memory(3, 4, 2 + 1 + 3)
    sink = BatchSink(memory, 1, (2,), 1)
    for steps in (4, 1, 3):
        rows = sink.begin(True)
        for number, column in enumerate(rows, start=steps):
            column[:steps] = number
        sink.end(steps, [], [], np.nan)
        assert memory.head.tolist() == [0, steps, 0]
        expected = [steps, steps, *range(steps + 1, steps + 5)]
        assert memory.replay[1, :steps].tolist() == [expected] * steps
    assert not memory.replay[[0, 2]].any()
    sink.rehearse()
    assert (memory.replay[1] == memory.replay[1, 0]).all()
    memory.close()


def test_a_batch_of_another_width_is_refused() -> None:
    memory = shared_memory(1, 4, 6)
    with pytest.raises(ValueError, match=r"^a batch of 6 columns, expected 8$"):
        BatchSink(memory, 0, (3,), 2)
    memory.close()


NONE = (float("nan"), float("inf"), -float("inf"))


@settings(max_examples=30)
@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20),
    st.integers(0, 19),
    st.sampled_from(NONE),
    st.booleans(),
)
def test_one_that_is_none_is_found_wherever_it_is_and_named(
    numbers: list[float], place: int, none: float, reward: bool
) -> None:
    good = np.array(numbers, np.float32)
    check_numbers(good, good.reshape(-1, 1), good)
    bad = good.copy()
    bad[place % len(bad)] = none
    what = "as a reward" if reward else "in an observation"
    with pytest.raises(EnvironmentFailure, match=f"the environment gave NaN or infinity {what}; "):
        check_numbers(bad if reward else good, good, good if reward else bad[:, None])


@pytest.mark.filterwarnings("ignore:overflow")
def test_large_numbers_and_whole_ones_are_numbers() -> None:
    large = np.full(9, 3e38, np.float32)
    check_numbers(large, large, np.arange(9, dtype=np.uint8))


def test_spaces_of_whole_numbers_are_not_looked_at() -> None:
    assert may_be_nan(gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32))
    assert not may_be_nan(gymnasium.spaces.Box(0, 255, (2,), np.uint8))
    assert not may_be_nan(gymnasium.spaces.Discrete(3))


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=9),
    st.integers(0, 2**32 - 1),
)
def test_a_window_is_the_end_of_each_lanes_trajectory(
    chunks: list[tuple[int, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    window = SlidingWindow(6)
    memory = ReplayRows(*(np.zeros((9, width), np.float32).squeeze() for width in (2, 1, 1, 1, 1)))
    #: Of each lane: rows of all its steps, with what follows them, and the chunk that they were in.
    trajectories: list[list[tuple[list[float], float, int]]] = [[] for _ in range(3)]
    for number, (lanes, length) in enumerate(chunks):
        cuts, following, log_mu = [], [], rng.normal(size=lanes * length).astype(np.float32)
        for at in range(lanes * length):
            ends = rng.integers(4)
            row = [*rng.normal(size=4).astype(np.float32), float(ends == 1), float(ends == 2)]
            for column, value in zip(memory, (row[:2], row[2:3], *row[3:]), strict=True):
                column[at] = np.reshape(value, column[at].shape)
            after = float(rng.normal())
            if ends == 2 or ((at + 1) % length == 0 and ends != 1):
                cuts.append(at)
                following.append(np.full(2, after))
            trajectories[at // length].append(([*row, float(log_mu[at])], after, number))
        chunk = CollectedBatch(memory, lanes * length, cuts, following, log_mu)
        window.add(chunk, lanes)
    found = window.batch()
    first = 0
    for number, (lanes, _) in enumerate(chunks, 1):
        kept = chunks[first:number]
        while sum(length for _, length in kept) > 6 or min(kept)[0] < lanes:
            first += 1
            kept = chunks[first:number]
    expected = [
        [(row, after) for row, after, number in trajectory if number >= first]
        for trajectory in trajectories[:lanes]
    ]
    rows = [row for trajectory in expected for row, _ in trajectory]
    columns = [column.reshape(len(rows), -1) for column in (*found.rows, found.log_mu)]
    assert found.steps == len(rows)
    np.testing.assert_array_equal(np.concatenate(columns, 1), np.array(rows, np.float32))
    ends = [
        (number * len(trajectory) + t, after)
        for number, trajectory in enumerate(expected)
        for t, (row, after) in enumerate(trajectory)
        if row[5] or (t == len(trajectory) - 1 and not row[4])
    ]
    assert found.cuts == [position for position, _ in ends]
    assert [seen[0] for seen in found.following] == [after for _, after in ends]
