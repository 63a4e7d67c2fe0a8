"""One core, in this process: what it collects and what it does with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from benchmarks.cores import records, replay_of, single
from genkidama.child.collector import CollectedBatch
from genkidama.child.core import SingleCore
from genkidama.child.worker import EPISODE, PROGRESS, UPDATE
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Algorithm
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from tests.child.problems import FREE, a3c, experiment


def test_a_batch_goes_on_across_episodes_and_is_cut_where_time_was_up() -> None:
    with single(
        experiment("Endless", {"limit": 4}, algorithm=a3c(batch_size=10), child=FREE),
        index=1,
        cores=3,
    ) as (core, memory, line):
        _, steps, cuts, following, *_ = core.collector.collect()
        assert (steps, cuts) == (10, [3, 7, 9])
        assert [observation.tolist() for observation in following] == [
            [4.0],
            [4.0],
            [2.0],
        ]  # not the next episode's first one
        share = memory.replay[1]
        assert share[:, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
        assert share[:, 2].tolist() == [1.0] * 10
        assert not share[:, 3].any() and np.flatnonzero(share[:, 4]).tolist() == [3, 7]
        assert memory.head.tolist() == [0, 10, 0] and not memory.replay[[0, 2]].any()
        assert records(line) == [(EPISODE, 4.0, 4), (EPISODE, 4.0, 4)]
        # The next batch starts where this one stopped, and nothing of this one is left in it.
        _, steps, cuts, following, *_ = core.collector.collect()
        assert (steps, cuts) == (10, [1, 5, 9])
        assert [observation.tolist() for observation in following] == [[4.0], [4.0], [4.0]]
        assert np.flatnonzero(share[:, 4]).tolist() == [1, 5, 9]
        assert records(line) == [(EPISODE, 4.0, 4)] * 3


def test_the_step_that_terminates_is_part_of_the_batch_with_its_reward_and_nothing_follows_it() -> (
    None
):
    with single(
        experiment(
            "Endless", {"limit": 4, "terminates": True}, algorithm=a3c(batch_size=10), child=FREE
        )
    ) as (core, memory, _):
        _, steps, cuts, following, *_ = core.collector.collect()
        assert (steps, cuts) == (10, [9])
        assert [observation.tolist() for observation in following] == [[2.0]]
        assert (
            np.flatnonzero(memory.replay[0, :, 3]).tolist() == [3, 7]
            and not memory.replay[0, :, 4].any()
        )
        assert memory.replay[0, :, 2].tolist() == [1.0] * 10
        assert core.collector.collect()[1:3] == (10, [])
        assert np.flatnonzero(memory.replay[0, :, 3]).tolist() == [1, 5, 9]


@pytest.mark.parametrize(("terminates", "cuts"), [(False, [3]), (True, [])])
def test_as_documented_for_a3c_a_batch_ends_with_its_episode(
    terminates: bool, cuts: list[int]
) -> None:
    settings = experiment(
        "Endless",
        {"limit": 4, "terminates": terminates},
        algorithm=a3c(batch_size=10, across_episodes=False),
        child=FREE,
    )
    with single(settings) as (core, memory, line):
        for _ in range(2):
            assert core.collector.collect()[1:3] == (4, cuts)
            assert memory.head.tolist() == [4] and memory.replay[0, :4, 0].tolist() == [
                0,
                1,
                2,
                3,
            ]
            assert records(line) == [(EPISODE, 4.0, 4)]


def test_an_episode_longer_than_the_batch_is_learned_from_in_parts() -> None:
    settings = experiment(
        "Endless", {"limit": 4}, algorithm=a3c(batch_size=3, across_episodes=False), child=FREE
    )
    with single(settings) as (core, _, line):
        assert core.collector.collect()[1:3] == (3, [2])
        assert records(line) == []
        assert core.collector.collect()[1:3] == (1, [0])
        assert records(line) == [(EPISODE, 4.0, 4)]
        assert core.collector.collect()[1:3] == (3, [2])


def test_of_a_long_episode_there_is_a_word_now_and_then_and_each_step_is_told_once() -> None:
    settings = experiment("Endless", {"limit": 5000}, algorithm=a3c(batch_size=500), child=FREE)
    with single(settings) as (core, _, line):
        for _ in range(10):
            core.collector.collect()
        assert records(line) == [(PROGRESS, 0.0, 500)] * 9 + [(EPISODE, 5000.0, 500)]


def test_the_replay_tensor_holds_the_environments_numbers_and_learners_get_scaled_ones() -> None:
    settings = experiment(
        "Endless",
        {"limit": 4},
        environment={"reward_scale": 0.25},
        algorithm=a3c(batch_size=6),
        child=FREE,
    )
    with single(settings) as (core, memory, line):
        rollout = core._rollout(core.collector.collect())
        assert rollout.rewards.tolist() == [0.25] * 6
        assert rollout.ends.tolist() == [
            False,
            False,
            False,
            True,
            False,
            True,
        ] and rollout.cuts.tolist() == [3, 5]
        assert rollout.observations.tolist() == [
            [0],
            [1],
            [2],
            [3],
            [0],
            [1],
        ] and rollout.cut_observations.tolist() == [[4], [2]]
        assert memory.replay[0, :, 2].tolist() == [1.0] * 6
        assert records(line) == [(EPISODE, 4.0, 4)]


@pytest.mark.parametrize("terminates", [False, True])
def test_normalized_rewards_are_divided_by_the_deviation_of_the_discounted_return(
    terminates: bool,
) -> None:
    settings = experiment(
        "Endless",
        {"limit": 4, "terminates": terminates},
        environment={"normalize_rewards": True, "reward_scale": 3.0},
        algorithm=a3c(batch_size=6),
        child=FREE,
    )
    with single(settings) as (core, memory, _):
        rollout = core._rollout(core.collector.collect())
        assert rollout.rewards.tolist() == [3.0] * 6  # no data yet
        # γ = ½: 1, 1½, 1¾, 1⅞ | 1, 1½ and in the next batch 1¾, 1⅞ | 1, 1½, 1¾, 1⅞.
        part = core.model.signature.slices["statistics.returns"]
        returns = np.array([1, 1.5, 1.75, 1.875, 1, 1.5])
        assert memory.weights[part].tolist() == pytest.approx(
            [6, returns.sum(), np.square(returns).sum()]
        )
        core.pull()
        rollout = core._rollout(core.collector.collect())
        assert rollout.rewards.tolist() == pytest.approx([3.0 / returns.std()] * 6, rel=1e-4)
        returns = np.array([1, 1.5, 1.75, 1.875] * 3)
        assert memory.weights[part].tolist() == pytest.approx(
            [12, returns.sum(), np.square(returns).sum()]
        )


def test_rewards_are_cut_once_scaled_but_neither_where_kept_nor_where_reported() -> None:
    settings = experiment(
        "Endless",
        {"limit": 4},
        environment={"reward_scale": 3.0, "clip_rewards": 0.5},
        algorithm=a3c(batch_size=6),
        child=FREE,
    )
    with single(settings) as (core, memory, line):
        assert core._rollout(core.collector.collect()).rewards.tolist() == [0.5] * 6
        assert memory.replay[0, :, 2].tolist() == [1.0] * 6
        assert records(line) == [(EPISODE, 4.0, 4)]


def test_normalized_observations_are_learned_from_as_they_were_acted_on() -> None:
    settings = experiment(
        "Endless",
        {"limit": 4},
        environment={"normalize_observations": True},
        algorithm=a3c(batch_size=8),
        child=FREE,
    )
    with single(settings) as (core, memory, _):
        core.learn(core.collector.collect())
        part = core.model.signature.slices["statistics.observations"]
        assert memory.weights[part].tolist() == [8.0, 12.0, 28.0]  # 0, 1, 2, 3 twice
        assert core.model.trainable == part.start and (
            memory.state.shape[2],
            memory.gradients.shape[1],
        ) == (part.start, part.start)
        core.pull()
        rollout = core._rollout(core.collector.collect())
        expected = (np.array([0, 1, 2, 3, 4]) - 1.5) / np.sqrt(1.25)
        assert rollout.observations[:4, 0].tolist() == pytest.approx(
            expected[:4].tolist(), rel=1e-5
        )
        assert rollout.cut_observations[:, 0].tolist() == pytest.approx([expected[4]] * 2)


@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
@pytest.mark.parametrize("environment", ["Corridor", "Endless"])
def test_equal_batches_give_equal_gradients_however_often_they_are_learned_from(
    environment: str, algorithm: str
) -> None:
    settings = experiment(
        environment,
        algorithm={
            "name": algorithm,
            "batch_size": 32,
            "pull_steps": 10**9,
            **({"epochs": 1, "minibatch_size": 32} if algorithm == "ppo" else {}),
        },
        optimizer={"name": "sgd", "learning_rate": 0.5},
        child=FREE,
    )
    with single(settings) as (core, memory, _):
        batch, start = core.collector.collect(), memory.weights.copy()
        gradients = []
        for times in (1, 2, 3):
            core.learn(batch)
            gradients.append(memory.gradients[0].copy())
            # PPO shuffles what it sums up.
            np.testing.assert_allclose(gradients[-1], gradients[0], rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(
                memory.weights, start - 0.5 * times * gradients[0], rtol=1e-3, atol=1e-5
            )  # applied to θ_O, once
        assert gradients[0].any()
        assert (core.model.numbers == start).all()  # θ_L moves only when it is pulled
        core.pull()
        assert (core.model.numbers == memory.weights).all()


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_the_learning_rate_follows_the_runs_progress(progress: float) -> None:
    settings = experiment(
        "Corridor",
        algorithm=a3c(batch_size=32, pull_steps=10**9),
        optimizer={
            "name": "sgd",
            "learning_rate": 1.0,
            "schedule": "linear",
            "final_learning_rate": 0.2,
        },
        child=FREE,
    )
    with single(settings) as (core, memory, _):
        memory.progress[0] = progress
        start = memory.weights.copy()
        core.learn(core.collector.collect())
        np.testing.assert_allclose(
            memory.weights,
            start - (1.0 - 0.8 * progress) * memory.gradients[0],
            rtol=1e-3,
            atol=1e-6,
        )


@pytest.mark.parametrize("shared", [True, False])
def test_cores_share_the_optimizers_state_or_have_their_own(shared: bool) -> None:
    settings = experiment(
        "Corridor",
        algorithm=a3c(batch_size=8),
        optimizer={"name": "adam", "shared": shared},
        child=FREE,
    )
    with single(settings, index=1, cores=2) as (core, memory, _):
        core.learn(core.collector.collect())
        assert memory.clock.tolist() == ([1.0] if shared else [0.0, 1.0])
        assert [bool(rows.any()) for rows in memory.state] == ([True] if shared else [False, True])
        assert not memory.gradients[0].any()


# One core that remembers.


class Sampling:
    """A learner that only looks."""

    reads_replay = True
    reads_log_mu = True

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        pass

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[torch.Tensor]:
        yield from ()


def remembering(name: str = "Endless", steps: int = 20, **settings: Any) -> Experiment:
    algorithm = {"name": f"{__name__}:Sampling", "batch_size": 7, "gamma": 0.5}
    return experiment(
        name,
        settings.pop("options", {"limit": 4}),
        algorithm=algorithm | settings.pop("algorithm", {}),
        replay={"steps": steps},
        child=FREE,
        **settings,
    )


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("terminates", [True, False])
def test_what_a_core_remembers_is_what_it_did(terminates: bool, across: bool) -> None:
    """Endless shows how many steps the episode has had: s′ = s + 1, wherever the batches end."""
    options = {"limit": 4, "terminates": terminates}
    settings = remembering(
        options=options,
        algorithm={"across_episodes": across},
        environment={"reward_scale": 0.25},
    )
    with single(settings) as (core, _, line):
        for _ in range(60):
            replay = core._rollout(core.collector.collect()).replay
            records(line)
            assert replay is not None
            assert len(replay) >= 1
            drawn = replay.sample(50)
            s = drawn.observations[:, 0]
            assert set(s) <= {0.0, 1.0, 2.0, 3.0}
            last = s == 3.0
            assert (drawn.terminated == (last & terminates)).all()
            assert (drawn.truncated == (last & (not terminates))).all()
            assert (drawn.following[:, 0] == s + ~drawn.terminated).all()
            assert drawn.rewards.tolist() == [0.25] * 50
            assert np.isfinite(drawn.log_mu).all()


def test_a_learner_samples_all_shares_or_its_own() -> None:
    with single(remembering(), index=1, cores=2) as (core, memory, line):
        sibling = SingleCore(0, core.experiment, memory, core.pipe, (4, 5))
        for each in (core, sibling):
            each.collector.reset(0)
            each.collector.collect()
        replay = core._rollout(core.collector.collect()).replay
        assert replay is not None
        memory.replay[0, :, 2] = 5.0  # the sibling's rewards
        assert set(replay.sample(100).rewards) == {1.0, 5.0}
        assert set(replay.sample(100, own=True).rewards) == {1.0}
        found = replay.sample(14, own=True, replacement=False)
        assert sorted(found.observations[:, 0]) == [0.0] * 4 + [1.0] * 4 + [2.0] * 3 + [3.0] * 3
        records(line)


@pytest.mark.parametrize("environment", ["Bandit", "Endless"])
def test_log_mu_is_what_the_policy_thought_that_acted(environment: str) -> None:
    normal = {"normalize_observations": environment == "Endless"}
    with single(remembering(environment, options={}, environment=normal)) as (core, _, line):
        first = core._rollout(core.collector.collect())
        core.pull()
        rollout = core._rollout(core.collector.collect())
        outputs, _ = core.model.evaluate(rollout.observations)
        expected = core.model.log_probability(outputs, rollout.actions)
        assert first.log_mu is not None and rollout.log_mu is not None
        np.testing.assert_allclose(rollout.log_mu, expected, rtol=1e-4, atol=1e-5)
        # Others act and learn on; what was thought then stays.
        core.model.numbers *= -3.0
        drawn = replay_of(core).sample(100)
        assert set(drawn.log_mu.tolist()) <= {*first.log_mu.tolist(), *rollout.log_mu.tolist()}
        assert drawn.actions.dtype == core.model.head.dtype
        records(line)


def test_samples_are_normalized_as_a_rollout_would_be_now() -> None:
    normal = {"normalize_observations": True, "normalize_rewards": True}
    with single(remembering(environment=normal)) as (core, _, line):
        for _ in range(3):
            rollout = core._rollout(core.collector.collect())
            core.pull()
        now = core._rollout(core.collector.collect())
        drawn = now.replay.sample(100)  # type: ignore[union-attr]
        known = now.observations.numpy()
        assert np.isclose(drawn.observations, known.T, atol=1e-4).any(1).all()
        assert not np.isclose(drawn.observations, np.round(drawn.observations)).any()
        assert drawn.rewards.tolist() == pytest.approx([now.rewards[0]] * 100)
        assert rollout.rewards[0] != now.rewards[0]
        records(line)


@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
def test_who_samples_nothing_learns_the_same_with_a_ring_as_without(algorithm: str) -> None:
    weights = []
    for steps in (0, 50):
        settings = experiment(
            "Corridor",
            algorithm={"name": algorithm, "batch_size": 16}
            | ({"minibatch_size": 8} if algorithm == "ppo" else {}),
            optimizer={"learning_rate": 0.01},
            replay={"steps": steps},
            child=FREE,
        )
        with single(settings) as (core, memory, line):
            for _ in range(20):
                core.learn(core.collector.collect())
                records(line)
            weights.append(memory.weights.copy())
            if steps:
                assert np.isnan(replay_of(core).sample(10).log_mu).all()
    np.testing.assert_array_equal(*weights)


class Sides(gymnasium.Env[Any, Any]):
    """Episodes of one step: an image of bytes with a bright side; naming the side pays 1."""

    observation_space = gymnasium.spaces.Box(0, 255, (1, 6, 6), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._side = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._side = int(self.np_random.integers(2))
        return sides()[self._side], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return sides()[self._side], float(action == self._side), True, False, {}


def sides() -> np.ndarray:
    images = np.zeros((2, 1, 6, 6), np.uint8)
    images[0, 0, :, :3] = images[1, 0, :, 3:] = 255
    return images


@pytest.mark.parametrize(("algorithm", "batches"), [("a3c", 100), ("ppo", 25)])
def test_a_core_learns_from_images_what_they_show(algorithm: str, batches: int) -> None:
    settings = experiment(
        "Bandit",
        environment={"id": f"{__name__}:Sides"},
        network={
            "name": "convolutional",
            "convolutions": [[4, 3, 2], [4, 2, 1]],
            "hidden": [8],
            "activation": "relu",
        },
        algorithm={"name": algorithm, "batch_size": 16}
        | ({"minibatch_size": 8} if algorithm == "ppo" else {}),
        optimizer={"learning_rate": 0.02},
        child=FREE,
    )
    with single(settings) as (core, memory, line):
        for _ in range(batches):
            core.learn(core.collector.collect())
            records(line)
        assert {row.tobytes() for row in memory.replay[0, :, :36]} == {
            image.astype(np.float32).tobytes() for image in sides()
        }
        outputs, values = core.model.evaluate(sides())
    powers = np.exp(outputs)
    assert (np.diagonal(powers / powers.sum(1, keepdims=True)) > 0.9).all()
    assert values.tolist() == pytest.approx([1.0, 1.0], abs=0.15)


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_core_learns_what_images_are_worth_from_those_that_it_remembers(lanes: int) -> None:
    """With a dueling network, priorities, and θ⁻ that follows; some episodes are cut."""
    settings = experiment(
        "Bandit",
        environment={"id": f"{__name__}:Sides", "lanes": lanes},
        network={
            "name": "convolutional",
            "convolutions": [[4, 3, 2], [4, 2, 1]],
            "hidden": [8],
            "activation": "relu",
        },
        algorithm={
            "name": "dqn",
            "batch_size": 8,
            "minibatch_size": 32,
            "start_steps": 64,
            "dueling": True,
            "target_updates": 20,
            "epsilon": 0.5,
        },
        replay={"steps": 128, "priority_exponent": 0.5},
        optimizer={"learning_rate": 0.01},
        child=FREE,
    )
    with single(settings) as (core, memory, line):
        for _ in range(100):
            core.learn(core.collector.collect())
            records(line)
        assert {row.tobytes() for row in memory.pixels[0, :128]} == {
            image.tobytes() for image in sides()
        }
        # An update a batch, from the eighth on; the newest refreshment was at a multiple of 20.
        made = int(memory.updates[0])
        assert 80 <= made <= 93
        assert made - 20 < int(memory.refreshed[2]) <= made
        outputs, values = core.model.evaluate(sides())
    q = outputs + (values[:, None] - outputs.mean(1, keepdims=True))
    assert q == pytest.approx(np.eye(2), abs=0.2)


def updating(algorithm: dict[str, Any], **parent: Any) -> Experiment:
    child = {"exchange": "update"}
    settings = {"parent": {"rule": "gradient", **parent}, "optimizer": {"name": "sgd"}}
    return experiment("Endless", {"limit": 4}, algorithm=algorithm, child=child, **settings)


@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
@pytest.mark.parametrize("parent", [{}, {"rule_options": {"outlier_sigmas": 3.0}}])
def test_a_gradient_for_the_parent_is_left_where_it_is_and_told(
    algorithm: str, parent: dict[str, Any]
) -> None:
    sizes = {"minibatch_size": 5, "epochs": 2} if algorithm == "ppo" else {}
    settings = updating(
        {"name": algorithm, "batch_size": 10, "max_gradient_norm": 0.01, **sizes}, **parent
    )
    with single(settings) as (core, memory, line):
        before = memory.weights.tobytes()
        core.learn(core.collector.collect())
        assert memory.weights.tobytes() == before
        assert not memory.state.any()
        assert 0.0 < np.linalg.norm(memory.gradients[0]) <= 0.01 * (1 + 1e-6)
        losses = [value for kind, value, _ in records(line) if kind == UPDATE]
        assert len(losses) == (1 if algorithm == "a3c" else 4)
        assert np.isfinite(losses).all() == bool(parent)


def test_a_core_explores_by_the_parents_versions_if_told() -> None:
    course = {"epsilon": 1.0, "epsilon_schedule": "linear", "epsilon_versions": 100}
    with single(experiment("Corridor", algorithm=course)) as (core, memory, _):
        for version, epsilon in ((0, 1.0), (25, 0.75), (100, 0.0), (900, 0.0)):
            memory.progress[:] = 0.9, version
            assert core._epsilon() == epsilon


def test_a_gradient_that_is_an_outlier_of_its_core_is_not_told() -> None:
    settings = updating({"name": "a3c", "batch_size": 10, "outlier_sigmas": 2.0})
    with single(settings) as (core, memory, line):
        for _ in range(20):
            core.model.losses.is_outlier(0.0)
        before = memory.weights.tobytes()
        for expected in ([], [UPDATE]):
            assert core.learn(core.collector.collect()) == 1
            assert [kind for kind, _, _ in records(line) if kind == UPDATE] == expected
            core.model.losses.numbers[:] = 0.0
        assert memory.weights.tobytes() == before


def test_after_each_update_the_core_has_the_childs_weights_whatever_pull_steps_says() -> None:
    settings = updating({"name": "a3c", "batch_size": 10, "pull_steps": 1000})
    with single(settings) as (core, memory, _):
        memory.weights[:] = 0.5
        core.learn(core.collector.collect())
        assert core.model.numbers.tobytes() == memory.weights.tobytes()


def test_over_a_slow_link_every_step_counts_in_the_statistics_of_the_next_push(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = experiment(
        "Endless",
        {"limit": 6},
        environment={"lanes": 2, "normalize_observations": True, "normalize_rewards": True},
        algorithm={"name": "ppo", "batch_size": 64},  # four chunks of eight steps in each lane
        child={"exchange": "chunk"},
    )
    with single(settings) as (core, memory, _):
        theirs = memory.weights.copy()
        names = ("observations", "returns")
        for name in names:
            theirs[core.model.signature.slices[f"statistics.{name}"]][0] = 1000.0
        memory.averaging[1:5] = 100.0, 1.0, 0.0, 1.0
        core._seconds, core._pushes = 1e-6, 1.0  # the answer is late
        chunks: list[int] = []
        collect = core.collector.collect

        def counted(most: int) -> CollectedBatch:
            chunks.append((chunk := collect(most)).steps)
            return chunk

        def pause(after: str = "episode") -> None:
            if after == "chunk" and not core.model.numbers[-3]:
                memory.weights[:] = theirs  # θ_P is here, whole

        monkeypatch.setattr(core.collector, "collect", counted)
        monkeypatch.setattr(core.pipe, "pause", pause)
        core.learn(core._act())
        assert len(chunks) > 2
        counts = [
            float(memory.weights[core.model.signature.slices[f"statistics.{name}"]][0])
            for name in names
        ]
        assert counts == [1000.0 + sum(chunks)] * 2
