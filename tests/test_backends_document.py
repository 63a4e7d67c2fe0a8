"""docs/backends.md: the backend in it, taken from the page and put to work."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genkidama.child.backend import Backend, make_backend
from genkidama.cli.cluster import train
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError, EnvironmentFailure
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from tests.helpers import PATIENCE, ROOT, Started, small, starting, until
from tests.texts import code_block

PAGE = "docs/backends.md"
EXPERIMENT = Experiment.from_dict(tomllib.loads(code_block(PAGE, "toml", "[child]")))

# The page's own recipe for its contract: a fixture, and the tests that ask for it run here.
exec(code_block(PAGE, "python", "TestContract"))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `evolution.py`, from which everybody can import it."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "evolution.py").write_text(code_block(PAGE, "python", "class EvolutionStrategy"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{folder}")
        yield folder


def backend(**sections: dict[str, Any]) -> Backend:
    return make_backend(
        small(**{**sections, "child": {"backend": "evolution:EvolutionStrategy"}}), 2, "pi"
    )


def test_a_run_with_it_learns(tmp_path: Path) -> None:
    run = train(EXPERIMENT, children=2, cores=1, out=tmp_path / "run", episodes=0)
    exchanges = [event for event in run.history() if event["event"] == "exchange"]
    measures = [event for event in run.history() if event["event"] == "measures"]
    assert exchanges[0]["mean_return"] < 40.0
    assert exchanges[-1]["mean_return"] >= 150.0  # which ends the run long before its 400 updates
    assert len(exchanges) < 400
    # Every push has measures. On a busy machine the second child may be too late for any push.
    assert {event["child"] for event in measures} == {event["child"] for event in exchanges}
    assert len(measures) == len(exchanges)
    assert {event["backend"] for event in measures} == {EXPERIMENT.child.backend}
    assert all(event["best"] >= event["spread"] > 0.0 for event in measures)
    assert not [path for path in (run.path / "logs").iterdir() if "Traceback" in path.read_text()]


async def test_it_exchanges_a_network_that_can_be_evaluated() -> None:
    evolution = backend()
    try:
        signature = await evolution.startup()
    finally:
        await evolution.shutdown()
    model = Model(small(), make_environment(small().environment))
    assert signature == model.signature
    np.testing.assert_array_equal(evolution.snapshot(), model.numbers)


@pytest.mark.parametrize(
    ("environment", "error", "words"),
    [
        ({"id": "NoSuch-v1"}, ConfigurationError, "environment.id = 'NoSuch-v1'"),
        (
            {"normalize_observations": True},
            ConfigurationError,
            "environment.normalize_observations = True",
        ),
        (
            {"id": "tests.tiny:Faulty", "options": {"fault": "raise", "after": 3}},
            EnvironmentFailure,
            "ValueError: the cable",
        ),
        (
            {"id": "tests.tiny:Faulty", "options": {"fault": "kill", "after": 3}},
            EnvironmentFailure,
            "BrokenProcessPool",
        ),
    ],
)
async def test_what_goes_wrong_is_told(
    environment: dict[str, Any], error: type[Exception], words: str
) -> None:
    async def train() -> None:
        evolution = backend(environment=environment)
        try:
            await evolution.startup()
            await evolution.begin(None)
            await evolution.due()
        finally:
            await evolution.shutdown()

    with pytest.raises(error, match=words):
        await asyncio.wait_for(train(), PATIENCE)


CHILD = """
import asyncio
from genkidama.child.backend import make_backend
from tests.helpers import small

async def main():
    backend = make_backend(small(child={"backend": "evolution:EvolutionStrategy"}), 2, "pi")
    await backend.startup()
    await backend.begin(None)
    await backend.due()
    print("trains", flush=True)
    await asyncio.sleep(3600.0)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_nothing_is_left_behind_when_the_child_is_killed(folder: Path) -> None:
    (folder / "child.py").write_text(CHILD)
    with starting(folder) as start:
        child: Started = start("child")
        until(lambda: "trains" in child.out, "training")
        assert len(child.family()) > 2
        child.popen.kill()
        child.vanish(10.0)
