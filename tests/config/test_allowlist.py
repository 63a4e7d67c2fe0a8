"""What a child may be told to import."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkidama.config import plugin
from genkidama.config.allowlist import (
    allowing,
    check_imports,
    import_string,
    imports,
    modules,
)
from genkidama.config.experiment import Experiment
from genkidama.config.sections import Environment
from genkidama.errors import ConfigurationError

#: Everything that a parent can have a child import.
HOSTILE = {
    "environment": {
        "id": "subprocess:Popen",
        "options": {"args": ["sh"]},
        "wrappers": [{"name": "TimeLimit"}, {"name": "shutil:rmtree", "options": {"path": "/"}}],
    },
    "network": {"name": "my.net:Net"},
    "algorithm": {"name": "my.learner:Learner"},
    "child": {"backend": "my:Backend"},
    "parent": {"rule": "theirs:Rule", "listen": "127.0.0.1:8765"},
    "ga3c": {"device": "cuda:1"},
}


def test_each_setting_that_names_a_module_is_found_and_no_other() -> None:
    assert imports(Experiment.from_dict(HOSTILE).to_dict()) == {
        "environment.id": ("subprocess:Popen", "subprocess"),
        "environment.wrappers[1].name": ("shutil:rmtree", "shutil"),
        "network.name": ("my.net:Net", "my.net"),
        "algorithm.name": ("my.learner:Learner", "my.learner"),
        "child.backend": ("my:Backend", "my"),
    }


def test_each_module_needs_to_be_on_the_list() -> None:
    named = {module for _, module in imports(HOSTILE).values()}
    check_imports(HOSTILE, named)
    for module in named - {"my.net", "my.learner"}:  # `my` allows those
        with pytest.raises(ConfigurationError, match=f"may not import '{module}'"):
            check_imports(HOSTILE, named - {module})


def test_an_option_that_highway_env_imports_is_on_the_list_or_its_own() -> None:
    def named(path: str) -> dict[str, tuple[str, str]]:
        config = {"other_vehicles_type": path, "vehicles_count": 5}
        environment = {"id": "highway-v0", "options": {"config": config, "name": "os:system"}}
        return imports({"environment": environment})

    assert named("highway_env.vehicle.behavior.LinearVehicle") == {}
    key = "environment.options.config.other_vehicles_type"
    assert named("subprocess.Popen") == {key: ("subprocess.Popen", "subprocess")}


def test_what_the_user_has_set_may_import_anything() -> None:
    keys = imports(HOSTILE)
    check_imports(HOSTILE, [], named=keys)
    for key in keys:
        with pytest.raises(ConfigurationError, match=re.escape(f"{key} = {keys[key][0]!r}: ")):
            check_imports(HOSTILE, [], named=keys.keys() - {key})


def test_an_error_says_how_to_allow_a_module() -> None:
    settings = {
        "environment": {"id": "envpool:Pong-v5"},  # needs no place on a list
        "network": {"name": "mine:Net"},
    }
    with pytest.raises(ConfigurationError) as caught:
        check_imports(settings, ["yours"])
    assert str(caught.value) == (
        "network.name = 'mine:Net': this child may not import 'mine'; if that is your own, put it "
        'on the child\'s list: allow = ["mine"], or --allow mine'
    )
    with pytest.raises(ConfigurationError) as caught:
        check_imports(settings, ["yours"], "mine.toml")
    assert str(caught.value) == (
        "mine.toml: network.name = 'mine:Net': a file may not have 'mine' imported; if that is "
        'your own: --allow mine, in Python allow=["mine"]'
    )
    assert (allowing([]), allowing(["mine", "a.b"])) == ("", " --allow mine --allow a.b")


def test_settings_of_some_children_name_modules_too() -> None:
    settings = {
        "environment.options.maker": "a:Maker",
        "child.backend": "b:Backend",
        "ga3c": {"device": "cuda:1", "agents": 3},
    }
    assert imports({"children": [{"name": "pi-*", "settings": settings}]}) == {
        "children[0].settings.child.backend": ("b:Backend", "b"),
    }


def test_a_file_needs_those_of_the_parent_too() -> None:
    search = {"sampler": "their.sampler:Grid", "space": "spaces:draw", "store": "no.module:X"}
    settings = {**HOSTILE, "search": search}
    assert modules(settings) == (
        *("my", "my.learner", "my.net", "shutil", "spaces", "subprocess"),
        *("their.sampler", "theirs"),
    )
    assert modules({"search": None}) == ()
    known = {module for _, module in imports(settings).values()}
    check_imports(settings, known)
    with pytest.raises(ConfigurationError, match=r"^parent\.rule = 'theirs:Rule': "):
        check_imports(settings, known, whole=True)


def test_environments_of_the_old_gym_are_ids() -> None:
    assert modules({"network": {"name": "GymV26Environment"}}) == ()
    assert modules({"network": {"name": "envpool:Net"}}) == ("envpool",)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("LunarLander-v3", ""),
        ("ALE/Pong-v5", ""),
        ("envpool:LunarLander-v3", ""),
        ("my_games:Chess-v0", "my_games"),
        ("my_games:Board/Chess-v0", "my_games"),
        ("my.games:make", "my.games"),
        ("größe:Übung", "größe"),
        ("GymV26Environment-v0", "shimmy"),  # its option env_id is imported as Gym does
        ("GymV21Environment", "shimmy"),
    ],
)
def test_ids_of_environments(name: str, module: str) -> None:
    assert modules({"environment": {"id": name}}) == ((module,) if module else ())
    check_imports({"environment": {"id": name}}, ["*"])
    if module:
        with pytest.raises(
            ConfigurationError, match=f"may not import '{module}'.* --allow {module}"
        ):
            check_imports({"environment": {"id": name}}, [])
    else:
        check_imports({"environment": {"id": name}}, [])


@pytest.mark.parametrize(
    "text",
    [
        "module: X",
        "module:\tX",
        "module:X\n",
        " module:X",
        "module :X",
        "module:\u00a0X",
        "a:b:C",
        "a/b:C",
        "a-b:C",
        ".a:C",
        "a.:C",
        "a..b:C",
        "1a:C",
        ":C",
        "a:",
        "a:b/c/D",
        "module",
    ],
)
def test_what_is_no_import_string_has_no_module_and_is_no_setting(text: str) -> None:
    assert import_string(text) is None
    if ":" in text:
        for settings in (
            {"environment": {"id": text}},
            {"environment": {"wrappers": [{"name": text}]}},
            {"network": {"name": text}},
            {"algorithm": {"name": text}},
            {"child": {"backend": text}},
            {"parent": {"rule": text}},
        ):
            with pytest.raises(ConfigurationError, match=r"expected .*'module:"):
                Experiment.from_dict(settings)


@given(st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=4))
def test_a_module_allows_those_below_it_and_no_other_of_a_similar_name(parts: list[str]) -> None:
    settings = {"network": {"name": ".".join(parts) + ":Net"}}
    check_imports(settings, [parts[0]])
    check_imports(settings, ["x", ".".join(parts)])
    for other in (parts[0] + "c", ".".join([*parts, "a"]), "", parts[0] + "."):
        with pytest.raises(ConfigurationError):
            check_imports(settings, [other])


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


def test_a_prefix_may_be_an_installed_plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    own = plugin.Plugin(environments={"mine": "mine.pool:Maker"})
    monkeypatch.setattr(plugin, "_installed", lambda: {"own": own})
    assert Environment(id="mine:CartPole-v1").plain_id == "CartPole-v1"
    check_imports({"environment": {"id": "mine:CartPole-v1"}}, [])
