"""QR codes on real terminals, read by OpenCV's detector."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from genkidama.cli import qr
from genkidama.errors import ConfigurationError
from tests.terminals import in_terminal

pytest.importorskip("segno")


def read(text: str) -> str:
    """The text of the code that was drawn in half blocks."""
    cv2, numpy = pytest.importorskip("cv2"), pytest.importorskip("numpy")
    lines = re.findall(r"\x1b\[97;40m([^\x1b]*)\x1b\[0m", text)
    above, below = ([[(c in "█" + half) * 255 for c in line] for line in lines] for half in "▀▄")
    rows = [row for pair in zip(above, below, strict=True) for row in pair]
    pixels = numpy.kron(numpy.array(rows, numpy.uint8), numpy.ones((8, 8), numpy.uint8))
    found: str = cv2.QRCodeDetector().detectAndDecode(pixels)[0]
    return found


def token(folder: Path, columns: int, *more: str) -> str:
    command = [sys.executable, "-m", "genkidama", "token", "--qr", "--host", "shelf.example"]
    command += ["--credentials", str(folder), *more]
    found = in_terminal(command, columns, 24, folder=folder)
    assert found.code == 0, found.text
    return found.text


def test_a_camera_reads_the_join_string_and_the_link_to_the_page(tmp_path: Path) -> None:
    from genkidama.cli.access import make_certificate

    make_certificate(tmp_path / "certificate.pem", tmp_path / "key.pem")
    for more, pattern in ((), r"wss://\*:\S+"), (("--viewer",), r"https://shelf\S+\?key=\S+"):
        text = token(tmp_path, 80, *more)
        wanted = re.search(pattern, text)
        assert wanted is not None and read(text) == wanted[0]


def test_a_narrow_terminal_gets_the_string_and_a_line_about_the_code(tmp_path: Path) -> None:
    text = token(tmp_path, 30, "--viewer")
    assert "http://shelf.example:8765/?key=" in text and "█" not in text
    assert re.search(r"--qr: no code is shown: it takes \d+ columns, and the terminal has 30", text)


def test_where_there_is_no_terminal_a_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    qr.qr_drawer(True)("text")
    qr.qr_drawer(False)("text")
    words = "--qr: no code is shown: standard error is no terminal with UTF-8\n"
    assert capsys.readouterr().err == words


def test_without_segno_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"--qr: needs segno: pip install '.*\[page\]'"):
        qr.qr_drawer(True)
