"""Rows of children: who is there, who is remembered, whose speed sinks."""

from __future__ import annotations

from genkidama.events import Joined
from genkidama.page.children import Children
from tests.page.stories import BEGAN, exchange


def join(children: Children, name: str) -> None:
    children.joined(Joined(time=BEGAN, child=name, version=0, parameters=1))


def test_of_those_that_left_the_last_hundred_are_remembered() -> None:
    children = Children()
    for number in range(150):
        join(children, f"c{number}")
        children.left(f"c{number}", "")
    rows, gone = children.take_changed(BEGAN, lambda _: None)
    assert len(rows) == len(children.rows) == 100 and len(gone) == 50
    assert rows[0].why == "left"
    join(children, "c0")
    assert children.take_changed(BEGAN, lambda _: None)[1] == []


def test_a_child_that_returns_keeps_its_counts() -> None:
    children = Children()
    join(children, "a")
    for number in (1, 2):
        children.count(exchange(number))
    children.left("a", "its link broke")
    join(children, "a")
    assert (children.rows["a"].updates, children.rows["a"].steps) == (2, 10)
    assert children.rows["a"].state == "training"


def test_a_speed_sinks_though_nothing_is_said() -> None:
    children = Children()
    join(children, "a")
    for number in (1, 2, 3):
        children.count(exchange(number))
        children.exchanged(exchange(number))
    (row,), _ = children.take_changed(BEGAN + 4, lambda _: None)
    assert row.steps_per_second == 10.0
    (row,), _ = children.take_changed(BEGAN + 40, lambda _: None)
    assert row.steps_per_second == 0.0
    assert children.take_changed(BEGAN + 41, lambda _: None)[0] == []
