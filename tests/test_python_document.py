"""`docs/python.md`: its code runs as it stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import genkidama
from tests.helpers import ROOT
from tests.texts import code_blocks


@pytest.mark.slow
def test_what_the_page_shows_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks("docs/python.md", "python")
    assert len(blocks) == 4
    (tmp_path / "mine.py").write_text(blocks.pop(1))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "mine.py"], check=True, env=environment)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    assert names["policy"].action_space.contains(names["action"])
    names["watch"](next(line for line in names["run"].history() if line["event"] == "exchange"))
    assert genkidama.Run.open("runs/cart").evaluation is not None
