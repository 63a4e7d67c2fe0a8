"""Requirements and versions, as packages write them.

The package `packaging` would read them, but the doctor must stand alone: it is asked where packages
are missing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Requirement", "parse_requirement", "release", "version_allowed"]


class Requirement(NamedTuple):
    """A line of a package's requirements."""

    name: str
    #: As `">=2.6,!=2.10.*,<3"`, without spaces.
    specifiers: str
    #: The condition behind the semicolon; empty if there is none.
    marker: str


def parse_requirement(line: str) -> Requirement:
    """A requirement as `importlib.metadata.requires` gives it.

    >>> parse_requirement("torch!=2.10.*,<3,>=2.6; extra == 'x'")
    Requirement(name='torch', specifiers='!=2.10.*,<3,>=2.6', marker="extra == 'x'")
    """
    head, _, marker = line.partition(";")
    found = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?([^()]*)\)?\s*\Z", head)
    if found is None:
        return Requirement(head.strip(), "", marker.strip())
    return Requirement(found[1], re.sub(r"\s", "", found[2]), marker.strip())


def version_allowed(version: str, specifiers: str) -> bool:
    """Whether a requirement allows a version.

    Only the numbers before letters and `+` are compared: 2.6.0a1 and 2.6.0+cpu count as 2.6.0.

    >>> version_allowed("2.10.0+cpu", ">=2.6,!=2.10.*,<3")
    False
    """
    return all(
        _holds(release(version), specifier) for specifier in specifiers.split(",") if specifier
    )


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with; none if it begins with something else.

    >>> release("2.36-9+deb12u4")
    (2, 36)
    """
    found = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in found[1].split(".")) if found else ()


def _holds(version: tuple[int, ...], specifier: str) -> bool:
    found = re.match(r"(~=|===?|!=|<=|>=|<|>)(.*)\Z", specifier)
    if found is None:
        return True
    operator, text = found[1], found[2]
    other = release(text)
    if text.endswith(".*"):
        same = _padded(version, len(other))[: len(other)] == other
        return same if operator == "==" else not same
    length = max(len(version), len(other))
    ours, theirs = _padded(version, length), _padded(other, length)
    if operator == "~=":
        return ours >= theirs and ours[: len(other) - 1] == theirs[: len(other) - 1]
    return {
        "==": ours == theirs,
        "===": ours == theirs,
        "!=": ours != theirs,
        "<=": ours <= theirs,
        ">=": ours >= theirs,
        "<": ours < theirs,
        ">": ours > theirs,
    }[operator]


def _padded(version: tuple[int, ...], length: int) -> tuple[int, ...]:
    return version + (0,) * (length - len(version))
