"""A browser that looks at pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugins.dashboard.browser import Look


@pytest.fixture(scope="module")
def look() -> Iterator[Look]:
    from tests.plugins.dashboard.browser import browsing  # which skips without Playwright

    with browsing() as look:
        yield look
