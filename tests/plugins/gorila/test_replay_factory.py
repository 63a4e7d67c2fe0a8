from __future__ import annotations

import numpy as np
import pytest

from genkidama.child.core_forkserver import layout_of
from genkidama.child.shared_memory import SharedMemory
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.gorila.replay_factory import make_replay
from tests.helpers import small


@pytest.mark.parametrize(("steps", "exponent"), [(0, 0.0), (64, 0.0), (64, 0.6)])
def test_a_core_remembers_and_draws_as_the_experiment_says(steps: int, exponent: float) -> None:
    settings = small(
        environment={"lanes": 2, "reward_scale": 0.5},
        algorithm={"gamma": 0.5},
        replay={"steps": steps, "priority_exponent": exponent},
    )
    environment = make_environment(settings.environment)
    model = Model(settings, environment)
    memory = SharedMemory(layout_of(settings, model))
    share, replay = make_replay(memory, model, np.random.default_rng(0), 0)
    rows = share.begin(False)
    rows.rewards[:] = 1.0
    rows.terminated[:] = 0.0
    rows.truncated[:] = 0.0
    behind = np.zeros(model.observation_shape, np.float32)
    share.end(16, [7, 15], [behind, behind], np.nan)
    assert (replay is None) == (steps == 0)
    assert (memory.priorities.size > 0) == (exponent > 0.0)
    if replay is not None:
        drawn = replay.sample(50, steps=2, correction=0.4 if exponent else None)
        assert set(drawn.rewards.tolist()) == {0.5, 0.75}
        assert drawn.actions.dtype == np.int64
        whole = replay.trajectories(3, 5)
        assert whole.rewards.tolist() == [0.5] * len(whole.rewards)
        assert whole.log_mu is not None
        replay.prioritize(drawn.places, np.ones(50))
    memory.close()
    environment.close()


@pytest.mark.parametrize("steps", [0, 64])
def test_images_take_a_byte_a_pixel_where_they_are_remembered(steps: int) -> None:
    settings = small(
        environment={"id": "tests.child.test_core:Sides"},
        network={"name": "convolutional", "convolutions": [[2, 4, 2]], "hidden": [8]},
        replay={"steps": steps},
    )
    environment = make_environment(settings.environment)
    model = Model(settings, environment)
    memory = SharedMemory(layout_of(settings, model))
    share, replay = make_replay(memory, model, np.random.default_rng(0), 0)
    rows = share.begin(False)
    images = np.random.default_rng(1).integers(256, size=(17, *model.observation_shape))
    rows.observations[:] = images[:16]
    rows.terminated[:] = 0.0
    rows.truncated[:] = 0.0
    rows.rewards[:] = np.arange(16)
    share.end(16, [15], [images[16].astype(np.float32)], np.nan)
    if replay is None:
        assert memory.pixels.nbytes == 0
        return
    size = model.observation_size
    assert memory.pixels.nbytes == memory.replay.shape[1] * size
    assert memory.replay.shape[2] == 1 + 5
    drawn = replay.sample(40)
    assert drawn.observations.dtype == np.uint8
    numbers = drawn.rewards.astype(int)
    assert (drawn.observations == images[numbers]).all()
    assert (drawn.following == images[numbers + 1]).all()
    whole = replay.trajectories(4, 3)
    assert (whole.observations.numpy() == images[whole.rewards.astype(int)]).all()
    ends = whole.rewards[whole.cuts].astype(int)
    assert (whole.cut_observations.numpy() == images[ends + 1]).all()
    memory.close()
