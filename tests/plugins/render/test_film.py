"""The panel beside the picture, films that are decoded again, and a window that hears its keys.

Windows open on SDL's dummy screen.
"""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.plugins.render import film
from genkidama.plugins.render.film import (
    _BAR,
    _TAKEN,
    WIDTH,
    Film,
    Moment,
    Panel,
    PlaybackScreen,
    check_film,
    check_screen,
    import_pygame,
    without_screen,
)
from genkidama.runs.policy import Explanation
from tests.films import decoded

pytest.importorskip("imageio_ffmpeg", reason="pip install 'genkidama-rl[video]'")

DISCRETE = gymnasium.spaces.Discrete(3)
PICTURE = np.random.default_rng(0).integers(0, 255, (400, 301, 3), np.uint8)
PLAIN = np.zeros_like(PICTURE)


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


@pytest.mark.parametrize("ending", [".mp4", ".gif"])
def test_a_film_holds_what_was_shown(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"film{ending}"
    drawn = panel(picture=PLAIN)
    before = psutil.Process().children()
    filmed = Film(path, drawn, 5.0)
    steps = [moment(step=step, picture=PLAIN + np.uint8(step * 40)) for step in range(5)]
    assert all(filmed.show(step) for step in [*steps, moment(step=5, picture=PLAIN, action=None)])
    # Ctrl-C in a terminal must not end the program that writes it.
    (program,) = set(psutil.Process().children()) - set(before)
    assert os.getsid(program.pid) != os.getsid(0)
    filmed.close()
    assert filmed.frames == 10  # the end is shown for a second
    frames, seconds = decoded(path)
    assert seconds == pytest.approx(2.0, abs=0.02)
    assert len(frames) == 10 if ending == ".mp4" else len(frames) >= 6  # equal ones may be one
    assert frames.shape[1:] == (drawn.size[1], drawn.size[0], 3)
    assert [round(float(frame[:, 4:290].mean())) for frame in frames[:5]] == pytest.approx(
        [0, 40, 80, 120, 160], abs=3
    )
    assert frames[0][:, 305:].std() > 10.0  # the panel
    assert str(filmed).startswith(f"10 frames, 2.0 s, {path.stat().st_size / 1e6:.2f} MB; made in ")


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
        EnvironmentFailure, match=r"needs imageio_ffmpeg: pip install 'genkidama-rl\[video\]'$"
    ):
        check_film(tmp_path / "film.mp4")


@pytest.mark.parametrize("ending", ["mp4", "gif"])
def test_a_disk_that_is_full_is_said_in_one_line(
    tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"film.{ending}"
    path.symlink_to("/dev/full")
    said = rf"--video {path}: cannot be written: [^\n]*; choose another place$"

    def film() -> None:
        filmed = Film(path, panel(picture=PLAIN), 10.0)
        for step in range(3):
            filmed.show(moment(step=step, picture=PLAIN))
        filmed.close()

    with pytest.raises(EnvironmentFailure, match=said):
        film()
    gc.collect()
    assert capfd.readouterr().err == ""  # neither FFmpeg's words nor a traceback


def test_a_pipe_or_a_folder_in_the_way_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.gif").mkdir()
    for name in ("pipe.mp4", "folder.gif"):
        with pytest.raises(EnvironmentFailure, match="is no file; choose another name"):
            check_film(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["-y.mp4", "md5:x.mp4", "<video0>.mp4", "a%03d\n.mp4", "\udcff.gif"]
)
def test_a_name_is_no_option_and_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    film = Film(check_film(Path(name)), panel(picture=PLAIN), 10.0)
    film.show(moment(picture=PLAIN))
    film.close()
    assert os.listdir() == [name] and Path(name).stat().st_size > 500


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
        PlaybackScreen(panel(), "Moon-v1", 1000.0)


@pytest.mark.parametrize("key", ["K_ESCAPE", "K_q", "QUIT"])
def test_a_window_shows_moments_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame = import_pygame()
    window = PlaybackScreen(panel(), "Moon-v1", 1000.0)
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
