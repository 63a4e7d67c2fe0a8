"""What is left out, what is trimmed, and who is not listened to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from genkidama.config.sections import ParentSettings
from genkidama.errors import ConfigurationError
from genkidama.plugins.actors.rule import Experience
from genkidama.plugins.robust.aggregation import FAR, QUARANTINED, Robust, robust, trimmed_mean
from genkidama.protocol.vector import DTYPE, Vector
from genkidama.server.rules.blend import Blend, Rule, Update

FINITE = st.floats(-(2.0**127), 2.0**127, width=32)


def push(values: float | Vector, child: str, seconds: float = 0.0, tail: int = 0) -> Update:
    vector = np.full(4, values, DTYPE) if isinstance(values, float) else values
    return Update(vector, 0, 0, 1, child, seconds=seconds, statistics=tail)


def of(**options: float) -> Robust:
    rule = robust(Blend(0.5), ParentSettings(**options))  # type: ignore[arg-type]
    assert isinstance(rule, Robust)
    return rule


def used(rule: Robust, parent: Vector, count: int = 12, names: str = "abc") -> None:
    """Honest pushes, each of which moves the weights by about 2."""
    for turn in range(count):
        step = DTYPE.type((-1.0) ** (turn // len(names)))
        assert rule.apply(parent, push(parent + step, names[turn % len(names)])) is None


def test_it_is_off_by_default_and_not_for_rows() -> None:
    blend = Blend(0.5)
    assert robust(blend, ParentSettings()) is blend
    with pytest.raises(ConfigurationError, match="rows are no weights"):
        robust(Experience(0.5), ParentSettings(push_limit=3.0))


@pytest.mark.parametrize("value", [1e3, -1e30, 3e38])
def test_a_push_that_is_too_far_is_left_out_and_nothing_has_changed(value: float) -> None:
    parent = np.zeros(4, DTYPE)
    rule = of(push_limit=5.0)
    used(rule, parent)
    before = parent.copy()
    for _ in range(100):  # however often it comes
        assert rule.apply(parent, push(value, "thief")) == FAR
    np.testing.assert_array_equal(parent, before)
    assert rule.apply(parent, push(parent + DTYPE.type(1.0), "a")) is None
    assert rule.apply(parent, push(parent + DTYPE.type(7.0), "new")) is FAR


def test_of_two_children_none_decides_by_a_few_pushes_what_is_usual() -> None:
    parent = np.zeros(4, DTYPE)
    rule = of(push_limit=5.0)
    used(rule, parent, names="a")
    for _ in range(13):
        assert rule.apply(parent, push(3e38, "b")) == FAR
    rule.forget("b")
    assert rule.apply(parent, push(parent.copy(), "b")) is None  # which has not learned yet
    assert rule.apply(parent, push(parent + DTYPE.type(1.0), "a")) is None


def test_what_is_usual_follows_the_run() -> None:
    """Children that all move farther from now on are left out for a while, not for good."""
    parent = np.zeros(4, DTYPE)
    rule = of(push_limit=2.0)
    used(rule, parent)
    told = [rule.apply(parent, push(parent + DTYPE.type(9.0), "abc"[n % 3])) for n in range(40)]
    assert told[0] == FAR and told[-1] is None


def test_who_has_not_learned_yet_does_not_say_what_is_usual() -> None:
    """Before `algorithm.start_steps` children push the weights that they got, up to rounding."""
    parent = np.arange(1, 5, dtype=DTYPE)
    rule = of(push_limit=5.0, quarantine_after=5)
    for turn in range(120):
        still = np.nextafter(parent, DTYPE.type(turn % 2 * 9))
        assert rule.apply(parent, push(still, "abc"[turn % 3])) is None
    for turn in range(60):
        assert rule.apply(parent, push(parent + DTYPE.type(1e-3), "abc"[turn % 3])) is None
    assert rule.apply(parent, push(parent + DTYPE.type(1e-1), "a")) == FAR


def test_statistics_are_judged_by_what_they_make_of_an_observation() -> None:
    parent = np.array([0, 100, 50, 125], DTYPE)  # one weight; 100 observations of 0.5 ± 1
    rule = of(push_limit=5.0)
    for turn in range(12):
        honest = np.array([1, 110, 54 + turn % 2, 138], DTYPE)
        assert rule.apply(parent.copy(), push(honest, "abc"[turn % 3], tail=3)) is None
    for tail in ((110, 1e30, 1e32), (110, 55, 1e9), (1e9, 55, 138)):
        assert rule.apply(parent, push(np.array([1, *tail], DTYPE), "a", tail=3)) == FAR


def test_a_child_of_which_much_is_left_out_is_not_listened_to_for_a_while() -> None:
    parent = np.zeros(4, DTYPE)
    rule = of(push_limit=5.0, quarantine_after=3, quarantine_seconds=60.0)
    used(rule, parent)
    near = parent + DTYPE.type(0.5)
    told = [
        rule.apply(parent.copy(), push(1e9 if turn % 2 else near, "t", seconds=turn))
        for turn in range(8)
    ]
    assert told == [None, FAR, None, FAR, None, FAR, QUARANTINED, QUARANTINED]
    rule.forget("t")  # to come back on another connection does not help
    assert rule.apply(parent, push(near, "t", seconds=64.9)) == QUARANTINED
    assert rule.apply(parent, push(near, "a", seconds=64.9)) is None
    assert rule.apply(parent, push(near, "t", seconds=65.0)) is None
    for _ in range(3):
        rule.refused("t")
        rule.refused("nobody")  # who has never pushed takes no memory
    assert rule.apply(parent, push(near, "t", seconds=66.0)) is None  # it is judged by a push
    assert rule.apply(parent, push(near, "t", seconds=67.0)) == QUARANTINED


def test_the_median_of_a_window_is_not_the_thiefs() -> None:
    parent = np.zeros(4, DTYPE)
    rule = of(push_window=3)
    for _ in range(5):
        for child, value in (("a", 1.0), ("thief", 3e38), ("b", 2.0)):
            assert rule.apply(parent, push(value, child)) is None
    assert 1.0 < parent[0] < 2.1
    rule.forget("thief")
    rule.apply(parent, push(1.0, "a"))
    assert parent[0] < 2.0


def test_all_else_is_the_inner_rules() -> None:
    rule = of(push_limit=5.0)
    names = {name for name in vars(Rule) if not name.startswith("_")}
    for name in names - {"takes", "convex", "apply", "forget", "refused"}:
        rule.rule = SimpleNamespace(**{name: lambda *given: given})  # type: ignore[assignment]
        assert getattr(rule, name)(1, 2) == (1, 2)


@given(st.lists(arrays(DTYPE, 3, elements=FINITE), min_size=1, max_size=7), st.floats(0.0, 0.5))
def test_a_trimmed_mean_lies_between_the_kept_ones(vectors: list[Vector], trim: float) -> None:
    found = trimmed_mean(vectors, trim)
    assert found.dtype == DTYPE and np.isfinite(found).all()
    rows = np.sort(np.stack(vectors).astype(np.float64), axis=0)
    out = min(int(trim * len(rows)), (len(rows) - 1) // 2)
    kept = rows[out : len(rows) - out]
    np.testing.assert_allclose(found, kept.mean(axis=0), rtol=1e-5, atol=1e-6 * np.abs(kept).max())
    if trim == 0.5:
        np.testing.assert_allclose(found, np.median(rows, axis=0), rtol=1e-5, atol=1e-38)
