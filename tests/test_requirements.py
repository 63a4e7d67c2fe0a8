"""The pins of what is installed on machines: complete, tested, one version on each platform."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.wheelhouse import Pin, Target, read_pins

ROOT = Path(__file__).resolve().parents[1]
TARGETS = [
    Target(role, machine, python, torch)
    for role, torch in (("parent", False), ("child", False), ("child", True))
    for machine in ("x86_64", "aarch64")
    for python in ("3.11", "3.12", "3.13")
]
EVERYWHERE = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.folder)

#: Not a parent's: `genkidama.parent` imports none of it, which import-linter sees to.
LEARNING = {"torch", "gymnasium", "box2d", "box2d-py"}


def lines_for(target: Target) -> list[Requirement]:
    """All lines that hold for the target, as pip reads them."""
    lines = [line.partition("#")[0] for line in target.requirements.splitlines()]
    found = [Requirement(line) for line in lines if line.strip()]
    return [one for one in found if one.marker is None or one.marker.evaluate(target.environment)]


def dependencies(target: Target) -> list[Requirement]:
    """What pyproject.toml asks for on the target, a parent's searches and a child's lander and
    tensors among it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [*["lander"] * (target.role == "child"), *["torch"] * target.torch]
    asked = [
        Requirement(line)
        for lines in (
            project["dependencies"],
            *(project["optional-dependencies"][extra] for extra in extras),
        )
        for line in lines
    ]
    if target.role == "parent":
        asked += [
            one
            for one in map(Requirement, project["optional-dependencies"]["search"])
            if one.name == "optuna"
        ]
    return [one for one in asked if one.marker is None or one.marker.evaluate(target.environment)]


@EVERYWHERE
def test_a_package_has_exactly_one_version(target: Target) -> None:
    names = [canonicalize_name(line.name) for line in lines_for(target)]
    assert (
        names == list(dict.fromkeys(names))
        and set(names) == read_pins(target.requirements, target).keys()
    )
    assert all(
        [specifier.operator for specifier in line.specifier] == ["=="] for line in lines_for(target)
    )


@EVERYWHERE
def test_the_versions_are_the_tested_ones(target: Target) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {
        canonicalize_name(one.name): one.specifier
        for one in tested
        if one.marker is None or one.marker.evaluate(target.environment)
    }
    assert {line.name: line.specifier for line in lines_for(target)} == {
        line.name: versions[canonicalize_name(line.name)] for line in lines_for(target)
    }


@EVERYWHERE
def test_the_projects_dependencies_are_pinned_within_their_ranges(target: Target) -> None:
    pins = read_pins(target.requirements, target)
    for asked in dependencies(target):
        name = canonicalize_name(asked.name)
        if target.role == "child" or name not in LEARNING:
            assert asked.specifier.contains(pins[name].version), asked


def test_a_parent_learns_nothing() -> None:
    for target in TARGETS:
        if target.role == "parent":
            assert not LEARNING & read_pins(target.requirements, target).keys()


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Machines have Python 3.11 to 3.13.")
@pytest.mark.parametrize(("role", "torch"), [("parent", False), ("child", False), ("child", True)])
def test_what_the_pins_need_is_pinned_and_nothing_else(role: str, torch: bool) -> None:
    """By the metadata of what is installed here; the wheelhouse checks the other platforms'."""
    target = Target(role, platform.machine(), f"3.{sys.version_info.minor}", torch)
    pins = read_pins(target.requirements, target)
    needed = {canonicalize_name(asked.name) for asked in dependencies(target)}
    for pin in pins.values():
        for line in requires(pin.name) or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate(target.environment):
                name = canonicalize_name(need.name)
                assert name in pins and need.specifier.contains(pins[name].version), (
                    f"{pin} needs {line}"
                )
                needed.add(name)
    assert pins.keys() <= needed


def test_arm_gets_the_torch_that_starts_on_every_raspberry_pi() -> None:
    target = Target("child", "aarch64", "3.11", torch=True)
    pins = read_pins(target.requirements, target)
    assert (
        pins["torch"] == Pin("torch", "2.9.1") and "box2d" not in pins and "setuptools" not in pins
    )


def test_what_the_tests_take_is_pinned_within_its_range() -> None:
    """Each package of each extra that `make install` and the tests name has its version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"-e \"\.\[(.*?)\]\"", makefile)
    extras = {extra for line in lines for extra in line.split(",")} | {"docs"}
    assert {"dev", "page", "search", "deploy"} < extras
    asked = [
        Requirement(line)
        for extra in sorted(extras)
        for line in project["optional-dependencies"][extra]
    ]
    target = Target("child", platform.machine(), f"3.{sys.version_info.minor}")
    pins = read_pins((ROOT / "constraints.txt").read_text(encoding="utf-8"), target)
    for one in asked:
        if one.marker is None or one.marker.evaluate(target.environment):
            name = canonicalize_name(one.name)
            assert name in pins and one.specifier.contains(pins[name].version), one
