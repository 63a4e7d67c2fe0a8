"""Import strings: their grammar, and the list of those that may be imported. Pure.

An experiment comes from the parent, or from a checkpoint or a run directory that somebody else has
written, and names code by import strings. The code is on this disk, but with arbitrary arguments
`subprocess:Popen` would amount to a shell. So only modules of Genkidama and Gymnasium are imported,
and those that the user has put on a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from genkidama.config.plugin import names
from genkidama.errors import ConfigurationError

_NAME = r"[^\W\d]\w*"
_MODULE = rf"{_NAME}(?:\.{_NAME})*"
_ID = r"(?:[\w-]+/)?[\w.-]+"

#: A regular expression of an import string `"package.module:Name"`; the whole of it must match.
IMPORT = rf"{_MODULE}:{_NAME}"

#: The same of `environment.id`: an id of Gymnasium's, one in a module that registers it, one of
#: a plug-in's, or an import string.
ENVIRONMENT = rf"(?:{_MODULE}:)?{_ID}"

#: Gymnasium's door to environments of the old Gym: an option names any import.
_OLD_GYM = r"GymV\d+Environment"

_PARTS = re.compile(rf"({_MODULE}):({_ID})")

#: On the list, it means every module.
ANYTHING = "*"

#: Sections that a child does not follow, and keys whose values are no import strings.
_NOT_THE_CHILDS = ("parent", "search", "stop")
_OTHERS = {"options", "device"}

#: The option whose value highway-env imports, as `"package.module.Class"`.
_IMPORTED_OPTION = "other_vehicles_type"


class ImportString(NamedTuple):
    """A module, and what is meant in it."""

    module: str
    #: Its attribute, or an id of Gymnasium's that it registers, as `"Name-v0"`.
    name: str


def import_string(text: str) -> ImportString | None:
    """The parts of `"package.module:Name"` or of Gymnasium's `"package.module:Name-v0"`.

    Whatever imports what a setting names takes it apart by this function, so that nothing else is
    imported than what `check_imports` has seen. None for any other text, as one with a blank or a
    second colon.
    """
    parts = _PARTS.fullmatch(text)
    return None if parts is None else ImportString(*parts.groups())


def prefix_of(environment: str) -> str:
    """The prefix of an id if a plug-in makes such environments, as `"envpool"`; else empty."""
    named = import_string(environment)
    return named.module if named and named.module in names("environments", installed=True) else ""


def imports(settings: dict[str, Any], whole: bool = False) -> dict[str, tuple[str, str]]:
    """Modules that a child imports for an experiment, beside Genkidama, if no plug-in has them.

    By setting, as `"environment.wrappers[0].name"`: its value and the module. The whole has what
    the parent imports, too.
    """
    found: dict[str, tuple[str, str]] = {}

    def look(key: str, value: Any, other: bool = False) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                within = other or bool(_OTHERS.intersection(name.split(".")))
                look(f"{key}.{name}" if key else name, inner, within)
        elif isinstance(value, list | tuple):
            for position, inner in enumerate(value):
                look(f"{key}[{position}]", inner, other)
        elif isinstance(value, str) and other:
            if _IMPORTED_OPTION in key and not value.startswith("highway_env."):
                found[key] = (value, value.rpartition(".")[0])
        elif isinstance(value, str):
            of_environment = "environment.id" in key
            if of_environment and re.match(_OLD_GYM, value):
                found[key] = (value, "shimmy")
            elif (named := import_string(value)) is not None:
                found[key] = (value, named.module)

    look("", {name: section for name, section in settings.items() if name not in _NOT_THE_CHILDS})
    if whole:
        look("parent.rule", settings.get("parent", {}).get("rule"))
        search = settings.get("search") or {}
        look("search.sampler", search.get("sampler"))
        look("search.space", search.get("space"))
    return found


def modules(settings: dict[str, Any]) -> tuple[str, ...]:
    """The modules of the user's own that an experiment names, sorted."""
    named = imports(settings, whole=True).items()
    found = {module for key, (value, module) in named if not _is_of_a_plugin(key, value)}
    return tuple(sorted(found))


def _is_of_a_plugin(key: str, value: str) -> bool:
    """True for an environment of a plug-in, which needs no place on a list.

    Finding that out imports the installed plug-ins.
    """
    return "environment.id" in key and bool(prefix_of(value))


def allowing(allowed: Iterable[str]) -> str:
    """The options of a command with which these may be imported: `" --allow mine"`, or nothing."""
    return "".join(f" --allow {module}" for module in allowed)


def check_imports(
    settings: dict[str, Any],
    allowed: Iterable[str],
    source: str = "",
    named: Iterable[str] = (),
    whole: bool = False,
) -> None:
    """Checks that all may be imported that an experiment names.

    An allowed module allows those below it, too. The `named` keys, which the user has set, may
    import anything. The source is the file of the settings; empty for a child, whose parent has
    sent them.
    """
    known = tuple(allowed)
    if ANYTHING in known:
        return
    for key, (value, module) in imports(settings, whole).items():
        if key in named or any(module == name or module.startswith(f"{name}.") for name in known):
            continue
        if _is_of_a_plugin(key, value):
            continue
        if source:
            raise ConfigurationError(
                f"{source}: {key} = {value!r}: a file may not have {module!r} imported; "
                f'if that is your own: --allow {module}, in Python allow=["{module}"]'
            )
        raise ConfigurationError(
            f"{key} = {value!r}: this child may not import {module!r}; if that is your own, "
            f'put it on the child\'s list: allow = ["{module}"], or --allow {module}'
        )
