"""What a child may be told to import. Pure.

An experiment comes from the parent, and names code by import strings. What is named is on the
child's own disk, but with any arguments `subprocess:Popen` would be as good as a shell. So a child
imports what Genkidama itself brings, and beside that only what its owner has put on a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from genkidama.errors import ConfigurationError

__all__ = ["ANYTHING", "check_imports", "imports"]

#: On the list, it stands for every module.
ANYTHING = "*"

#: Sections that a child does not follow, and keys whose values are no import strings.
_NOT_THE_CHILDS = ("parent", "search", "stop")
_OTHERS = ("options", "device")

#: EnvPool's environments look like imports, but are its own.
_IMPORT = re.compile(r"(?!envpool:)([A-Za-z_][\w.]*):\S")


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
        elif isinstance(value, str) and (named := _IMPORT.match(value)):
            found[key] = (value, named[1])

    look("", {name: section for name, section in settings.items() if name not in _NOT_THE_CHILDS})
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
