"""What the doctor thinks of the way to a parent: values at both sides of every border."""

from __future__ import annotations

import errno

import pytest

from genkidama.doctor.judgements.check import DAY
from genkidama.doctor.judgements.connection import (
    judge_certificate,
    judge_clock_offset,
    judge_closed_port,
    judge_server_header,
    judge_unknown_name,
)


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
