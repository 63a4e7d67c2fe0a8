"""The nurseries of a child: where its processes are born, and what is warm there."""

from __future__ import annotations

from genkidama.config.experiment import Experiment
from genkidama.runtime.forkserver import ForkServer
from genkidama.runtime.machine import ONE_THREAD

__all__ = ["AGENTS", "CORES"]


def _of_cores(experiment: Experiment) -> dict[str, str]:
    # Cores never use a GPU. If torch saw one, the backward pass in the nursery would start CUDA's
    # autograd threads there, and what has threads must not be forked.
    variables = {**ONE_THREAD, "CUDA_VISIBLE_DEVICES": ""}
    if experiment.network.name != "convolutional":
        # With this, glibc takes large blocks from the kernel and gives them back. On its heap,
        # torch's batches between an environment's small leftovers would fragment it by megabytes a
        # second. With images it would cost a quarter of the speed: nearly all of their blocks are
        # large, and each would be given back every time. (A3C's batch of 240 × 64 numbers is 61 KB:
        # with a threshold of 64 KiB a core grew by 42 MB in 60,000 steps, with this one by 2.)
        variables["MALLOC_MMAP_THRESHOLD_"] = "32768"
    return variables


def _of_agents(_: Experiment) -> dict[str, str]:
    return ONE_THREAD


#: Where cores are born, with torch, and where agents are born, without it.
CORES = ForkServer("genkidama.child.core_forkserver", _of_cores)
AGENTS = ForkServer("genkidama.plugins.ga3c.agent", _of_agents)
