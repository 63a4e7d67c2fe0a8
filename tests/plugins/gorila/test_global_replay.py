"""The replay of all children, as cores write it and learners see it, on a real engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from genkidama.child.replay_tensor import ReplayTensor, RingSegment
from genkidama.child.shared_memory import Layout, SharedMemory
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.gorila import global_replay as module
from genkidama.plugins.gorila.engine_ring import EngineRing
from genkidama.plugins.gorila.global_replay import GlobalReplay, GlobalShare, ring_settings
from tests.engines import RealEngine, running

_names = itertools.count()

SETTINGS: dict[str, Any] = {
    "environment": {"id": "CartPole-v1", "reward_scale": 2.0},
    "network": {"hidden": [4]},
    "algorithm": {"name": "dqn", "batch_size": 4, "gamma": 0.5, "start_steps": 1},
    "replay": {"steps": 400, "priority_exponent": 0.5},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with running(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


class Core:
    """A core that writes whatever it is told, and a learner beside it."""

    def __init__(self, engine: RealEngine, **changes: Any) -> None:
        shared = {"url": engine.url, "name": f"run-{next(_names)}"}
        settings = {**SETTINGS, "replay": {**SETTINGS["replay"], **shared}}
        experiment = Experiment.from_dict(settings).with_settings(changes)
        self.model = Model(experiment, make_environment(experiment.environment))
        batch = experiment.algorithm.batch_size
        layout = Layout(1, batch, 4 + 1 + 3, 1, 1, 1, 1)
        self.memory = SharedMemory(layout)
        self.ring = EngineRing(ring_settings(self.model), "core")
        self.ring.open()
        tensor = ReplayTensor(self.memory, batch, (4,), 1)
        self.share = GlobalShare(RingSegment(tensor, 0), self.ring.settings.rows, self.ring)
        self.replay = GlobalReplay(self.ring, self.model, np.random.default_rng(0))
        self.written = 0
        self.goes_on = False

    def play(self, ends: str) -> None:
        """A batch: of each step, "." goes on, "t" terminates, "c" is cut by a time limit."""
        rows = self.share.begin(self.goes_on)
        cuts: list[int] = []
        for t, end in enumerate(ends):
            number = self.written + t
            rows.observations[t] = number
            rows.actions[t] = number % 2
            rows.rewards[t] = number
            rows.terminated[t] = end == "t"
            rows.truncated[t] = end == "c"
            if end == "c" or (end == "." and t == len(ends) - 1):
                cuts.append(t)
        # The observation that follows is the next step's.
        following = [np.full(4, self.written + cut + 1, np.float32) for cut in cuts]
        self.written += len(ends)
        self.goes_on = ends[-1] == "."
        self.share.end(len(ends), cuts, following, -1.0)

    def close(self) -> None:
        self.ring.close()
        self.memory.close()


@pytest.fixture
def core(engine: RealEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    monkeypatch.setattr(module, "GATHERED_SECONDS", 1e9)
    core = Core(engine)
    yield core
    core.close()


def test_steps_are_sent_when_there_are_enough_and_n_steps_cross_batches(core: Core) -> None:
    for _ in range(15):
        core.play("....")
    assert len(core.replay) == 0
    core.play("...t")
    core.ring._heard = -1e9
    assert len(core.replay) == 64  # without a stop
    found = core.replay.sample(64, replacement=False, steps=3)
    first = found.observations[:, 0]
    assert sorted(first) == list(range(64))
    m = np.minimum(3, 64 - first)
    scaled = [
        sum(2 * (s + k) * 0.5**k for k in range(int(n))) for s, n in zip(first, m, strict=True)
    ]
    assert found.rewards.tolist() == pytest.approx(scaled)
    assert (found.terminated == (first + m == 64)).all()
    assert (found.following[:, 0] == np.where(found.terminated, first, first + m)).all()
    assert found.discounts.tolist() == np.where(found.terminated, 0, 0.5**m).tolist()
    assert found.actions.dtype == core.model.head.dtype
    assert (found.actions[:, 0] == first % 2).all()
    assert (found.weights == 1).all()


def test_they_are_sent_when_they_have_waited(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHERED_SECONDS", 0.0)
    core.play("..c.")
    assert len(core.replay) == 6
    found = core.replay.sample(4, replacement=False, steps=9)
    by_step = {step: index for index, step in enumerate(found.observations[:, 0].tolist())}
    assert [found.following[by_step[step], 0] for step in range(4)] == [3, 3, 3, 4]
    assert [bool(found.truncated[by_step[step]]) for step in range(4)] == [True, True, True, False]


def test_trajectories_are_rollouts_with_their_cuts(core: Core) -> None:
    for _ in range(15):
        core.play("....")
    core.play("..ct")
    found = core.replay.trajectories(40, 5)
    observations = found.observations.numpy()[:, 0]
    last = np.flatnonzero(found.ends)
    assert len(last) == 40
    starts = np.concatenate(([0], last[:-1] + 1))
    for start, stop in zip(starts, last, strict=True):
        first = observations[start]
        length = min(5, (63 if first < 63 else 64) - first)
        assert observations[start : stop + 1].tolist() == [first + k for k in range(int(length))]
    assert set(found.cuts) == set(last[observations[last] != 63])
    behind = found.cut_observations.numpy()[:, 0]
    assert (behind == observations[found.cuts] + 1).all()
    assert found.rewards.tolist() == (2 * observations).tolist()
    assert found.log_mu is not None
    assert (found.log_mu == -1).all()


def test_priorities_decide_what_is_drawn_and_weights_make_up_for_it(core: Core) -> None:
    for _ in range(16):
        core.play("...t")
    drawn = core.replay.sample(64, replacement=False)
    errors = np.where(drawn.observations[:, 0] < 32, 0.099, 0.399)  # priorities 1 : 2
    core.replay.prioritize(drawn.places, errors)
    found = core.replay.sample(6000, correction=1.0)
    likely = found.observations[:, 0] >= 32
    assert likely.mean() == pytest.approx(2 / 3, abs=0.03)
    assert set(found.weights[~likely].tolist()) == {1.0}
    assert found.weights[likely] == pytest.approx(np.sqrt(0.1 / 0.4))
    core.replay.prioritize(drawn.places[:2], np.array([np.nan, np.inf]))
    gone = drawn.observations[:2, 0]
    assert not set(gone) & set(core.replay.sample(2000, correction=1.0).observations[:, 0])


def test_what_it_cannot_do_is_said(engine: RealEngine) -> None:
    core = Core(engine, **{"replay.priority_exponent": 0.0})
    with pytest.raises(ValueError, match=r"^1 steps asked for, 0 are there$"):
        core.replay.sample(1)
    with pytest.raises(ValueError, match=r"set replay.priority_exponent above 0$"):
        core.replay.sample(1, correction=1.0)
    for draw in (
        core.replay.sample,
        lambda count, own: core.replay.trajectories(count, 2, own=own),
    ):
        with pytest.raises(ConfigurationError, match=r"^own = True: "):
            draw(1, own=True)
    core.replay.prioritize(np.zeros(1, np.int64), np.ones(1))  # as a local one, it does nothing
    core.close()


def test_two_cores_have_one_replay_and_another_experiment_has_its_own(engine: RealEngine) -> None:
    first = Core(engine)
    settings = first.ring.settings
    second = EngineRing(settings, "other")
    second.open()
    for _ in range(16):
        first.play("...t")
    assert len(second) == 64
    with pytest.raises(ConfigurationError, match=r"is another experiment's \(CartPole-v1 "):
        Core(
            engine,
            **{"replay.name": settings.name, "environment.options": {"sutton_barto_reward": True}},
        )
    second.close()
    first.close()


def spoil(core: Core, value: float, column: int) -> None:
    """A block of four steps, one number of which is none that a core can have written."""
    rows = core.ring.settings.rows
    seen = np.zeros((4, 4), np.float32)
    block = rows.block(seen, np.ones((4, 1)), *np.zeros((3, 4)), [3], [seen[0]], -0.5)
    if column < 4:
        block["observation"][:, column] = value
    else:
        block["numbers"][:, column - 4] = value
    core.ring.add(block)


@pytest.mark.parametrize(
    ("value", "column"), [(np.nan, 0), (np.inf, 1), (7.0, 4), (-1.0, 4), (0.5, 4), (np.nan, 5)]
)
def test_what_no_core_can_have_written_is_left_out_and_said(
    core: Core, value: float, column: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):
        core.play("...t")
    spoil(core, value, column)
    for correction in (None, 0.5):
        for _ in range(20):
            found = core.replay.sample(32, steps=2, correction=correction)
            assert found.observations.shape == (32, 4)
            assert np.isfinite(found.observations).all() and np.isfinite(found.rewards).all()
            assert np.isin(found.actions, (0, 1)).all()
    for _ in range(10):
        rollout = core.replay.trajectories(8, 3)
        assert torch.isfinite(rollout.observations).all()
        assert torch.isin(rollout.actions, torch.tensor([0, 1])).all()
    said = capsys.readouterr()
    assert (said.out + said.err).count("no core can have written") == 1


def test_a_replay_that_holds_nothing_else_is_called_spoilt(core: Core) -> None:
    for _ in range(5):
        spoil(core, np.nan, 5)
    with pytest.raises(ConfigurationError, match="this replay is spoilt: most of its steps are"):
        core.replay.sample(8)
    with pytest.raises(ConfigurationError, match="choose another replay"):
        core.replay.trajectories(2, 3)
