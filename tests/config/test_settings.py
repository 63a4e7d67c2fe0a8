from __future__ import annotations

import pytest

from genkidama.config.sections import Environment


@pytest.mark.parametrize(
    ("name", "prefix", "plain_id"),
    [
        ("LunarLander-v3", "", "LunarLander-v3"),
        ("envpool:LunarLander-v3", "envpool", "LunarLander-v3"),
        ("envpool:gfootball/11_vs_11_easy-v1", "envpool", "gfootball/11_vs_11_easy-v1"),
        ("envpool", "", "envpool"),
        ("my_envpool:LunarLander", "", "my_envpool:LunarLander"),
        ("envpools:make", "", "envpools:make"),
    ],
)
def test_the_id_of_a_plug_ins_environment_begins_with_its_prefix(
    name: str, prefix: str, plain_id: str
) -> None:
    environment = Environment(id=name)
    assert (environment.prefix, environment.plain_id) == (prefix, plain_id)
