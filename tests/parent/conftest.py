"""The parent that most tests need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from genkidama.parent import Parent
from tests.helpers import running
from tests.parent.parents import experiment


@pytest.fixture
async def parent(tmp_path: Path) -> AsyncIterator[Parent]:
    async with running(experiment(), tmp_path / "run") as parent:
        yield parent
