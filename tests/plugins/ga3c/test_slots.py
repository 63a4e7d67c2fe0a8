"""The memory of a GA3C child: what lies where, and that every process sees the same."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.plugins.ga3c.slots import Count, SlotLayout, Slots
from genkidama.protocol.diagnostics import SHAPE
from tests.helpers import ROOT

LAYOUT = SlotLayout(
    agents=2,
    environments=3,
    rollouts=4,
    steps=5,
    observation_shape=(4, 7, 6),
    observation_type="uint8",
    action_columns=2,
    size=23,
    trainable=20,
    state_rows=2,
    threads=7,
)

CONTEXT = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes started here import this module by its name, however pytest was started."""
    monkeypatch.syspath_prepend(ROOT)


def test_every_part_has_its_shape_and_type_and_starts_as_zeros() -> None:
    slots = Slots(LAYOUT)
    shapes = {
        "weights": ((23,), "float32"),
        "change": ((20,), "float32"),
        "state": ((2, 20), "float32"),
        "clock": ((1,), "float64"),
        # A row for each of 2 · 3 · 4 · 5 steps.
        "observations": ((120, 4, 7, 6), "uint8"),
        "actions": ((120, 2), "float32"),
        "values": ((120,), "float32"),
        "log_mu": ((120,), "float32"),
        "born": ((120,), "int64"),
        "rewards": ((120,), "float32"),
        "discounted": ((120,), "float32"),
        # 2 · 3 · 4 slots.
        "lengths": ((24,), "int64"),
        "bootstraps": ((24,), "float32"),
        "cut": ((24,), "bool"),
        "busy": ((24,), "bool"),
        # 2 · 3 lanes.
        "position": ((6,), "int64"),
        "asked": ((6,), "int64"),
        "answered": ((6,), "int64"),
        "counters": ((7, 6), "int64"),
        # 7 threads and 2 agents.
        "diagnostics": ((9, *SHAPE), "float64"),
        "semaphore": ((2,), "bool"),
        "stop": ((2,), "bool"),
        "progress": ((1,), "float64"),
    }
    assert {
        name: (getattr(slots, name).shape, getattr(slots, name).dtype.name)
        for name in LAYOUT.parts()
    } == shapes
    assert not any(getattr(slots, name).any() for name in shapes)
    slots.close()


counts = st.integers(1, 5)


@given(
    st.builds(
        SlotLayout,
        agents=counts,
        environments=counts,
        rollouts=st.integers(2, 4),
        steps=counts,
        observation_shape=st.lists(counts, max_size=3).map(tuple),
        observation_type=st.sampled_from(["uint8", "float32", "float64", "int64"]),
        action_columns=counts,
        size=st.integers(20, 30),
        trainable=st.integers(1, 20),
        state_rows=counts,
        threads=counts,
    )
)
def test_each_step_of_each_slot_of_each_lane_has_a_row_of_its_own(layout: SlotLayout) -> None:
    """The row is (lane · K + slot) · T + t. From it follow slot, lane and agent."""
    slots = Slots(layout)
    try:
        rows = np.arange(len(slots.values)).reshape(
            layout.agents, layout.environments, layout.rollouts, layout.steps
        )
        for agent, environment, rollout, t in np.ndindex(rows.shape):
            lane = agent * layout.environments + environment
            slot = lane * layout.rollouts + rollout
            row = (lane * layout.rollouts + rollout) * layout.steps + t
            assert rows[agent, environment, rollout, t] == row
            assert divmod(row, layout.steps) == (slot, t)
            slots.observations[row] = row % 251
            slots.actions[row] = row
            slots.lengths[slot] = slots.busy[slot] = 1
            slots.position[lane] = row
            slots.stop[agent] = True
        # Everything was reached, and nothing was written over.
        for part in (slots.lengths, slots.busy, slots.stop):
            assert part.all()
        assert (
            slots.observations.reshape(len(slots.values), -1)
            == np.arange(len(slots.values))[:, None] % 251
        ).all()
        assert (slots.actions == np.arange(len(slots.values))[:, None]).all()
        assert slots.position.tolist() == rows[:, :, -1, -1].reshape(-1).tolist()
        assert not slots.weights.any() and not slots.counters.any()
    finally:
        slots.close()


def test_updates_are_those_of_all_threads() -> None:
    slots = Slots(LAYOUT)
    assert slots.updates == 0
    slots.counters[:, Count.UPDATES] = [1, 0, 2**40, 0, 5, 0, 0]
    slots.counters[
        3, [Count.PREDICTIONS, Count.PREDICTION_BATCHES, Count.ROLLOUTS, Count.STEPS, Count.LAG]
    ] = 99
    assert slots.updates == 2**40 + 6
    slots.close()


def _answer(slots: Slots, line: Connection) -> None:
    """The other process: sends what it sees, and writes."""
    with line:
        line.send(
            (slots.layout, slots.weights.tolist(), slots.observations[-1].tolist(), slots.updates)
        )
        slots.observations[7] = 250
        slots.counters[2, Count.UPDATES] = 30
        slots.busy[-1] = True
        line.send("written")
        line.recv()
        line.send((slots.stop.tolist(), slots.position.tolist()))
        slots.close()


def test_a_process_that_is_handed_slots_has_the_same_memory() -> None:
    slots = Slots(LAYOUT)
    slots.weights[:] = np.arange(23)
    slots.observations[-1] = np.arange(4 * 7 * 6).reshape(4, 7, 6)
    slots.counters[6, Count.UPDATES] = 4
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_answer, args=(slots, theirs), daemon=True)
    process.start()
    theirs.close()
    with ours:
        assert ours.recv() == (
            LAYOUT,
            list(map(float, range(23))),
            np.arange(4 * 7 * 6).reshape(4, 7, 6).tolist(),
            4,
        )
        assert ours.recv() == "written"
        assert (slots.observations[7] == 250).all() and not slots.observations[[6, 8]].any()
        assert slots.updates == 34
        assert np.flatnonzero(slots.busy).tolist() == [23]
        slots.stop[1] = True
        slots.position[:] = range(6)
        ours.send("look again")
        assert ours.recv() == ([False, True], list(range(6)))
    process.join()
    assert process.exitcode == 0
    process.close()
    slots.close()


def test_a_descriptor_and_the_layout_give_the_same_memory() -> None:
    """So the engine gets it, which was started before there was any."""
    slots = Slots(LAYOUT)
    slots.rewards[3] = 0.5
    same = Slots(LAYOUT, os.dup(slots.descriptor))
    slots.close()
    assert same.rewards[3] == 0.5
    same.answered[:] = 2
    assert slots.answered.tolist() == [2] * 6
    same.close()
