"""Displays that are drawn over and over: on a terminal, or below a notebook's cell.

Laws of this file:
- A frame is never wider or higher than its terminal, whatever its size becomes.
- A display never stops a run: what cannot be drawn is left out.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TextIO, TypeAlias

from rich.console import Console, RenderableType
from rich.live import Live

from genkidama.local.frames import frame

__all__ = ["Notebook", "Screen"]

#: A terminal is drawn so often a second.
_FRAMES = 4

#: A notebook's cell is renewed after so many seconds.
_CELL_SECONDS = 0.5

#: Columns and rows of a notebook's cell.
_CELL = (100, 40)

#: What to draw, what time it is there, and what to hold meanwhile.
State: TypeAlias = Callable[[], tuple[Any, float, AbstractContextManager[Any]]]


class Screen:
    """A terminal. A thread draws, so a display ticks while nothing happens.

    Args:
        file: the terminal.
        state: what to draw.
    """

    def __init__(self, file: TextIO, state: State) -> None:
        self._console = Console(file=file)
        self._state = state
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """A line above the display. A long one is the terminal's to break, so it can be copied."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        """Begins to draw."""
        if self._live is None:
            self._live = Live(
                console=self._console,
                get_renderable=self._draw,
                refresh_per_second=_FRAMES,
                redirect_stdout=False,
                vertical_overflow="crop",
            )
            self._live.start()

    def close(self) -> None:
        """Leaves the last frame standing."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _draw(self) -> RenderableType:
        width, height = self._console.size
        return _framed(self._state, width, height)


class Notebook:
    """A notebook's cell.

    Args:
        state: what to draw.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._handle: Any = None
        self._drawn = 0.0

    def say(self, text: str) -> None:
        """A line below what was said before."""
        print(text, flush=True)

    def refresh(self) -> None:
        """Draws anew, if that was not just done."""
        if time.monotonic() - self._drawn >= _CELL_SECONDS:
            self._draw()

    def close(self) -> None:
        """Leaves the last frame standing."""
        self._draw()
        self._handle = None

    def _draw(self) -> None:
        from IPython import display

        self._drawn = time.monotonic()
        content = {"text/html": self._page(html=True), "text/plain": self._page(html=False)}
        if self._handle is None:
            self._handle = display.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def _page(self, html: bool) -> str:
        width, height = _CELL
        console = Console(
            file=io.StringIO(), width=width, height=height, record=True, force_jupyter=False
        )
        console.print(_framed(self._state, width, height))
        if not html:
            return console.export_text()
        return console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)


def _framed(state: State, width: int, height: int) -> RenderableType:
    standing, now, lock = state()
    with lock:
        return frame(standing, now, width, height)
