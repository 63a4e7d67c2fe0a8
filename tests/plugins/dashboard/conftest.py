"""A browser, which takes seconds to begin, and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import Started, starting

if TYPE_CHECKING:
    from tests.plugins.dashboard.browser import Look


@pytest.fixture(scope="module")
def look() -> Iterator[Look]:
    from tests.plugins.dashboard.browser import browsing

    with browsing() as look:
        yield look


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with starting(tmp_path) as start:
        yield start
