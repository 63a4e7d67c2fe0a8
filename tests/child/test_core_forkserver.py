"""What the forkserver finds out before anything is forked from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from genkidama.child.collector import Prepared, first_observations, make_slots
from genkidama.child.core import core_parts
from genkidama.child.core_forkserver import _rehearse, build, layout_of, warm_up
from genkidama.child.shared_memory import core_arrays
from genkidama.config.sections import Algorithm
from genkidama.errors import ConfigurationError
from genkidama.learning.environments import make_environment
from genkidama.learning.model import Model
from genkidama.learning.rollout import Rollout
from tests.helpers import python, small


class Asking:
    """A learner that asks for all there is, and notes the shapes of what it gets."""

    reads_replay = True
    reads_log_mu = True
    seen: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []

    def __init__(self, algorithm: Algorithm, model: Model) -> None:
        self._model = model

    def losses(self, rollout: Rollout, rng: torch.Generator) -> Iterator[torch.Tensor]:
        assert rollout.log_mu is not None and rollout.replay is not None
        drawn = rollout.replay.sample(30).log_mu
        self.seen.append((len(rollout.rewards), rollout.log_mu.shape, drawn.shape))
        yield self._model.network(rollout.observations)[1].sum()


@pytest.mark.parametrize("url", ["local", "redis://127.0.0.1:1"])
def test_warming_up_and_rehearsing_a_learner_gets_what_it_reads(url: str) -> None:
    """Else it would fail there: nothing would be warm, and what a core takes would be unknown.

    Of a replay for all children it gets one of its own, and no engine is asked.
    """
    settings = small(
        algorithm={"name": f"{__name__}:Asking", "batch_size": 16},
        replay={"steps": 40, "url": url},
        child={"roles": ["bundle"] if url == "local" else ["learn"]},
    )
    Asking.seen.clear()
    warm_up(settings)
    slots = make_slots(settings)
    *_, layout, rehearsal = build(settings, slots)
    _rehearse(*rehearsal, Prepared(slots))
    assert Asking.seen == [(1, (1,), (30,)), (16, (16,), (30,))]
    assert (layout.replay_shape[1] > 16) == (url == "local")


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    ("name", "waits"), [("tests.environments:Corridor", False), ("CartPole-v1", True)]
)
def test_what_begins_at_once_does_not_begin_before_its_core(
    name: str, waits: bool, lanes: int
) -> None:
    """Environments that will rest would keep what a reset leaves in memory."""
    settings = small(environment={"id": name, "lanes": lanes}, algorithm={"batch_size": 12})
    slots = make_slots(settings)
    first = first_observations(settings, slots, 4)
    if waits:
        assert first is None
    else:
        assert np.shape(first) == ((lanes,) if lanes > 1 else ()) + slots.observation_space.shape
    slots.close()


def test_a_machine_without_an_engines_client_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = small(replay={"steps": 40, "url": "redis://far"})
    monkeypatch.setitem(sys.modules, "valkey", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'genkidama-rl\[replay\]'$"):
        build(settings, make_environment(settings.environment))


@pytest.mark.parametrize(
    ("sections", "more"),
    [
        ({}, set()),
        ({"replay": {"steps": 64}}, {"filled", "ended"}),
        (
            {
                "algorithm": {"name": "dqn", "start_steps": 8},
                "replay": {"steps": 64, "priority_exponent": 0.5},
            },
            {"filled", "ended", "priorities", "largest", "target", "updates", "refreshed"},
        ),
        ({"parent": {"rule": "experience"}}, {"sizes", "share", "news"}),
    ],
    ids=["plain", "replay", "dqn", "experience"],
)
def test_the_memory_has_the_arrays_that_an_experiment_needs_and_no_other(
    sections: dict[str, Any], more: set[str]
) -> None:
    settings = small(**sections)
    model = Model(settings, make_environment(settings.environment))
    own = core_arrays(rows=1, columns=1, size=1, trainable=1).keys()
    assert layout_of(settings, model).arrays.keys() == own | more


def test_a_plain_child_imports_nothing_of_plug_ins_for_a_child() -> None:
    script = (
        "import sys\n"
        "from genkidama.child import child, core_forkserver\n"
        "from genkidama.child.backend import make_backend\n"
        "from genkidama.config.experiment import Experiment\n"
        "from genkidama.config.plugin import plugins\n"
        "settings = Experiment.from_dict({'environment': {'id': 'CartPole-v1'}})\n"
        "child.Child('ws://127.0.0.1:1'), make_backend(settings, 1, 'pi')\n"
        "core_forkserver.warm_up(settings)\n"
        "for plugin in plugins().values():\n"
        "    for hook in ('backends', 'cores', 'core_parts', 'connections'):\n"
        "        for place in getattr(plugin, hook).values():\n"
        "            if place.startswith('genkidama.plugins.'):\n"
        "                print(hook, place.partition(':')[0] in sys.modules)\n"
    )
    lines = python("-c", script).stdout.splitlines()
    assert len(lines) > 4
    assert not [line for line in lines if line.endswith("True")]


def test_a_learner_whose_part_no_plug_in_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genkidama.child.core.find", lambda hook, name: None)
    with pytest.raises(ConfigurationError, match=r"needs the part 'replay' of a core, which no"):
        core_parts(small(replay={"steps": 64}))
    assert core_parts(small()) == []
