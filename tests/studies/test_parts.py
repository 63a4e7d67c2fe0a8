"""Exchanges with a parent in parts: two real ones on the loopback."""

from __future__ import annotations

import sys

import pytest

from studies.parts import __main__ as parts


@pytest.mark.slow
def test_two_parts_exchange(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--parts", "2", "--numbers", "1000", "--megabits", "0", "--windows", "1"]
    monkeypatch.setattr(sys, "argv", ["parts", *words, "--seconds", "1"])
    parts.main()
    line = capsys.readouterr().out.splitlines()[1].split()
    assert line[:2] == ["loopback", "2"] and float(line[2]) > 1.0
