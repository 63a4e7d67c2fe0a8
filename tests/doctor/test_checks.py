"""Judgements of the doctor: values at both sides of every border."""

from __future__ import annotations

import doctest
import errno

import pytest

from genkidama.capacity import CHILD_BYTES, CORE_BYTES, GROWTH_BYTES, RESERVE_BYTES
from genkidama.doctor import checks
from genkidama.doctor.checks import (
    DAY,
    Check,
    Ended,
    Requirement,
    duration,
    judge_box2d,
    judge_c_library,
    judge_certificate,
    judge_clock_alone,
    judge_clock_offset,
    judge_closed_port,
    judge_cores,
    judge_disk,
    judge_memory,
    judge_package,
    judge_processor,
    judge_python,
    judge_server_header,
    judge_torch,
    judge_unknown_name,
    parse_quota,
    parse_requirement,
    size,
    version_allowed,
)

GIB = 1 << 30


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 MiB"), (300 << 20, "300 MiB"), (GIB, "1.0 GiB"), (1600 << 20, "1.6 GiB")],
)
def test_size(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5, "5 seconds"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7200, "2 hours"),
        (2 * DAY, "2 days"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


TORCH = "!=2.10.*,<3,>=2.6"


def test_the_examples_are_true() -> None:
    assert doctest.testmod(checks).failed == 0


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


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10, 14), "failed"), ((3, 11, 0), "ok"), ((3, 14, 1), "ok"), ((4, 0, 0), "ok")],
)
def test_python(version: tuple[int, ...], status: str) -> None:
    assert judge_python(version).status == status


@pytest.mark.parametrize(
    ("system", "machine", "bits", "status", "advice"),
    [
        ("Linux", "x86_64", 64, "ok", ""),
        ("Linux", "aarch64", 64, "ok", ""),
        ("Darwin", "arm64", 64, "ok", ""),
        (
            "Linux",
            "aarch64",
            32,
            "failed",
            "the kernel has 64 bits, this Python 32: install the 64-bit Raspberry Pi OS",
        ),
        ("Linux", "armv7l", 32, "failed", "64-bit Raspberry Pi OS"),
        ("Linux", "armv8l", 32, "failed", "64-bit Raspberry Pi OS"),
        ("Linux", "armv6l", 32, "failed", "take a Pi 3 or later"),
        ("Linux", "x86_64", 32, "failed", "64-bit system"),
        ("Linux", "riscv64", 64, "warning", "built from source"),
        ("Windows", "AMD64", 64, "failed", "WSL 2"),
    ],
)
def test_processor(system: str, machine: str, bits: int, status: str, advice: str) -> None:
    found = judge_processor(system, machine, bits)
    assert found.status == status and advice in found.advice
    assert found.found == f"{system} {machine}, {bits} bits"


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [
        ("glibc", "2.27", "failed"),
        ("glibc", "2.28", "ok"),
        ("glibc", "2.41", "ok"),
        ("", "", "failed"),
        ("musl", "1.2.5", "failed"),
    ],
)
def test_c_library(name: str, version: str, status: str) -> None:
    assert judge_c_library(name, version).status == status


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("max 100000\n", None),
        ("150000 100000\n", 1.5),
        ("50000 100000", 0.5),
        ("", None),
        ("nonsense", None),
        ("1 0", None),
    ],
)
def test_quota(text: str, quota: float | None) -> None:
    assert parse_quota(text) == quota


@pytest.mark.parametrize(
    ("wanted", "available", "quota", "status", "advice"),
    [
        (None, 4, None, "ok", ""),
        (4, 4, None, "ok", ""),
        (5, 4, None, "warning", "--cores 4"),
        (4, 4, 1.5, "warning", "--cores 1"),
        (None, 4, 2.0, "warning", "--cores 2"),
        (2, 4, 2.0, "ok", ""),
        (1, 4, 0.5, "warning", "--cores 1"),
        (None, 4, 8.0, "ok", ""),
    ],
)
def test_cores(
    wanted: int | None, available: int, quota: float | None, status: str, advice: str
) -> None:
    found = judge_cores(wanted, available, quota)
    assert found.status == status and found.advice.endswith(advice)


def test_memory() -> None:
    core = CORE_BYTES + GROWTH_BYTES
    enough = CHILD_BYTES + RESERVE_BYTES + 4 * core
    assert judge_memory(enough, 0, 4, said=True).status == "ok"
    short = judge_memory(enough - 1, GIB, 4, said=True)
    assert (
        short.status == "failed"
        and short.advice.startswith("--cores 3 fits")
        and "1.0 GiB of swap" in short.found
    )
    assert judge_memory(enough - 1, 0, 4, said=False).status == "warning"  # it runs as many as fit
    assert judge_memory(CHILD_BYTES + core - 1, 0, 1, said=False).status == "failed"
    assert judge_memory(CHILD_BYTES + core, 0, 1, said=False).status == "ok"
    assert judge_memory(-1, 0, 1, said=False).status == "failed"
    assert judge_memory(None, 0, 4, said=True).status == "skipped"
    there = judge_memory(enough - GIB, 0, 4, said=True, running=GIB)
    assert there.status == "ok" and "of the child that runs" in there.found


@pytest.mark.parametrize(
    ("free", "status"), [(99, "failed"), (100, "warning"), (199, "warning"), (200, "ok")]
)
def test_disk(free: int, status: str) -> None:
    assert judge_disk(free, "/", 100, 200).status == status


def test_a_clock_that_is_alone() -> None:
    newest = 1.8e9
    assert (
        judge_clock_alone(newest - 0.9 * DAY, newest).status == "ok"
    )  # files may come from another time zone
    assert judge_clock_alone(newest + 10 * 365 * DAY, newest).status == "ok"
    found = judge_clock_alone(0.0, newest)
    assert (found.status, found.found) == ("failed", "57 years before Genkidama was installed")


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


@pytest.mark.parametrize(
    ("number", "found", "advice"),
    [
        (errno.ECONNREFUSED, "refused: nothing listens there", "start the parent"),
        (None, "no answer", "firewall"),
        (errno.ETIMEDOUT, "no answer", "firewall"),
        (errno.EHOSTUNREACH, "no way there", "same network"),
        (errno.ENETUNREACH, "no way there", "ip route"),
        (errno.EPERM, "the system's words", "firewall"),
    ],
)
def test_closed_port(number: int | None, found: str, advice: str) -> None:
    check = judge_closed_port("pi", 8765, number, "the system's words")
    assert (
        check.status == "failed"
        and check.found.startswith(f"pi:8765: {found}")
        and advice in check.advice
    )


def test_unknown_name() -> None:
    assert "avahi-daemon libnss-mdns" in judge_unknown_name("parent.local", "unknown").advice
    assert "avahi" not in judge_unknown_name("parent.lan", "unknown").advice


@pytest.mark.parametrize(
    ("header", "healthy", "protocol", "status", "found"),
    [
        ("genkidama/1.2 protocol/3", True, 3, "ok", "1.2, protocol 3, on both sides"),
        ("genkidama/1.3 protocol/3", True, 3, "warning", "the parent has 1.3, this machine 1.2"),
        (
            "genkidama/1.2 protocol/4",
            True,
            3,
            "failed",
            "the parent has 1.2 with protocol 4, this machine 1.2 with protocol 3",
        ),
        ("genkidama/1.1 protocol/2", True, 3, "failed", "the parent has 1.1 with protocol 2"),
        ("genkidama/1.2 protocol/4", True, None, "ok", "1.2, protocol 4, on both sides"),
        ("nginx", True, 3, "warning", "hidden by nginx"),
        ("nginx", False, 3, "failed", "nginx answers"),
        ("", False, 3, "failed", "something answers"),
    ],
)
def test_server_header(
    header: str, healthy: bool, protocol: int | None, status: str, found: str
) -> None:
    check = judge_server_header(header, healthy, "1.2", protocol)
    assert check.status == status and check.found.startswith(found)


@pytest.mark.parametrize(
    ("days", "status"), [(400, "ok"), (30, "ok"), (29.9, "warning"), (0.1, "warning")]
)
def test_certificate(days: float, status: str) -> None:
    check = judge_certificate("tls", ["pi", "10.0.0.1"], 1e9 + days * DAY, 1e9, "TLSv1.3")
    assert (
        check.status == status
        and check.found == f"TLSv1.3, certificate for pi, 10.0.0.1, {days:.0f} days left"
    )


@pytest.mark.parametrize(
    ("seconds", "status", "found"),
    [
        (0.4, "ok", "as the parent's, to a second"),
        (-5.0, "ok", "5 seconds behind the parent's"),
        (5.1, "warning", "5 seconds ahead of the parent's"),
        (-300.0, "warning", "5 minutes behind the parent's"),
        (301.0, "failed", "5 minutes ahead of the parent's"),
        (-3 * 365.25 * DAY, "failed", "3 years behind the parent's"),
    ],
)
def test_clock(seconds: float, status: str, found: str) -> None:
    assert judge_clock_offset(seconds)[:3] == ("clock", status, found)
