"""Films of new best policies: one at a time, the newest kept, a failure said once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from genkidama.page import filming
from genkidama.page.filming import Filming
from tests.helpers import until

#: Writes what it is given to play into the film.
COPIES = "import sys, shutil; shutil.copyfile(sys.argv[1], sys.argv[3])"
FAILS = "import sys; sys.exit('error: no video here')"


def made(folder: Path, code: str) -> Filming:
    return Filming(folder / "best.safetensors", folder / "films", [sys.executable, "-c", code])


def shown(films: Filming, count: int, moment: float) -> None:
    def look() -> bool:
        films.look(moment, moment / 10)
        return len(films.rows) == count or bool(films.problem)

    until(look)


def test_each_new_best_policy_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filming, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(filming, "_MOST", 2)
    films = made(tmp_path, COPIES)
    films.look(0.0, None)
    assert films.rows == [] and not films.problem
    for number in range(1, 4):
        (tmp_path / "best.safetensors").write_bytes(b"policy %d" % number)
        shown(films, min(number, 2), 1000.0 * number)
        until(lambda: films._process is None or films.look(0.0, None))
    films.look(0.0, None)
    assert [row["mean_return"] for row in films.rows] == [200.0, 300.0]
    names = [row["url"].removeprefix("/films/") for row in films.rows]
    assert (
        list(films.films)
        == names
        == sorted(path.name for path in (tmp_path / "films").glob("*.mp4"))
    )
    assert films.films[names[-1]].read_bytes() == b"policy 3"


def test_one_that_cannot_be_made_is_the_last(tmp_path: Path) -> None:
    films = made(tmp_path, FAILS)
    (tmp_path / "best.safetensors").write_bytes(b"policy")
    shown(films, 1, 1.0)
    assert films.problem == "no film: error: no video here" and films.rows == []
    films.close()
