"""What the tests of deployment measure is printed at their end."""

from __future__ import annotations

import pytest

#: Lines that tests have added, in their order.
FIGURES: list[str] = []


@pytest.fixture
def figures() -> list[str]:
    return FIGURES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.section("figures")
        for line in FIGURES:
            terminalreporter.write_line(line)
