"""Requirements and versions, beside what `packaging` says of them."""

from __future__ import annotations

import doctest

import pytest

from genkidama.doctor.judgements import versions
from genkidama.doctor.judgements.versions import Requirement, parse_requirement, version_allowed

TORCH = "!=2.10.*,<3,>=2.6"


def test_the_examples_are_true() -> None:
    assert doctest.testmod(versions).failed == 0


@pytest.mark.parametrize(
    ("line", "requirement"),
    [
        ("gymnasium>=1.0", Requirement("gymnasium", ">=1.0", "")),
        ("torch!=2.10.*,<3,>=2.6", Requirement("torch", TORCH, "")),
        ("torch (>= 2.6, <3)", Requirement("torch", ">=2.6,<3", "")),
        (
            "psycopg[binary]>=3.1; extra == 'postgresql'",
            Requirement("psycopg", ">=3.1", "extra == 'postgresql'"),
        ),
        ("tomli-w", Requirement("tomli-w", "", "")),
        (
            "thing @ https://example.org/thing.whl",
            Requirement("thing", "@https://example.org/thing.whl", ""),
        ),
    ],
)
def test_requirement(line: str, requirement: Requirement) -> None:
    assert parse_requirement(line) == requirement


VERSIONS = (
    "1.0",
    "2.4.0",
    "2.5.1",
    "2.6.0",
    "2.9.1+cpu",
    "2.10.0",
    "2.10.1",
    "2.11.0",
    "2.100.0",
    "3.0",
    "3",
)


@pytest.mark.parametrize(
    "specifiers",
    [
        TORCH,
        ">=16,<18",
        "==2.9.*",
        "==2.10.1",
        "!=3.0",
        "~=2.5",
        "~=2.4.0",
        ">2.5.1",
        "<=2.10",
        "",
        "===2.6.0",
        ">=2.6, <3.0",
    ],
)
def test_versions_as_packaging_has_it(specifiers: str) -> None:
    packaging = pytest.importorskip("packaging.specifiers")
    judge = packaging.SpecifierSet(specifiers)
    found = {version: version_allowed(version, specifiers.replace(" ", "")) for version in VERSIONS}
    assert found == {version: judge.contains(version) for version in VERSIONS}
