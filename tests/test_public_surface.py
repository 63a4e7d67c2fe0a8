"""What other people's programs rely on: names, commands, and what importing costs."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json

import pytest

import genkidama
from genkidama import _version
from tests.helpers import ROOT, python

#: Classes whose methods are documented where their protocol or base is.
IMPLEMENTATIONS = (
    *("CoreOrchestrator", "GA3C"),
    *("ActorCritic", "Convolutional", "A3C", "PPO", "Categorical"),
)


#: Modules and public names, and packages that none needs. One process imports them in this order,
#: so none of them has imported what a later one does not need.
UNNEEDED = {
    "genkidama": "torch gymnasium Box2D websockets numpy asyncio multiprocessing",
    "genkidama.Experiment": "torch gymnasium Box2D websockets asyncio",
    "genkidama.ParameterServer": "torch gymnasium Box2D websockets asyncio",
    "genkidama.CoreOrchestrator": "torch gymnasium Box2D websockets",
    "genkidama.GA3C": "torch gymnasium Box2D websockets",
    "genkidama.train": "torch gymnasium Box2D websockets",
    "genkidama.Child": "torch gymnasium Box2D",
    "genkidama.Parent": "torch gymnasium Box2D",
    # A child that sends experience.
    "genkidama.plugins.actors.backend": "torch",
}

IMPORTS = """
import json, pkgutil, sys
for name, unneeded in json.loads(sys.argv[1]).items():
    pkgutil.resolve_name(name)
    print(name, *set(unneeded.split()) & set(sys.modules))
"""


def test_each_name_imports_what_it_needs_and_no_more() -> None:
    found = python("-c", IMPORTS, json.dumps(UNNEEDED))
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [*UNNEEDED]


@pytest.mark.parametrize("name", [name for name in dir(genkidama) if name != "__version__"])
def test_every_public_name_is_there_and_explained(name: str) -> None:
    thing = getattr(genkidama, name)
    assert inspect.getdoc(thing)
    for method, member in vars(thing).items() if inspect.isclass(thing) else ():
        if (
            inspect.isfunction(member)
            and not method.startswith("_")
            and name not in IMPLEMENTATIONS
        ):
            assert inspect.getdoc(member) or member.__name__ in ("connected",), f"{name}.{method}"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("train", ["experiment", "children", "cores", "out"]),
        ("evaluate", ["target", "episodes", "deterministic", "seed"]),
        ("blend", ["parent", "child", "alpha"]),
        ("Parent", ["experiment", "out", "listen"]),
        ("Child", ["parent", "name", "cores"]),
        ("CoreOrchestrator", ["experiment", "cores", "name"]),
    ],
)
def test_signatures_stay(name: str, parameters: list[str]) -> None:
    found = inspect.signature(getattr(genkidama, name)).parameters
    assert set(parameters) <= set(found)
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in found.values())


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'genkidama' has no attribute 'Worker'"):
        genkidama.Worker  # noqa: B018


def test_the_package_is_typed_and_has_one_version() -> None:
    assert (ROOT / "genkidama" / "py.typed").exists()
    assert genkidama.__version__ == _version.__version__


@pytest.mark.parametrize("module", ["genkidama", "genkidama.parent", "genkidama.child"])
def test_each_command_explains_itself(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"{module}.__main__").main(["--help"])
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    assert out.startswith("usage: ")
    assert "--until-eof" not in out


def test_the_console_command_is_the_module() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts", name="genkidama")
    if not scripts:
        pytest.skip("the package is not installed")
    from genkidama.__main__ import main

    assert [script.load() for script in scripts] == [main]
