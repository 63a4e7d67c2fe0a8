from __future__ import annotations

import numpy as np
import torch

from genkidama.child.collector import ActionSampler, BehaviourNotes
from genkidama.child.replay_tensor import ReplayRows
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from tests.helpers import small


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
