"""What the cores of a child share: which arrays, and how large."""

from __future__ import annotations

from genkidama.child.shared_memory import Layout, SharedMemory
from genkidama.protocol.diagnostics import SHAPE

LAYOUT = Layout(cores=3, steps=5, columns=7, size=11, trainable=10, state_rows=2, state_sets=3)


def test_every_part_has_its_shape_and_type_and_starts_as_zeros() -> None:
    memory = SharedMemory(LAYOUT)
    shapes = {
        "weights": ((11,), "float32"),
        "gradients": ((3, 10), "float32"),
        "state": ((3, 2, 10), "float32"),
        "clock": ((3,), "float64"),
        "replay": ((3, 5, 7), "float32"),
        "pixels": ((3, 5, 0), "uint8"),
        "head": ((3,), "int64"),
        "filled": ((3,), "int64"),
        "ended": ((3,), "int64"),
        "priorities": ((3, 0), "float64"),
        "largest": ((3,), "float64"),
        "target": ((0,), "float32"),
        "updates": ((3,), "int64"),
        "diagnostics": ((3, *SHAPE), "float64"),
        "version": ((1,), "int64"),
        "refreshed": ((3,), "int64"),
        "sizes": ((3, 0), "int64"),
        "share": ((1,), "int64"),
        "news": ((1,), "int64"),
        "semaphore": ((3,), "bool"),
        "progress": ((1,), "float64"),
        "stop": ((1,), "bool"),
    }
    assert {
        name: (getattr(memory, name).shape, getattr(memory, name).dtype.name)
        for name in LAYOUT.parts()
    } == shapes
    assert not any(getattr(memory, name).any() for name in shapes)
    memory.close()


def test_without_cores_only_what_all_share_is_left() -> None:
    parts = LAYOUT.for_cores(0, shared=True).parts()
    assert {name for name, (shape, _) in parts.items() if 0 not in shape} == {
        "weights",
        "state",
        "clock",
        "version",
        "refreshed",
        "share",
        "news",
        "progress",
        "stop",
    }
