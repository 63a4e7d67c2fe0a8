"""The user's program, as imported by the processes that we start.

A script that trains needs no guard. Our processes import it under its own name, as multiprocessing
does; where it would begin a run, its import ends, and all definitions above that line are kept:
they equal those of the script when it began the run. Anywhere else in a process of ours no run
may begin, not even through a program that it starts: a run within a run would never end.

A notebook has no file. The definitions of its cells, with all that they need, are written to a
module in the run directory.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import symtable
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from genkidama.config.allowlist import import_string
from genkidama.config.decoding import name_of_script
from genkidama.config.experiment import Experiment
from genkidama.errors import ConfigurationError

#: The environment variable of each process that we start, and of all that it starts: the script's
#: module, folders to import from, and its arguments, as JSON; no module is "".
MARK = "GENKIDAMA_SCRIPT"

#: Its value in a process of ours.
_inherited = os.environ.get(MARK, "")

_GUARD = 'if __name__ == "__main__":'

#: Processes of ours that are there to be a parent or a child.
_OWN = ("genkidama.parent.__main__", "genkidama.child.__main__")


class _Begins(BaseException):
    """A module would begin a run while it is imported. No `except Exception` of it stops this."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} trains while it is imported; put that under `{_GUARD}`")
        #: As far as it has come: the import system forgets a module that ends by an exception.
        self.module = sys.modules.get(name)


class _Imports(threading.local):
    """The user's modules that this thread is importing."""

    name = ""


_imports = _Imports()

#: Modules of which this process has the definitions above the line that trains.
_cut: set[str] = set()

#: Where modules with a notebook's source have been written.
_notebooks: list[str] = []


def mark() -> dict[str, str]:
    """The environment variable of a process that we start."""
    if MARK in os.environ:
        return {MARK: os.environ[MARK]}
    name, folders = name_of_script(), list(_notebooks)
    main = sys.modules["__main__"]
    if name and getattr(main, "__spec__", None) is None:
        path = Path(main.__file__ or "").absolute()
        if path.is_relative_to(sysconfig.get_path("purelib")):  # a program of Ray's, for instance
            name = ""
        else:
            folders.append(str(path.parent))
    return {MARK: json.dumps([name, folders, *(sys.argv if name else [])])}


def inherit() -> None:
    """Has this process, which a forkserver has forked, be one of ours, as its environment says."""
    global _inherited
    _inherited = os.environ.get(MARK, "")


def begin(what: str) -> None:
    """To be called before anything begins that starts processes, by its name, as `"train"`.

    A process of a run may not begin another.
    """
    if _imports.name:
        raise _Begins(_imports.name)
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if _inherited and getattr(spec, "name", "") not in _OWN:
        raise ConfigurationError(
            f"{what}: would begin within a process of another run; if a module does that when it "
            f"is imported, put it under `{_GUARD}`"
        )


def import_module(name: str) -> ModuleType:
    """Imports a module of the user's, up to where it would begin a run.

    In the script itself that is the script, which is not run again.
    """
    if name == name_of_script():
        sys.modules.setdefault(name, sys.modules["__main__"])
    script, folders, *arguments = json.loads(_inherited or '["", []]')
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    if name == script and name not in sys.modules:
        sys.argv, sys.stdin = arguments, open(os.devnull, encoding="utf-8")  # noqa: SIM115
    before, _imports.name = _imports.name, name
    try:
        return importlib.import_module(name)
    except _Begins as end:
        if end.module is None:
            raise ConfigurationError(str(end)) from None
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, end.module)
        sys.modules[name] = end.module
        _cut.add(name)
        return end.module
    finally:
        _imports.name = before


def where(module: ModuleType) -> str:
    """A hint for a name that a half-imported module lacks."""
    if module.__name__ not in _cut:
        return ""
    return f" above the line that trains; move it there, or put that line under `{_GUARD}`"


def cells() -> list[str]:
    """The source of what has been run in this notebook or IPython; empty in any other program."""
    main = sys.modules["__main__"]
    return list(getattr(main, "In", [])) if hasattr(main, "get_ipython") else []


def with_notebook(experiment: Experiment, directory: Path) -> Experiment:
    """The experiment, with import strings that other processes understand for `"__main__:Name"`.

    If there are any, their module is written to the directory.
    """
    module = "notebook_" + "".join(
        c if c.isascii() and c.isalnum() else "_" for c in directory.name
    )
    names: list[str] = []

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: v if k == "options" else renamed(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [renamed(inner) for inner in value]
        named = import_string(value) if isinstance(value, str) else None
        if named is not None and named.module == "__main__":
            names.append(named.name)
            return f"{module}:{named.name}"
        return value

    folder = str(directory.absolute())
    others = [Path(other) for other in _notebooks if other != folder]
    while any((other / f"{module}.py").exists() for other in others):
        module += "_"  # another run's directory has this name, too
    settings = renamed(experiment.to_dict())
    if not names or not cells():
        return experiment
    (directory / f"{module}.py").write_text(source_of(names, cells()), encoding="utf-8")
    if folder not in _notebooks:
        _notebooks.append(folder)
        sys.path.append(folder)
    sys.modules.pop(module, None)  # another run's
    importlib.invalidate_caches()
    return Experiment.from_dict(settings)


#: Statements after which an earlier meaning of a name that they do not use no longer counts.
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def source_of(names: Iterable[str], sources: Iterable[str]) -> str:
    """The statements of these sources that define these names and all that they need, in order.

    Of several definitions the last one counts and, if that is below a user of the name, also the
    one that it had.
    """
    statements: list[ast.stmt] = []
    #: By name: the statements of each of its meanings, one after the other.
    by_name: dict[str, list[list[int]]] = {}
    for source in sources:
        try:
            statements += ast.parse(source).body
        except SyntaxError:  # it did not run either
            continue
    for number, statement in enumerate(statements):
        for name in _bound(statement):
            meanings = by_name.setdefault(name, [[]])
            before = meanings[-1]
            if name == "*":  # of which no symbol table knows
                before.append(number)
                continue
            symbol = symtable.symtable(ast.unparse(statement), "cell", "exec").lookup(name)
            if isinstance(statement, _DEFINITIONS) and not symbol.is_referenced():
                meanings.append(before := [])
            imported = before and isinstance(statements[before[0]], ast.Import | ast.ImportFrom)
            if imported and not (symbol.is_assigned() or symbol.is_imported()):
                continue  # as os.environ["TOKEN"] = "…", which is not to be written down
            before.append(number)
    found = {number for number, each in enumerate(statements) if _is_of_the_future(each)}
    wanted = [(name, len(statements)) for name in ("*", *names)]
    while wanted:
        name, user = wanted.pop()
        meanings = [each for each in by_name.get(name, []) if each]
        had = [each for each in meanings if each[0] < user]
        for number in {*chain.from_iterable(meanings[-1:] + had[-1:])}:
            if number not in found:
                found.add(number)
                source = ast.unparse(statements[number])
                for each in _needed(symtable.symtable(source, "cell", "exec")):
                    # A meaning that begins here, as a class that names itself, is its own.
                    if not any(begun[:1] == [number] for begun in by_name.get(each, [])):
                        wanted.append((each, number))
    ordered = sorted(found, key=lambda number: (not _is_of_the_future(statements[number]), number))
    return "\n\n".join(ast.unparse(statements[number]) for number in ordered) + "\n"


def _is_of_the_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _needed(scope: symtable.SymbolTable) -> Iterator[str]:
    """The global names that a statement uses, also in its functions' bodies."""
    for symbol in scope.get_symbols():
        if symbol.is_global() or (scope.get_type() == "module" and symbol.is_referenced()):
            yield symbol.get_name()
    for inner in scope.get_children():
        yield from _needed(inner)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement on the top level defines or, as in `LIMITS["a"] = 1`, changes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.If | ast.Try | ast.With):
        for inner in ast.iter_child_nodes(statement):
            if isinstance(inner, ast.stmt):
                yield from _bound(inner)
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for node in (node for target in targets for node in ast.walk(target)):
            if isinstance(getattr(node, "ctx", None), ast.Store):
                while isinstance(node, ast.Subscript | ast.Attribute):
                    node = node.value
                if isinstance(node, ast.Name):
                    yield node.id
