"""What the tests of deployment measure is printed at their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Iterator[list[str]]:
    """Lines that a test adds to what is printed at the end; its report carries them."""
    lines: list[str] = []
    yield lines
    for line in lines:
        record_property("figure", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    ended = [report for report in reports if getattr(report, "when", "") == "teardown"]
    if lines := [text for one in ended for key, text in one.user_properties if key == "figure"]:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)
