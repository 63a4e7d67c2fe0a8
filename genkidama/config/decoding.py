"""Decoding of plain values, from TOML or the wire, into checked settings, and its errors. Pure.

Unknown keys are errors, and ranges are part of the types. An error names the source, the key as a
user writes it, the value found there, and what is allowed.
"""

from __future__ import annotations

import functools
import operator
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from genkidama.config.allowlist import IMPORT
from genkidama.config.formatting import without_password
from genkidama.errors import ConfigurationError

Meta = msgspec.Meta
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, Meta(gt=0.0, le=1e30)]
NotNegative = Annotated[float, Meta(ge=0.0, le=1e30)]
Finite = Annotated[float, Meta(ge=-1e30, le=1e30)]
Natural = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Device = Annotated[
    str,
    Meta(
        pattern=r"^(auto|cpu|cuda(:\d+)?)\Z",
        extra={"expected": "'auto', 'cpu', 'cuda' or 'cuda:N'"},
    ),
]


def plug(*names: str, more: bool = False) -> msgspec.Meta:
    """Allows a name, or an import string `"package.module:Name"` of the user's code.

    Args:
        names: the names that Genkidama has.
        more: whether plug-ins may add names; `Experiment.from_dict` then looks a name up.
    """
    pattern = "|".join((*(("[a-z][a-z0-9_-]*",) if more else names), IMPORT))
    expected = f"one of {', '.join(map(repr, names))}, or an import string 'module:Name'"
    return Meta(pattern=rf"^({pattern})\Z", extra={"expected": expected})


def check_least(least: float = 1, **values: float | None) -> None:
    """Checks arguments that a user has given as numbers; None is not checked.

    Raises:
        ConfigurationError: one of them is less than `least`.
    """
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigurationError(f"{name} = {value:g}: at least {least:g} is needed")


NAME = "letters, digits, '.', '_' and '-', a letter or digit first"


class _Kind(msgspec.StructMeta):
    """A type of sections, which explains a keyword argument that it does not have."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        try:
            return super().__call__(*arguments, **settings)
        except TypeError:
            if not (unknown := settings.keys() - _sections(self).keys()):
                raise
            name = next(name for name in settings if name in unknown)
            # The sections of the core: classes that a program may make.
            kinds = [k for k in Section.__subclasses__() if k.__module__.startswith("genkidama.")]
            keys = {f"{kind.__name__}.{key}" for kind in kinds for key in _sections(kind)}
            raise ConfigurationError(
                f"{self.__name__}: {name} = {settings[name]!r}: no such setting; "
                + _nearest(name, self, sorted(keys))
            ) from None


class Section(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, metaclass=_Kind
):
    """The base of all sections: frozen, and unknown keys are errors.

    Raises:
        ConfigurationError: a value has the wrong type or is outside its range.
    """

    #: Whether an experiment without this table has None there, rather than the defaults.
    optional: ClassVar[bool] = False

    def __post_init__(self) -> None:
        kind = type(self)
        values = {name: getattr(self, name) for name in kind.__struct_fields__}
        try:
            checked = msgspec.convert(values, _plain(kind))
        except msgspec.ValidationError as error:
            name = str(error).partition(" - at `$.")[2].partition("`")[0]
            name = re.split(r"[.\[]", name)[0]
            if (named := _named(value := values[name])) is not value:
                msgspec.structs.force_setattr(self, name, named)
                self.__post_init__()
                return
            raise ConfigurationError(
                _explain({name: value}, kind, kind.__name__, str(error))
            ) from None
        for name, value in values.items():
            if (found := getattr(checked, name)) is not value:
                msgspec.structs.force_setattr(self, name, found)


@functools.cache
def _plain(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A struct of the same fields. Msgspec knows it by its identity; of a field's type by itself it
    asks the hash, in Python, where an exception of Ctrl-C or SIGTERM would be lost."""
    fields = msgspec.structs.fields(kind)
    return msgspec.defstruct(kind.__name__, [(field.name, field.type) for field in fields])


_Settings = TypeVar("_Settings", bound=Section)

#: Tables and lists in each other; Python's own functions fail at some hundreds.
_DEEPEST = 64


def convert(settings: dict[str, Any], kind: type[_Settings], source: str) -> _Settings:
    """Makes a section of plain values.

    Args:
        source: where they come from, as an error names it.

    Raises:
        ConfigurationError: a key, a type or a range is wrong.
    """
    if _depth(settings) > _DEEPEST:
        raise ConfigurationError(f"{source}: not settings: it is nested too deeply")
    try:
        return msgspec.convert(settings, kind)
    except msgspec.ValidationError as error:
        if (named := _named(settings)) is not settings:
            return convert(named, kind, source)
        raise ConfigurationError(_explain(settings, kind, source, str(error))) from None


def _depth(settings: dict[str, Any]) -> int:
    """Levels of tables and lists in each other, at most one more than are allowed."""
    level: list[Any] = [settings]
    depth = 0
    while level and depth <= _DEEPEST:
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [one for each in inner for one in each if isinstance(one, dict | list | tuple)]
        depth += bool(level)
    return depth


def _explain(settings: dict[str, Any], kind: type[Any], source: str, error: str) -> str:
    """msgspec's words, with the key as a user writes it, the value found and the known keys."""
    problem, _, place = error.partition(" - at `")
    keys = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", place)
    value: Any = settings
    owner: Any = kind
    path = ""
    for name, position in keys:
        path += f".{name}" if name else f"[{position}]"
        try:
            value = value[name] if name else value[int(position)]
        except (KeyError, IndexError, TypeError, ValueError):
            value = None
        owner = _sections(owner).get(name) if name else None
    path = path.lstrip(".")
    unknown = re.match(r"Object contains unknown field `(.*)`", problem, re.DOTALL)
    if unknown:
        # TOML allows a line break in a quoted key.
        name = unknown[1] if unknown[1].isprintable() else ascii(unknown[1])
        full = f"{path}.{name}" if path else name
        given = value.get(unknown[1]) if isinstance(value, dict) else None
        hint = _nearest(unknown[1], owner or kind, list(_keys(kind)))
        return f"{source}: {full} = {given!r}: no such setting; {hint}"
    if hasattr(value, "__qualname__") and "__module__" in dir(value):  # `_named` could not name it
        way = "define it at the top of a module, as a class or by def"
        return f"{source}: {path} = {value.__name__}: no other process can import it; {way}"
    if isinstance(value, str):
        value = without_password(value)
    return f"{source}: {path or 'top level'} = {value!r}: {_allowed(problem, kind, keys)}"


#: Settings by the names that other libraries give them.
_ELSEWHERE = {
    "buffer_size": "replay.steps",
    "clip_range": "algorithm.clip",
    "discount": "algorithm.gamma",
    "ent_coef": "algorithm.entropy_coefficient",
    "env": "environment.id",
    "exploration_fraction": "algorithm.epsilon_fraction",
    "learning_starts": "algorithm.start_steps",
    "lr": "optimizer.learning_rate",
    "max_grad_norm": "algorithm.max_gradient_norm",
    "n_envs": "environment.lanes",
    "n_epochs": "algorithm.epochs",
    "net_arch": "network.hidden",
    "num_envs": "environment.lanes",
    "target_update_interval": "algorithm.target_updates",
    "total_timesteps": "stop.steps",
    "vf_coef": "algorithm.value_coefficient",
}


def _nearest(name: str, owner: Any, keys: list[str]) -> str:
    """The setting that is meant by a name which its table, the section `owner`, does not have, or
    all settings of that table. `keys` are all settings, dotted."""
    import difflib  # for a mistake alone

    here = sorted(field.encode_name for field in msgspec.structs.fields(owner))
    last: dict[str, list[str]] = {}
    for key in keys:
        last.setdefault(key.rpartition(".")[2], []).append(key)
    found = last.get(name) or [key for key in keys if key.lower() == _ELSEWHERE.get(name)]
    found = found or difflib.get_close_matches(name, here, 1)
    if not found and (near := difflib.get_close_matches(name, last, 1)):
        found = last[near[0]]
    if found:
        return f"did you mean {' or '.join(map(repr, found))}?"
    return f"known here: {', '.join(here)}"


def _keys(kind: Any, above: str = "") -> Iterator[str]:
    """All settings in the sections of a section, dotted."""
    for name, inner in _sections(kind).items():
        yield f"{above}{name}"
        yield from _keys(inner, f"{above}{name}.")


def name_of_script() -> str:
    """The name by which other processes import the program's own file; empty if none can."""
    import __main__

    if (spec := getattr(__main__, "__spec__", None)) is not None:
        return str(spec.name)  # `python -m` has found it by that name
    file: str = getattr(__main__, "__file__", None) or ""
    name = re.sub(r"\.py\Z", "", file.replace("\\", "/").rpartition("/")[2])
    return name if file.endswith(".py") and name.isidentifier() else ""


def _named(value: Any) -> Any:
    """The same settings, with an import string in place of each class or function."""
    if isinstance(value, dict):
        named = {key: _named(inner) for key, inner in value.items()}
        return value if all(named[key] is inner for key, inner in value.items()) else named
    if isinstance(value, list | tuple):
        parts = [_named(inner) for inner in value]
        return value if all(map(operator.is_, parts, value)) else parts
    name = getattr(value, "__qualname__", None)
    if name is None or not name.isidentifier():
        return value
    module = value.__module__
    if module in ("__main__", "__mp_main__"):  # the latter in a process of multiprocessing's
        module = name_of_script() or module
    return f"{module}:{name}"


def _sections(kind: Any) -> dict[str, Any]:
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return {}
    return {field.encode_name: _section_of(field.type) for field in msgspec.structs.fields(kind)}


def _section_of(kind: Any) -> Any:
    """A section that may be absent, as the section itself."""
    kinds = (part for part in _parts(kind) if isinstance(part, type))
    return next((part for part in kinds if issubclass(part, msgspec.Struct)), kind)


def _allowed(problem: str, kind: Any, keys: list[tuple[str, str]]) -> str:
    """The allowed values in msgspec's words, or by the field's type where those say too little."""
    owner = kind
    for name, _ in keys:
        inside = (*typing.get_args(owner), owner)[0]  # of a list, what it is a list of
        owner = _sections(owner).get(name, owner) if name else inside
    parts = _parts(owner)
    if problem.startswith(
        ("Invalid enum value", "Expected `str` matching regex", "Expected `int | str`")
    ):
        for part in parts:
            if typing.get_origin(part) is Literal:
                number = ", or int >= 1" if Natural in parts else ""
                return f"expected one of {', '.join(map(repr, typing.get_args(part)))}{number}"
            for meta in getattr(part, "__metadata__", ()):
                if meta.extra:
                    return f"expected {meta.extra['expected']}"
    problem = problem.replace(" | null", "").replace("`object`", "a table").replace("`", "")
    return problem[0].lower() + problem[1:]


def _parts(kind: Any) -> tuple[Any, ...]:
    either = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if either else (kind,)


# `--set key=value`: single settings from the command line.

_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")


def parse_setting(text: str) -> tuple[str, object]:
    """`"child.exchange=free"` as `("child.exchange", "free")`.

    The value is read as TOML (`0.5`, `true`, `[64, 64]`, `"free"`). Anything else is taken as a
    string, so that quotes are seldom needed. So is a date, since no setting is a date.

    Raises:
        ConfigurationError: there is no `=`, or no dotted key before it.
    """
    key, equals, value = text.partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not _KEY.match(key):
        raise ConfigurationError(
            f"--set {text}: expected key=value with a dotted key, as in child.exchange=free"
        )
    with suppress(ValueError, RecursionError):
        setting, *more = tomllib.loads(f"value = {value}").values()
        if not more and isinstance(setting, bool | int | float | str | list | dict):
            return key, setting
    return key, value


def parse_settings(texts: Iterable[str]) -> dict[str, object]:
    """All settings, as `Experiment.with_settings` takes them. A repeated key's last one counts."""
    return dict(map(parse_setting, texts))
