"""Where moments are shown: a window, or a film."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.formats import plural
from genkidama.learning.pictures import Moment
from genkidama.local.panel import Panel, import_pygame
from genkidama.system.faults import in_words

__all__ = ["Film", "Window", "check_film", "check_screen", "without_screen"]

#: How an episode has ended is shown for so long.
_PAUSE_SECONDS = 1.0

_KINDS = (".mp4", ".gif")


class Film:
    """An MP4 or GIF file.

    Args:
        path: its ending says which; what was there is replaced.
        panel: draws its pictures.
        fps: pictures a second.

    Raises:
        EnvironmentFailure: the file cannot be written.
    """

    def __init__(self, path: Path, panel: Panel, fps: float) -> None:
        self._path = path
        self._panel = panel
        self._pause = max(1, round(_PAUSE_SECONDS * fps))
        self._fps = fps
        self._began = time.monotonic()
        self.frames = 0
        import imageio.v2

        options: dict[str, Any] = {"fps": fps, "macro_block_size": 2, "quality": 7}
        options["output_params"] = ["-preset", "veryfast"]
        if path.suffix.lower() == ".gif":
            options = {"duration": 1000.0 / fps, "loop": 0, "subrectangles": True}
        try:
            path.open("wb").close()
            self._writer = imageio.v2.get_writer(path, mode="I", **options)
        except Exception as error:
            raise _not_written(path, error) from error

    def show(self, moment: Moment) -> bool:
        """Shows a moment; false if nobody looks any more."""
        picture = self._panel.draw(moment)
        count = self._pause if moment.action is None else 1
        try:
            for _ in range(count):
                self._writer.append_data(picture)
        except Exception as error:
            raise _not_written(self._path, error) from error
        self.frames += count
        return True

    def close(self) -> None:
        """Ends it."""
        try:
            self._writer.close()
        except Exception as error:
            raise _not_written(self._path, error) from error

    def __str__(self) -> str:
        took = time.monotonic() - self._began
        size = self._path.stat().st_size / 1e6
        return (
            f"{plural(self.frames, 'frame')}, {self.frames / self._fps:.1f} s, {size:.2f} MB; "
            f"made in {took:.1f} s ({self.frames / took:.0f} frames/s)"
        )


class Window:
    """A window on the screen. Escape, Q and its cross close it; the space bar halts it.

    Args:
        panel: draws its pictures.
        title: of the window.
        fps: pictures a second.
    """

    def __init__(self, panel: Panel, title: str, fps: float) -> None:
        self._pygame = import_pygame()
        self._panel = panel
        self._pause = max(1, round(_PAUSE_SECONDS * fps))
        self._fps = fps
        try:
            self._pygame.display.init()
            self._surface = self._pygame.display.set_mode(panel.size)
        except self._pygame.error as error:
            raise _no_screen(str(error)) from None
        self._pygame.display.set_caption(f"Genkidama: {title}")
        self._clock = self._pygame.time.Clock()

    def show(self, moment: Moment) -> bool:
        """Shows a moment; false if nobody looks any more."""
        picture = self._panel.draw(moment)
        for _ in range(self._pause if moment.action is None else 1):
            self._pygame.surfarray.blit_array(self._surface, picture.swapaxes(0, 1))
            self._pygame.display.flip()
            self._clock.tick(self._fps)
            if not self._goes_on():
                return False
        return True

    def _goes_on(self) -> bool:
        """Hears the keys; waits while it is halted."""
        halted = False
        while True:
            for event in self._pygame.event.get():
                if event.type == self._pygame.QUIT:
                    return False
                if event.type == self._pygame.KEYDOWN:
                    if event.key in (self._pygame.K_ESCAPE, self._pygame.K_q):
                        return False
                    halted ^= event.key == self._pygame.K_SPACE
            if not halted:
                return True
            self._pygame.time.wait(20)

    def close(self) -> None:
        """Ends it."""
        self._pygame.display.quit()


def check_screen() -> None:
    """Raises an `EnvironmentFailure` if this machine has no screen to open a window on."""
    known = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
    if sys.platform.startswith("linux") and not any(map(os.environ.get, known)):
        raise _no_screen(" and ".join(known[:2]) + " are not set")


@contextmanager
def without_screen() -> Iterator[None]:
    """Meanwhile SDL, by which environments draw, looks for no screen and complains of none."""
    name = "SDL_VIDEODRIVER"
    if name in os.environ:
        yield
        return
    os.environ[name] = "dummy"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def check_film(path: Path) -> Path:
    """The path, if a film can be written there.

    Raises:
        ConfigurationError: its ending says no kind of film.
        EnvironmentFailure: the packages for it are missing, or its folder is.
    """
    if path.suffix.lower() not in _KINDS:
        raise ConfigurationError(f"--video {path}: a film ends with {' or '.join(_KINDS)}")
    if missing := [name for name in ("imageio", "imageio_ffmpeg") if find_spec(name) is None]:
        raise EnvironmentFailure(
            f"--video {path}: needs {' and '.join(missing)}: pip install 'genkidama[video]'"
        )
    if not path.absolute().parent.is_dir():
        raise EnvironmentFailure(f"--video {path}: there is no folder {path.parent}; make it first")
    return path


def _no_screen(why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"no window can be opened here: {why}; write a film instead: --video FILE.mp4 "
        "(in Python: video='FILE.mp4')"
    )


def _not_written(path: Path, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"--video {path}: cannot be written: {in_words(error)}; choose another place"
    )
