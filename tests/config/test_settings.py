from __future__ import annotations

import pytest

from genkidama.config.sections import Environment


@pytest.mark.parametrize(
    ("name", "envpool"),
    [
        ("LunarLander-v3", None),
        ("envpool:LunarLander-v3", "LunarLander-v3"),
        ("envpool:gfootball/11_vs_11_easy-v1", "gfootball/11_vs_11_easy-v1"),
        ("my_envpool:LunarLander", None),
        ("envpools:make", None),
    ],
)
def test_an_id_of_envpools_begins_with_its_name(name: str, envpool: str | None) -> None:
    assert Environment(id=name).envpool == envpool
