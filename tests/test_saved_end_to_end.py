"""Runs that end before an episode does: their weights are saved, and every command goes on."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.child import child as child_module
from genkidama.child.child import Child
from genkidama.config.experiment import Experiment
from genkidama.runs.run import Run
from tests.helpers import (
    ConstantBackend,
    Serving,
    command,
    constant,
    eventually,
    history,
    running,
    starting,
    until,
    url,
)

SEARCH = {
    "search": {
        "trials": 2,
        "phases": 2,
        "phase_steps": 10**9,
        "space": {"optimizer": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}},
    }
}


def endless(**sections: dict[str, Any]) -> Experiment:
    """An experiment in which no episode ends. Its core waits rather than computes."""
    return Experiment.from_dict(
        {
            "name": "endless",
            "environment": {
                "id": "tests.environments:Endless",
                "options": {"limit": 10**9, "seconds": 0.005},
                "lanes": 1,
            },
            "network": {"hidden": [8]},
            "algorithm": {"name": "a3c", "batch_size": 16},
            **sections,
        }
    )


#: A batch that no run here fills.
LONG = {"name": "ppo", "batch_size": 200_000}


@pytest.mark.parametrize(
    ("sections", "steps"),
    [
        ({}, 1),
        ({"child": {"exchange": "free", "exchange_steps": 10**9, "exchange_seconds": 0}}, 1),
        ({"child": {"exchange": "update"}, "algorithm": LONG}, 0),
        ({"child": {"exchange": "chunk"}, "algorithm": LONG}, 0),
        (
            {
                "parent": {"rule": "gradient"},
                "child": {"exchange": "update"},
                "algorithm": LONG,
            },
            0,
        ),
    ],
    ids=["blend", "free", "update", "chunk", "gradient"],
)
async def test_a_parent_that_stops_early_has_the_weights(
    sections: dict[str, dict[str, Any]],
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_module, "EARLY_SECONDS", (0.05, 60.0))
    sections = {**sections, "child": {"cores": 1, **sections.get("child", {})}}
    async with AsyncExitStack() as stack, running(endless(**sections), tmp_path) as parent:
        child = Serving(Child(url(parent.address), name="pi"))
        await stack.enter_async_context(child)
        await eventually(lambda: parent.server.exchanges and parent.server.trial.steps >= steps)
    if not steps:  # only weights: no update, and no chunk, has been made
        assert history(tmp_path, "exchange")[0]["steps"] == 0
    # The child was still there when the parent ended, and has pushed nothing since.
    assert history(tmp_path, "leave")[-1]["reason"] != "stopped"
    saved = Run(tmp_path)
    assert saved.snapshot.steps >= steps and saved.snapshot.version >= 1
    assert np.isfinite(saved.load().vector).all()


class LateBackend(ConstantBackend):
    """An exchange is due only when it has been waited for five times."""

    waits = 0

    async def due(self) -> None:
        self.waits += 1
        if self.waits != 5:
            await asyncio.sleep(1000.0)


class Recording:
    """As asyncio, but for what it notes."""

    def __init__(self) -> None:
        self.seconds: list[float | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def timeout(self, seconds: float | None) -> asyncio.Timeout:
        self.seconds.append(seconds)
        return asyncio.timeout(seconds)


async def test_it_exchanges_at_growing_intervals_until_an_exchange_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert child_module.EARLY_SECONDS == (0.5, 60.0)
    recording = Recording()
    monkeypatch.setattr(child_module, "asyncio", recording)
    monkeypatch.setattr(child_module, "EARLY_SECONDS", (0.01, 0.04))
    experiment = constant(child={"backend": f"{__name__}:LateBackend", "exchange": "episode"})
    async with (
        running(experiment, tmp_path) as parent,
        Serving(Child(url(parent.address), name="pi")),
    ):
        await eventually(lambda: None in recording.seconds)
        assert recording.seconds == [0.01, 0.02, 0.04, 0.04, 0.04, None]
        await eventually(lambda: parent.server.exchanges == 5)


@pytest.mark.parametrize(
    ("options", "sections"),
    [
        (("--shards", 2), {}),
        ((), {"parent": {"rule": "experience"}, "algorithm": {"batch_size": 200_000}}),
    ],
    ids=["shards", "experience"],
)
def test_a_run_whose_time_is_over_is_evaluated_and_resumed(
    options: tuple[object, ...], sections: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    experiment = endless(**sections, stop={"seconds": 1.0})
    (tmp_path / "endless.toml").write_text(experiment.to_toml())
    train = ("genkidama", "train", "--children", 1, "--cores", 1, "--episodes", 0, *options)
    ended = command(tmp_path, *train, "endless.toml", "--out", "run")
    assert ended.code == 0, ended
    first = Run(tmp_path / "run").snapshot
    assert Run(tmp_path / "run").policy(allow=["tests"]).predict([0.0]) is not None
    longer = f"stop.seconds={first.seconds + 0.5}"
    ended = command(tmp_path, *train, "--resume", "run", "--allow", "tests", "--set", longer)
    assert ended.code == 0, ended
    assert Run(tmp_path / "run").snapshot.seconds > first.seconds
    assert history(tmp_path / "run", "resume")


def test_a_search_that_is_stopped_after_two_seconds_has_weights(tmp_path: Path) -> None:
    (tmp_path / "endless.toml").write_text(endless(**SEARCH).to_toml())
    run = tmp_path / "run"
    with starting(tmp_path) as start:
        few = ("--children", 1, "--cores", 1, "--no-figures")
        process = start("genkidama", "search", "endless.toml", *few, "--out", "run")
        until(lambda: history(run, "join"), "a child")
        time.sleep(2.0)
        process.signal(signal.SIGTERM)
        process.vanish(10.0)
        assert "Traceback" not in process.err
    for folder in sorted((run / "trials").iterdir()):
        assert Run(folder).load(best=False).snapshot.steps > 0
