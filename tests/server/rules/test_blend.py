from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from genkidama.plugins.hypertrick.search import Replace
from genkidama.protocol.vector import _BLENDED as BLOCK
from genkidama.protocol.vector import blend
from genkidama.server.rules.blend import Blend, diagnose, speed_factor
from tests.server.rules import check_rule, contribution

alphas = st.floats(0.0, 1.0)
# A little below the largest float32: there the rounding of (1−α) and α may carry a sum of two
# products over the edge.
numbers = st.floats(-(2.0**127), 2.0**127, width=32)
vectors = st.integers(0, 12).flatmap(
    lambda n: st.tuples(*[hnp.arrays(np.float32, n, elements=numbers)] * 2)
)


def plain_blend(parent: np.ndarray, child: np.ndarray, alpha: float) -> np.ndarray:
    """Thesis §4.7, Algorithm 2, as it is written."""
    return (1.0 - alpha) * parent + alpha * child


@given(vectors, alphas)
def test_the_result_lies_between_the_two_and_where_alpha_says(
    pair: tuple[np.ndarray, np.ndarray], alpha: float
) -> None:
    parent, child = pair
    before = parent.copy()
    blend(parent, child, alpha)
    for old, new, theirs in zip(before.tolist(), parent.tolist(), child.tolist(), strict=True):
        # Four roundings to 24 bits, and one that may go below the smallest number there is.
        error = Fraction(max(abs(old), abs(theirs))) * 4 / 2**24 + Fraction(1, 2**147)
        exact = (1 - Fraction(alpha)) * Fraction(old) + Fraction(alpha) * Fraction(theirs)
        assert abs(Fraction(new) - exact) <= error
        assert min(old, theirs) - error <= Fraction(new) <= max(old, theirs) + error


@given(vectors, alphas)
def test_the_child_is_only_read_and_the_parent_stays_the_same_array(
    pair: tuple[np.ndarray, np.ndarray], alpha: float
) -> None:
    parent, child = pair
    memory, before = parent.ctypes.data, child.tobytes()
    child.flags.writeable = False
    blend(parent, child, alpha)
    assert (parent.ctypes.data, parent.dtype, child.tobytes()) == (
        memory,
        np.dtype(np.float32),
        before,
    )


@given(vectors)
def test_alpha_0_and_1_are_exact_to_the_bit(pair: tuple[np.ndarray, np.ndarray]) -> None:
    parent, child = pair
    before = parent.tobytes()
    blend(parent, child, 0.0)
    assert parent.tobytes() == before
    blend(parent, child, 1.0)
    assert parent.tobytes() == child.tobytes()


def test_alpha_0_ignores_even_an_infinite_child_and_keeps_the_sign_of_zero() -> None:
    parent = np.array([1.0, -0.0], np.float32)
    blend(parent, np.array([np.inf, 3.0], np.float32), 0.0)
    assert parent.tobytes() == np.array([1.0, -0.0], np.float32).tobytes()


def test_huge_numbers_of_opposite_sign_do_not_overflow() -> None:
    largest = np.finfo(np.float32).max
    parent = np.array([largest, -largest], np.float32)
    blend(parent, -parent, 0.5)
    assert parent.tolist() == [0, 0]


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 7])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
def test_a_large_vector_is_blended_as_a_small_one(size: int, alpha: float) -> None:
    rng = np.random.default_rng(size)
    parent, child = rng.normal(size=(2, size)).astype(np.float32)
    expected = plain_blend(parent, child, alpha)
    blend(parent, child, alpha)
    assert parent.tobytes() == expected.tobytes()


def test_views_and_read_only_buffers_blend_too() -> None:
    memory = np.zeros(6, np.float32)
    blend(memory[::2], np.frombuffer(np.ones(3, np.float32).tobytes(), np.float32), 0.5)
    assert memory.tolist() == [0.5, 0, 0.5, 0, 0.5, 0]


@pytest.mark.parametrize("alpha", [-0.001, 1.001, float("nan"), float("inf"), -1.0])
def test_a_wrong_alpha_is_refused(alpha: float) -> None:
    parent = np.ones(3, np.float32)
    with pytest.raises(ValueError) as caught:
        blend(parent, np.zeros(3, np.float32), alpha)
    assert str(caught.value) == f"alpha = {alpha!r} is outside [0, 1]"
    assert parent.tolist() == [1, 1, 1]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("parent", "child", "sentence"),
    [
        (
            np.zeros(3, "f4"),
            np.zeros(1, "f4"),
            "cannot blend shape [1] into shape [3]; both must be equal and flat",
        ),
        (
            np.zeros((2, 2), "f4"),
            np.zeros((2, 2), "f4"),
            "cannot blend shape [2, 2] into shape [2, 2]; both must be equal and flat",
        ),
        (
            np.zeros((), "f4"),
            np.zeros((), "f4"),
            "cannot blend shape [] into shape []; both must be equal and flat",
        ),
        (
            np.zeros(3, "f4"),
            np.zeros(3, "f8"),
            "cannot blend float64 into float32; both must be float32",
        ),
        (
            np.zeros(3, "f8"),
            np.zeros(3, "f8"),
            "cannot blend float64 into float64; both must be float32",
        ),
    ],
)
def test_vectors_that_do_not_fit_are_refused(
    parent: np.ndarray, child: np.ndarray, alpha: float, sentence: str
) -> None:
    with pytest.raises(ValueError) as caught:
        blend(parent, child, alpha)
    assert str(caught.value) == sentence


@given(st.floats(0.02, 1.0), alphas)
def test_speed_factor_is_where_the_two_lines_settle(alpha: float, beta: float) -> None:
    parent = child = last = 0.0
    for _ in range(2000):
        last = parent
        child += 1.0  # what a child gains between two exchanges
        parent = plain_blend(parent, child, alpha)
        child = plain_blend(child, parent, beta)
    assert parent - last == pytest.approx(speed_factor(alpha, beta), rel=1e-6)


@pytest.mark.parametrize(
    ("alpha", "beta", "factor"),
    [(0.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.5, 1.0), (0.3, 0.0, 1.0), (0.5, 1.0, 0.5)],
)
def test_speed_factor_at_the_edges(alpha: float, beta: float, factor: float) -> None:
    assert speed_factor(alpha, beta) == pytest.approx(factor)


ALONE = (
    "beta = 0: children never read the parent, so they do not cooperate; "
    "the parent follows the last pushers"
)
NOTHING = "alpha = 0: the parent never takes anything from its children, so nothing is learned"


@pytest.mark.parametrize(
    ("alpha", "beta", "children", "sentences"),
    [
        (0.5, 0.5, 2, []),
        (0.9, 0.0, 1, []),
        (0.9, 0.0, 2, [ALONE]),
        (
            0.0,
            0.5,
            2,
            [NOTHING],
        ),
        (
            0.0,
            0.0,
            3,
            [
                NOTHING,
                ALONE,
            ],
        ),
        (
            0.1,
            0.9,
            2,
            [
                "alpha = 0.1 with beta = 0.9 slows learning to about 11% "
                "of one child that learns alone; raise alpha or lower beta"
            ],
        ),
    ],
)
def test_diagnose_says_what_is_odd(
    alpha: float, beta: float, children: int, sentences: list[str]
) -> None:
    assert diagnose(alpha, beta, children) == sentences


# The rules.


def test_every_rule_of_ours_keeps_the_promises() -> None:
    check_rule(Blend)
    check_rule(lambda alpha: Replace(), alphas=[1.0])


def test_blend_is_the_documented_rule_and_remembers_nothing() -> None:
    rule = Blend(0.25)
    parent = np.array([0, 1, -2, 8], np.float32)
    rule.apply(parent, contribution(np.array([4, 1, 2, 0], np.float32)))
    assert parent.tolist() == [1, 1, -1, 6]
    assert rule.state() == {}
    assert rule.diagnose(0.0, 2) == [ALONE]
