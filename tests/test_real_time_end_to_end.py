"""Machines that differ in one run: a robot with a clock, and one with GA3C; a device that asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from genkidama.config.sections import ChildOverride
from tests.helpers import free_port, history, small, starting, until
from tests.learning.test_device import Firmware, free_address


@pytest.mark.slow
def test_each_child_has_the_settings_of_its_own_file_or_of_the_parents(tmp_path: Path) -> None:
    box = {"child.backend": "ga3c", "ga3c.agents": 1, "ga3c.training_batch": 16}
    children = (ChildOverride(name="bo?", settings=box),)
    (tmp_path / "shelf.toml").write_text(replace(small(), children=children).to_toml())
    port = free_port()
    own = {
        "robot": "environment.period = 0.002\nenvironment.safe_action = [0]\n"
        "environment.safe_seconds = 1\n",
        "box": "",
    }
    run = tmp_path / "run"

    def found(child: str, figure: str) -> bool:
        lines = [line for line in history(run, "measures") if line["child"] == child]
        return any(figure in line for line in lines)

    with starting(tmp_path) as start:
        start(f"genkidama.parent shelf.toml --listen 127.0.0.1:{port} --out run")
        for name, settings in own.items():
            (tmp_path / f"{name}.toml").write_text(
                f'parent = "ws://127.0.0.1:{port}"\nname = "{name}"\n[settings]\n{settings}'
            )
            start(f"genkidama.child {name}.toml")
        until(lambda: found("robot", "cycle_p99_ms") and found("box", "pps"), "both take part", 100)
    cycles = [
        line["cycle_p50_ms"]
        for line in history(run, "measures")
        if line["child"] == "robot" and "cycle_p50_ms" in line
    ]
    assert min(cycles) >= 1.8  # the clock holds it back
    assert not found("robot", "pps") and not found("box", "cycle_p99_ms")


@pytest.mark.slow
def test_a_device_is_learned_from(tmp_path: Path) -> None:
    address = free_address()
    options = {"observations": 1, "actions": 2, "listen": address}
    experiment = small(
        environment={
            "id": "genkidama.learning.device:Device",
            "options": options,
            "period": 0.001,
        },
        algorithm={"gamma": 0.0, "batch_size": 32},
        optimizer={"learning_rate": 0.02},
        stop={"mean_return": 9.0, "window": 5},
    )
    (tmp_path / "device.toml").write_text(experiment.to_toml())
    with starting(tmp_path) as start:
        training = start(
            *("genkidama", "train", "device.toml", "--children", 1),
            *("--episodes", 0, "--out", "run"),
        )
        device = Firmware(address)
        try:
            for _ in range(3000):
                action = device.act([1.0])["action"]
                for step in range(10):  # action 1 is the one that pays
                    last = step == 9
                    action = device.act([1.0], reward=float(action), truncated=last)["action"]
        except (OSError, ValueError):  # the run is over
            pass
        device.close()
        assert training.wait(60) == 0
    assert "mean return" in history(tmp_path / "run", "stop")[-1]["reason"]
