"""`python -m tests.plugins.ga3c.starter STAGE` starts an engine and brings it to this stage.

It says so and stays until it is killed. Stages: `started`, `described`, `at work`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np

from genkidama.config.experiment import Experiment
from genkidama.plugins.ga3c.backend import EngineProcess
from genkidama.plugins.ga3c.slots import SlotLayout, Slots, pipe, put
from genkidama.protocol.vector import DTYPE, Signature

EXPERIMENT = Experiment.from_dict(
    {
        "environment": {"id": "tests.environments:Bandit"},
        "network": {"hidden": [6]},
        "algorithm": {"name": "a3c", "batch_size": 4},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "child": {"backend": "ga3c"},
        "ga3c": {"device": "cpu"},
    }
)


class Started:
    """An engine process and what a backend has of it, for two agents."""

    def __init__(self) -> None:
        self.predictions, self.training, self.bells = pipe(), pipe(), [pipe() for _ in range(2)]
        ends = (*self.predictions, *self.training, *(bell for _, bell in self.bells))
        self.lost: list[tuple[str, bool]] = []
        self.process = EngineProcess([end.fileno() for end in ends], self)

    def engine_lost(self, reason: str, alive: bool) -> None:
        self.lost.append((reason, alive))

    async def put_to_work(self) -> tuple[Any, ...]:
        """Has a predictor and a trainer start; the engine's description."""
        description = entries, vector, facts, _ = await self.process.build(EXPERIMENT)
        size = Signature.of(entries).size
        self.slots = Slots(
            SlotLayout(agents=2, environments=1, rollouts=3, steps=4, size=size, threads=4, **facts)
        )
        self.slots.weights[:] = np.frombuffer(vector, DTYPE)
        self.process.attach(self.slots)
        self.process.tell("reset")
        self.process.tell("resize", 1, 1)
        return description

    async def ask(self) -> None:
        """Has agent 1 ask for a prediction of the first row of its lane, and awaits the answer."""
        self.slots.position[1] = 12
        self.slots.asked[1] += 1
        put(self.predictions[1].fileno(), (1,))
        while self.slots.answered[1] != self.slots.asked[1]:
            await asyncio.to_thread(self.bells[1][0].poll, 0.1)

    async def end(self) -> None:
        await self.process.end()
        for end in (
            *self.predictions,
            *self.training,
            *(end for bell in self.bells for end in bell),
        ):
            end.close()


async def main(stage: str) -> None:
    started = Started()
    if stage == "described":
        await started.process.build(EXPERIMENT)
    if stage == "at work":
        await started.put_to_work()
        await started.ask()
    print(started.process.pid, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
