"""The panel beside the picture: what is drawn where."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from genkidama.learning.explanation import Explanation
from genkidama.learning.pictures import Moment
from genkidama.local.panel import _BAR, _TAKEN, WIDTH, Panel

DISCRETE = gymnasium.spaces.Discrete(3)
PICTURE = np.random.default_rng(0).integers(0, 255, (400, 301, 3), np.uint8)


def moment(kind: Any = "probabilities", numbers: Any = (0.5, 0.2, 0.3), **more: Any) -> Moment:
    spread = more.pop("spread", None)
    said = Explanation(kind, np.array(numbers, np.float32), spread, more.pop("value", 1.0))
    given = {"episode": 0, "step": 0, "picture": PICTURE, "action": 1, "total": 2.0} | more
    return Moment(explanation=said, **given)


def panel(space: gymnasium.Space[Any] = DISCRETE, names: Any = (), picture: Any = PICTURE) -> Panel:
    return Panel("Moon-v1", "best weights", picture, names, space)


def wide(drawn: Any, colour: Any) -> list[int]:
    """How wide each bar of this colour is, from the top, whatever words are on it."""
    found = (drawn == colour).all(2)
    extent = [int(np.ptp(np.flatnonzero(row))) + 1 if row.any() else 0 for row in found]
    bars = "".join(f"{width} " if width else "\n" for width in extent).split("\n")
    return [max(map(int, bar.split())) for bar in bars if bar.strip()]


def test_the_picture_stays_as_it_is_and_the_panel_is_drawn_beside_it() -> None:
    drawn = panel().draw(moment())
    assert drawn.shape == (400, 301 + WIDTH + 1, 3) and drawn.dtype == np.uint8
    assert (drawn[:, :301] == PICTURE).all()
    assert len(np.unique(drawn[:, 301:].reshape(-1, 3), axis=0)) > 20


def test_bars_are_as_wide_as_probabilities_and_the_action_taken_stands_out() -> None:
    drawn = panel().draw(moment())
    whole = WIDTH - 32
    assert wide(drawn, _BAR) == [
        pytest.approx(0.5 * whole, abs=1),
        pytest.approx(0.3 * whole, abs=1),
    ]
    assert wide(drawn, _TAKEN) == [pytest.approx(0.2 * whole, abs=1)]


def test_actions_may_begin_with_another_number() -> None:
    space = gymnasium.spaces.Discrete(3, start=5)
    first = panel(space).draw(moment(action=5))
    assert wide(first, _TAKEN) == [pytest.approx(0.5 * (WIDTH - 32), abs=1)]


def test_q_values_are_compared_with_each_other() -> None:
    drawn = panel().draw(moment("values", (-3.0, 7.0, 2.0)))
    least, middle = wide(drawn, _BAR)
    (most,) = wide(drawn, _TAKEN)
    assert most == WIDTH - 32
    assert least < middle < most
    assert middle == pytest.approx(most * 6 / 11, abs=1)


def test_a_continuous_action_has_a_band_and_a_mark_in_it() -> None:
    space = gymnasium.spaces.Box(-2.0, 2.0, (1,))
    said = moment("means", (0.5,), spread=np.array([0.5], np.float32), action=np.array([0.5]))
    drawn = panel(space).draw(said)
    (row,) = {int(row) for row in np.argwhere((drawn == _TAKEN).all(2))[:1, 0]}
    columns = np.flatnonzero((drawn[row] == _BAR).all(1) | (drawn[row] == _TAKEN).all(1))
    assert columns.max() - columns.min() == pytest.approx((WIDTH - 32) / 4, abs=2)
    middle = np.flatnonzero((drawn[row] == _TAKEN).all(1)).mean()
    assert middle == pytest.approx(columns.mean(), abs=1.5)


@pytest.mark.parametrize("actions", [18, 200])
def test_many_actions_fit_and_the_likely_ones_are_there(actions: int) -> None:
    numbers = np.full(actions, 0.5 / actions)
    numbers[-1] += 0.5
    space = gymnasium.spaces.Discrete(actions)
    drawn = panel(space).draw(moment(numbers=numbers, action=actions - 1))
    assert wide(drawn, _TAKEN) == [pytest.approx(numbers[-1] * (WIDTH - 32), abs=1)]


def test_numbers_and_names_are_words_in_the_picture() -> None:
    plain = panel().draw(moment())
    for other in (
        panel().draw(moment(total=99.0)),
        panel().draw(moment(value=-5.0)),
        panel().draw(moment(step=7)),
        panel().draw(moment(episode=1)),
        panel(names=("left", "none", "right")).draw(moment()),
    ):
        assert (other != plain).any()
        assert (other[:, :301] == PICTURE).all()


def test_a_head_of_ones_own_has_no_bars() -> None:
    drawn = panel().draw(moment("unknown", ()))
    assert wide(drawn, _BAR) == wide(drawn, _TAKEN) == []


@pytest.mark.parametrize(
    ("shape", "size"), [((210, 160), (320 + WIDTH, 420)), ((2200, 3000), (1000 + WIDTH, 734))]
)
def test_small_pictures_grow_and_huge_ones_shrink(shape: Any, size: Any) -> None:
    picture = np.zeros((*shape, 3), np.uint8)
    found = panel(picture=picture)
    assert found.size == size
    assert found.draw(moment(picture=picture)).shape == (size[1], size[0], 3)


def test_the_curve_of_v_begins_anew_with_each_episode() -> None:
    one = panel()
    first = one.draw(moment())
    for step in range(1, 5):
        one.draw(moment(step=step, value=float(step)))
    assert (one.draw(moment()) == first).all()
