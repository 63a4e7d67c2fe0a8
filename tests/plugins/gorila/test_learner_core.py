"""A core that only learns: it plays nothing, and says that it lives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genkidama.child.replay_tensor import ReplayRows
from genkidama.child.worker import PROGRESS
from genkidama.config.experiment import Experiment
from genkidama.plugins.gorila.learner_core import make_learner_only


@pytest.mark.parametrize("notes", [True, False])
def test_its_batches_are_empty_and_now_and_then_it_says_so(notes: bool) -> None:
    said: list[int] = []
    line: Any = SimpleNamespace(report=said.append)
    rows = ReplayRows(*(np.zeros((4, 1), np.float32) for _ in range(5)))
    share: Any = SimpleNamespace(begin=lambda goes_on: rows)
    kit: Any = SimpleNamespace(share=share, line=line, notes_log_mu=notes)
    onlooker = make_learner_only(Experiment(), None, kit)
    onlooker.reset(1)
    for _ in range(128):
        batch = onlooker.collect()
        assert (batch.steps, batch.cuts, batch.following, batch.ended) == (0, [], [], False)
        assert (batch.log_mu is not None) == notes
    assert said == [PROGRESS] * 2
