"""The reference of all settings, from the structs that check them."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec.structs import FieldInfo, fields

from genkidama.config.experiment import Experiment
from genkidama.config.role import Role
from genkidama.plugins.hypertrick.settings import SearchSettings

#: What a number counts, by the end of its setting's name; the first that fits holds.
UNITS = {
    "bytes_per_second": "bytes a second",
    "pushes_per_second": "messages a second",
    "seconds": "seconds",
    "history_every": "exchanges",
    "stop.updates": "exchanges",
    "checkpoint_updates": "exchanges",
    "updates": "updates",
    "versions": "versions",
    "episodes": "episodes",
    "stop.window": "episodes",
    "steps": "steps",
    "batch_size": "steps",
    "minibatch_size": "steps",
    "training_batch": "steps",
    "prediction_batch": "observations",
    "solved": "return",
    "mean_return": "return",
    "clip_rewards": "scaled reward",
    "lanes": "environments",
    "environments": "environments",
    "checkpoint_keep": "checkpoints",
    "max_children": "children",
    "push_window": "children",
    "max_per_address": "connections",
    "quarantine_after": "pushes",
    "max_parameters": "numbers",
    "hidden": "units",
    "cores": "processes",
    "agents": "processes",
    "predictors": "threads",
    "trainers": "threads",
    "rollouts": "rollouts",
    "trials": "trials",
    "cohort": "trials",
    "phases": "phases",
    "retries": "times",
    "epochs": "times",
}

_PLAIN = {
    str: "text",
    bool: "true or false",
    int: "whole number",
    float: "number",
    dict: "table",
    tuple: "list",
}


def sections() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The sections of an experiment in their order, the top level first and without a name."""
    yield "", Experiment
    for field in fields(Experiment):
        if isinstance(field.default, msgspec.Struct):
            yield field.name, type(field.default)
    yield "search", SearchSettings


def texts(kind: type) -> dict[str, str]:
    """The text below each field that has one, and that of the class under the name `""`.

    Any whitespace in a text is a single space here.
    """
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {"": " ".join((ast.get_docstring(tree) or "").split())}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def page() -> str:
    """The page's text below its heading, in Markdown."""
    parts = [_section(name, kind) for name, kind in sections()]
    return "\n".join([*parts, "## `child.toml`\n", _table("", Role)])


def _section(name: str, kind: type[msgspec.Struct]) -> str:
    title = f"`[{name}]`" if name else "Top level"
    about = texts(kind)[""].partition(": ")[2]
    about = about[:1].upper() + about[1:] + "\n\n" if name else ""
    return f"## {title}\n\n{about}{_table(name, kind)}"


def _table(section: str, kind: type[msgspec.Struct]) -> str:
    written = texts(kind)
    rows = ["| setting | default | |", "|---|---|---|"]
    for field in fields(kind):
        if isinstance(field.default, msgspec.Struct) or field.name in ("search", "plugins"):
            continue
        key = f"{section}.{field.name}".lstrip(".")
        said = written.get(field.name, "").replace("|", "\\|")
        allowed = "; ".join(filter(None, (_type(field.type), _unit(key, field.type))))
        rows.append(f"| `{key}` | {_default(field)} | {said}<br>*Allowed:* {allowed}. |")
    return "\n".join([*rows, ""])


def _default(field: FieldInfo) -> str:
    if field.default is None:
        return "off"
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"`{_toml(default)}`"


def _toml(value: Any) -> str:
    """A value as an experiment's file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value)


def _type(kind: Any) -> str:
    """What is allowed, in words."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        return ", or ".join(map(_type, parts))
    if origin is Literal:
        return ", ".join(f"`{_toml(one)}`" for one in typing.get_args(kind))
    if origin is typing.Annotated:
        plain, *metas = typing.get_args(kind)
        for meta in metas:
            if meta.extra:
                return str(meta.extra["expected"]).replace("'", "`").replace("|", "\\|")
        limits = [_limits(meta) for meta in metas]
        return ", ".join(filter(None, (_type(plain), *limits)))
    if origin is tuple:
        inner = list(dict.fromkeys(map(_type, _items(kind))))
        return f"list: {' · '.join(inner)}"
    return _PLAIN.get(origin or kind, "table")


def _items(kind: Any) -> list[Any]:
    return [item for item in typing.get_args(kind) if item is not ...]


def _limits(meta: msgspec.Meta) -> str:
    """A range as one reads it; 1e30 bounds nothing but infinity."""
    words = []
    if meta.gt is not None:
        words.append(f"above {meta.gt:g}")
    if meta.ge is not None and meta.ge > -1e30:
        words.append(f"at least {meta.ge:g}")
    if meta.lt is not None:
        words.append(f"below {meta.lt:,}")
    if meta.le is not None and meta.le < 1e30:
        words.append(f"at most {meta.le:g}")
    return ", ".join(words)


def _unit(key: str, kind: Any) -> str:
    if not any(word in str(kind) for word in ("int", "float")) or "bool" in str(kind):
        return ""
    return next((unit for end, unit in UNITS.items() if key.endswith(end)), "")
