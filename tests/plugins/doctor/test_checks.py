"""Judgements of the doctor: values at both sides of every border."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from genkidama.child.capacity import CHILD_BYTES, CORE_BYTES, GROWTH_BYTES, RESERVE_BYTES
from genkidama.plugins.doctor import checks
from genkidama.plugins.doctor.checks import (
    DAY,
    Check,
    Ended,
    Requirement,
    duration,
    parse_quota,
    parse_requirement,
    size,
    version_allowed,
)

GIB = 1 << 30
TORCH = "!=2.10.*,<3,>=2.6"
PI_OS = "install the 64-bit Raspberry Pi OS"
WEBSOCKETS = Requirement("websockets", "<18,>=16", "")
WELL, STUCK, ILLEGAL = Ended(0, "2.9.1"), Ended(None, ""), Ended(-4, "", "SIGILL")
KILLED, SEGMENTATION = Ended(-9, "", "SIGKILL"), Ended(-11, "", "SIGSEGV")
MISSING = Ended(1, "ModuleNotFoundError: No module named 'torch'")
BROKEN = Ended(1, "ImportError: libgomp.so.1")
NO_BOX2D = Ended(1, "DependencyNotInstalled: Box2D")
WHEEL, SOURCE = "pip install 'genkidama-rl[lander]'", "box2d-py==2.3.8"
PINNED, NEWEST = "pip install 'torch==2.9.*'", f"pip install 'torch{TORCH}'"

CORE = CORE_BYTES + GROWTH_BYTES
ENOUGH = CHILD_BYTES + RESERVE_BYTES + 4 * CORE
NEWEST_FILE = 1.8e9
CERTIFICATE = "TLSv1.3, certificate for pi, 10.0.0.1, "
SUFFIX = " days left"

#: Judgement, its arguments, its status, and words of its finding and of its advice.
ROWS: list[tuple[Callable[..., Check], tuple[Any, ...], str, str, str]] = [
    (checks.judge_python, ((3, 10, 14),), "failed", "3.10.14", "3.11 or later"),
    (checks.judge_python, ((3, 11, 0),), "ok", "3.11.0", ""),
    (checks.judge_python, ((4, 0, 0),), "ok", "4.0.0", ""),
    (checks.judge_processor, ("Linux", "x86_64", 64), "ok", "Linux x86_64, 64 bits", ""),
    (checks.judge_processor, ("Linux", "aarch64", 64), "ok", "", ""),
    (checks.judge_processor, ("Darwin", "arm64", 64), "ok", "", ""),
    (checks.judge_processor, ("Linux", "aarch64", 32), "failed", "", f"this Python 32: {PI_OS}"),
    (checks.judge_processor, ("Linux", "armv7l", 32), "failed", "", PI_OS),
    (checks.judge_processor, ("Linux", "armv8l", 32), "failed", "", PI_OS),
    (checks.judge_processor, ("Linux", "armv6l", 32), "failed", "", "take a Pi 3 or later"),
    (checks.judge_processor, ("Linux", "x86_64", 32), "failed", "", "64-bit system"),
    (checks.judge_processor, ("Linux", "riscv64", 64), "warning", "", "built from source"),
    (checks.judge_processor, ("Windows", "AMD64", 64), "failed", "", "WSL 2"),
    (checks.judge_c_library, ("glibc", "2.27"), "failed", "glibc 2.27", "newer system"),
    (checks.judge_c_library, ("glibc", "2.28"), "ok", "", ""),
    (checks.judge_c_library, ("glibc", "2.36-9+deb12u4"), "ok", "", ""),
    (checks.judge_c_library, ("", ""), "failed", "not glibc", "Debian"),
    (checks.judge_c_library, ("musl", "1.2.5"), "failed", "musl 1.2.5", "Debian"),
    (checks.judge_cores, (None, 4, None), "ok", "4 CPU cores", ""),
    (checks.judge_cores, (4, 4, None), "ok", "for 4 core processes", ""),
    (checks.judge_cores, (5, 4, None), "warning", "", "--cores 4"),
    (checks.judge_cores, (4, 4, 1.5), "warning", "allows 1.5", "--cores 1"),
    (checks.judge_cores, (None, 4, 2.0), "warning", "", "--cores 2"),
    (checks.judge_cores, (2, 4, 2.0), "ok", "", ""),
    (checks.judge_cores, (1, 4, 0.5), "warning", "", "--cores 1"),
    (checks.judge_cores, (None, 4, 8.0), "ok", "", ""),
    (checks.judge_memory, (ENOUGH, 0, 4, True), "ok", "no swap", ""),
    (checks.judge_memory, (ENOUGH - 1, GIB, 4, True), "failed", "1.0 GiB of swap", "--cores 3 fi"),
    (checks.judge_memory, (ENOUGH - 1, 0, 4, False), "warning", "", "takes what fits, about 3"),
    (checks.judge_memory, (CHILD_BYTES + CORE - 1, 0, 1, False), "failed", "", "end other"),
    (checks.judge_memory, (CHILD_BYTES + CORE, 0, 1, False), "ok", "with 1 core takes", ""),
    (checks.judge_memory, (-1, 0, 1, False), "failed", "", "add swap"),
    (checks.judge_memory, (None, 0, 4, True), "skipped", "does not say", ""),
    (checks.judge_memory, (ENOUGH - GIB, 0, 4, True, GIB), "ok", "of the child that runs", ""),
    (checks.judge_disk, (99, "/", 100, 200), "failed", "free at /", "make room"),
    (checks.judge_disk, (100, "/", 100, 200), "warning", "", "make room"),
    (checks.judge_disk, (199, "/", 100, 200), "warning", "", "make room"),
    (checks.judge_disk, (200, "/", 100, 200), "ok", "", ""),
    # Files may come from another time zone.
    (checks.judge_clock_alone, (NEWEST_FILE - 0.9 * DAY, NEWEST_FILE), "ok", "plausible", ""),
    (checks.judge_clock_alone, (NEWEST_FILE + 3650 * DAY, NEWEST_FILE), "ok", "", ""),
    (checks.judge_clock_alone, (0.0, NEWEST_FILE), "failed", "57 years before", "set-ntp"),
    (checks.judge_clock_alone, (NEWEST_FILE, NEWEST_FILE, "synchronized"), "ok", "synchron", ""),
    (checks.judge_package, (WEBSOCKETS, "17.4", ""), "ok", "17.4", ""),
    (
        checks.judge_package,
        (WEBSOCKETS, None, ""),
        "failed",
        "not installed",
        "pip install 'websockets<18,>=16'",
    ),
    (checks.judge_package, (WEBSOCKETS, "15.0", ""), "failed", "15.0, but <18", "pip install"),
    (checks.judge_package, (WEBSOCKETS, "17.4", "libz.so.1"), "failed", "libz.so.1", "--force-"),
    (checks.judge_torch, (TORCH, "2.9.1", WELL, "aarch64"), "ok", "2.9.1, a forward and a", ""),
    (
        checks.judge_torch,
        (TORCH, "2.10.0", Ended(0, "2.10.0"), "x86_64"),
        "failed",
        f"2.10.0, but {TORCH} is needed",
        NEWEST,
    ),
    (
        checks.judge_torch,
        (TORCH, "2.4.0", ILLEGAL, "aarch64"),
        "failed",
        "torch 2.4.0: its process dies of SIGILL",
        PINNED,
    ),
    (checks.judge_torch, (TORCH, "2.10.0", ILLEGAL, "aarch64"), "failed", "of SIGILL", PINNED),
    (checks.judge_torch, (TORCH, "2.12.0", ILLEGAL, "x86_64"), "failed", "of SIGILL", NEWEST),
    (checks.judge_torch, (TORCH, "2.12.0", KILLED, "x86_64"), "failed", "of SIGKILL", "memory"),
    (
        checks.judge_torch,
        (TORCH, "2.12.0", SEGMENTATION, "aarch64"),
        "failed",
        "of SIGSEGV",
        "--force-reinstall 'torch==2.9.*'",
    ),
    (checks.judge_torch, (TORCH, None, MISSING, "aarch64"), "ok", "not installed: only", ""),
    (checks.judge_torch, (TORCH, "2.12.0", BROKEN, "x86_64"), "failed", BROKEN.said, "reinstall"),
    (checks.judge_torch, (TORCH, "2.12.0", STUCK, "aarch64"), "failed", "not end", "SD card"),
    (checks.judge_box2d, (WELL, "Linux", "aarch64", (3, 14)), "ok", "made and stepped", ""),
    (checks.judge_box2d, (NO_BOX2D, "Linux", "x86_64", (3, 13)), "warning", NO_BOX2D.said, WHEEL),
    (checks.judge_box2d, (NO_BOX2D, "Linux", "aarch64", (3, 13)), "warning", "", SOURCE),
    (checks.judge_box2d, (NO_BOX2D, "Linux", "x86_64", (3, 14)), "warning", "", SOURCE),
    (checks.judge_box2d, (NO_BOX2D, "Darwin", "arm64", (3, 13)), "warning", "", WHEEL),
    (checks.judge_box2d, (SEGMENTATION, "Linux", "x86_64", (3, 13)), "failed", "SIGSEGV", WHEEL),
    (checks.judge_box2d, (STUCK, "Linux", "x86_64", (3, 13)), "failed", "not end", "SD card"),
    (checks.judge_unknown_name, ("parent.local", "?"), "failed", "", "avahi-daemon libnss-mdns"),
    (checks.judge_unknown_name, ("parent.lan", "?"), "failed", "parent.lan: ?", "check the spel"),
    *(
        (checks.judge_closed_port, ("pi", 8765, number, "words"), "failed", found, advice)
        for number, found, advice in [
            (errno.ECONNREFUSED, "pi:8765: refused: nothing listens there", "start the parent"),
            (None, "pi:8765: no answer", "firewall"),
            (errno.ETIMEDOUT, "pi:8765: no answer", "firewall"),
            (errno.EHOSTUNREACH, "pi:8765: no way there: words", "same network"),
            (errno.ENETUNREACH, "pi:8765: no way there: words", "ip route"),
            (errno.EPERM, "pi:8765: words", "firewall"),
        ]
    ),
    *(
        (checks.judge_server_header, (header, healthy, "1.2", protocol), status, found, "")
        for header, healthy, protocol, status, found in [
            ("genkidama/1.2 protocol/3", True, 3, "ok", "1.2, protocol 3, on both sides"),
            ("genkidama/1.3 protocol/3", True, 3, "warning", "parent has 1.3, this machine 1.2"),
            ("genkidama/1.2 protocol/4", True, 3, "failed", "1.2 with protocol 4, this machine"),
            ("genkidama/1.1 protocol/2", True, 3, "failed", "the parent has 1.1 with protocol 2"),
            ("genkidama/1.2 protocol/4", True, None, "ok", "1.2, protocol 4, on both sides"),
            ("nginx", True, 3, "warning", "hidden by nginx"),
            ("nginx", False, 3, "failed", "nginx answers"),
            ("", False, 3, "failed", "something answers"),
        ]
    ),
    *(
        (
            checks.judge_certificate,
            ("tls", ["pi", "10.0.0.1"], 1e9 + days * DAY, 1e9, "TLSv1.3"),
            status,
            f"{CERTIFICATE}{days:.0f}{SUFFIX}",
            "",
        )
        for days, status in [(400, "ok"), (30, "ok"), (29.9, "warning"), (0.1, "warning")]
    ),
    *(
        (checks.judge_clock_offset, (seconds,), status, found, "")
        for seconds, status, found in [
            (0.4, "ok", "as the parent's, to a second"),
            (-5.0, "ok", "5 seconds behind the parent's"),
            (5.1, "warning", "5 seconds ahead of the parent's"),
            (-300.0, "warning", "5 minutes behind the parent's"),
            (301.0, "failed", "5 minutes ahead of the parent's"),
            (-3 * 365.25 * DAY, "failed", "3 years behind the parent's"),
        ]
    ),
    (checks.judge_page, (200, "", "http://pi/"), "ok", "http://pi/", ""),
    (checks.judge_page, (401, "", "http://pi/"), "ok", "for viewers", ""),
    (checks.judge_page, (403, "", "http://pi/"), "warning", "not shown under this", "an address"),
    (
        checks.judge_page,
        (0, "reset", "http://pi/"),
        "warning",
        "http://pi/: reset",
        "look for a proxy",
    ),
]


@pytest.mark.parametrize(("judge", "arguments", "status", "found", "advice"), ROWS)
def test_judgement(
    judge: Callable[..., Check], arguments: tuple[Any, ...], status: str, found: str, advice: str
) -> None:
    check = judge(*arguments)
    assert check.status == status, check
    assert found in check.found and advice in check.advice, check
    assert bool(check.advice) == (status in ("warning", "failed"))


def test_words_for_sizes_and_times() -> None:
    sizes = {0: "0 MiB", 300 << 20: "300 MiB", GIB: "1.0 GiB", 1600 << 20: "1.6 GiB"}
    assert {count: size(count) for count in sizes} == sizes
    times = {5: "5 seconds", 119: "119 seconds", 120: "2 minutes", 7200: "2 hours"}
    times[2 * DAY] = "2 days"
    assert {seconds: duration(seconds) for seconds in times} == times


def test_a_quota() -> None:
    quotas = {"max 100000\n": None, "150000 100000\n": 1.5, "50000 100000": 0.5}
    quotas |= {"": None, "nonsense": None, "1 0": None}
    assert {text: parse_quota(text) for text in quotas} == quotas


def test_requirements() -> None:
    lines = {
        "gymnasium>=1.0": ("gymnasium", ">=1.0", ""),
        "torch!=2.10.*,<3,>=2.6": ("torch", TORCH, ""),
        "torch (>= 2.6, <3)": ("torch", ">=2.6,<3", ""),
        "psycopg[binary]>=3.1; extra == 'sql'": ("psycopg", ">=3.1", "extra == 'sql'"),
        "tomli-w": ("tomli-w", "", ""),
        "thing @ https://example.org/a.whl": ("thing", "@https://example.org/a.whl", ""),
    }
    assert {line: tuple(parse_requirement(line)) for line in lines} == lines


VERSIONS = ["1.0", "2.4.0", "2.5.1", "2.6.0", "2.9.1+cpu", "2.10.0", "2.10.1", "2.11.0"]
VERSIONS += ["2.100.0", "3.0", "3"]
SPECIFIERS = [TORCH, ">=16,<18", "==2.9.*", "==2.10.1", "!=3.0", "~=2.5", "~=2.4.0", ">2.5.1"]
SPECIFIERS += ["<=2.10", "", "===2.6.0", ">=2.6, <3.0"]


@pytest.mark.parametrize("specifiers", SPECIFIERS)
def test_versions_as_packaging_has_it(specifiers: str) -> None:
    packaging = pytest.importorskip("packaging.specifiers")
    judge = packaging.SpecifierSet(specifiers)
    found = {version: version_allowed(version, specifiers.replace(" ", "")) for version in VERSIONS}
    assert found == {version: judge.contains(version) for version in VERSIONS}
