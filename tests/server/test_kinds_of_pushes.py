"""Differences and gradients, from the child through the protocol to the parent's rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.child.backend import Work
from genkidama.config.experiment import Experiment
from genkidama.errors import GenkidamaError
from genkidama.protocol.vector import DTYPE, Vector
from tests.child.talking import child_of
from tests.helpers import (
    ConstantBackend,
    Serving,
    constant,
    eventually,
    history,
    running,
    small,
)


class SlopingBackend(ConstantBackend):
    """Its gradient is −1 everywhere, and it never moves by itself."""

    def __init__(self, experiment: Experiment, cores: int, name: str) -> None:
        super().__init__(experiment, cores, name)
        self.gain = 0.0

    def gradient(self) -> Vector | None:
        return np.full(len(self.weights), -1.0, DTYPE)


SLOPING: dict[str, Any] = {
    "parent": {"rule": "gradient"},
    "optimizer": {"name": "sgd", "learning_rate": 0.25},
    "child": {"backend": f"{__name__}:SlopingBackend", "exchange": "update"},
}


@pytest.mark.parametrize(("encoding", "error"), [("float32", 0.0), ("int8", 1e-4)])
async def test_at_rate_1_the_parent_has_all_that_both_children_have_learned(
    tmp_path: Path, encoding: str, error: float
) -> None:
    settings = constant(
        parent={"rule": "difference", "alpha": 1.0, "encoding": encoding},
        child={"exchange": "episode"},
    )
    async with running(settings, tmp_path) as parent:
        async with Serving(child_of(parent)) as one:
            await one.exchanged(3)
            async with Serving(child_of(parent, "pi-2")) as two:
                await two.exchanged(5)
                await one.exchanged(5)
        trial = parent.server.trial
        assert trial.vector is not None
        # Each gains 1 before each of its exchanges.
        learned = one.backend.exchanges + two.backend.exchanges
        assert trial.vector.tolist() == pytest.approx([learned] * 4, rel=0.0, abs=error)
        assert trial.version == parent.server.exchanges >= 13


async def test_a_difference_goes_on_from_where_it_began_when_the_parent_was_away(
    tmp_path: Path,
) -> None:
    settings = constant(parent={"rule": "difference", "alpha": 1.0}, child={"exchange": "episode"})
    async with running(settings, tmp_path) as parent:
        address = f"127.0.0.1:{parent.address[1]}"
        serving = Serving(child_of(parent))
        await serving.__aenter__()
        await serving.exchanged(3)
    try:
        await serving.exchanged(5)  # nobody answers
        before = parent.server.trial.vector
        assert before is not None
        async with running(settings, tmp_path, address) as parent:
            after = parent.server.trial.vector
            assert after is not None
            assert after.tolist() == before.tolist()
            version = parent.server.trial.version
            # A push that was under way is sent again first, and the next one brings the rest.
            await eventually(lambda: parent.server.trial.version > version + 1)
            assert after[0] >= before[0] + 5.0
            await serving.__aexit__(None, None, None)
            assert after[0] == serving.backend.weights[0]
    finally:
        serving.child.stop()


async def test_gradients_are_steps_of_the_parent_and_the_child_waits_for_it(tmp_path: Path) -> None:
    settings = small(**SLOPING)
    async with running(settings, tmp_path) as parent:
        address = f"127.0.0.1:{parent.address[1]}"
        serving = Serving(child_of(parent))
        await serving.__aenter__()
        await serving.exchanged(4)
    try:
        trial = parent.server.trial
        assert trial.vector is not None
        assert trial.vector.tolist() == [0.25 * (trial.version - 1)] * 4
        async with running(settings, tmp_path, address) as parent:
            stood = parent.server.trial.version
            await eventually(lambda: parent.server.trial.version > stood + 3)
            made = serving.backend.exchanges
            # Each one that was begun got its answer, or is under way. One whose answer the first
            # parent could not send any more is counted by the second, too.
            assert made - 1 <= parent.server.exchanges <= made + 1
            await serving.__aexit__(None, None, None)
    finally:
        serving.child.stop()


async def test_two_children_that_begin_together_share_one_start(tmp_path: Path) -> None:
    settings = small(**SLOPING)
    async with running(settings, tmp_path) as parent:
        async with Serving(child_of(parent)) as one, Serving(child_of(parent, "pi-2")) as two:
            await one.exchanged(3)
            await two.exchanged(3)
        left_out = sum(child.left_out for child in parent.server.children.values())
        assert parent.server.trial.version == parent.server.exchanges - left_out
    lines = history(tmp_path, "exchange")
    assert [line["left_out"] for line in lines if "left_out" in line] == ["baseless"] * left_out


class RoledBackend(ConstantBackend):
    """Pushes no weights where it only acts, and plays nothing where it only learns."""

    async def due(self) -> None:
        await super().due()
        if self.experiment.role == "learn":
            self.work = Work()

    def snapshot(self) -> Vector | None:  # type: ignore[override]
        return None if self.experiment.role == "act" else super().snapshot()


@pytest.mark.parametrize("encoding", ["float32", "int8"])
async def test_who_only_acts_brings_steps_and_no_version_and_takes_the_parents_weights(
    tmp_path: Path, encoding: str
) -> None:
    settings = constant(
        parent={"encoding": encoding},
        replay={"steps": 100, "url": "embedded"},
        child={"backend": f"{__name__}:RoledBackend", "roles": ["learn", "act"]},
    )
    async with running(settings, tmp_path) as parent:
        trial = parent.server.trial
        async with Serving(child_of(parent)) as one, Serving(child_of(parent, "pi-2")) as two:
            await one.exchanged(3)
            await two.exchanged(3)
            assert trial.version > 0
            roles = {each.backend.experiment.role: each for each in (one, two)}
            learner, actor = roles["learn"], roles["act"]
            await eventually(lambda: actor.backend.resets, "it has θ_P")
        counts = parent.server.children
        theirs, ours = counts[actor.child.name], counts[learner.child.name]
        assert (theirs.steps, ours.steps) == (trial.steps, 0)
        assert theirs.steps == 10 * actor.backend.exchanges
        assert trial.version == parent.server.exchanges == ours.exchanges
        assert parent.server.updates == ours.exchanges
        assert trial.vector is not None
        assert actor.backend.weights[0] - 1 <= trial.vector[0]
        url = actor.backend.experiment.replay.url
        assert re.fullmatch(r"redis://genkidama:[^@]{32}@127\.0\.0\.1:\d+", url)
        assert learner.backend.experiment.replay.url == url


async def test_a_child_that_wants_a_role_which_is_not_to_be_had_is_told_why(tmp_path: Path) -> None:
    async with running(constant(), tmp_path) as parent:
        with pytest.raises(
            GenkidamaError, match=r"refuses this child: child 'pi' with role = 'act"
        ):
            await child_of(parent, role="act").serve()
        assert parent.server.refusals == {"role": 1}
        assert parent.server.connected == []
