"""What other people's programs rely on: names, commands, and what importing costs."""

from __future__ import annotations

import importlib.metadata
import inspect

import pytest

import genkidama
from tests.helpers import ROOT, python

#: Classes whose methods are documented where their protocol or base is.
IMPLEMENTATIONS = (
    *("CoreOrchestrator", "GA3C"),
    *("ActorCritic", "Convolutional", "A3C", "PPO", "Categorical"),
)


def said(code: str) -> str:
    found = python("-c", code)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'websockets', 'gymnasium', 'numpy', 'asyncio', 'multiprocessing'}"
    assert said(f"import sys, genkidama; print(sorted({heavy} & set(sys.modules)))") == "[]"


@pytest.mark.parametrize(
    ("name", "unneeded"),
    [
        ("Parent", "{'torch', 'gymnasium', 'Box2D'}"),
        ("ParameterServer", "{'torch', 'gymnasium', 'websockets', 'asyncio'}"),
        ("Child", "{'torch', 'gymnasium', 'Box2D'}"),
        ("CoreOrchestrator", "{'torch', 'gymnasium', 'websockets'}"),
        ("GA3C", "{'torch', 'gymnasium', 'websockets'}"),
        ("train", "{'torch', 'gymnasium', 'websockets'}"),
        ("Experiment", "{'torch', 'gymnasium', 'websockets', 'asyncio'}"),
    ],
)
def test_each_name_imports_what_it_needs_and_no_more(name: str, unneeded: str) -> None:
    code = f"import sys, genkidama; genkidama.{name}; "
    assert said(f"{code}print(sorted({unneeded} & set(sys.modules)))") == "[]"


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
    assert said("import genkidama; print(genkidama.__version__)") == genkidama.__version__


@pytest.mark.parametrize("module", ["genkidama", "genkidama.parent", "genkidama.child"])
def test_each_command_explains_itself(module: str) -> None:
    found = python("-m", module, "--help")
    assert found.returncode == 0
    assert found.stdout.startswith("usage: ")
    assert found.stderr == ""
    assert "--until-eof" not in found.stdout


def test_the_console_command_is_the_module() -> None:
    scripts = importlib.metadata.entry_points(group="console_scripts", name="genkidama")
    if not scripts:
        pytest.skip("the package is not installed")
    from genkidama.__main__ import main

    assert [script.load() for script in scripts] == [main]


def test_a_child_that_sends_experience_imports_no_torch() -> None:
    code = "import sys, genkidama.plugins.actors.backend; print('torch' in sys.modules)"
    assert said(code) == "False"
