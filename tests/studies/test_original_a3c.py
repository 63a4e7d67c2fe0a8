"""What the thesis' own program does to a batch's targets and gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from genkidama.errors import ConfigurationError
from genkidama.experiment import Experiment
from genkidama.learning.a3c import A3C
from genkidama.learning.environments import make_environment
from genkidama.learning.learners import gradients
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from studies.thesis.original_a3c import (
    OriginalA3C,
    OriginalBootstrap,
    OriginalTruncation,
    OriginalWeights,
    SummedGradients,
)
from tests.helpers import merged, small

FULL = 4
#: Its batches end with their episode.
EXPERIMENT = small(
    algorithm={"batch_size": FULL, "across_episodes": False, "normalize_advantages": False}
)


@pytest.fixture
def model() -> Iterator[Model]:
    environment = make_environment(EXPERIMENT.environment)
    yield Model(EXPERIMENT, environment)
    environment.close()


def batch(length: int, seed: int, terminated: bool = False) -> Rollout:
    """Some steps; without an end the last of them is a cut."""
    rng = np.random.default_rng(seed)
    ends = np.zeros(length, bool)
    ends[-1] = True
    return Rollout(
        torch.from_numpy(rng.normal(size=(length, 4)).astype(np.float32)),
        torch.from_numpy(rng.integers(2, size=(length, 1))),
        rng.normal(size=length).astype(np.float32),
        ends,
        np.array([] if terminated else [length - 1], np.intp),
        torch.from_numpy(rng.normal(size=(0 if terminated else 1, 4)).astype(np.float32)),
    )


def gradient(learner: A3C, model: Model, rollout: Rollout) -> torch.Tensor:
    found = [
        model.gradient.clone()
        for _ in gradients(learner, model, rollout, torch.Generator().manual_seed(0))
    ]
    assert len(found) == 1
    return found[0]


def plain(model: Model, rollout: Rollout) -> torch.Tensor:
    return gradient(A3C(EXPERIMENT.algorithm, model), model, rollout)


def test_a_full_batch_bootstraps_from_the_last_stored_state(model: Model) -> None:
    for kind in (OriginalA3C, OriginalBootstrap):
        wanted = batch(FULL, 1)
        wanted.cut_observations = wanted.observations[-1:]
        found = gradient(kind(EXPERIMENT.algorithm, model), model, batch(FULL, 1))
        torch.testing.assert_close(found, plain(model, wanted))
        assert not torch.allclose(found, plain(model, batch(FULL, 1)))
    found = gradient(OriginalTruncation(EXPERIMENT.algorithm, model), model, batch(FULL, 1))
    torch.testing.assert_close(found, plain(model, batch(FULL, 1)))


def test_a_batch_that_the_time_limit_cuts_counts_as_terminated(model: Model) -> None:
    for kind in (OriginalA3C, OriginalTruncation):
        wanted = batch(FULL - 1, 1)
        wanted.cuts = wanted.cuts[:0]
        wanted.cut_observations = wanted.cut_observations[:0]
        found = gradient(kind(EXPERIMENT.algorithm, model), model, batch(FULL - 1, 1))
        torch.testing.assert_close(found, plain(model, wanted))
    found = gradient(OriginalBootstrap(EXPERIMENT.algorithm, model), model, batch(FULL - 1, 1))
    torch.testing.assert_close(found, plain(model, batch(FULL - 1, 1)))


@pytest.mark.parametrize("end", [batch(FULL, 3, terminated=True), batch(FULL - 1, 3)])
def test_gradients_add_up_until_the_episode_ends(model: Model, end: Rollout) -> None:
    learner = SummedGradients(EXPERIMENT.algorithm, model)
    parts = [plain(model, rollout) for rollout in (batch(FULL, 1), batch(FULL, 2), end)]
    for count, rollout in enumerate((batch(FULL, 1), batch(FULL, 2), end), 1):
        torch.testing.assert_close(gradient(learner, model, rollout), sum(parts[:count]))
    again = gradient(learner, model, batch(FULL, 1))
    torch.testing.assert_close(again, parts[0])


def test_gradients_that_could_not_be_summed_are_refused() -> None:
    experiment = small(network={"activation": "silu"})
    environment = make_environment(experiment.environment)
    with pytest.raises(ConfigurationError, match=r"network.name = 'actor-critic'"):
        SummedGradients(experiment.algorithm, Model(experiment, environment))
    environment.close()


def test_every_seed_begins_with_the_program_s_own_weights() -> None:
    thesis = Experiment.load("examples/lunarlander/thesis.toml")
    name = f"{OriginalWeights.__module__}:{OriginalWeights.__name__}"
    environment = make_environment(thesis.environment)
    found = [
        Model(merged({**thesis.to_dict(), "seed": seed}, network={"name": name}), environment)
        for seed in (0, 7)
    ]
    plain = Model(thesis, environment)
    environment.close()
    torch.manual_seed(0)
    wanted = [
        part.flatten()
        for rows, columns in ((128, 8), (4, 128), (128, 8), (1, 128))
        for part in (torch.empty(rows, columns).normal_(0.0, 0.1), torch.zeros(rows))
    ]
    for model in found:
        assert torch.equal(model.vector, torch.cat(wanted))
        assert model.by_hand is not None  # as fast as the plain network
        assert model.signature.entries == plain.signature.entries
    assert not torch.equal(plain.vector, found[0].vector)
