"""What the page is made of is found, and nothing else."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from genkidama.plugins.dashboard import files
from genkidama.plugins.dashboard.files import Files, plotly
from tests.helpers import until


def test_only_the_folders_own_files_are_given() -> None:
    found = Files().read("static/index.html", False)
    assert found is not None and found[0].startswith(b"<!doctype html>")
    for name in ("static/../files.py", "static/", "static", "../files.py", "static/a/b", "x"):
        assert Files().read(name, False) is None


def test_a_large_file_is_compressed_beside_and_then_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"var x = 1;" * 1000
    (tmp_path / "page.js").write_bytes(content)
    monkeypatch.setattr(files, "_STATIC", tmp_path)
    kept = Files()
    assert kept.read("static/page.js", True) == (content, False)
    found = until(lambda: (got := kept.read("static/page.js", True)) and got[1] and got)
    assert gzip.decompress(found[0]) == content
    assert kept.read("static/page.js", False) == (content, False)


def test_plotlys_javascript_lies_in_its_wheel() -> None:
    pytest.importorskip("plotly")
    path = plotly()
    assert path is not None and b"plotly.js" in path.read_bytes()[:200]
