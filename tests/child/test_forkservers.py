"""What the nurseries of a child are told to have warm."""

from __future__ import annotations

import json

import pytest

from genkidama.child.forkservers import AGENTS, CORES
from genkidama.config.experiment import Experiment
from genkidama.runtime.forkserver import EXPERIMENT_VARIABLE, PRELOAD_VARIABLE
from tests.helpers import small


def test_each_has_its_module_and_the_experiment() -> None:
    experiment = small(network={"hidden": [7]})
    for nursery, module in ((CORES, "core_nursery"), (AGENTS, "ga3c.agent_nursery")):
        variables = nursery.variables(experiment)
        assert variables[PRELOAD_VARIABLE] == f"genkidama.child.{module}"
        assert Experiment.from_dict(json.loads(variables[EXPERIMENT_VARIABLE])) == experiment
        assert variables["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("network", "threshold"), [("actor-critic", "32768"), ("convolutional", None)]
)
def test_cores_see_no_gpu_and_give_large_blocks_back(network: str, threshold: str | None) -> None:
    variables = CORES.variables(Experiment.from_dict({"network": {"name": network}}))
    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    assert variables.get("MALLOC_MMAP_THRESHOLD_") == threshold
