"""The house: what `docs/design.md` says of the package, checked module by module.

Who may import whom is in pyproject.toml's import contracts, the width of lines among ruff's rules.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from docs.pictures.house import PICTURE, picture
from tests.helpers import ROOT

PACKAGE = ROOT / "genkidama"
MODULES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))

NAMES = 2

#: A docstring begins with a noun or a verb.
NOUN_CLAUSES = ("What", "Which", "How", "Who", "Where", "When", "Whether", "Why")

#: Modules of the same name whose folders say which one is meant, as `a3c/engine.py`.
TOLD_BY_FOLDER = {
    "__init__",
    "__main__",
    "backend",
    "engine",
    "learner",
    "rule",
    "settings",
    "status",
}

#: Classes of the same name: a section of an experiment, and the thing that it configures.
TOLD_BY_ROLE = {"Network", "Optimizer"}


def text(module: str) -> str:
    return (PACKAGE / module).read_text(encoding="utf-8")


@cache
def statements(module: str) -> list[ast.AST]:
    """All statements of a module, the module itself first."""
    found: list[ast.AST] = [ast.parse(text(module))]
    for node in found:  # which grows
        for block in ("body", "handlers", "orelse", "finalbody", "cases"):
            found += getattr(node, block, ())
    return found


def given_at_once(statement: ast.Assign) -> int:
    """How many names get a value each; taking one apart, `a, b, c = row`, is one assignment."""
    if not isinstance(statement.value, ast.Tuple):
        return len(statement.targets)
    targets = [node for target in statement.targets for node in ast.walk(target)]
    names = (ast.Name, ast.Attribute, ast.Subscript)
    return sum(isinstance(node, names) and isinstance(node.ctx, ast.Store) for node in targets)


def listed(lines: Iterable[str]) -> str:
    """One line for each, for a failure that shows them all."""
    return "".join(f"\n  {line}" for line in lines)


def twice(places: dict[str, list[str]]) -> list[str]:
    return [f"{name}: {', '.join(where)}" for name, where in places.items() if len(where) > 1]


def test_a_statement_assigns_two_names_at_most() -> None:
    crowded = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module in MODULES
        for node in statements(module)
        if isinstance(node, ast.Assign) and given_at_once(node) > NAMES
    ]
    assert not crowded, listed(crowded)


def test_the_root_holds_four_files_and_ten_folders() -> None:
    files = {path.name for path in PACKAGE.glob("*.py")}
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert files == {"__init__.py", "__main__.py", "_version.py", "errors.py"}
    assert len(folders) == 10


def test_only_the_package_itself_lists_its_names() -> None:
    assert [module for module in MODULES if "\n__all__ = " in text(module)] == ["__init__.py"]


def test_what_is_measured_or_built_imports_no_tests_and_no_benchmark_a_study() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for folder in ("benchmarks", "docs", "examples", "genkidama", "studies")
        for path in (ROOT / folder).rglob("*.py")
        if ".venv" not in path.parts
        for line in re.findall(
            rf"^ *(?:from|import) (?:tests{'|studies' * (folder != 'studies')})\b.*",
            path.read_text("utf-8"),
            re.M,
        )
    ]
    assert not found, listed(found)


def test_no_module_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        if (name := module.rpartition("/")[2].removesuffix(".py")) not in TOLD_BY_FOLDER:
            places[name].append(module)
    assert not (found := twice(places)), listed(found)


def test_no_public_class_has_the_name_of_another() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in MODULES:
        for node in ast.iter_child_nodes(statements(module)[0]):
            if isinstance(node, ast.ClassDef) and node.name[0] != "_":
                places[node.name].append(module)
    found = twice({name: where for name, where in places.items() if name not in TOLD_BY_ROLE})
    assert not found, listed(found)


def test_a_docstring_begins_with_a_noun_or_a_verb() -> None:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{module}: {words.splitlines()[0]}"
        for module in MODULES
        for node in statements(module)
        if isinstance(node, kinds)
        and (words := ast.get_docstring(node))
        and words.split()[0].rstrip(",") in NOUN_CLAUSES
    ]
    assert not found, listed(found)


#: An install command, an extra, a version or a wheel of `genkidama`, which on the package index is
#: another project.
BARE_NAME = re.compile(
    r"""genkidama\\?\[[a-z{] | genkidama[=<>~]= | genkidama-(?:\d+\.\d|X\.Y)
    | \b(?:pip3?|pipx|uv\ pip|uv\ tool)\ install\ [^\n]*(?<![\w./-])genkidama(?![\w./-])
    | (?:--from|\buvx)\ ['"]?genkidama(?!-rl)\b""",
    re.VERBOSE,
)


def test_no_install_command_names_another_project() -> None:
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode()
    own = Path(__file__).relative_to(ROOT).as_posix()
    found = [
        f"{name}: {match[0]}"
        for name in files.splitlines()
        if name != own and not name.endswith((".svg", ".png", ".gif")) and (ROOT / name).is_file()
        for line in (ROOT / name).read_bytes().splitlines()
        if b"genkidama" in line
        for match in BARE_NAME.finditer(line.decode("utf-8", "ignore"))
    ]
    assert not found, listed(found)


def test_the_picture_of_the_folders_is_that_of_the_code() -> None:
    if PICTURE.read_text(encoding="utf-8") != picture():
        pytest.fail("docs/pictures/house.svg is stale: run python -m docs.pictures.house")
