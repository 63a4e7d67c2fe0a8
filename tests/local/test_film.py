"""Films are decoded again, and a window hears its keys. Windows open on SDL's dummy screen."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.local import film
from genkidama.local.film import Film, Window, check_film, check_screen, without_screen
from genkidama.local.panel import import_pygame
from tests.films import decoded
from tests.local.test_panel import PICTURE, moment, panel

pytest.importorskip("imageio", reason="pip install 'genkidama[video]'")


@pytest.mark.parametrize("ending", [".mp4", ".gif"])
def test_a_film_holds_what_was_shown(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"film{ending}"
    plain = np.zeros((400, 301, 3), np.uint8)
    drawn = panel(picture=plain)
    filmed = Film(path, drawn, 10.0)
    steps = [moment(step=step, picture=plain + np.uint8(step * 40)) for step in range(5)]
    assert all(filmed.show(step) for step in [*steps, moment(step=5, picture=plain, action=None)])
    filmed.close()
    assert filmed.frames == 15  # the end is shown for a second
    frames, seconds = decoded(path)
    assert seconds == pytest.approx(1.5, abs=0.02)
    assert len(frames) == 15 if ending == ".mp4" else len(frames) >= 6  # equal ones may be one
    assert frames.shape[1:] == (drawn.size[1], drawn.size[0], 3)
    assert [round(float(frame[:, 4:290].mean())) for frame in frames[:5]] == pytest.approx(
        [0, 40, 80, 120, 160], abs=3
    )
    assert frames[0][:, 305:].std() > 10.0  # the panel
    assert str(filmed).startswith(f"15 frames, 1.5 s, {path.stat().st_size / 1e6:.2f} MB; made in ")


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("film.avi", ConfigurationError, r"film\.avi: a film ends with \.mp4 or \.gif"),
        ("film", ConfigurationError, r"film: a film ends with \.mp4 or \.gif"),
        ("no/film.mp4", EnvironmentFailure, r"there is no folder \S*no; make it first"),
    ],
)
def test_what_cannot_be_a_film_is_said(tmp_path: Path, name: str, kind: Any, said: str) -> None:
    with pytest.raises(kind, match=said):
        check_film(tmp_path / name)
    assert check_film(tmp_path / "Film.MP4") == tmp_path / "Film.MP4"


def test_what_is_missing_is_named_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(film, "find_spec", lambda name: None if "ffmpeg" in name else name)
    with pytest.raises(
        EnvironmentFailure, match=r"needs imageio_ffmpeg: pip install 'genkidama\[video\]'$"
    ):
        check_film(tmp_path / "film.mp4")


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "film.gif").mkdir()
    with pytest.raises(EnvironmentFailure, match=r"film.gif: cannot be written: .*; choose ano"):
        Film(tmp_path / "film.gif", panel(), 10.0)


def test_without_a_screen_one_line_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        EnvironmentFailure, match=r"^no window can be opened here: .*: --video FILE\.mp4 \(in Py"
    ):
        check_screen()
    monkeypatch.setenv("DISPLAY", ":0")
    check_screen()


def test_a_film_needs_no_screen_and_takes_none_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for before in ("x11", None):
        monkeypatch.setattr("os.environ", {} if before is None else {"SDL_VIDEODRIVER": before})
        with without_screen():
            assert os.environ["SDL_VIDEODRIVER"] == (before or "dummy")
        assert os.environ.get("SDL_VIDEODRIVER") == before


def test_a_screen_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "unheard")
    with pytest.raises(EnvironmentFailure, match=re.escape("no window can be opened here: ")):
        Window(panel(), "Moon-v1", 1000.0)


@pytest.mark.parametrize("key", ["K_ESCAPE", "K_q", "QUIT"])
def test_a_window_shows_moments_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame = import_pygame()
    window = Window(panel(), "Moon-v1", 1000.0)
    shown = pygame.display.get_surface()
    assert window.show(moment())
    picture = pygame.surfarray.array3d(shown).swapaxes(0, 1)
    assert (picture[:, :301] == PICTURE).all() and (picture[:, 301:].std() > 10.0)
    halts: list[int] = []
    space = pygame.event.Event(pygame.KEYDOWN, key=pygame.K_SPACE)

    def wait(milliseconds: int) -> None:
        halts.append(milliseconds)
        pygame.event.post(space)  # and on again

    monkeypatch.setattr(pygame.time, "wait", wait)
    pygame.event.post(space)
    assert window.show(moment(step=1))
    assert len(halts) == 1
    if key == "QUIT":
        pygame.event.post(pygame.event.Event(pygame.QUIT))
    else:
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=getattr(pygame, key)))
    assert not window.show(moment(step=2))
    window.close()
