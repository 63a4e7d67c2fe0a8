"""The engine as a process: what is heard of it, and that it ends with its starter."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import torch

from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.plugins.ga3c.queues import put
from tests.helpers import PATIENCE, ROOT, eventually, starting, until
from tests.plugins.ga3c.starter import EXPERIMENT, Started


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines import the tests' environments and networks by name, however pytest was started."""
    monkeypatch.syspath_prepend(ROOT)


async def test_a_process_says_what_its_network_is_predicts_learns_and_ends() -> None:
    model = Model(EXPERIMENT, make_environment(EXPERIMENT.environment))
    started = Started()
    try:
        async with asyncio.timeout(PATIENCE):
            description = await started.put_to_work()
            facts = {
                "observation_shape": (3,),
                "observation_type": "float32",
                "action_columns": 1,
                "trainable": 76,
                "state_rows": 1,
            }
            assert description == (model.signature.entries, model.numbers.tobytes(), facts, "cpu")
            slots = started.slots
            slots.observations[12] = [0.5, -1.0, 2.0]
            await started.ask()
            with torch.no_grad():
                _, value = model.network(torch.tensor([[0.5, -1.0, 2.0]]))
            assert slots.values[12] == pytest.approx(value.item())
            os.kill(
                started.process.pid, signal.SIGINT
            )  # as Ctrl-C, which is the orchestrator's business
            slots.rewards[12], slots.lengths[3], slots.busy[3] = 5.0, 1, True
            put(started.training[1].fileno(), (3,))
            await eventually(lambda: slots.updates == 1)
            assert (slots.weights != model.numbers).any()
            # A thread counts what it has done when it has told of it.
            await eventually(lambda: slots.counters.sum(0).tolist() == [1, 1, 1, 1, 1, 0])
            await started.process.end()
            assert started.process.wait(0) == 0 and not started.lost
    finally:
        await started.end()


async def test_a_process_that_cannot_build_what_it_is_told_says_why_and_ends() -> None:
    started = Started()
    try:
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(
                ConfigurationError, match=r"^environment.id = 'tests.nowhere:Nothing': "
            ):
                await started.process.build(
                    EXPERIMENT.with_settings({"environment.id": "tests.nowhere:Nothing"})
                )
            await eventually(lambda: started.process.wait(0) is not None)
            assert started.process.wait(0) == 1
    finally:
        await started.end()


def test_nothing_is_left_of_an_engine_whose_starter_is_killed(tmp_path: Path) -> None:
    """While it waits for the memory, or has threads that sleep in their queues.

    The next test is of one whose starter dies while torch is imported.
    """
    with starting(tmp_path) as start:
        processes = {
            stage: start("tests.plugins.ga3c.starter", stage) for stage in ("described", "at work")
        }
        for stage, process in processes.items():
            until(lambda process=process: process.out.endswith("\n"), stage)
            assert int(process.out) in [member.pid for member in process.family()]
            process.signal(signal.SIGKILL)
        for stage, process in processes.items():
            process.vanish(PATIENCE)
            assert process.err == "", stage


async def test_one_that_nobody_talks_to_ends_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As one whose starter has died, or been told to stop, while torch was imported."""
    started = Started()
    try:
        started.process.pipe.close()
        await asyncio.to_thread(started.process.wait, PATIENCE)
        assert (started.process.wait(0), capfd.readouterr().err) == (0, "")
    finally:
        await started.end()
