"""What the doctor thinks of a machine: values at both sides of every border."""

from __future__ import annotations

import doctest

import pytest

from genkidama.capacity import CHILD_BYTES, CORE_BYTES, GROWTH_BYTES, RESERVE_BYTES
from genkidama.doctor.judgements import machine
from genkidama.doctor.judgements.check import DAY
from genkidama.doctor.judgements.machine import (
    judge_c_library,
    judge_clock_alone,
    judge_cores,
    judge_disk,
    judge_memory,
    judge_processor,
    judge_python,
    parse_quota,
)

GIB = 1 << 30


def test_the_examples_are_true() -> None:
    assert doctest.testmod(machine).failed == 0


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
