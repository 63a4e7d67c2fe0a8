"""What a parent and its learner share."""

from __future__ import annotations

from genkidama.plugins.actors.learner_memory import LearnerLayout, LearnerMemory


def test_every_part_has_its_shape_and_type_and_starts_as_zeros() -> None:
    layout = LearnerLayout(size=11, trainable=10, state_rows=2, rows=7, columns=5)
    memory = LearnerMemory(layout)
    assert {
        name: (getattr(memory, name).shape, getattr(memory, name).dtype.name)
        for name in layout.parts()
    } == {
        "weights": ((11,), "float32"),
        "state": ((2, 10), "float32"),
        "clock": ((1,), "float64"),
        "beat": ((1,), "int64"),
        "rows": ((7, 5), "float32"),
    }
    assert not any(getattr(memory, name).any() for name in layout.parts())
    memory.close()
