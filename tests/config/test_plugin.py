from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from genkidama.config import plugin
from genkidama.config.decoding import Count, Section
from genkidama.config.experiment import Experiment
from genkidama.config.plugin import Plugin
from genkidama.errors import ConfigurationError
from genkidama.protocol.messages import PROTOCOL, Hello, Welcome
from genkidama.server.parameter_server import ParameterServer
from genkidama.server.rules.blend import Blend
from genkidama.server.rules.registry import make_rule, reads_loss
from tests.helpers import python


class Quorum(Section, frozen=True):
    least: Count = 2


class OwnRule(Blend):
    pass


class Slope(Blend):
    takes = "gradient"


def check(given: dict[str, Any], experiment: Experiment, source: str) -> None:
    if experiment.plugins["quorum"].least == 13:
        raise ConfigurationError(f"{source}: plugins.quorum.least = 13: is unlucky; take another")


@pytest.fixture
def quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in of another package."""
    installed = Plugin(
        sections={"quorum": f"{__name__}:Quorum"},
        checks={"quorum": f"{__name__}:check"},
        rules={
            "own": f"{__name__}:OwnRule",
            "slope": f"{__name__}:Slope",
            "gone": "no_such_module:Rule",
        },
    )
    monkeypatch.setattr(plugin, "_installed", lambda: {"quorum": installed})


def test_a_table_of_an_installed_plug_in_is_checked_by_it_and_kept(quorum: None) -> None:
    settings = {"plugins": {"quorum": {"least": 5}}}
    experiment = Experiment.from_dict(settings)
    assert experiment.plugins == {"quorum": Quorum(least=5)}
    assert experiment.to_dict()["plugins"] == settings["plugins"]
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    assert experiment.with_settings({"plugins.quorum.least": 7}).plugins["quorum"].least == 7
    assert pickle.loads(pickle.dumps(experiment)) == experiment


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        ({"quorum": {"least": -1}}, "x: [plugins.quorum]: least = -1: expected int >= 0"),
        ({"quorum": {"least": 13}}, "x: plugins.quorum.least = 13: is unlucky; take another"),
        ({"quorum": 3}, "x: plugins.quorum = 3: expected a table"),
        (
            {"other": {}},
            "x: [plugins.other]: no plug-in 'other' with such a table is installed; install it, or "
            "take the table out",
        ),
        (
            {"ga3c": {}},
            "x: [plugins.ga3c]: no plug-in 'ga3c' with such a table is installed; install it, or "
            "take the table out",
        ),
    ],
)
def test_a_wrong_table_is_one_line(quorum: None, tables: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Experiment.from_dict({"plugins": tables}, source="x")
    assert str(caught.value) == line


def test_an_installed_plug_in_brings_a_rule(quorum: None) -> None:
    assert type(make_rule(Experiment.from_dict({"parent": {"rule": "own"}}))) is OwnRule
    with pytest.raises(ConfigurationError, match=r"parent\.rule = 'owl': expected one of 'blend',"):
        Experiment.from_dict({"parent": {"rule": "owl"}})
    with pytest.raises(ConfigurationError, match=r"child\.backend = 'owl': expected one of 'hog"):
        Experiment.from_dict({"parent": {"rule": "own"}, "child": {"backend": "owl"}})


def test_a_table_with_the_defaults_of_its_plug_in_is_left_out() -> None:
    """So that a child without Gorila or GA3C can read what a parent sends."""
    assert not {"ga3c", "replay", "search", "plugins"} & Experiment().to_dict().keys()
    changed = Experiment().with_settings({"replay.steps": 700})
    assert Experiment.from_dict(changed.to_dict()) == changed
    assert not changed.with_settings({"replay.steps": 0}).to_dict().get("replay")


def test_a_child_needs_no_plug_in_of_the_parents_alone(
    quorum: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"parent": {"rule": "slope"}, "child": {"exchange": "update"}}
    experiment = Experiment.from_dict({**settings, "plugins": {"quorum": {"least": 5}}})
    server = ParameterServer(experiment)
    reply = server.handle("pi", Hello(protocol=PROTOCOL, name="pi", session="s"), 0.0)
    assert isinstance(reply, Welcome)
    monkeypatch.setattr(plugin, "_installed", dict)
    sent = Experiment.from_dict(reply.experiment)
    assert (sent.pushes, sent.plugins) == ("gradient", {})


def test_a_child_is_sent_the_table_of_a_plug_in_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Plugin(sections={"quorum": f"{__name__}:Quorum"}, environments={"q": "nowhere:Maker"})
    monkeypatch.setattr(plugin, "_installed", lambda: {"quorum": own})
    server = ParameterServer(Experiment.from_dict({"plugins": {"quorum": {"least": 5}}}))
    reply = server.handle("pi", Hello(protocol=PROTOCOL, name="pi", session="s"), 0.0)
    assert isinstance(reply, Welcome)
    assert reply.experiment["plugins"] == {"quorum": {"least": 5}}


def test_an_installed_plug_in_that_lacks_a_module_is_one_line(quorum: None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Experiment.from_dict({"parent": {"rule": "gone"}}, source="x")
    assert str(caught.value) == (
        "'no_such_module:Rule' of a plug-in: importing it fails: No module named "
        "'no_such_module'; mend it, or uninstall its package"
    )


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs packages with these plug-ins: by name, what importing one gives."""

    def install(**plugins: Callable[[], Any]) -> None:
        entries = [
            SimpleNamespace(name=name, value=f"{name}:PLUGIN", load=load)
            for name, load in plugins.items()
        ]
        found = {"genkidama.plugins": entries}
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found[group])
        plugin._installed.cache_clear()

    yield install
    plugin._installed.cache_clear()


def broken() -> Plugin:
    raise OSError("no disk")


@pytest.mark.parametrize(
    ("load", "line"),
    [
        (
            broken,
            "plug-in 'quiet' (quiet:PLUGIN): importing it fails: no disk; mend it, or uninstall "
            "its package",
        ),
        (dict, "plug-in 'quiet': quiet:PLUGIN is no genkidama.Plugin value"),
        *(
            (
                lambda hook=hook: Plugin(**{hook: {"log": "somewhere:Name"}}),
                f"plug-in 'quiet': {hook}: only plug-ins that come with Genkidama have this hook; "
                "take it out of PLUGIN",
            )
            for hook in ("rule_wrappers", "trials", "status_parts", "followers", "exports")
        ),
    ],
)
def test_an_installed_plug_in_that_is_none_is_one_line(
    install: Callable[..., None], load: Callable[[], Any], line: str
) -> None:
    install(good=Plugin, quiet=load)
    with pytest.raises(ConfigurationError) as caught:
        plugin.find("rules", "quiet")
    assert str(caught.value) == line


def test_names_of_installed_plug_ins_are_found_behind_the_built_in_ones(
    install: Callable[..., None],
) -> None:
    own = Plugin(rules={"own": f"{__name__}:OwnRule", "blend": f"{__name__}:Slope"})
    other = Plugin(
        rules={"other": f"{__name__}:Slope"},
        backends={"mine": "nowhere:Backend"},
        sections={"other": f"{__name__}:Quorum"},
    )
    install(own=lambda: own, gorila=Plugin, other=lambda: other)
    assert "own" not in plugin.plugins() and plugin.plugins(installed=True)["own"] is own
    assert plugin.plugins(installed=True)["gorila"] is plugin.plugins()["gorila"] is not None
    assert "own" not in plugin.names("rules") and "own" in plugin.names("rules", installed=True)
    found = ("blend", "own", "other", "none", f"{__name__}:OwnRule")
    assert [plugin.find("rules", name) for name in found] == [Blend, OwnRule, Slope, None, None]
    assert [plugin.home("rules", name) for name in found] == [
        "",
        f"{__name__}:OwnRule",
        f"{__name__}:Slope",
        "",
        "",
    ]
    built_in, both = dict(plugin.every("sections")), dict(plugin.every("sections", installed=True))
    assert "other" not in built_in and both == {**built_in, "other": Quorum}
    assert next(plugin.every("rules", installed=True)) == ("blend", Blend)
    assert (plugin.is_of_parents("own"), plugin.is_of_parents("other")) == (True, False)


@pytest.mark.parametrize(
    "hook", ["backends", "cores", "core_parts", "connections", "learners", "environments"]
)
def test_a_child_needs_a_plug_in_that_has_a_part_of_it(
    install: Callable[..., None], hook: str
) -> None:
    install(own=lambda: Plugin(**{hook: {"own": "nowhere:Part"}}))
    assert not plugin.is_of_parents("own")


def test_an_import_string_that_leads_nowhere_is_one_line_unless_it_is_genkidamas() -> None:
    assert plugin.load("collections:OrderedDict.fromkeys")("a") == {"a": None}
    with pytest.raises(ConfigurationError) as caught:
        plugin.load("collections")
    assert str(caught.value) == (
        "'collections' of a plug-in: importing it fails: expected 'package.module:Name'; mend it, "
        "or uninstall its package"
    )
    with pytest.raises(ModuleNotFoundError):
        plugin.load("genkidama.nowhere:Rule")


def test_a_rule_of_an_installed_plug_in_may_ask_for_losses(quorum: None) -> None:
    settings = {"parent": {"rule": "slope"}, "child": {"exchange": "update"}}
    assert reads_loss(Experiment.from_dict(settings))


def test_a_backend_that_follows_from_the_kind_of_pushes_is_no_value_of_a_setting() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Experiment.from_dict({"child": {"backend": "experience"}}, source="x")
    assert str(caught.value) == (
        "x: child.backend = 'experience': expected one of 'hogwild', 'ga3c', or an import string "
        "'module:Name'"
    )


def test_installed_plug_ins_are_looked_up_only_if_something_asks_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reads_metadata() -> Any:
        raise AssertionError

    monkeypatch.setattr(plugin, "_installed", reads_metadata)
    Experiment.from_dict({"parent": {"rule": "experience"}, "algorithm": {"name": "a3c"}})
    assert plugin.find("rules", "mine:Rule") is None
    assert plugin.home("rules", "mine:Rule") == plugin.home("rules", "blend") == ""


def test_tables_of_plug_ins_are_fields_like_others() -> None:
    experiment = Experiment.from_dict({"replay": {"steps": 500}})
    more = msgspec.structs.replace(
        experiment, replay=msgspec.structs.replace(experiment.replay, steps=600)
    )
    assert (experiment.replay.steps, more.replay.steps, more.search) == (500, 600, None)
    assert pickle.loads(pickle.dumps(more)) == more
    with pytest.raises(ConfigurationError):
        Experiment(replay=3)


#: Runs code as if plug-ins were deleted, whose names come first.
WITHOUT = """
import pathlib, sys
gone, found = sys.argv[1].split(), pathlib.Path.glob
pathlib.Path.glob = lambda *of: (each for each in found(*of) if each.parent.name not in gone)
for name in gone:
    sys.modules["genkidama.plugins." + name] = None
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError
from genkidama.protocol.messages import Hello, Welcome
from genkidama.server.parameter_server import ParameterServer
from genkidama.protocol.session import Session
session = Session("a", "w", parent="ws://parent")
server = ParameterServer(Experiment.from_dict({}))
hello = session.hello()
print(session.receive(hello, server.handle("a", hello, 0.0)).experiment.pushes)
for settings in eval(sys.argv[2]):
    try:
        print(Experiment.from_dict(settings, source="x"))
    except ConfigurationError as error:
        print(error)
"""


def test_without_its_folder_a_plug_ins_settings_are_refused_in_one_line() -> None:
    settings = [
        {"search": {}},
        {"replay": {"steps": 3}},
        {"ga3c": {}},
        {"child": {"backend": "ga3c"}},
        {"child": {"roles": ["act"]}},
        {"algorithm": {"name": "dqn"}},
        {"parent": {"rule": "experience"}},
        {"parent": {"push_limit": 2.0}},
    ]
    names = "hypertrick gorila ga3c actors robust"
    found = python("-c", WITHOUT, names, repr(settings))
    assert found.stderr == ""
    again = "which is not there; take the table out, or install Genkidama anew"
    strings = "or an import string 'module:Name'"
    assert found.stdout.splitlines() == [
        "weights",
        f"x: [search]: is of the plug-in 'hypertrick', {again}",
        f"x: [replay]: is of the plug-in 'gorila', {again}",
        f"x: [ga3c]: is of the plug-in 'ga3c', {again}",
        f"x: child.backend = 'ga3c': expected one of 'hogwild', {strings}",
        "x: child.roles = ['act']: a replay for all children is of the plug-in 'gorila', which is "
        "not there; take the setting out",
        f"x: algorithm.name = 'dqn': expected one of 'a3c', 'ppo', {strings}",
        "x: parent.rule = 'experience': expected one of 'blend', 'weighted', 'difference', "
        f"'gradient', {strings}",
        "x: parent.push_limit = 2.0: is of the plug-in 'robust', which is not there; take the "
        "setting out, or install Genkidama anew",
    ]
