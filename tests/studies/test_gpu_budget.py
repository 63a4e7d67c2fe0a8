"""The most telling points of a GPU, as many as fit into the time."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import store
from studies.ga3c import gpu


def options(results: Path, minutes: float) -> argparse.Namespace:
    return argparse.Namespace(
        results=results,
        minutes=minutes,
        seconds=1.0,
        window=1.0,
        windows=1,
        device="cuda",
        width=[1, 16],
        agents=[16, 128],
        emulated=[16],
        example="pong",
        exchange=10.0,
    )


def test_points_are_rows_once_and_what_does_not_fit_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int, int]] = []

    def measured(device: str, width: int, rollouts: int, seconds: float) -> store.Row:
        asked.append((device, width, rollouts))
        return {"frames": 1.0}

    def broken(*_: object) -> store.Row:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(gpu, "tests", lambda: {"passed": True, "said": ""})
    monkeypatch.setattr(gpu, "trainer", measured)
    monkeypatch.setattr(gpu, "learner", broken)
    # 0.15 minutes are too few for the tests and for windows, and enough for the parts.
    assert gpu.brief(options(tmp_path / "gpu.jsonl", 0.15)) == 1
    assert asked == [(d, w, r) for w in (1, 16) for r in (1, 64) for d in ("cuda", "cpu")]
    said = capsys.readouterr().out
    assert said.count("CUDA out of memory") == 2
    assert 'left: {"what": "window"' in said and 'left: {"what": "tests"' in said
    rows = store.read(tmp_path / "gpu-parts.jsonl")
    assert [row["what"] for row in rows] == ["trainer"] * 8 and rows[0]["frames"] == 1.0
    gpu.brief(options(tmp_path / "gpu.jsonl", 0.15))
    assert len(asked) == 8
