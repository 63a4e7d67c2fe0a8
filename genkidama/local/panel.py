"""The picture of an environment, and beside it what the policy says. Drawn by pygame."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama.errors import EnvironmentFailure
from genkidama.learning.explanation import Explanation
from genkidama.learning.pictures import Moment

__all__ = ["Panel", "import_pygame"]

Picture = npt.NDArray[np.uint8]

#: Left, top, width and height of a row.
_Row: TypeAlias = tuple[int, int, int, int]

#: Of the panel, without the picture.
WIDTH = 260
_MARGIN = 16
#: A picture is enlarged by a whole number to about this height, and a larger one is thinned out.
_HEIGHT = 400
_TALLEST = 1080
#: Where the bars begin, and how high a row of them may be.
_BARS = 196
_ROWS = (13, 26)

_HEADINGS = {
    "probabilities": "π(a|s)",
    "means": "action: mean ± spread",
    "values": "Q(s, a)",
}

_BACK = (22, 24, 30)
_DIM = (120, 126, 140)
_TEXT = (232, 234, 240)
_BAR = (62, 88, 130)
_TAKEN = (205, 120, 25)
_LINE = (110, 190, 150)


def import_pygame() -> Any:
    """pygame, without its greeting.

    Raises:
        EnvironmentFailure: it is not installed.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ImportError:
        raise EnvironmentFailure("pictures need pygame: pip install pygame-ce") from None
    return pygame


class Panel:
    """Draws the moments of one environment, all in the same size.

    Args:
        title: the first line.
        source: the second one: which weights play.
        picture: one that the environment has drawn.
        names: of the actions; their numbers if empty.
        space: of the actions.
    """

    def __init__(
        self,
        title: str,
        source: str,
        picture: Picture,
        names: Sequence[str],
        space: gymnasium.Space[Any],
    ) -> None:
        self._pygame = import_pygame()
        self._pygame.font.init()
        self._fonts = {size: self._pygame.font.Font(None, size) for size in (16, 20, 24)}
        self._title = title
        self._source = source
        self._names = names
        self._bounds = _bounds(space)
        self._start = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else 0
        self._values: list[float] = []
        height, width = _sized(picture).shape[:2]
        self._left = width
        #: (width, height), both even: films ask for that.
        self.size = (_even(width + WIDTH), _even(max(height, _HEIGHT)))
        self._surface = self._pygame.Surface(self.size)

    def draw(self, moment: Moment) -> Picture:
        """The whole picture of a moment: uint8, (height, width, 3)."""
        if moment.step == 0:
            self._values.clear()
        self._values.append(moment.explanation.value)
        picture = _sized(moment.picture)
        self._surface.fill(_BACK)
        top = (self.size[1] - picture.shape[0]) // 2
        area = self._surface.subsurface((0, top, picture.shape[1], picture.shape[0]))
        self._pygame.surfarray.blit_array(area, picture.swapaxes(0, 1))
        del area
        self._text(self._title, 14, 24, _TEXT)
        self._text(self._source, 38, 16, _DIM)
        self._pair(f"episode {moment.episode + 1}", f"step {moment.step}", 64)
        self._pair("return", f"{moment.total:.1f}", 88)
        self._pair("V(s)", f"{moment.explanation.value:.1f}", 112)
        self._curve(134, 34)
        self._actions(moment.explanation, moment.action)
        drawn: Picture = self._pygame.surfarray.array3d(self._surface).swapaxes(0, 1)
        return drawn

    def _text(self, words: str, top: int, size: int, colour: Any, right: bool = False) -> None:
        drawn = self._fonts[size].render(words, True, colour)
        left = self.size[0] - _MARGIN - drawn.get_width() if right else self._left + _MARGIN
        room = WIDTH - 2 * _MARGIN
        self._surface.blit(drawn, (left, top), (0, 0, room, drawn.get_height()))

    def _pair(self, left: str, right: str, top: int) -> None:
        self._text(left, top, 20, _DIM)
        self._text(right, top, 20, _TEXT, right=True)

    def _curve(self, top: int, height: int) -> None:
        """How V has gone in this episode."""
        room = WIDTH - 2 * _MARGIN
        values = np.asarray(self._values)
        if len(values) < 2:
            return
        low, high = float(values.min()), float(values.max())
        x = self._left + _MARGIN + np.linspace(0, room, len(values))
        y = top + height * (1 - (values - low) / max(high - low, 1e-9))
        self._pygame.draw.aalines(self._surface, _LINE, False, np.column_stack((x, y)).tolist())

    def _actions(self, explanation: Explanation, action: Any) -> None:
        """A row for each action, or for each number of a continuous one."""
        if explanation.kind == "unknown":
            return
        self._text(_HEADINGS[explanation.kind], _BARS - 20, 16, _DIM)
        numbers = explanation.actions
        room = self.size[1] - _BARS - 8
        shown = np.arange(len(numbers))
        if len(shown) > room // _ROWS[0]:  # the largest ones, in their order
            shown = np.sort(np.argsort(-numbers)[: room // _ROWS[0]])
        high = min(_ROWS[1], room // len(shown)) - 3
        for position, index in enumerate(shown.tolist()):
            top = _BARS + position * (high + 3)
            row = (self._left + _MARGIN, top, WIDTH - 2 * _MARGIN, high)
            if explanation.spread is None:
                number = self._chance(row, explanation, index, action)
            else:
                number = self._mean(row, explanation, index, action)
            label = index + self._start
            name = self._names[index] if index < len(self._names) else label
            self._text(f" {name}", top + (high - 11) // 2, 16, _TEXT)
            self._text(f"{number} ", top + (high - 11) // 2, 16, _TEXT, right=True)

    def _chance(self, row: _Row, explanation: Explanation, index: int, action: Any) -> str:
        """A bar for a probability, or for a Q value among the others."""
        numbers = explanation.actions
        low, high = 0.0, 1.0
        if explanation.kind == "values":
            high = float(numbers.max())
            low = float(numbers.min()) - 0.1 * (high - float(numbers.min()))
        share = (numbers[index] - low) / max(high - low, 1e-9)
        taken = action is not None and int(action) - self._start == index
        left, top, wide, tall = row
        bar = (left, top, max(1, round(share * wide)), tall)
        self._pygame.draw.rect(self._surface, _TAKEN if taken else _BAR, bar)
        return f"{numbers[index]:.2f}"

    def _mean(self, row: _Row, explanation: Explanation, index: int, action: Any) -> str:
        """A band from mean − spread to mean + spread, and a mark at what is taken."""
        assert explanation.spread is not None
        mean, spread = float(explanation.actions[index]), float(explanation.spread[index])
        left, top, wide, tall = row
        low, high = self._bounds[index]

        def place(value: float) -> int:
            return left + round(wide * min(1.0, max(0.0, (value - low) / (high - low))))

        first, last = place(mean - spread), place(mean + spread)
        self._pygame.draw.rect(self._surface, _BAR, (first, top, max(2, last - first), tall))
        if action is not None:
            taken = place(float(np.asarray(action).reshape(-1)[index]))
            self._pygame.draw.rect(self._surface, _TAKEN, (taken - 1, top, 3, tall))
        return f"{mean:+.2f} ± {spread:.2f}"


def _bounds(space: gymnasium.Space[Any]) -> list[tuple[float, float]]:
    """Between which values each number of a continuous action is drawn: ±3 without bounds."""
    if not isinstance(space, gymnasium.spaces.Box):
        return []
    low = np.where(np.isfinite(space.low), space.low, -3.0).reshape(-1)
    high = np.where(np.isfinite(space.high), space.high, 3.0).reshape(-1)
    return list(zip(low.tolist(), np.maximum(high, low + 1e-6).tolist(), strict=True))


def _sized(picture: Picture) -> Picture:
    """Small pictures enlarged, very large ones thinned out."""
    height = picture.shape[0]
    if height > _TALLEST:
        step = -(-height // _TALLEST)
        return picture[::step, ::step]
    times = max(1, round(_HEIGHT / height))
    return picture if times == 1 else picture.repeat(times, 0).repeat(times, 1)


def _even(length: int) -> int:
    return length + length % 2
