"""What is done in a nursery before anything is forked from it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import msgspec
import pytest

from genkidama.config.experiment import Experiment
from genkidama.runtime.forkserver import EXPERIMENT_VARIABLE, PRELOAD_VARIABLE
from genkidama.runtime.forkserver_main import prepare
from tests.helpers import small

SEEN: list[tuple[Experiment, bool]] = []


def warm_up(experiment: Experiment) -> None:
    SEEN.append((experiment, gc.isenabled()))
    raise RuntimeError("what is forked will report it")


@pytest.fixture
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("_thawed")
def test_it_warms_up_with_its_experiment_and_freezes_the_heap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = small(network={"hidden": [7]})
    monkeypatch.setenv(PRELOAD_VARIABLE, __name__)
    monkeypatch.setenv(EXPERIMENT_VARIABLE, msgspec.json.encode(experiment.to_dict()).decode())
    SEEN.clear()
    frozen = gc.get_freeze_count()
    prepare()
    assert [(experiment, False)] == SEEN
    assert gc.isenabled() and gc.get_freeze_count() > frozen


@pytest.mark.usefixtures("_thawed")
def test_what_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRELOAD_VARIABLE, "tests.no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        prepare()
