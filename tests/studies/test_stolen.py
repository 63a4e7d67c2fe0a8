"""A child that lies, and what rules against it cost."""

from __future__ import annotations

import numpy as np

from genkidama.protocol.vector import DTYPE
from studies.stolen import __main__ as stolen


def test_attacks_are_finite_and_a_push_costs_time_with_every_rule() -> None:
    honest = np.ones(9, DTYPE)
    for attack in stolen.ATTACKS[1:]:
        sent = stolen.nonsense(attack, honest, 1.0, np.random.default_rng(0))
        assert sent.shape == (9,) and sent.dtype == DTYPE and np.isfinite(sent).all()
        assert not np.array_equal(sent, honest)
    for rules in stolen.RULES.values():
        assert stolen._of_a_push(30, 8, rules) > 0.0
