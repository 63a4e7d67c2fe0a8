"""What the doctor thinks of packages, torch and Box2D."""

from __future__ import annotations

import pytest

from genkidama.doctor.judgements.check import Check
from genkidama.doctor.judgements.software import Ended, judge_box2d, judge_package, judge_torch
from genkidama.doctor.judgements.versions import Requirement

TORCH = "!=2.10.*,<3,>=2.6"


def test_package() -> None:
    wanted = Requirement("websockets", "<18,>=16", "")
    assert judge_package(wanted, "17.4", "") == Check("websockets", "ok", "17.4")
    assert judge_package(wanted, None, "") == Check(
        "websockets", "failed", "not installed", "pip install 'websockets<18,>=16'"
    )
    assert judge_package(wanted, "15.0", "").status == "failed"
    broken = judge_package(wanted, "17.4", "ImportError: libz.so.1")
    assert (
        broken.status == "failed"
        and "libz.so.1" in broken.found
        and "--force-reinstall" in broken.advice
    )


WELL = Ended(0, "2.9.1")
ILLEGAL = Ended(-4, "", "SIGILL")
KILLED = Ended(-9, "", "SIGKILL")
SEGMENTATION = Ended(-11, "", "SIGSEGV")
STUCK = Ended(None, "")
MISSING = Ended(1, "ModuleNotFoundError: No module named 'torch'")
BROKEN = Ended(1, "ImportError: libgomp.so.1")

PINNED = "pip install 'torch==2.9.*'"
NEWEST = f"pip install 'torch{TORCH}'"


@pytest.mark.parametrize(
    ("version", "ended", "machine", "found", "advice"),
    [
        ("2.10.0", Ended(0, "2.10.0"), "x86_64", f"2.10.0, but {TORCH} is needed", NEWEST),
        ("2.4.0", ILLEGAL, "aarch64", "torch 2.4.0: its process dies of SIGILL", PINNED),
        ("2.10.0", ILLEGAL, "aarch64", "dies of SIGILL", PINNED),
        ("2.12.0", ILLEGAL, "x86_64", "dies of SIGILL", NEWEST),
        ("2.12.0", KILLED, "x86_64", "dies of SIGKILL", "memory"),
        ("2.12.0", SEGMENTATION, "aarch64", "of SIGSEGV", "--force-reinstall 'torch==2.9.*'"),
        (None, MISSING, "aarch64", "not installed", PINNED),
        ("2.12.0", BROKEN, "x86_64", f"torch 2.12.0 fails: {BROKEN.said}", "reinstall"),
        ("2.12.0", STUCK, "aarch64", "does not end", "SD card"),
    ],
)
def test_torch(version: str | None, ended: Ended, machine: str, found: str, advice: str) -> None:
    check = judge_torch(TORCH, version, ended, machine)
    assert check.status == "failed" and found in check.found and advice in check.advice
    well = judge_torch(TORCH, "2.9.1", WELL, machine)
    assert well == Check("torch", "ok", "2.9.1, a forward and a backward pass")


NO_BOX2D = Ended(1, "DependencyNotInstalled: Box2D")


@pytest.mark.parametrize(
    ("ended", "system", "machine", "python", "found", "advice"),
    [
        (NO_BOX2D, "Linux", "x86_64", (3, 13), NO_BOX2D.said, "pip install 'gymnasium[box2d]'"),
        (NO_BOX2D, "Linux", "aarch64", (3, 13), NO_BOX2D.said, "box2d-py==2.3.8"),
        (NO_BOX2D, "Linux", "x86_64", (3, 14), NO_BOX2D.said, "box2d-py==2.3.8"),
        (NO_BOX2D, "Darwin", "arm64", (3, 13), NO_BOX2D.said, "pip install 'gymnasium[box2d]'"),
        (SEGMENTATION, "Linux", "x86_64", (3, 13), "dies of SIGSEGV", "'gymnasium[box2d]'"),
        (STUCK, "Linux", "x86_64", (3, 13), "does not end", "SD card"),
    ],
)
def test_box2d(
    ended: Ended, system: str, machine: str, python: tuple[int, ...], found: str, advice: str
) -> None:
    check = judge_box2d(ended, system, machine, python)
    assert check.status == "failed" and found in check.found and advice in check.advice
    assert judge_box2d(Ended(0, ""), system, machine, python).status == "ok"
