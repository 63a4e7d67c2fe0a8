"""Who gets how many cores, and where."""

from __future__ import annotations

import pytest

from genkidama.errors import EnvironmentFailure
from genkidama.plugins.ray.places import layout


@pytest.mark.parametrize(
    ("nodes", "children", "cores", "expected"),
    [
        ({"a": 4, "b": 8}, None, None, [(4, "a"), (8, "b")]),
        ({"head": 0, "a": 4}, None, None, [(4, "a")]),
        ({"a": 4, "b": 8}, None, 6, [(6, "b")]),
        ({"a": 4, "b": 4}, 2, None, [(4, None)] * 2),
        ({"a": 4, "b": 4}, 3, None, [(2, None)] * 3),
        ({"a": 4, "b": 4}, 5, None, [(1, None)] * 5),
        ({"a": 4, "b": 8}, 2, None, [(4, None)] * 2),
        ({"a": 4, "b": 8}, 1, None, [(8, None)]),
        ({"a": 4, "b": 8}, 20, None, [(4, None)] * 20),
        ({"head": 0}, 2, 16, [(16, None)] * 2),
    ],
)
def test_the_layout(
    nodes: dict[str, int],
    children: int | None,
    cores: int | None,
    expected: list[tuple[int, str | None]],
) -> None:
    assert layout(nodes, children, cores) == expected


@pytest.mark.parametrize(
    ("nodes", "children", "cores", "words"),
    [
        (
            {"a": 4},
            None,
            6,
            "no node of the Ray cluster has 6 CPUs, the largest 4; lower --cores, or ",
        ),
        ({"head": 0}, None, None, "no node of the Ray cluster has 1 CPUs, the largest 0"),
        ({"head": 0}, 3, None, "say how many cores each child is to have: --cores N"),
    ],
)
def test_a_layout_that_nobody_can_make(
    nodes: dict[str, int], children: int | None, cores: int | None, words: str
) -> None:
    with pytest.raises(EnvironmentFailure, match=words):
        layout(nodes, children, cores)
