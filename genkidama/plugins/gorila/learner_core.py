"""Collecting nothing: a core that only learns, from what other children have played."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from genkidama.child.collector import CollectedBatch, CollectorContext
from genkidama.child.worker import PROGRESS, WorkerPipe
from genkidama.config.experiment import Experiment

__all__ = ["LearnerOnly", "make_learner_only"]

#: After so many empty batches, the core says that it lives.
_REPORT_BATCHES = 64


class LearnerOnly:
    """A `Collector` whose batches have no steps.

    Args:
        kit: what a core collects with.
    """

    def __init__(self, kit: CollectorContext) -> None:
        self._share = kit.share
        self._line: WorkerPipe = kit.line
        self._log_mu = np.zeros(0, np.float32) if kit.notes_log_mu else None
        self._batches = 0

    def reset(self, seed: int) -> None:
        pass

    def collect(self, most: int = sys.maxsize) -> CollectedBatch:
        self._batches += 1
        if not self._batches % _REPORT_BATCHES:
            self._line.report(PROGRESS)
        return CollectedBatch(self._share.begin(False), 0, [], [], self._log_mu)


def make_learner_only(experiment: Experiment, places: Any, kit: CollectorContext) -> LearnerOnly:
    """As `make_collector`, for a core that only learns. It plays nowhere."""
    return LearnerOnly(kit)
