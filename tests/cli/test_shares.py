"""A machine is shared out among its children."""

from __future__ import annotations

import pytest

from genkidama.cli import cluster
from genkidama.cli.cluster import cores_of_each
from tests.helpers import small


@pytest.mark.parametrize(
    ("wanted", "given", "children", "expected"),
    [("auto", None, 2, 4), ("auto", None, 16, 1), ("auto", 3, 2, 3), (5, None, 2, None)],
)
def test_what_nobody_has_said_is_shared_out(
    monkeypatch: pytest.MonkeyPatch,
    wanted: int | str,
    given: int | None,
    children: int,
    expected: int | None,
) -> None:
    monkeypatch.setattr(cluster, "available_cores", lambda: 8)
    monkeypatch.setattr(cluster, "available_bytes", lambda: None)
    assert cores_of_each(small(child={"cores": wanted}), given, children) == expected
