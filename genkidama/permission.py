"""Import strings: the one grammar of them, and which of them may be followed. Pure.

An experiment comes from the parent, and names code by import strings. What is named is on the
child's own disk, but with any arguments `subprocess:Popen` would be as good as a shell. So a child
imports what Genkidama itself brings, and beside that only what its owner has put on a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from genkidama.errors import ConfigurationError

__all__ = [
    "ANYTHING",
    "ENVIRONMENT",
    "ENVPOOL",
    "IMPORT",
    "ImportString",
    "check_imports",
    "import_string",
    "imports",
]

#: What stands before the id of an environment of EnvPool's, in `environment.id` only.
ENVPOOL = "envpool:"

_NAME = r"[^\W\d]\w*"
_MODULE = rf"{_NAME}(?:\.{_NAME})*"
_ID = r"(?:[\w-]+/)?[\w.-]+"

#: A regular expression of an import string `"package.module:Name"`; the whole of it must match.
IMPORT = rf"{_MODULE}:{_NAME}"

#: The same of `environment.id`: an id of Gymnasium's, one in a module that registers it, one of
#: EnvPool's, or an import string.
ENVIRONMENT = rf"(?:{_MODULE}:)?{_ID}"

#: Gymnasium's door to environments of the old Gym: an option names any import.
_OLD_GYM = r"GymV\d+Environment"

_PARTS = re.compile(rf"({_MODULE}):({_ID})")

#: On the list, it stands for every module.
ANYTHING = "*"

#: Sections that a child does not follow, and keys whose values are no import strings.
_NOT_THE_CHILDS = ("parent", "search", "stop")
_OTHERS = ("options", "device")


class ImportString(NamedTuple):
    """A module, and what is meant in it."""

    module: str
    #: Its attribute, or an id of Gymnasium's that it registers, as `"Name-v0"`.
    name: str


def import_string(text: str) -> ImportString | None:
    """The parts of `"package.module:Name"` or of Gymnasium's `"package.module:Name-v0"`.

    Whatever imports what a setting names takes it apart by this function, so that nothing else is
    imported than what `check_imports` has seen.

    Returns:
        None for any other text, as one with a blank or a second colon.
    """
    found = _PARTS.fullmatch(text)
    return None if found is None else ImportString(*found.groups())


def imports(settings: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """What a child imports for an experiment, beside Genkidama's own.

    Args:
        settings: the experiment's.

    Returns:
        By setting, as `"environment.wrappers[0].name"`: its value and the module.
    """
    found: dict[str, tuple[str, str]] = {}

    def look(key: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                if name not in _OTHERS:
                    look(f"{key}.{name}" if key else name, inner)
        elif isinstance(value, list | tuple):
            for position, inner in enumerate(value):
                look(f"{key}[{position}]", inner)
        elif isinstance(value, str) and (named := import_string(value)) is not None:
            found[key] = (value, named.module)

    look("", {name: section for name, section in settings.items() if name not in _NOT_THE_CHILDS})
    name = settings.get("environment", {}).get("id", "")
    if name.startswith(ENVPOOL):
        found.pop("environment.id", None)
    elif re.match(_OLD_GYM, name):
        found["environment.id"] = (name, "shimmy")
    return found


def check_imports(settings: dict[str, Any], allowed: Iterable[str]) -> None:
    """Checks that a child may import all that an experiment names.

    Args:
        settings: the experiment's.
        allowed: modules, each of which allows those below it, too; or `ANYTHING`.

    Raises:
        ConfigurationError: a module is not on the list.
    """
    known = tuple(allowed)
    if ANYTHING in known:
        return
    for key, (value, module) in imports(settings).items():
        if not any(module == name or module.startswith(f"{name}.") for name in known):
            raise ConfigurationError(
                f"{key} = {value!r}: this child may not import {module!r}; if that is your own, "
                f'put it on the child\'s list: allow = ["{module}"], or --allow {module}'
            )
