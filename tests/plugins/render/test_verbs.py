"""`genkidama play` as one types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkidama.__main__ import main
from genkidama.cli.parser import make_parser
from tests.helpers import small, untrained


def test_its_words_are_those_of_evaluate(tmp_path: Path) -> None:
    for verb in ("play", "evaluate"):
        for words, best in (([], True), (["--best"], True), (["--newest"], False)):
            options = make_parser().parse_args([verb, "run", *words])
            assert (options.best, options.seed) == (best, 0)
    parse = make_parser().parse_args
    assert not parse(["play", "run"]).deterministic
    assert parse(["play", "run", "--deterministic"]).deterministic
    assert not parse(["play", "run", "--deterministic", "--sample"]).deterministic


def test_it_writes_a_film_and_says_what_plays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("imageio", reason="pip install 'genkidama[video]'")
    run = untrained(tmp_path / "run", small())
    film = tmp_path / "film.gif"
    assert main(["play", str(run.path), "--video", str(film), "--every", "9", "--newest"]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == f"CartPole-v1: weights of version 1 ({run.final})"
    assert second.startswith("episode 1: return ")
    assert last.startswith(f"{film}: ") and film.is_file()


def test_without_a_screen_one_line_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["play", str(untrained(tmp_path, small()).path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--video FILE.mp4" in said
