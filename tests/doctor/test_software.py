"""What the doctor finds of packages."""

from __future__ import annotations

import pytest

from genkidama.doctor import software


@pytest.mark.parametrize(
    ("code", "name"), [(-4, "SIGILL"), (-9, "SIGKILL"), (-99, "signal 99"), (0, ""), (1, "")]
)
def test_the_name_of_a_signal(code: int, name: str) -> None:
    assert software.name_of_signal(code) == name


def test_what_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "SECONDS", 0.05)
    monkeypatch.setattr(software, "_BOX2D", "import time; time.sleep(60)")
    assert software.box2d()[0].found == "making LunarLander-v3 does not end"
