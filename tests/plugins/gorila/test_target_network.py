from __future__ import annotations

import numpy as np
import pytest

from genkidama.child.shared_memory import Layout, SharedMemory
from genkidama.config.sections import Algorithm
from genkidama.plugins.gorila.target_network import TargetNetwork


def memory_of(target: int = 2, cores: int = 2) -> SharedMemory:
    """Weights of three numbers, the last one a statistic."""
    return SharedMemory(Layout(cores, 1, 1, 3, 2, 1, 1, target=target))


def algorithm(updates: int, versions: int) -> Algorithm:
    return Algorithm(name="dqn", target_updates=updates, target_versions=versions)


def test_it_begins_as_what_is_learned_and_is_taken_anew_after_so_many_updates_of_all_cores() -> (
    None
):
    memory = memory_of()
    ours, theirs = (TargetNetwork(memory, index, algorithm(3, 0)) for index in range(2))
    memory.weights[:] = 1.0, 2.0, 9.0
    assert ours.renew()
    assert memory.target.tolist() == [1.0, 2.0]
    memory.weights[:] = 3.0, 4.0, 9.0
    assert not theirs.renew()
    seen = []
    for target in (ours, theirs, ours, theirs):
        target.updated()
        seen.append(memory.target.tolist())
    assert seen == [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    assert ours.tensor is not None
    assert ours.tensor.tolist() == [3.0, 4.0]
    memory.close()


def test_it_is_taken_anew_after_so_many_versions_of_the_parent() -> None:
    memory = memory_of()
    target = TargetNetwork(memory, 0, algorithm(0, 10))
    memory.version[0] = 95
    renewed = []
    for version in (95, 104, 105, 106, 114, 115, 200, 3, 12, 13):
        memory.version[0] = version
        memory.weights[:2] = version
        target.updated()
        renewed.append(int(memory.target[0]))
    # Version 3 is a parent that has begun again.
    assert renewed == [95, 95, 105, 105, 105, 115, 200, 3, 3, 13]
    memory.close()


@pytest.mark.parametrize(("updates", "versions"), [(2, 100), (100, 2)])
def test_whichever_comes_first_counts(updates: int, versions: int) -> None:
    memory = memory_of()
    target = TargetNetwork(memory, 0, algorithm(updates, versions))
    target.renew()
    memory.weights[:] = 5.0
    memory.updates[1] = 1
    memory.version[0] = 1
    assert not target.renew()
    memory.updates[1] += 1
    memory.version[0] += 1
    assert target.renew()
    assert memory.target.tolist() == [5.0, 5.0]
    memory.close()


def test_it_outlives_a_core() -> None:
    memory = memory_of()
    TargetNetwork(memory, 0, algorithm(3, 0)).renew()
    memory.weights[:] = 7.0
    again = TargetNetwork(memory, 0, algorithm(3, 0))
    again.updated()
    again.updated()
    assert memory.target.tolist() == [0.0, 0.0]
    TargetNetwork(memory, 0, algorithm(3, 0)).updated()
    assert memory.target.tolist() == [7.0, 7.0]
    memory.close()


def test_weights_that_were_reset_are_a_beginning() -> None:
    memory = memory_of()
    target = TargetNetwork(memory, 0, algorithm(100, 0))
    memory.weights[:] = np.nan
    target.renew()
    memory.weights[:] = 1.0
    memory.refreshed[:] = 0
    assert target.renew()
    assert memory.target.tolist() == [1.0, 1.0]
    memory.close()


def test_a_learner_without_one_counts_updates_alone() -> None:
    memory = memory_of(0)
    target = TargetNetwork(memory, 1, algorithm(1, 0))
    target.updated()
    assert target.numbers is None
    assert target.tensor is None
    assert memory.updates.tolist() == [0, 1]
    assert memory.target.nbytes == 0
    memory.close()
