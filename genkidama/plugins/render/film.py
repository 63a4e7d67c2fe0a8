"""Display of a policy that plays: the environment's picture and a panel, in a window or a film."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryFile
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from genkidama._version import pip_install
from genkidama.config.formatting import plural
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.actions import choices, first
from genkidama.runs.policy import Explanation
from genkidama.runtime.import_strings import describe_error

Picture = npt.NDArray[np.uint8]

#: Columns of the panel, and of its margins.
WIDTH = 260
_MARGIN = 16

#: A picture is enlarged by a whole number to about this height, and a larger one is thinned out.
_HEIGHT = 400
_TALLEST = 1080

#: Where the bars begin, and how high a row of them may be.
_BARS = 166
_ROWS = (13, 26)

#: Seconds for which the end of an episode is shown.
_PAUSE_SECONDS = 1.0

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


def import_pygame() -> Any:
    """pygame, without its greeting."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ImportError:
        raise EnvironmentFailure(f"pictures need pygame: {pip_install('play')}") from None
    return pygame


@dataclass(frozen=True)
class Moment:
    """One step of an episode; the last one shows how the episode ended."""

    #: Counted from 0, and the steps made before this one.
    episode: int
    step: int
    #: uint8, (height, width, 3).
    picture: Picture
    #: Of the policy here; at the end the last one.
    explanation: Explanation
    #: The next action, as the environment takes it; None at the end.
    action: Any
    #: Undiscounted return so far.
    total: float


class Panel:
    """Draws the moments of one environment, all in the same size, which follows from `picture`.
    Without names of the actions it shows their numbers."""

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
        self._words = (title, source)
        self._names = names
        #: Whether actions are a Tuple or Dict: the bars of their parts would not tell which.
        self._in_parts = space.shape is None
        self._start = np.ravel(first(space) if choices(space) else 0)
        #: The bar at which the choices of each column begin.
        self._first = np.cumsum((0, *choices(space)))[:-1]
        if isinstance(space, gymnasium.spaces.Box):  # drawn between ±3 without bounds
            self._low = np.where(np.isfinite(space.low), space.low, -3.0).reshape(-1)
            self._high = np.where(np.isfinite(space.high), space.high, 3.0).reshape(-1)
        #: Lines in the place of the actions that a policy weighs, where there is none.
        self.lines: Sequence[str] = ()
        height, self._left = _sized(picture).shape[:2]
        #: (width, height), both even: films ask for that.
        self.size = (_even(self._left + WIDTH), _even(max(height, _HEIGHT)))
        self._surface = self._pygame.Surface(self.size)

    def draw(self, moment: Moment) -> Picture:
        """The whole picture of a moment: uint8, (height, width, 3)."""
        picture = _sized(moment.picture)
        self._surface.fill(_BACK)
        top = (self.size[1] - picture.shape[0]) // 2
        area = self._surface.subsurface((0, top, picture.shape[1], picture.shape[0]))
        self._pygame.surfarray.blit_array(area, picture.swapaxes(0, 1))
        del area
        self._text(self._words[0], 14, 24, _TEXT)
        self._text(self._words[1], 38, 16, _DIM)
        value = moment.explanation.value
        rows = (
            (f"episode {moment.episode + 1}", f"step {moment.step}"),
            ("return", f"{moment.total:.1f}"),
            *(() if isnan(value) else (("V(s)", f"{value:.1f}"),)),
        )
        for row, (left, right) in enumerate(rows):
            self._text(left, 64 + 24 * row, 20, _DIM)
            self._text(right, 64 + 24 * row, 20, _TEXT, right=True)
        if moment.explanation.kind != "unknown" and not self._in_parts:
            self._actions(moment.explanation, moment.action)
        for row, line in enumerate(self.lines):
            self._text(line, _BARS + 20 * row, 16, _TEXT)
        drawn: Picture = self._pygame.surfarray.array3d(self._surface).swapaxes(0, 1)
        return drawn

    def _text(self, words: str, top: int, size: int, colour: Any, right: bool = False) -> None:
        drawn = self._fonts[size].render(words, True, colour)
        left = self.size[0] - _MARGIN - drawn.get_width() if right else self._left + _MARGIN
        self._surface.blit(drawn, (left, top), (0, 0, WIDTH - 2 * _MARGIN, drawn.get_height()))

    def _actions(self, said: Explanation, action: Any) -> None:
        """A row for each action, or for each number of a continuous one."""
        self._text(_HEADINGS[said.kind], _BARS - 20, 16, _DIM)
        room = self.size[1] - _BARS - 8
        shown = np.arange(len(said.actions))
        if len(shown) > room // _ROWS[0]:  # the largest ones, in their order
            shown = np.sort(np.argsort(-said.actions)[: room // _ROWS[0]])
        high = min(_ROWS[1], room // len(shown)) - 3
        firsts, lasts, taken = self._bars(said, action)
        for position, index in enumerate(shown.tolist()):
            top = _BARS + position * (high + 3)
            left = self._left + _MARGIN
            whole = WIDTH - 2 * _MARGIN
            begin, end = round(whole * firsts[index]), round(whole * lasts[index])
            words = f"{said.actions[index]:.2f}"
            if said.spread is not None:
                words = f"{said.actions[index]:+.2f} ± {said.spread[index]:.2f}"
            chosen = said.spread is None and taken is not None and index in taken
            bar = (left + begin, top, max(1, end - begin), high)
            self._pygame.draw.rect(self._surface, _TAKEN if chosen else _BAR, bar)
            if said.spread is not None and taken is not None:
                mark = (left + round(whole * taken[index]) - 1, top, 3, high)
                self._pygame.draw.rect(self._surface, _TAKEN, mark)
            self._text(f" {self._name(index)}", top + (high - 11) // 2, 16, _TEXT)
            self._text(f"{words} ", top + (high - 11) // 2, 16, _TEXT, right=True)

    def _name(self, index: int) -> str:
        """The name of a bar; of several columns' it begins with the column."""
        if index < len(self._names):
            return self._names[index]
        column = max(0, int(np.searchsorted(self._first, index, "right")) - 1)
        start = int(self._start[min(column, len(self._start) - 1)])
        if len(self._first) < 2:
            return str(index + start)
        return f"{column}: {index - self._first[column] + start}"

    def _bars(self, said: Explanation, action: Any) -> tuple[Any, Any, Any]:
        """Begin and end of the bars, from 0 to 1, and the action taken: the bar of each column or,
        of a continuous one, the positions of its numbers."""
        numbers = said.actions
        if said.spread is not None:
            low, wide = self._low, np.maximum(self._high - self._low, 1e-6)
            ends = (numbers - said.spread, numbers + said.spread)
            taken = None if action is None else np.asarray(action).reshape(-1)
            begin, end = (np.clip((end - low) / wide, 0.0, 1.0) for end in ends)
            return begin, end, None if taken is None else np.clip((taken - low) / wide, 0.0, 1.0)
        index = None if action is None else np.ravel(action) - self._start + self._first
        if said.kind == "values":  # the least one has a bar, too
            high, least = float(numbers.max()), float(numbers.min())
            least -= 0.1 * (high - least)
            numbers = (numbers - least) / max(high - least, 1e-9)
        return np.zeros(len(numbers)), numbers, index


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


class Film:
    """An MP4 or GIF file, by the path's ending; an existing file is replaced."""

    def __init__(self, path: Path, panel: Panel, fps: float) -> None:
        self._path = path
        self._panel = panel
        self._fps = fps
        self._began = time.monotonic()
        self.frames = 0
        with self._writing():
            path.open("wb").close()
            self._writer = _ffmpeg(path, panel.size, fps)
            next(self._writer)

    def show(self, moment: Moment) -> bool:
        """Shows a moment; false if nobody watches any more."""
        picture = np.ascontiguousarray(self._panel.draw(moment))
        for _ in range(count := _pictures(moment, self._fps)):
            with self._writing():
                self._writer.send(picture)
        self.frames += count
        return True

    def close(self) -> None:
        with self._writing():
            self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            reason = getattr(error, "strerror", None) or describe_error(error)
            raise EnvironmentFailure(
                f"--video {self._path}: cannot be written: {reason}; choose another place"
            ) from error

    def __str__(self) -> str:
        took = time.monotonic() - self._began
        size = self._path.stat().st_size / 1e6
        return (
            f"{plural(self.frames, 'frame')}, {self.frames / self._fps:.1f} s, {size:.2f} MB; "
            f"made in {took:.1f} s ({self.frames / took:.0f} frames/s)"
        )


#: FFmpeg's options, by the ending. A GIF has 256 colours; here each picture has its own.
_COLOURS = "split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
_CODECS = {
    ".mp4": ("-vcodec", "libx264", "-preset", "veryfast", "-crf", "15", "-pix_fmt", "yuv420p"),
    ".gif": ("-filter_complex", _COLOURS),
}


def _ffmpeg(path: Path, size: tuple[int, int], fps: float) -> Generator[None, Picture, None]:
    """Writes the pictures that are sent into a file, through FFmpeg."""
    from imageio_ffmpeg import get_ffmpeg_exe

    source = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "{}x{}".format(*size), "-r", str(fps))
    # An absolute path is neither an option of FFmpeg's nor one of its protocols.
    codec = (*_CODECS[path.suffix.lower()], path.absolute())
    command = (get_ffmpeg_exe(), "-y", "-v", "error", *source, "-i", "-", *codec)
    with (
        TemporaryFile() as errors,
        # In a session of its own: Ctrl-C must not end it before the film is whole.
        Popen(
            command, stdin=PIPE, stdout=DEVNULL, stderr=errors, start_new_session=True
        ) as process,
    ):
        assert process.stdin is not None
        with suppress(GeneratorExit, BrokenPipeError):
            while True:
                process.stdin.write((yield).data)
        with suppress(BrokenPipeError):
            process.stdin.close()
        if code := process.wait():
            errors.seek(0)
            lines = errors.read().decode(errors="replace").splitlines()
            raise OSError(lines[-1] if lines else f"FFmpeg ended with exit code {code}")


class PlaybackScreen:
    """A window on the screen. Escape, Q and its cross close it; the space bar halts it."""

    def __init__(self, panel: Panel, title: str, fps: float) -> None:
        self._pygame = import_pygame()
        self._panel = panel
        self._fps = fps
        try:
            self._pygame.display.init()
            self._surface = self._pygame.display.set_mode(panel.size)
        except self._pygame.error as error:
            raise _no_screen(str(error)) from None
        self._pygame.display.set_caption(f"Genkidama: {title}")
        self._clock = self._pygame.time.Clock()
        #: The names of the keys that are held down.
        self.held: set[str] = set()

    def show(self, moment: Moment) -> bool:
        """Shows a moment; false if nobody watches any more."""
        picture = self._panel.draw(moment).swapaxes(0, 1)
        for _ in range(_pictures(moment, self._fps)):
            self._pygame.surfarray.blit_array(self._surface, picture)
            self._pygame.display.flip()
            self._clock.tick(self._fps)
            if not self._is_open():
                return False
        return True

    def _is_open(self) -> bool:
        """Handles the keys; waits while it is halted."""
        halted = False
        while True:
            for event in self._pygame.event.get():
                key = event.key if event.type == self._pygame.KEYDOWN else None
                if key is not None:
                    self.held.add(self._pygame.key.name(key))
                elif event.type == self._pygame.KEYUP:
                    self.held.discard(self._pygame.key.name(event.key))
                if event.type == self._pygame.QUIT:
                    return False
                if key in (self._pygame.K_ESCAPE, self._pygame.K_q):
                    return False
                halted ^= key == self._pygame.K_SPACE
            if not halted:
                return True
            self._pygame.time.wait(20)

    def close(self) -> None:
        self._pygame.display.quit()


def _pictures(moment: Moment, fps: float) -> int:
    """Number of pictures of a moment: the end of an episode stays for a while."""
    return max(1, round(_PAUSE_SECONDS * fps)) if moment.action is None else 1


def check_screen() -> None:
    """Raises an `EnvironmentFailure` if this machine has no screen to open a window on."""
    known = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform.startswith("linux") and not any(map(os.environ.get, known)):
        raise _no_screen(" and ".join(known[:2]) + " are not set")


@contextmanager
def without_screen() -> Iterator[None]:
    """Has SDL, by which environments draw, look for no screen in the meantime."""
    name = "SDL_VIDEODRIVER"
    before = os.environ.get(name)
    os.environ[name] = before or "dummy"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)


def check_film(path: Path) -> Path:
    """The path, if a film can be written there."""
    if path.suffix.lower() not in _CODECS:
        raise ConfigurationError(f"--video {path}: a film ends with {' or '.join(_CODECS)}")
    if find_spec("imageio_ffmpeg") is None:
        raise EnvironmentFailure(f"--video {path}: needs imageio_ffmpeg: {pip_install('video')}")
    if not path.absolute().parent.is_dir():
        raise EnvironmentFailure(f"--video {path}: there is no folder {path.parent}; make it first")
    if path.exists() and not path.is_file():  # a pipe would wait for its reader
        raise EnvironmentFailure(f"--video {path}: is no file; choose another name")
    return path


def _no_screen(why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"no window can be opened here: {why}; write a film instead: --video FILE.mp4 "
        "(in Python: video='FILE.mp4')"
    )
